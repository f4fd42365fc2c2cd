/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_avx2.c - kernels over one row of values, and the tables of the AVX2 and AVX-VNNI variants.
 */
#include "kernels/outliers.h"
#include "kernels/packed.h"
#include "kernels/variants.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/lanes8.h"

#include <math.h>
#include <string.h>

static void avx2_exp_f32(float *y, const float *x, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, exp256(_mm256_loadu_ps(x + i)));
    if (i < n) {
        __m256i rest = first_lanes256(n - i);

        _mm256_maskstore_ps(y + i, rest, exp256(_mm256_maskload_ps(x + i, rest)));
    }
}

static int32_t sum_epi32(__m256i v)
{
    __m128i v4 = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    __m128i v2 = _mm_add_epi32(v4, _mm_shuffle_epi32(v4, 0x4e));

    return _mm_cvtsi128_si32(_mm_add_epi32(v2, _mm_shuffle_epi32(v2, 0xb1)));
}

/* One block of 32: returns d, sets *ret_isum. */
static float quantize_block(int8_t *q, const float *x, struct half_sums *ret_isum)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i max_lanes = _mm256_setzero_si256(), q4[4], bytes;
    int32_t max_bits;
    float max;

    /* As integers, magnitudes are ordered as the floats are, infinity and NaN on top. */
    for (uint32_t i = 0; i < 4; i++)
        max_lanes = _mm256_max_epi32(
            max_lanes, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + 8 * i)), magnitude));
    max_bits = max_epi32(max_lanes);
    max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(max_bits)));
    *ret_isum = (struct half_sums){0, 0};
    if (max_bits >= 0x7f800000 || max < KERN_QUANT_MIN) {
        memset(q, 0, KERN_BLOCK);
        return max_bits >= 0x7f800000 ? NAN : 0;
    }
    for (uint32_t i = 0; i < 4; i++)
        q4[i] = _mm256_cvtps_epi32(
            _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(127 / max)));
    /* Packing works in each half: the result's groups of four are 0 2 4 6 | 1 3 5 7. */
    bytes = _mm256_packs_epi16(_mm256_packs_epi32(q4[0], q4[1]), _mm256_packs_epi32(q4[2], q4[3]));
    _mm256_storeu_si256((void *)q, _mm256_permutevar8x32_epi32(bytes, order));
    *ret_isum = split_sums(sum_epi32(_mm256_add_epi32(
        _mm256_add_epi32(q4[0], q4[1]), _mm256_slli_epi32(_mm256_add_epi32(q4[2], q4[3]), 16))));
    return max / 127;
}

static float sum_of_squares(const float *x, uint32_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;

    for (uint32_t i = 0; i < n; i += 16) {
        __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + 8);

        low = _mm256_fmadd_ps(v0, v0, low);
        high = _mm256_fmadd_ps(v1, v1, high);
    }
    return tree256(low, high);
}

/* Bit i: x[i] of a block is an outlier. */
static uint32_t block_outliers(const float *x, float limit)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), above = _mm256_set1_ps(limit);
    uint32_t bits = 0;

    for (uint32_t i = 0; i < KERN_BLOCK; i += 8) {
        __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i));

        bits |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(magnitude, above, _CMP_GT_OQ)) << i;
    }
    return bits;
}

static void avx2_quantize(struct quant_rows *out, uint32_t r, const float *x, uint32_t n)
{
    size_t block0 = (size_t)r * (n / KERN_BLOCK);
    float rest[KERN_BLOCK], rms = out->n_out ? sqrtf(sum_of_squares(x, n) / (float)n) : 0;
    float limit = outliers_begin(out, r, rms);

    for (uint32_t b = 0; b < n / KERN_BLOCK; b++) {
        size_t i = block0 + b;
        const float *block = outliers_take(out, r, b, block_outliers(x + b * KERN_BLOCK, limit),
                                           x + b * KERN_BLOCK, rest);

        out->d[i] = quantize_block(out->q + i * KERN_BLOCK, block, &out->isum[i]);
        out->sum[i] = out->d[i] * (float)(out->isum[i].low + out->isum[i].high);
    }
}

