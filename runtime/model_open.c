/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_open.c - joins the two halves of a model file, weights and vocabulary. It stands here
 * because text/ reads model/'s GGUF files, so model/ itself must not know text/.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/load.h"
#include "runtime/text/vocab.h"

/* Errors of the vocabulary name the key; those of the GGUF reader under it name the file
 * already. */
static void diag_name_file(struct diag *diag, const char *path)
{
    struct diag inner;

    if (!diag || strncmp(diag->text, path, strlen(path)) == 0)
        return;
    inner = *diag;
    diag_set(diag, "%s: %s", path, inner.text);
}

struct reading {
    struct vocab *vocab;
    struct diag diag;
    int err;
};

static void read_vocab(void *arg, const struct gguf *g)
{
    struct reading *reading = arg;

    reading->err = vocab_new(&reading->vocab, g, &reading->diag);
}

int model_open(struct model **ret_model, const char *path, uint32_t n_ctx, const char *cache,
               struct team *team, struct diag *diag)
{
    struct reading reading = {.err = 0};
    struct load_opt opt = {
        .n_ctx = n_ctx, .cache = cache, .beside = read_vocab, .beside_arg = &reading};
    struct model *model;
    int err = model_load(&model, path, &opt, team, diag);

    if (err < 0) {
        vocab_free(reading.vocab);
        return err;
    }
    model->vocab = reading.vocab;
    if (reading.err < 0) {
        if (diag)
            *diag = reading.diag;
        diag_name_file(diag, path);
        model_free(model);
        return reading.err;
    }
    *ret_model = model;
    return 0;
}

int model_open_echo(struct model **ret_model, uint32_t n_ctx)
{
    static const char hash[] = "tokenring echo engine, version 1";
    static const char chatml[] =
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    struct model *model = calloc(1, sizeof *model);
    int err;

    if (!model)
        return -ENOMEM;
    err = vocab_new_bytes(&model->vocab);
    model->chat_template = strdup(chatml);
    if (err < 0 || !model->chat_template) {
        model_free(model);
        return -ENOMEM;
    }
    _Static_assert(sizeof hash - 1 == sizeof model->hash, "hash");
    memcpy(model->hash, hash, sizeof model->hash);
    strcpy(model->name, "echo");
    strcpy(model->arch, "echo");
    model->hp.n_vocab = vocab_size(model->vocab);
    model->hp.n_ctx_train = model->n_ctx = n_ctx;
    *ret_model = model;
    return 0;
}

void model_free(struct model *model)
{
    if (!model)
        return;
    vocab_free(model->vocab);
    model_unload(model);
}
