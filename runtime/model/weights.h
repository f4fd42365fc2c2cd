/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.h - what binding (weights.c) finds and filling (fill.c) needs. Internal to model/.
 *
 * All weights stand in one piece of memory: matrices in the order of their use, norms, then the
 * rotation tables, cosines before sines. It is packed from the GGUF file or mapped from a cache file,
 * which has the same bytes.
 */
#ifndef RUNTIME_MODEL_WEIGHTS_H
#define RUNTIME_MODEL_WEIGHTS_H

#include "runtime/model/load.h"

#define WEIGHTS_ALIGN 64u /* a cache line, and what kernels load at once */

/* One matrix to pack. */
struct weights_job {
    const struct gguf_tensor *tensor;
    size_t at; /* of its first group */
    size_t group_bytes;
    uint32_t n_rows, n_cols;
};

/* What points into the memory, once there is one. */
struct weights_place {
    struct packed_matrix *matrix;
    size_t at;
};

struct weights_norm {
    const float **ret;
    const struct gguf_tensor *tensor;
};

struct loader {
    struct model *model;
    const struct gguf *g;
    struct diag *diag;
    uint8_t *used; /* [tensors in the file] somebody asked for it */
    struct weights_job *jobs;
    struct weights_place *places;
    struct weights_norm *norms;
    uint32_t n_jobs, n_places, n_norms;
    size_t norms_at, norm_bytes; /* place of the first, distance of the next */
    size_t fixed_bytes;          /* of matrices and norms */
    int tied;                    /* no output matrix: the embedding is read as one */
    struct rope_opt rope;
    float *rope_freqs;
};

/* Packs or maps, and sets everything of the model that points there, its hash, and what is to be
 * kept. */
int weights_fill(struct loader *l, const struct load_opt *opt, struct team *team);

#endif
