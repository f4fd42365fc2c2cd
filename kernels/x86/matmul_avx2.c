/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul_avx2.c - matrix products over packed weights with AVX2.
 *
 * A group's 16 rows are two halves of 8 lanes. Integer products are VPMADDUBSW (u8 x s8, pairs
 * summed to s16, which saturates) made exact:
 *   Q4  a pair is at most 2 * 15 * 127 = 3,810, so the 8 of a block add up in s16 (30,480) and one
 *       VPMADDWD widens them;
 *   Q8  weights go in as |w| <= 128 and activations with the weight's sign: a pair is at most
 *       2 * 128 * 127 = 32,512, and each is widened at once.
 */
#include "kernels/x86/avx2.h"

#include <string.h>

#define LINE           64
#define TILE_MAX       4
#define PREFETCH_BYTES 6144

/* Activations of a tile, from its first row on. */
struct tile_in {
    const int8_t *q;
    const float *d, *sum;
    const int32_t *isum;
    size_t n_cols, n_blocks; /* distances between rows: of q, and of the others */
};

KERN_INLINE __m256i broadcast4(const int8_t *q)
{
    int32_t four;

    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}

/* isum[i] = sum(w * q) of 8 rows for n activation rows; lines: the half's 32 bytes in each line. */
KERN_INLINE void q4_sums(__m256i *isum, const uint8_t *lines, const struct tile_in *in, size_t b,
                         const uint32_t n)
{
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);

    KERN_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        __m256i both = _mm256_loadu_si256((const void *)(lines + j * LINE));
        __m256i low = _mm256_and_si256(both, nibble);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            const int8_t *q = in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j;
            __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, broadcast4(q)),
                                             _mm256_maddubs_epi16(high, broadcast4(q + 16)));

            isum[i] = j == 0 ? pairs : _mm256_add_epi16(isum[i], pairs);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        isum[i] = _mm256_madd_epi16(isum[i], ones);
}

/* The same for Q8_0, whose stored weights have 128 added: here it is taken off again. */
KERN_INLINE void q8_sums(__m256i *isum, const uint8_t *lines, const struct tile_in *in, size_t b,
                         const uint32_t n)
{
    const __m256i top = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        isum[i] = _mm256_setzero_si256();
    KERN_UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        __m256i w = _mm256_xor_si256(_mm256_loadu_si256((const void *)(lines + j * LINE)), top);
        __m256i magnitude = _mm256_abs_epi8(w); /* of -128 it is 128, as u8 */

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m256i q = broadcast4(in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j);
            __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w));

            isum[i] = _mm256_add_epi32(isum[i], _mm256_madd_epi16(pairs, ones));
        }
    }
}

/* acc[i] += half a block . activations i: the contract's order. d: the half's 8 scales. */
KERN_INLINE void tile_half(__m256 *acc, const uint8_t *lines, const uint8_t *d,
                           const struct tile_in *in, size_t b, const enum dtype type,
                           const uint32_t n)
{
    __m256i isum[TILE_MAX];

    if (type == DTYPE_Q8_0)
        q8_sums(isum, lines, in, b, n);
    else
        q4_sums(isum, lines, in, b, n);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        size_t at = i * in->n_blocks + b;

        if (type == DTYPE_Q4_0)
            isum[i] =
                _mm256_sub_epi32(isum[i], _mm256_slli_epi32(_mm256_set1_epi32(in->isum[at]), 3));
        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[i]),
                                 _mm256_mul_ps(halves256(d), _mm256_set1_ps(in->d[at])), acc[i]);
        if (type == DTYPE_Q4_1)
            acc[i] =
                _mm256_fmadd_ps(halves256(d + 2 * KERN_ROWS), _mm256_set1_ps(in->sum[at]), acc[i]);
    }
}

/* Writes the first n_rows of 16 lanes. */
KERN_INLINE void store_rows(float *y, __m256 low, __m256 high, uint32_t n_rows)
{
    _mm256_maskstore_ps(y, first_lanes256(n_rows), low);
    if (n_rows > 8)
        _mm256_maskstore_ps(y + 8, first_lanes256(n_rows - 8), high);
}

