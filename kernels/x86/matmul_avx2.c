/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul_avx2.c - matrix products over packed weights with AVX2.
 *
 * Integer products are VPMADDUBSW (u8 x s8, pairs summed to s16, which saturates) made exact:
 *   codes to 15   a pair is at most 2 * 15 * 127 = 3,810, so the 8 of a block add up in s16
 *                 (30,480) and one VPMADDWD widens them
 *   codes to 31   at most 7,874: the 4 of half a block do (31,496)
 *   codes to 63   at most 16,002: 2 do (32,004)
 *   zero 128      weights go in as |w| <= 128 and activations with the weight's sign: a pair is at
 *                 most 2 * 128 * 127 = 32,512, and each is widened at once
 */
#include "kernels/x86/panel256.h"

/* Activation rows of a tile, integer (tiles256.h) and float. */
#define TILE_MAX       4
#define FLOAT_TILE_MAX 6

/* Lines of a block whose products add up in s16. */
KERN_INLINE uint32_t lines_s16(const struct packed_layout l)
{
    if (l.zero == 128)
        return 1;
    return l.table || l.low + l.high == 5 ? 4 : l.low + l.high == 6 ? 2 : 8;
}

/* Signed weights where the zero is 128, so that their magnitudes fit in u8. */
KERN_INLINE uint8_t code_flip(const struct packed_layout l)
{
    return l.zero == 128 ? 0x80 : 0;
}

KERN_INLINE int32_t code_zero(const struct packed_layout l)
{
    return l.zero == 128 ? 0 : l.zero;
}

/* w . q of four k and 8 rows, as pairs. */
KERN_INLINE __m256i dot_pairs(__m256i w, __m256i q, const struct packed_layout l)
{
    /* |-128| is 128, as u8. */
    return l.zero == 128 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w))
                         : _mm256_maddubs_epi16(w, q);
}

/* isum[side][i] = sum of codes (or signed weights) . q over the lines of a part of block `slot`, for
 * n activation rows, whose block begins at q. */
KERN_INLINE void part_sums(__m256i isum[SIDES][TILE_MAX], const struct panel *panel, uint32_t slot,
                           const int8_t *q, size_t n_cols, const struct packed_layout l,
                           const uint32_t part, const uint32_t n)
{
    const uint32_t n_lines = packed_has_halves(l.scales) ? 4 : 8, first = part * n_lines;
    const uint32_t run = lines_s16(l) < n_lines ? lines_s16(l) : n_lines;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[SIDES][TILE_MAX];

    KERN_UNROLL
    for (uint32_t j = 0; j < n_lines; j++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m256i x = broadcast4(q + i * n_cols + 4 * (first + j));

            KERN_UNROLL
            for (uint32_t side = 0; side < SIDES; side++) {
                __m256i w = load256(panel->line[slot][first + j] + side * (LINE / SIDES));
                __m256i dot = dot_pairs(w, x, l);

                pairs[side][i] = j % run ? _mm256_add_epi16(pairs[side][i], dot) : dot;
                /* One after the other: as a tree, which compilers like, the sums of a tile do not
                 * fit in the registers. */
                __asm__("" : "+x"(pairs[side][i]));
                if (j % run + 1 < run)
                    continue;
                dot = _mm256_madd_epi16(pairs[side][i], ones);
                isum[side][i] = j < run ? dot : _mm256_add_epi32(isum[side][i], dot);
            }
        }
    }
}

#include "kernels/x86/tiles256.h"

/* Weights (k, 8 half .. 8 half + 7) of a group of a float type. */
KERN_INLINE __m256 float_weights(const uint8_t *group, const enum dtype type, size_t k,
                                 uint32_t half)
{
    size_t i = k * KERN_ROWS + half * 8;

    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)group + i);
    if (type == DTYPE_F16)
        return halves256(group + 2 * i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(group + 2 * i))), 16));
}

