/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - what the x86 variants of the matrix product share: how a tile sees its activations. */
#ifndef KERNELS_X86_MATMUL_H
#define KERNELS_X86_MATMUL_H

#include <immintrin.h>
#include <string.h>

#include "kernels/packed.h"
#include "kernels/x86/unroll.h"

#define LINE PACKED_LINE

/* Activations of a tile, from its first row and the first block on. */
struct tile_in {
    const int8_t *q;
    const float *d, *sum;
    const struct half_sums *isum;
    size_t n_cols, n_blocks; /* distances between rows: of q, and of the others */
};

/* Row i0 of x from block0 on. */
static inline struct tile_in tile_in_at(const struct quant_rows *x, uint32_t i0, uint32_t block0)
{
    size_t n_blocks = x->n_cols / KERN_BLOCK, at = i0 * n_blocks + block0;

    return (struct tile_in){x->q + at * KERN_BLOCK, x->d + at, x->sum + at,
                            x->isum + at,           x->n_cols, n_blocks};
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