/* y[i][0 .. n_rows - 1] = group . activations i, for n rows. */
KERN_INLINE void tile(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                      const struct tile_in *in, const enum dtype type, const uint32_t n)
{
    const size_t block_bytes = type == DTYPE_Q8_0 ? 544 : type == DTYPE_Q4_1 ? 320 : 288;
    const size_t d_at = type == DTYPE_Q8_0 ? 8 * LINE : 4 * LINE;
    __m256 acc[2][TILE_MAX];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    for (size_t b = 0; b < in->n_blocks; b++) {
        const uint8_t *block = group + b * block_bytes;

        KERN_UNROLL
        for (size_t at = 0; at < block_bytes; at += LINE)
            _mm_prefetch((const char *)block + PREFETCH_BYTES + at, _MM_HINT_T0);
        tile_half(acc[0], block, block + d_at, in, b, type, n);
        tile_half(acc[1], block + LINE / 2, block + d_at + KERN_ROWS, in, b, type, n);
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        store_rows(y + i * y_stride, acc[0][i], acc[1][i], n_rows);
}

KERN_INLINE void tile_n(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                        const struct tile_in *in, const enum dtype type, uint32_t n)
{
    switch (n) {
    case 1:
        tile(y, y_stride, n_rows, group, in, type, 1);
        break;
    case 2:
        tile(y, y_stride, n_rows, group, in, type, 2);
        break;
    case 3:
        tile(y, y_stride, n_rows, group, in, type, 3);
        break;
    default:
        tile(y, y_stride, n_rows, group, in, type, 4);
        break;
    }
}

static void int_group(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                      enum dtype type, const struct quant_rows *x, uint32_t n)
{
    size_t n_blocks = x->n_cols / KERN_BLOCK;
    uint32_t n_tiles = (n + TILE_MAX - 1) / TILE_MAX;

    for (uint32_t t = 0; t < n_tiles; t++) {
        uint32_t i0 = (uint32_t)((uint64_t)t * n / n_tiles),
                 i1 = (uint32_t)((uint64_t)(t + 1) * n / n_tiles);
        size_t at = i0 * n_blocks;
        struct tile_in in = {x->q + at * KERN_BLOCK, x->d + at, x->sum + at,
                             x->isum + at,           x->n_cols, n_blocks};
        float *out = y + i0 * y_stride;

        if (type == DTYPE_Q4_0)
            tile_n(out, y_stride, n_rows, group, &in, DTYPE_Q4_0, i1 - i0);
        else if (type == DTYPE_Q4_1)
            tile_n(out, y_stride, n_rows, group, &in, DTYPE_Q4_1, i1 - i0);
        else
            tile_n(out, y_stride, n_rows, group, &in, DTYPE_Q8_0, i1 - i0);
    }
}

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
KERN_INLINE void float_row(float *y, uint32_t n_rows, const uint8_t *group, const enum dtype type,
                           const float *x, uint32_t n_cols)
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
    for (uint32_t half = 0; half < 2; half++)
        chain[half][0] = _mm256_add_ps(_mm256_add_ps(chain[half][0], chain[half][2]),
                                       _mm256_add_ps(chain[half][1], chain[half][3]));
    store_rows(y, chain[0][0], chain[1][0], n_rows);
}

static void float_group(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                        enum dtype type, const float *x, uint32_t n_cols, uint32_t n)
{
    for (size_t i = 0; i < n; i++) {
        float *out = y + i * y_stride;

        if (type == DTYPE_F32)
            float_row(out, n_rows, group, DTYPE_F32, x + i * n_cols, n_cols);
        else if (type == DTYPE_F16)
            float_row(out, n_rows, group, DTYPE_F16, x + i * n_cols, n_cols);
        else
            float_row(out, n_rows, group, DTYPE_BF16, x + i * n_cols, n_cols);
    }
}

void avx2_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                 uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);

    for (uint32_t g = group0; g < group1; g++) {
        const uint8_t *group = w->data + g * group_bytes;
        uint32_t left = w->n_rows - g * KERN_ROWS;
        uint32_t n_rows = left < KERN_ROWS ? left : KERN_ROWS;
        float *out = y + g * KERN_ROWS;

        if (w->type == DTYPE_Q4_0 || w->type == DTYPE_Q4_1 || w->type == DTYPE_Q8_0)
            int_group(out, y_stride, n_rows, group, w->type, q, n);
        else
            float_group(out, y_stride, n_rows, group, w->type, x, w->n_cols, n);
    }
}
