/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what runs a step: the CPU now, CUDA later, a scripted fake in tests.
 */
#ifndef RUNTIME_EXEC_BACKEND_H
#define RUNTIME_EXEC_BACKEND_H

#include <stdint.h>
#include "runtime/exec/step.h"

struct backend {
    void *self;
    uint32_t rows_max;   /* rows of one step */
    uint32_t logits_max; /* rows with logits of one step */
    uint32_t n_vocab;

    /* Runs the step: appends K and V of every row to its page, and leaves logits
     * [n_logits][n_vocab] in *ret_logits, which stay valid until the next forward. Never fails: bad
     * arithmetic shows as NaN in that row. Allocates nothing. */
    void (*forward)(void *self, const struct step *step, const float **ret_logits);

    /* [n_logits][(n_vocab + 63) / 64] of the last forward's logits, as the kernel of that name makes
     * them; NULL: the backend does not. */
    const float *block_max;
};

#endif
