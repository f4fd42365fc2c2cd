/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul_avxvnni.c - matrix products over packed weights with AVX-VNNI, for CPUs that have VPDPBUSD
 * in 256-bit vectors only.
 *
 * Codes of every type are u8 as they are stored, so a block's products add up in int32 without a
 * step between, and the zero is taken off by the sums of the activations. All else is AVX2's.
 */
#include "kernels/x86/dpbusd256.h"
#include "kernels/x86/panel256.h"

#define TILE_MAX 4 /* tiles256.h; their eight chains of sums hide the latency of VPDPBUSD */

KERN_INLINE uint8_t code_flip(const struct packed_layout l)
{
    (void)l;
    return 0;
}

KERN_INLINE int32_t code_zero(const struct packed_layout l)
{
    return l.zero;
}

KERN_INLINE void part_sums(__m256i isum[SIDES][TILE_MAX], const struct panel *panel, uint32_t slot,
                           const int8_t *q, size_t n_cols, const struct packed_layout l,
                           const uint32_t part, const uint32_t n)
{
    const uint32_t n_lines = packed_has_halves(l.scales) ? 4 : 8, first = part * n_lines;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        isum[0][i] = isum[1][i] = _mm256_setzero_si256();
    KERN_UNROLL
    for (uint32_t j = first; j < first + n_lines; j++) {
        __m256i w0 = load256(panel->line[slot][j]), w1 = load256(panel->line[slot][j] + LINE / 2);

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m256i x = broadcast4(q + i * n_cols + 4 * j);

            isum[0][i] = dpbusd256(isum[0][i], w0, x);
            isum[1][i] = dpbusd256(isum[1][i], w1, x);
        }
    }
}

#include "kernels/x86/tiles256.h"

void avxvnni_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                    uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n)
{
    if (dtype_is_float(w->type))
        avx2_matmul(y, y_stride, w, group0, group1, q, x, n);
    else
        int_matmul(y, y_stride, w, group0, group1, q, n);
}
