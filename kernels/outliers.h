/* SPDX-License-Identifier: Apache-2.0 */
/* outliers.h - what `quantize` takes out of a row; the same in every variant. Internal to kernels/. */
#ifndef KERNELS_OUTLIERS_H
#define KERNELS_OUTLIERS_H

#include <math.h>
#include <string.h>
#include "kernels/cpu_kernels.h"

/* No outlier of row r is known yet; returns its limit, infinity when none is looked for. */
static inline float outliers_begin(struct quant_rows *out, uint32_t r, float rms)
{
    float limit = KERN_OUTLIER * rms;

    if (!out->n_out)
        return INFINITY;
    out->n_out[r] = 0;
    return limit < KERN_OUTLIER_MIN ? KERN_OUTLIER_MIN : limit; /* of a NaN no value is above */
}

/* Notes those of block b = x[32] whose bits are set; returns the block without them. rest: room for
 * it. */
static inline const float *outliers_take(struct quant_rows *out, uint32_t r, uint32_t b,
                                         uint32_t bits, const float *x, float rest[KERN_BLOCK])
{
    if (!bits)
        return x;
    memcpy(rest, x, KERN_BLOCK * sizeof *rest);
    for (; bits; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(bits);

        rest[i] = 0;
        out->out[(size_t)r * (out->n_cols / KERN_BLOCK) + out->n_out[r]++] =
            (struct outlier){b * KERN_BLOCK + i, x[i]};
    }
    return rest;
}

#endif
