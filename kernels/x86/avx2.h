/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx2.h - the kernels of the AVX2 variant (with FMA and F16C) and of AVX-VNNI, which is AVX2 with
 * another matrix product, and the vector functions that they share.
 */
#ifndef KERNELS_X86_AVX2_H
#define KERNELS_X86_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu_kernels.h"
#include "kernels/exp_poly.h"
#include "kernels/x86/unroll.h"

void avx2_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                 uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n);
void avxvnni_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                    uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n);
void avx2_attention(const struct attention *a);
void avx2_attention_q8(const struct attention *a);
void avx2_attention_merge(float *out, const float *o, const float *m, const float *sum,
                          uint32_t n_split, size_t stride, uint32_t group, uint32_t hd);
void avx2_kv_store(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k,
                   const float *v, uint32_t hd);
void avx2_kv_store_q8(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                      uint32_t hd);
/* attention.h; up to 8 queries. */
void avx2_attention_weigh(float s[][KERN_PAGE], float *c, float *m, float *sum,
                          const uint32_t *n_pos, uint32_t n);

/* Eight halves to floats. */
KERN_INLINE __m256 halves256(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* Four bytes, in each group of four. */
KERN_INLINE __m256i broadcast4(const int8_t *p)
{
    int32_t four;

    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* The largest of 8 int32 lanes. */
KERN_INLINE int32_t max_epi32(__m256i v)
{
    __m128i v4 = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    __m128i v2 = _mm_max_epi32(v4, _mm_shuffle_epi32(v4, 0x4e));

    return _mm_cvtsi128_si32(_mm_max_epi32(v2, _mm_shuffle_epi32(v2, 0xb1)));
}

/* kern_tree16(); low holds lanes 0 .. 7. */
KERN_INLINE float tree256(__m256 low, __m256 high)
{
    __m256 v8 = _mm256_add_ps(low, high);
    __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));

    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

/* All ones in the first n of 8 lanes; any n. */
KERN_INLINE __m256i first_lanes256(uint32_t n)
{
    int32_t count = n < 8 ? (int32_t)n : 8;

    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* kern_exp() of x <= EXP_MAX or NaN in the lanes of `valid`, 0 in the others. */
KERN_INLINE __m256 exp256_lanes(__m256 x, __m256i valid)
{
    const __m256 one = _mm256_set1_ps(1), round = _mm256_set1_ps(EXP_ROUND);
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(EXP_LOG2E), round);
    __m256 n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_HI), x);
    __m256 p = _mm256_set1_ps(EXP_C6);
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MIN), _CMP_NLT_UQ);

    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_LO), r);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    exponent = _mm256_add_epi32(exponent, _mm256_castps_si256(one));
    keep = _mm256_and_ps(keep, _mm256_castsi256_ps(valid));
    return _mm256_and_ps(keep, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

/* kern_exp(). */
KERN_INLINE __m256 exp256(__m256 x)
{
    __m256 over = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MAX), _CMP_GT_OQ);

    return _mm256_blendv_ps(exp256_lanes(x, _mm256_set1_epi32(-1)),
                            _mm256_set1_ps(__builtin_inff()), over);
}

/* The largest of 8 lanes. */
KERN_INLINE float max256(__m256 v)
{
    __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));

    return _mm_cvtss_f32(_mm_max_ss(v2, _mm_movehdup_ps(v2)));
}

#endif
