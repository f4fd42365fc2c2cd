/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/mem.h"
#include "runtime/model/digest.h"
#include "runtime/model/load.h"
#include "runtime/model/pack_cache.h"
#include "runtime/model/pack_save.h"

#define TEMPLATE_BYTES_MAX (1u << 20) /* real ones have up to some 20 KB */

/* The name is shown to people and other programs: printable, and cut at a whole character. */
static void copy_name(char *dst, size_t size, const char *src, size_t n)
{
    size_t keep = n < size - 1 ? n : size - 1;

    while (keep < n && keep > 0 && ((unsigned char)src[keep] & 0xc0) == 0x80)
        keep--;
    for (size_t i = 0; i < keep; i++)
        dst[i] = (unsigned char)src[i] < 0x20 || src[i] == 0x7f ? '?' : src[i];
    dst[keep] = '\0';
}

static int read_names(struct model *model, const struct gguf *g, struct diag *diag)
{
    const char *slash = strrchr(gguf_path(g), '/');
    const char *file = slash ? slash + 1 : gguf_path(g);
    struct gguf_str name;
    int err = gguf_get_str(g, "general.name", &name, diag);

    if (err < 0 && err != -ENOENT)
        return err;
    if (err == 0 && name.n > 0)
        copy_name(model->name, sizeof model->name, name.s, name.n);
    else
        copy_name(model->name, sizeof model->name, file, strlen(file));
    copy_name(model->arch, sizeof model->arch, "llama", 5); /* hparams_read() takes no other */
    return 0;
}

static int read_template(struct model *model, const struct gguf *g, struct diag *diag)
{
    static const char key[] = "tokenizer.chat_template";
    struct gguf_str text;
    int err = gguf_get_str(g, key, &text, diag);

    if (err == -ENOENT)
        return 0;
    if (err < 0)
        return err;
    if (text.n > TEMPLATE_BYTES_MAX || memchr(text.s, '\0', text.n)) {
        diag_set(diag, "%s: key '%s' has %zu bytes, expected at most %u and no NUL", gguf_path(g),
                 key, text.n, TEMPLATE_BYTES_MAX);
        return -EINVAL;
    }
    model->chat_template = strndup(text.s, text.n);
    return model->chat_template ? 0 : -ENOMEM;
}

static int choose_context(struct model *model, uint32_t n_ctx, const char *path, struct diag *diag)
{
    uint32_t train = model->hp.n_ctx_train;

    if (n_ctx > train) {
        diag_set(diag,
                 "%s: a context of %" PRIu32
                 " is asked for, key 'llama.context_length' allows %" PRIu32,
                 path, n_ctx, train);
        return -EINVAL;
    }
    model->n_ctx = n_ctx ? n_ctx : train;
    if (model->n_ctx > MODEL_CTX_MAX) {
        diag_set(diag,
                 "%s: key 'llama.context_length' is %" PRIu32
                 ", at most %u are run: ask for a shorter context",
                 path, train, MODEL_CTX_MAX);
        return -EINVAL;
    }
    return 0;
}

int model_load(struct model **ret_model, const char *path, const struct load_opt *opt,
               struct team *team, struct diag *diag)
{
    struct model *model = calloc(1, sizeof *model);
    struct gguf *g = NULL;
    float linear;
    int err;

    if (!model)
        return -ENOMEM;
    err = gguf_open(&g, path, diag);
    if (err < 0)
        goto fail;
    err = hparams_read(&model->hp, &linear, g, diag);
    if (err == 0)
        err = choose_context(model, opt->n_ctx, path, diag);
    if (err == 0)
        err = read_names(model, g, diag);
    if (err == 0)
        err = read_template(model, g, diag);
    if (err < 0)
        goto fail;
    model->layers = calloc(model->hp.n_layer, sizeof *model->layers);
    err = model->layers ? weights_load(model, g, linear, opt, team, diag) : -ENOMEM;
    if (err < 0)
        goto fail;
    gguf_close(g);
    *ret_model = model;
    return 0;

fail:
    gguf_close(g);
    model_unload(model);
    return err;
}

void model_unload(struct model *model)
{
    if (!model)
        return;
    pack_keep_free(model->keep);
    if (model->packed)
        pack_cache_close(model->packed);
    free(model->packed);
    mem_unmap(model->memory, model->memory_bytes);
    free(model->chat_template);
    free(model->layers);
    free(model);
}

void model_keep_kv(struct model *model, enum kv_type type)
{
    if (type == KV_F16)
        return;
    for (uint32_t at = 0; at < sizeof model->hash; at += DIGEST_BYTES) {
        char text[DIGEST_BYTES + 16] = {0};

        memcpy(text, model->hash + at, DIGEST_BYTES);
        snprintf(text + DIGEST_BYTES, sizeof text - DIGEST_BYTES, "kv %s", kv_type_name(type));
        digest_bytes(model->hash + at, text, sizeof text);
    }
}
