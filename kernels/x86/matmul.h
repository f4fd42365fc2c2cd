/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - what the x86 variants of the matrix product share: how a tile sees its activations. */
#ifndef KERNELS_X86_MATMUL_H
#define KERNELS_X86_MATMUL_H

#include <immintrin.h>
#include <string.h>

#include "kernels/packed.h"
#include "kernels/x86/unroll.h"

#define LINE PACKED_LINE

/* Columns of a group as floats: many rows have their outliers in the same few. */
#define COLUMNS_KEPT 32u /* a power of two: k and k + 32 have one place */

struct columns {
    const uint8_t *group;
    enum dtype type;
    uint32_t k[COLUMNS_KEPT]; /* UINT32_MAX: none */
    _Alignas(LINE) float w[COLUMNS_KEPT][KERN_ROWS];
};

/* column_avx2.c: column k of a group as packed_row has its weights. */
void avx2_column(float w[KERN_ROWS], const uint8_t *group, enum dtype type, uint32_t k);

static inline void columns_begin(struct columns *columns, const uint8_t *group, enum dtype type)
{
    columns->group = group;
    columns->type = type;
    memset(columns->k, 0xff, sizeof columns->k);
}

static inline const float *columns_at(struct columns *columns, uint32_t k)
{
    uint32_t place = k % COLUMNS_KEPT;

    if (columns->k[place] != k) {
        columns->k[place] = k;
        avx2_column(columns->w[place], columns->group, columns->type, k);
    }
    return columns->w[place];
}

/* Activations of a tile, from its first row and the first block on. */
struct tile_in {
    const int8_t *q;
    const float *d, *sum;
    const struct half_sums *isum;
    size_t n_cols, n_blocks; /* distances between rows: of q, and of the others */
    const uint32_t *n_out;   /* NULL: no outliers */
    const struct outlier *out;
};

/* Row i0 of x from block0 on. */
static inline struct tile_in tile_in_at(const struct quant_rows *x, uint32_t i0, uint32_t block0)
{
    size_t n_blocks = x->n_cols / KERN_BLOCK, at = i0 * n_blocks + block0;

    return (struct tile_in){x->q + at * KERN_BLOCK,
                            x->d + at,
                            x->sum + at,
                            x->isum + at,
                            x->n_cols,
                            n_blocks,
                            x->n_out ? x->n_out + i0 : NULL,
                            x->n_out ? x->out + i0 * n_blocks : NULL};
}

/* Bound t of n things shared out to n_tiles tiles, as equally as they can be. */
static inline uint32_t tile_bound(uint32_t n, uint32_t n_tiles, uint32_t t)
{
    return (uint32_t)((uint64_t)t * n / n_tiles);
}

/* Asks for what a GEMV reads `ahead` bytes later. */
KERN_INLINE void prefetch_block(const uint8_t *block, size_t bytes, const size_t ahead)
{
    KERN_UNROLL
    for (size_t i = 0; i < (bytes + LINE - 1) / LINE; i++)
        _mm_prefetch((const char *)block + ahead + i * LINE, _MM_HINT_T0);
}

#endif
