/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_avx512.c - kernels over one row of values, and the table of the AVX-512 variant.
 */
#include "kernels/outliers.h"
#include "kernels/packed.h"
#include "kernels/variants.h"
#include "kernels/x86/avx512.h"
#include "kernels/x86/lanes8.h"

#include <math.h>

/* The first n of 16 lanes; any n. */
KERN_INLINE __mmask16 first_lanes512(uint32_t n)
{
    return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

static void avx512_exp_f32(float *y, const float *x, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, exp512(_mm512_loadu_ps(x + i)));
    if (i < n) {
        __mmask16 rest = first_lanes512(n - i);

        _mm512_mask_storeu_ps(y + i, rest, exp512(_mm512_maskz_loadu_ps(rest, x + i)));
    }
}

/* One block of 32: returns d, sets *ret_isum. */
static float quantize_block(int8_t *q, const float *x, struct half_sums *ret_isum)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    __m512i a0 = _mm512_and_si512(_mm512_castps_si512(x0), magnitude);
    __m512i a1 = _mm512_and_si512(_mm512_castps_si512(x1), magnitude);
    /* As integers, magnitudes are ordered as the floats are, infinity and NaN on top. */
    int32_t max_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
    float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(max_bits)));
    __m512i q0 = _mm512_setzero_si512(), q1 = q0;
    float d = 0;

    if (max_bits >= 0x7f800000) {
        d = NAN;
    } else if (max >= KERN_QUANT_MIN) {
        __m512 scale = _mm512_set1_ps(127 / max);

        q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, scale));
        q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, scale));
        d = max / 127;
    }
    *ret_isum =
        split_sums(_mm512_reduce_add_epi32(_mm512_add_epi32(q0, _mm512_slli_epi32(q1, 16))));
    _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((void *)(q + 16), _mm512_cvtepi32_epi8(q1));
    return d;
}

static float sum_of_squares(const float *x, uint32_t n)
{
    __m512 lanes = _mm512_setzero_ps();

    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);

        lanes = _mm512_fmadd_ps(v, v, lanes);
    }
    return tree512(lanes);
}

/* Bit i: x[i] of 16 is an outlier. */
KERN_INLINE uint32_t outliers16(const float *x, float limit)
{
    __m512i magnitude = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));

    return _mm512_cmp_ps_mask(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(limit), _CMP_GT_OQ);
}

static void avx512_quantize(struct quant_rows *out, uint32_t r, const float *x, uint32_t n)
{
    size_t block0 = (size_t)r * (n / KERN_BLOCK);
    float rest[KERN_BLOCK], rms = out->n_out ? sqrtf(sum_of_squares(x, n) / (float)n) : 0;
    float limit = outliers_begin(out, r, rms);

    for (uint32_t b = 0; b < n / KERN_BLOCK; b++) {
        size_t i = block0 + b;
        const float *block = x + b * KERN_BLOCK;
        uint32_t bits = outliers16(block, limit) | outliers16(block + 16, limit) << 16;

        block = outliers_take(out, r, b, bits, block, rest);
        out->d[i] = quantize_block(out->q + i * KERN_BLOCK, block, &out->isum[i]);
        out->sum[i] = out->d[i] * (float)(out->isum[i].low + out->isum[i].high);
    }
}

static void avx512_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    __m512 scale = _mm512_set1_ps(1 / sqrtf(sum_of_squares(x, n) / (float)n + eps));

    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), scale);

        _mm512_storeu_ps(y + i, _mm512_mul_ps(v, _mm512_loadu_ps(w + i)));
    }
}

static void avx512_swiglu(float *y, const float *gate, const float *up, uint32_t n)
{
    const __m512 one = _mm512_set1_ps(1), sign = _mm512_set1_ps(-0.0f);

    for (uint32_t i = 0; i < n; i += 16) {
        __m512 g = _mm512_loadu_ps(gate + i);
        __m512 silu = _mm512_div_ps(g, _mm512_add_ps(one, exp512(_mm512_xor_ps(g, sign))));

        _mm512_storeu_ps(y + i, _mm512_mul_ps(silu, _mm512_loadu_ps(up + i)));
    }
}

static void avx512_add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i, _mm512_add_ps(_mm512_loadu_ps(y + i), _mm512_loadu_ps(x + i)));
}

static void avx512_rope(float *x, const float *cos, const float *sin, uint32_t hd)
{
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);

    for (uint32_t i = 0; i < hd; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        __m512 c =
            _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos + i / 2)));
        __m512 s =
            _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin + i / 2)));
        __m512 swapped = _mm512_permute_ps(v, 0xb1);

        /* Even lanes subtract, odd lanes add. */
        _mm512_storeu_ps(x + i, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
    }
}

static void avx512_block_max(float *max, const float *x, uint32_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff),
                  largest = _mm512_set1_epi32(0x7f7fffff);

    for (uint32_t at = 0; at < n; at += KERN_TOP, max++) {
        __m512 best = _mm512_set1_ps(-INFINITY);
        __m512i size = _mm512_setzero_si512();

        for (uint32_t i = at; i < n && i < at + KERN_TOP; i += 16) {
            __mmask16 valid = first_lanes512(n - i);
            __m512 v = _mm512_maskz_loadu_ps(valid, x + i);

            size = _mm512_max_epi32(size, _mm512_and_si512(_mm512_castps_si512(v), magnitude));
            best = _mm512_mask_max_ps(best, valid, best, v);
        }
        *max = _mm512_cmpgt_epi32_mask(size, largest) ? NAN : _mm512_reduce_max_ps(best) + 0.0f;
    }
}

static void avx512_weigh(float *w, double *sum, const float *x, uint32_t n, float largest, float t,
                         float least)
{
    const __m512 shift = _mm512_set1_ps(largest), scale = _mm512_set1_ps(t),
                 light = _mm512_set1_ps(least);

    for (uint32_t at = 0; at < n; at += KERN_SUM, sum++) {
        struct lanes8 lanes = lanes8_zero();

        for (uint32_t i = at; i < n && i < at + KERN_SUM; i += 16) {
            __mmask16 valid = first_lanes512(n - i), keep;
            __m512 v = _mm512_maskz_loadu_ps(valid, x + i);

            v = exp512_lanes(_mm512_div_ps(_mm512_sub_ps(v, shift), scale), valid);
            keep = _mm512_cmp_ps_mask(v, light, _CMP_NLT_UQ);
            v = _mm512_maskz_mov_ps(keep, v);
            _mm512_mask_storeu_ps(w + i, valid, v);
            lanes8_add(&lanes, _mm512_castps512_ps256(v));
            lanes8_add(&lanes, _mm512_extractf32x8_ps(v, 1));
        }
        *sum = lanes8_sum(&lanes);
    }
}

const struct cpu_kernels kernels_avx512 = {
    .name = "avx512",
    .matmul = avx512_matmul,
    .quantize = avx512_quantize,
    .rmsnorm = avx512_rmsnorm,
    .swiglu = avx512_swiglu,
    .add = avx512_add,
    .rope = avx512_rope,
    .kv_store = avx512_kv_store,
    .kv_store_q8 = avx512_kv_store_q8,
    .attention = avx512_attention,
    .attention_q8 = avx512_attention_q8,
    .attention_merge = avx512_attention_merge,
    .block_max = avx512_block_max,
    .weigh = avx512_weigh,
    .exp_f32 = avx512_exp_f32,
};
