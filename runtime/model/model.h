/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - one loaded model: hyperparameters, packed weights, vocabulary, chat template, hash.
 *
 * Immutable after model_open and shared by all threads. The GGUF mapping is closed once the weights
 * are packed; vocabulary strings are copied.
 */
#ifndef RUNTIME_MODEL_MODEL_H
#define RUNTIME_MODEL_MODEL_H

#include <stdint.h>
#include "kernels/cpu_kernels.h"
#include "runtime/base/diag.h"
#include "runtime/base/team.h"

struct hparams {
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx_train;
    float rms_eps, rope_base;
    uint32_t rope_dim; /* == head_dim for the llama family */
};

struct layer {
    const float *attn_norm, *ffn_norm; /* [n_embd] */
    struct packed_matrix
        qkv; /* rows: Q (n_head*hd), then K, then V (n_head_kv*hd each) when one type; */
    struct packed_matrix q, k, v; /* else three matrices and qkv.n_rows == 0 */
    struct packed_matrix o;
    struct packed_matrix gate, up, down;
};

struct model {
    struct hparams hp;
    struct layer *layers;      /* [n_layer] */
    struct packed_matrix head; /* [n_vocab][n_embd]; also the embedding when tied */
    struct packed_matrix embd; /* [n_vocab][n_embd]; equals head when tied */
    const float *output_norm;
    const float *rope_cos, *rope_sin; /* [n_ctx][rope_dim / 2], n_ctx of model_open */
    uint32_t n_ctx;
    uint64_t weight_bytes; /* read per decoded token */
    uint8_t hash
        [32]; /* of the file's contents (load.h says how); all kernel variants give the same bits. See model_keep_kv() */
    char name[80]; /* general.name, else the file's name */
    char arch[32];
    struct vocab *vocab; /* runtime/text/vocab.h; owned */
    char *chat_template; /* NUL-terminated copy, or NULL; owned */
    void *memory;        /* that was packed here, or NULL: */
    uint64_t memory_bytes;
    uint64_t pack_ns;        /* how long packing matrices and norms took; 0: nothing was packed */
    struct pack_map *packed; /* a cache file that is mapped (pack_cache.h), or NULL */
    struct pack_keep *keep;  /* what a cache file is to be written of (pack_save.h), or NULL */
    struct diag cache_note;  /* why a cache file that is there is not used; empty: nothing to say */
};

/* Loads, checks and packs (in parallel on the team). n_ctx 0: what the file says; more than that is
 * refused. cache: a folder of packed weights, or NULL: what an earlier start has packed is mapped, and
 * what is to be written there is left in model->keep. All kernel variants read the same packed form.
 * -EINVAL, -ENOMEM, -errno; diag says why. These are in runtime/model_open.c: they join model/ and
 * text/. */
int model_open(struct model **ret_model, const char *path, uint32_t n_ctx, const char *cache,
               struct team *team, struct diag *diag);
/* A model without a file, weights or layers, for the echo backend: byte tokens and ChatML, a context of
 * n_ctx, a hash that never changes. -ENOMEM. */
int model_open_echo(struct model **ret_model, uint32_t n_ctx);
void model_free(struct model *model);

/* Keys and values will be kept so: the hash, which answers carry, becomes another one where that gives
 * other bits than KV_F16. Once, after model_open(). */
void model_keep_kv(struct model *model, enum kv_type type);

#endif