static void avx2_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    __m256 scale = _mm256_set1_ps(1 / sqrtf(sum_of_squares(x, n) / (float)n + eps));

    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);

        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
}

static void avx2_swiglu(float *y, const float *gate, const float *up, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);

    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, exp256(_mm256_xor_ps(g, sign))));

        _mm256_storeu_ps(y + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
}

static void avx2_add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
}

static void avx2_rope(float *x, const float *cos, const float *sin, uint32_t hd)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);

    for (uint32_t i = 0; i < hd; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256 c =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos + i / 2)), twice);
        __m256 s =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin + i / 2)), twice);
        __m256 swapped = _mm256_permute_ps(v, 0xb1);

        /* Even lanes subtract, odd lanes add. */
        _mm256_storeu_ps(x + i, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(swapped, s)));
    }
}

/* The largest of x[0 .. n - 1], n <= KERN_TOP, or NaN. */
KERN_INLINE float max_of_block(const float *x, uint32_t n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 max = _mm256_set1_ps(-INFINITY);
    __m256i size = _mm256_setzero_si256();

    for (uint32_t i = 0; i < n; i += 8) {
        __m256i valid = first_lanes256(n - i);
        __m256 v = n == KERN_TOP ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, valid);

        size = _mm256_max_epi32(size, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        if (n != KERN_TOP)
            v = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(valid));
        max = _mm256_max_ps(max, v);
    }
    size = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f7fffff)); /* of infinity and NaN */
    return _mm256_testz_si256(size, size) ? max256(max) + 0.0f : NAN;
}

static void avx2_block_max(float *max, const float *x, uint32_t n)
{
    for (; n >= KERN_TOP; n -= KERN_TOP, x += KERN_TOP)
        *max++ = max_of_block(x, KERN_TOP);
    if (n > 0)
        *max = max_of_block(x, n);
}

struct weighing {
    __m256 largest, t, least;
};

KERN_INLINE __m256 weights256(const struct weighing *how, __m256 x, __m256i valid)
{
    __m256 w = exp256_lanes(_mm256_div_ps(_mm256_sub_ps(x, how->largest), how->t), valid);

    return _mm256_andnot_ps(_mm256_cmp_ps(w, how->least, _CMP_LT_OQ), w);
}

static void avx2_weigh(float *w, double *sum, const float *x, uint32_t n, float largest, float t,
                       float least)
{
    const struct weighing how = {_mm256_set1_ps(largest), _mm256_set1_ps(t), _mm256_set1_ps(least)};

    for (; n > 0; sum++) {
        uint32_t left = n < KERN_SUM ? n : KERN_SUM;
        struct lanes8 lanes = lanes8_zero();

        n -= left;
        for (; left >= 8; left -= 8, x += 8, w += 8) {
            __m256 v = weights256(&how, _mm256_loadu_ps(x), _mm256_set1_epi32(-1));

            _mm256_storeu_ps(w, v);
            lanes8_add(&lanes, v);
        }
        if (left > 0) {
            __m256i valid = first_lanes256(left);
            __m256 v = weights256(&how, _mm256_maskload_ps(x, valid), valid);

            _mm256_maskstore_ps(w, valid, v);
            lanes8_add(&lanes, v);
        }
        *sum = lanes8_sum(&lanes);
    }
}

/* Two variants that differ in their matrix product. */
#define TABLE(NAME, MATMUL)                                                                        \
    {                                                                                              \
        .name = NAME, .matmul = MATMUL, .quantize = avx2_quantize, .rmsnorm = avx2_rmsnorm,        \
        .swiglu = avx2_swiglu, .add = avx2_add, .rope = avx2_rope, .kv_store = avx2_kv_store,      \
        .kv_store_q8 = avx2_kv_store_q8, .attention = avx2_attention,                              \
        .attention_q8 = avx2_attention_q8, .attention_merge = avx2_attention_merge,                \
        .block_max = avx2_block_max, .weigh = avx2_weigh, .exp_f32 = avx2_exp_f32                  \
    }

const struct cpu_kernels kernels_avx2 = TABLE("avx2", avx2_matmul);

const struct cpu_kernels kernels_avxvnni = TABLE("avxvnni", avxvnni_matmul);
