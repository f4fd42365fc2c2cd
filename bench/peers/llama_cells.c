/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama_cells.c - what the programs of llama.cpp and ik_llama.cpp do not time, through their library:
 *
 *   llama_cells latency MODEL THREADS packed|mapped      `token` as soon as there is one after a prompt of
 *       32 tokens (whoever started the program takes the time), then cell rss and cell ttft32
 *   llama_cells deep MODEL THREADS FA STATES              cell decode_4k and cell decode_8k: 32 tokens at 4096
 *       and 8000 positions. Computed once, the positions are kept in the files STATES.4096 and STATES.8000
 *
 * Compiled by bench/peers/install against each of the two; -DIK is ik_llama.cpp, whose interface is an
 * older one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <llama.h>

#define CONTEXT  8192
#define CHUNK    512
#define PROMPT   32
#define DEEP     32
#define REQUESTS 20
#define WARM     3

static struct llama_model *model;
static struct llama_context *context;

static void die(const char *what)
{
    fprintf(stderr, "llama_cells: %s\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* packed: weights in memory of its own, in the order that is fastest to multiply. */
static void open_model(const char *path, int threads, int packed, int flash)
{
    struct llama_model_params m = llama_model_default_params();
    struct llama_context_params c = llama_context_default_params();

    llama_log_set(quiet, NULL);
    llama_backend_init();
    c.n_ctx = CONTEXT;
    c.n_threads = threads;
    c.n_threads_batch = threads;
#ifdef IK
    m.use_mmap = !packed;
    m.repack_tensors = packed;
    m.use_thp = packed;
    c.flash_attn = flash;
#else
    m.load_mode = packed ? LLAMA_LOAD_MODE_NONE : LLAMA_LOAD_MODE_MMAP;
    c.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
#endif
    model = llama_model_load_from_file(path, m);
    context = model ? llama_init_from_model(model, c) : NULL;
    if (!context)
        die("cannot open the model");
}

static void forget_all(void)
{
#ifdef IK
    llama_kv_cache_seq_rm(context, 0, -1, -1);
#else
    llama_memory_seq_rm(llama_get_memory(context), 0, -1, -1);
#endif
}

/* Ids that no prompt before had in this order. */
static llama_token any_token(void)
{
    static uint32_t state = 1;

    state = state * 1664525u + 1013904223u;
    return (llama_token)(100 + (state >> 8) % 48000);
}

static llama_token best_token(void)
{
    const float *logits = llama_get_logits_ith(context, -1);
    int n = llama_vocab_n_tokens(llama_model_get_vocab(model)), best = 0;

    for (int i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Tokens of positions begin .. begin + n; the first is `first`, if that is one. The best next. */
static llama_token compute(int begin, int n, llama_token first)
{
    struct llama_batch batch = llama_batch_init(CHUNK, 0, 1);
    llama_token best;

    for (int done = 0; done < n; done += batch.n_tokens) {
        batch.n_tokens = n - done < CHUNK ? n - done : CHUNK;
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = done + i == 0 && first >= 0 ? first : any_token();
            batch.pos[i] = begin + done + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = done + i == n - 1;
        }
        if (llama_decode(context, batch) != 0)
            die("cannot compute");
    }
    best = best_token();
    llama_batch_free(batch);
    return best;
}

static double rss_mb(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    double kb = 0;

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "Rss:", 4) == 0)
            kb = strtod(line + 4, NULL);
    if (file)
        fclose(file);
    return kb * 1024 / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void latency(void)
{
    double ms[REQUESTS];

    compute(0, PROMPT, -1);
    puts("token");
    fflush(stdout);
    printf("cell rss %.1f\n", rss_mb());
    for (int i = 0; i < WARM + REQUESTS; i++) {
        double begin;

        forget_all();
        usleep(20000);
        begin = now();
        compute(0, PROMPT, -1);
        ms[i < WARM ? 0 : i - WARM] = (now() - begin) * 1e3;
    }
    qsort(ms, REQUESTS, sizeof ms[0], by_value);
    printf("cell ttft32 %.3f\n", ms[REQUESTS / 2]);
}

/* The context as it is after `depth` tokens, from the file if that is there. */
static void go_to(int depth, int done, const char *states)
{
    static llama_token tokens[CONTEXT];
    char path[4096];
    size_t n;

    snprintf(path, sizeof path, "%s.%d", states, depth);
    if (access(path, R_OK) == 0) {
        if (!llama_state_load_file(context, path, tokens, CONTEXT, &n) || n != (size_t)depth)
            die("cannot load a state");
        return;
    }
    compute(done, depth - done, -1);
    if (!llama_state_save_file(context, path, tokens, (size_t)depth))
        die("cannot save a state");
}

/* Forgets what it decoded. */
static double decode_rate(int depth)
{
    llama_token token = compute(depth, 1, -1); /* warms up */
    double begin = now(), seconds;

    for (int i = 1; i <= DEEP; i++)
        token = compute(depth + i, 1, token);
    seconds = now() - begin;
#ifdef IK
    llama_kv_cache_seq_rm(context, 0, depth, -1);
#else
    llama_memory_seq_rm(llama_get_memory(context), 0, depth, -1);
#endif
    return DEEP / seconds;
}

static void deep(const char *states)
{
    double near, far;

    go_to(4096, 0, states);
    near = decode_rate(4096);
    go_to(8000, 4096, states);
    far = decode_rate(8000);
    printf("cell decode_4k %.2f\ncell decode_8k %.2f\n", near, far);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "latency") == 0) {
        open_model(argv[2], atoi(argv[3]), strcmp(argv[4], "packed") == 0, 1);
        latency();
    } else if (argc == 6 && strcmp(argv[1], "deep") == 0) {
        open_model(argv[2], atoi(argv[3]), 1, atoi(argv[4]));
        deep(argv[5]);
    } else {
        fprintf(stderr, "usage: see the head of llama_cells.c\n");
        return 2;
    }
    return 0; /* the kernel frees all */
}
