/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avx512.h - the kernels of the AVX-512 variant, and the vector functions that they share.
 */
#ifndef KERNELS_X86_AVX512_H
#define KERNELS_X86_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu_kernels.h"
#include "kernels/exp_poly.h"
#include "kernels/x86/unroll.h"

void avx512_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                   uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n);
void avx512_attention(const struct attention *a);
void avx512_attention_q8(const struct attention *a);
void avx512_attention_merge(float *out, const float *o, const float *m, const float *sum,
                            uint32_t n_split, size_t stride, uint32_t group, uint32_t hd);
void avx512_kv_store(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k,
                     const float *v, uint32_t hd);
void avx512_kv_store_q8(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                        uint32_t hd);
/* attention.h; up to 16 queries. */
void avx512_attention_weigh(float s[][KERN_PAGE], float *c, float *m, float *sum,
                            const uint32_t *n_pos, uint32_t n);

/* Sixteen halves to floats. */
KERN_INLINE __m512 halves512(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* Four bytes, in each group of four. */
KERN_INLINE __m512i broadcast4(const int8_t *p)
{
    int32_t four;

    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* kern_tree16(). */
KERN_INLINE float tree512(__m512 lanes)
{
    __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));

    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

/* kern_exp() of x <= EXP_MAX or NaN in the lanes of `valid`, 0 in the others. */
KERN_INLINE __m512 exp512_lanes(__m512 x, __mmask16 valid)
{
    const __m512 one = _mm512_set1_ps(1), round = _mm512_set1_ps(EXP_ROUND);
    __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(EXP_LOG2E), round);
    __m512 n = _mm512_sub_ps(shifted, round);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_HI), x);
    __m512 p = _mm512_set1_ps(EXP_C6);
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    __mmask16 keep = _mm512_mask_cmp_ps_mask(valid, x, _mm512_set1_ps(EXP_MIN), _CMP_NLT_UQ);

    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_LO), r);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    exponent = _mm512_add_epi32(exponent, _mm512_castps_si512(one));
    return _mm512_maskz_mul_ps(keep, p, _mm512_castsi512_ps(exponent));
}

/* kern_exp(). */
KERN_INLINE __m512 exp512(__m512 x)
{
    __mmask16 over = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_MAX), _CMP_GT_OQ);

    return _mm512_mask_blend_ps(over, exp512_lanes(x, 0xffff), _mm512_set1_ps(__builtin_inff()));
}

#endif
