/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama_logits.c - llama.cpp's or ik_llama.cpp's rows of logits of a text, for quality.py:
 * llama_logits MODEL WINDOW THREADS FLASH_ATTENTION <IDS >ROWS
 *
 * IDS are uint32_t, ROWS floats [ids][n_vocab], both as this machine stores them. The ids are cut into
 * windows, each a sequence of its own that is one batch. All else is as the library has it by default.
 * Compiled by bench/peers/install against llama.cpp and, with -DIK, against ik_llama.cpp, whose
 * interface is an older one. That one repacks its weights, as it does where it is raced.
 */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>

static void log_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static struct llama_context *context_open(struct llama_model *model, uint32_t window, int threads,
                                          int flash)
{
    struct llama_context_params params = llama_context_default_params();

    params.n_ctx = params.n_batch = params.n_ubatch = window;
    params.n_threads = params.n_threads_batch = threads;
#ifdef IK
    params.flash_attn = flash;
#else
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
#endif
    return llama_init_from_model(model, params);
}

static struct llama_model *model_open(const char *path)
{
    struct llama_model_params params = llama_model_default_params();

#ifdef IK
    params.use_mmap = 0;
    params.repack_tensors = 1;
#endif
    return llama_model_load_from_file(path, params);
}

static void forget(struct llama_context *ctx)
{
#ifdef IK
    llama_kv_cache_clear(ctx);
#else
    llama_memory_clear(llama_get_memory(ctx), true);
#endif
}

static void batch_fill(struct llama_batch *batch, const uint32_t *ids, uint32_t n)
{
    batch->n_tokens = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        batch->token[i] = (llama_token)ids[i];
        batch->pos[i] = (llama_pos)i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i] = 1;
    }
}

static int windows_write(struct llama_context *ctx, uint32_t window, size_t n_vocab)
{
    struct llama_batch batch = llama_batch_init((int32_t)window, 0, 1);
    uint32_t *ids = malloc(window * sizeof *ids);
    size_t n;
    int failed = !ids;

    while (!failed && (n = fread(ids, sizeof *ids, window, stdin)) > 0) {
        batch_fill(&batch, ids, (uint32_t)n);
        forget(ctx);
        failed = llama_decode(ctx, batch) != 0 ||
                 fwrite(llama_get_logits(ctx), n_vocab * sizeof(float), n, stdout) != n;
    }
    llama_batch_free(batch);
    free(ids);
    return failed || fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    struct llama_model *model;
    struct llama_context *ctx;
    int failed;

    if (argc != 5) {
        fprintf(stderr, "usage: llama_logits MODEL WINDOW THREADS FLASH_ATTENTION <IDS >ROWS\n");
        return 2;
    }
    llama_log_set(log_errors, NULL);
    llama_backend_init();
    model = model_open(argv[1]);
    ctx = model ? context_open(model, (uint32_t)atoi(argv[2]), atoi(argv[3]), atoi(argv[4])) : NULL;
    failed = !ctx || windows_write(ctx, (uint32_t)atoi(argv[2]),
                                   (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model)));
    if (failed)
        fprintf(stderr, "llama_logits: it failed\n");
    return failed; /* the end of the process frees all */
}
