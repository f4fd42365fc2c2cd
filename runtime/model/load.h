/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - the steps of loading a model: hyperparameters, weights, rotation tables. Internal to
 * model/ and model_open.c.
 */
#ifndef RUNTIME_MODEL_LOAD_H
#define RUNTIME_MODEL_LOAD_H

#include "runtime/model/gguf.h"
#include "runtime/model/model.h"

/* Above these a file is refused, whatever it says: far over every published model of the family. */
#define MODEL_LAYERS_MAX   1024u
#define MODEL_EMBD_MAX     65536u
#define MODEL_HEADS_MAX    1024u
#define MODEL_HEAD_DIM_MAX 512u
#define MODEL_FF_MAX       1048576u
#define MODEL_VOCAB_MAX    1048576u
#define MODEL_CTX_MAX      1048576u

struct rope_opt {
    float linear;       /* positions are divided by it; 1: not scaled */
    const float *freqs; /* [rope_dim / 2] divisors of the frequencies (Llama 3), or NULL */
};

struct load_opt {
    uint32_t n_ctx;    /* 0: what the file says */
    const char *cache; /* folder of files of packed weights (pack_cache.h); NULL: none */
    /* Runs on one member of the team while the others hash and pack: what else is to be read of the
     * file. NULL: nothing. */
    void (*beside)(void *arg, const struct gguf *g);
    void *beside_arg;
};

/* Reads and checks every hyperparameter; n_vocab is the number of tokens in the vocabulary. Refuses
 * what would change the arithmetic and is not run: experts, sliding windows, other architectures,
 * unknown keys of the architecture. */
int hparams_read(struct hparams *ret_hp, float *ret_linear, const struct gguf *g,
                 struct diag *diag);

/* Fills cos and sin, [end - begin][rope_dim / 2], with positions begin .. end - 1: cos(p / linear *
 * f_i), where f_i = rope_base^(-2i / rope_dim) / freqs[i] (Su et al. 2021, arXiv:2104.09864), in
 * double by our own code, rounded once. */
void rope_table(float *cos, float *sin, uint32_t begin, uint32_t end, const struct hparams *hp,
                const struct rope_opt *opt);

/* Checks every tensor against hp, names those nobody asked for, then hashes the file, packs weights
 * and computes rotation tables, all on the team; or maps a cache file that holds the same. Hash: the
 * file's digest in pieces (digest.h) with seed 0, then the same with seed 1, together 32 bytes. It
 * tells files apart; it does not withstand forgery. */
int weights_load(struct model *model, const struct gguf *g, float linear,
                 const struct load_opt *opt, struct team *team, struct diag *diag);

/* All of model_open() but the vocabulary. */
int model_load(struct model **ret_model, const char *path, const struct load_opt *opt,
               struct team *team, struct diag *diag);
void model_unload(struct model *model);

#endif
