/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_open.c - joins the two halves of a model file, weights and vocabulary. It stands here
 * because text/ reads model/'s GGUF files, so model/ itself must not know text/.
 */
#include "runtime/model/load.h"
#include "runtime/text/vocab.h"

int model_open(struct model **ret_model, const char *path, uint32_t n_ctx,
               const struct cpu_kernels *kernels, struct team *team, struct diag *diag)
{
    struct model *model;
    struct gguf *gguf;
    int err = model_load(&model, &gguf, path, n_ctx, team, diag);

    (void)kernels; /* all variants read the same packed layout */
    if (err < 0)
        return err;
    err = vocab_new(&model->vocab, gguf, diag);
    gguf_close(gguf);
    if (err < 0) {
        model_free(model);
        return err;
    }
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