/* One activation row: four chains for each half. */
KERN_INLINE void float_row(const struct tile_out *out, uint32_t i, const uint8_t *group,
                           const enum dtype type, const float *x, uint32_t n_cols)
{
    __m256 chain[2][4];

    KERN_UNROLL
    for (uint32_t c = 0; c < 4; c++)
        chain[0][c] = chain[1][c] = _mm256_setzero_ps();
    for (size_t k = 0; k < n_cols; k += 4) {
        KERN_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            __m256 xk = _mm256_set1_ps(x[k + c]);

            chain[0][c] = _mm256_fmadd_ps(float_weights(group, type, k + c, 0), xk, chain[0][c]);
            chain[1][c] = _mm256_fmadd_ps(float_weights(group, type, k + c, 1), xk, chain[1][c]);
        }
    }
    KERN_UNROLL
    for (uint32_t side = 0; side < SIDES; side++)
        tile_store(out, i, side,
                   _mm256_add_ps(_mm256_add_ps(chain[side][0], chain[side][2]),
                                 _mm256_add_ps(chain[side][1], chain[side][3])));
}

/* Several activation rows: one chain after the other, so that a tile's sums fit in the registers and
 * each weight is widened once for all rows. The group is read four times, which caches bear. */
KERN_INLINE void float_tile(const struct tile_out *out, uint32_t i0, const uint8_t *group,
                            const enum dtype type, const float *x, size_t n_cols, const uint32_t n)
{
    const size_t size = type == DTYPE_F32 ? 4 : 2; /* of a weight; the next group is asked for */
    __m256 chain[4][SIDES][FLOAT_TILE_MAX];

    for (uint32_t c = 0; c < 4; c++) {
        __m256 acc[SIDES][FLOAT_TILE_MAX];

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++)
            acc[0][i] = acc[1][i] = _mm256_setzero_ps();
        for (size_t k = c; k < n_cols; k += 4) {
            __m256 w0 = float_weights(group, type, k, 0), w1 = float_weights(group, type, k, 1);

            _mm_prefetch((const char *)group + (n_cols + k) * KERN_ROWS * size, _MM_HINT_T1);
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                __m256 xk = _mm256_set1_ps(x[i * n_cols + k]);

                acc[0][i] = _mm256_fmadd_ps(w0, xk, acc[0][i]);
                acc[1][i] = _mm256_fmadd_ps(w1, xk, acc[1][i]);
            }
        }
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            chain[c][0][i] = acc[0][i];
            chain[c][1][i] = acc[1][i];
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t side = 0; side < SIDES; side++)
            tile_store(out, i0 + i, side,
                       _mm256_add_ps(_mm256_add_ps(chain[0][side][i], chain[2][side][i]),
                                     _mm256_add_ps(chain[1][side][i], chain[3][side][i])));
    }
}

KERN_INLINE void float_group(const struct tile_out *out, const uint8_t *group,
                             const enum dtype type, const float *x, size_t n_cols, uint32_t n)
{
    uint32_t n_tiles = (n + FLOAT_TILE_MAX - 1) / FLOAT_TILE_MAX;

    for (uint32_t t = 0; t < n_tiles; t++) {
        uint32_t i0 = tile_bound(n, n_tiles, t);
        const float *rows = x + i0 * n_cols;

        switch (tile_bound(n, n_tiles, t + 1) - i0) {
        case 1:
            float_row(out, i0, group, type, rows, (uint32_t)n_cols);
            break;
        case 2:
            float_tile(out, i0, group, type, rows, n_cols, 2);
            break;
        case 3:
            float_tile(out, i0, group, type, rows, n_cols, 3);
            break;
        case 4:
            float_tile(out, i0, group, type, rows, n_cols, 4);
            break;
        case 5:
            float_tile(out, i0, group, type, rows, n_cols, 5);
            break;
        default:
            float_tile(out, i0, group, type, rows, n_cols, FLOAT_TILE_MAX);
            break;
        }
    }
}

void avx2_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                 uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);

    if (!dtype_is_float(w->type)) {
        int_matmul(y, y_stride, w, group0, group1, q, n);
        return;
    }
    for (uint32_t g = group0; g < group1; g++) {
        const uint8_t *group = w->data + g * group_bytes;
        struct tile_out out = group_out(y, y_stride, w, g);

        if (w->type == DTYPE_F32)
            float_group(&out, group, DTYPE_F32, x, w->n_cols, n);
        else if (w->type == DTYPE_F16)
            float_group(&out, group, DTYPE_F16, x, w->n_cols, n);
        else
            float_group(&out, group, DTYPE_BF16, x, w->n_cols, n);
    }
}
