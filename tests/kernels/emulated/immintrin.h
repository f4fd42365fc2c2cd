/* SPDX-License-Identifier: Apache-2.0 */
/*
 * immintrin.h - stands before the compiler's header of this name where the AVX-512 and AVX-VNNI
 * kernels are compiled for CPUs without.
 *
 * SIMDe does most intrinsics with AVX2; those that its version 0.7.4 lacks, or does in a hundred
 * instructions (dot products), are below, from their descriptions in the Intel Intrinsics Guide: each half by the 256-bit instruction of the same
 * description where there is one, else lane by lane. One that neither has does not compile: the
 * compiler's own wants a CPU that these flags do not promise. tests/kernels/test_emulated.c holds
 * both against the guide.
 */
#ifndef TESTS_KERNELS_EMULATED_IMMINTRIN_H
#define TESTS_KERNELS_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <stdint.h>

#define EMULATED static inline __attribute__((always_inline))

union emulated512 {
    __m512 ps;
    __m512i si;
    __m256 half_ps[2];
    __m256i half_si[2];
    __m128i quarter_si[4];
    int32_t i32[16];
    uint32_t u32[16];
};

EMULATED __m512 emulated_ps(__m256 low, __m256 high)
{
    return (union emulated512){.half_ps = {low, high}}.ps;
}

EMULATED __m512i emulated_si(__m256i low, __m256i high)
{
    return (union emulated512){.half_si = {low, high}}.si;
}

EMULATED __m256 emulated_half_ps(__m512 a, int i)
{
    return (union emulated512){.ps = a}.half_ps[i];
}

EMULATED __m256i emulated_half_si(__m512i a, int i)
{
    return (union emulated512){.si = a}.half_si[i];
}

/* ---- memory: what is not in the mask is not touched ---- */

/* The first 8 lanes of a mask, all ones or zero each. */
EMULATED __m256i emulated_lanes(uint32_t mask)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)mask), bit), bit);
}

EMULATED __m512 emulated_maskz_loadu_ps(__mmask16 k, const float *p)
{
    return emulated_ps(_mm256_maskload_ps(p, emulated_lanes(k)),
                       _mm256_maskload_ps(p + 8, emulated_lanes(k >> 8)));
}
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(k, p) emulated_maskz_loadu_ps(k, p)

EMULATED void emulated_mask_storeu_ps(float *p, __mmask16 k, __m512 a)
{
    _mm256_maskstore_ps(p, emulated_lanes(k), emulated_half_ps(a, 0));
    _mm256_maskstore_ps(p + 8, emulated_lanes(k >> 8), emulated_half_ps(a, 1));
}
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(p, k, a) emulated_mask_storeu_ps(p, k, a)

/* ---- comparisons ---- */

#undef _mm512_mask_cmp_ps_mask
#define _mm512_mask_cmp_ps_mask(k, a, b, predicate)                                                \
    ((__mmask16)((k)&_mm512_cmp_ps_mask(a, b, predicate)))

EMULATED __mmask16 emulated_cmp_epi32_mask(__m512i a, __m512i b, int predicate)
{
    union emulated512 x = {.si = a}, y = {.si = b};
    uint32_t k = 0;

    for (uint32_t i = 0; i < 16; i++) {
        int32_t p = x.i32[i], q = y.i32[i];
        /* The lower two bits: equal, less, less or equal, never; the third turns them round. */
        const int is[4] = {p == q, p < q, p <= q, 0};

        k |= (uint32_t)(is[predicate & 3] ^ predicate >> 2) << i;
    }
    return (__mmask16)k;
}
#undef _mm512_cmp_epi32_mask
#define _mm512_cmp_epi32_mask(a, b, predicate) emulated_cmp_epi32_mask(a, b, predicate)

EMULATED __mmask16 emulated_cmplt_epu32_mask(__m512i a, __m512i b)
{
    union emulated512 x = {.si = a}, y = {.si = b};
    uint32_t k = 0;

    for (uint32_t i = 0; i < 16; i++)
        k |= (uint32_t)(x.u32[i] < y.u32[i]) << i;
    return (__mmask16)k;
}
#undef _mm512_cmplt_epu32_mask
#define _mm512_cmplt_epu32_mask(a, b) emulated_cmplt_epu32_mask(a, b)

/* ---- conversions ---- */

EMULATED __m512 emulated_cvtepi32_ps(__m512i a)
{
    return emulated_ps(_mm256_cvtepi32_ps(emulated_half_si(a, 0)),
                       _mm256_cvtepi32_ps(emulated_half_si(a, 1)));
}
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)

EMULATED __m512i emulated_cvtps_epi32(__m512 a)
{
    return emulated_si(_mm256_cvtps_epi32(emulated_half_ps(a, 0)),
                       _mm256_cvtps_epi32(emulated_half_ps(a, 1)));
}
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(a) emulated_cvtps_epi32(a)

EMULATED __m512 emulated_cvtph_ps(__m256i a)
{
    return emulated_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                       _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) emulated_cvtph_ps(a)

#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, rounding)                                                               \
    _mm256_set_m128i(_mm256_cvtps_ph(emulated_half_ps(a, 1), rounding),                            \
                     _mm256_cvtps_ph(emulated_half_ps(a, 0), rounding))

EMULATED __m512i emulated_cvtepi8_epi32(__m128i a)
{
    return emulated_si(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(a) emulated_cvtepi8_epi32(a)

EMULATED __m512i emulated_cvtepu8_epi32(__m128i a)
{
    return emulated_si(_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8)));
}
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(a) emulated_cvtepu8_epi32(a)

EMULATED __m512i emulated_cvtepu16_epi32(__m256i a)
{
    return emulated_si(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                       _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
}
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(a) emulated_cvtepu16_epi32(a)

/* The low byte of each lane. */
EMULATED __m128i emulated_cvtepi32_epi8(__m512i a)
{
    union emulated512 v = {.si = a};
    union {
        __m128i si;
        uint8_t u8[16];
    } ret;

    for (uint32_t i = 0; i < 16; i++)
        ret.u8[i] = (uint8_t)v.u32[i];
    return ret.si;
}
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8(a) emulated_cvtepi32_epi8(a)

/* ---- moves inside a vector ---- */

#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, i) emulated_half_ps(a, i)

#undef _mm512_permute_ps
#define _mm512_permute_ps(a, order)                                                                \
    emulated_ps(_mm256_permute_ps(emulated_half_ps(a, 0), order),                                  \
                _mm256_permute_ps(emulated_half_ps(a, 1), order))

/* ---- arithmetic ---- */

/* SIMDe wants constants to shift by, which those of the kernels only are once they are inlined. */
EMULATED __m512i emulated_srli_epi16(__m512i a, uint32_t n)
{
    __m128i by = _mm_cvtsi32_si128((int32_t)n);

    return emulated_si(_mm256_srl_epi16(emulated_half_si(a, 0), by),
                       _mm256_srl_epi16(emulated_half_si(a, 1), by));
}
#undef _mm512_srli_epi16
#define _mm512_srli_epi16(a, n) emulated_srli_epi16(a, n)

EMULATED __m512 emulated_fmaddsub_ps(__m512 a, __m512 b, __m512 c)
{
    return emulated_ps(
        _mm256_fmaddsub_ps(emulated_half_ps(a, 0), emulated_half_ps(b, 0), emulated_half_ps(c, 0)),
        _mm256_fmaddsub_ps(emulated_half_ps(a, 1), emulated_half_ps(b, 1), emulated_half_ps(c, 1)));
}
#undef _mm512_fmaddsub_ps
#define _mm512_fmaddsub_ps(a, b, c) emulated_fmaddsub_ps(a, b, c)

/* Four products of unsigned and signed bytes to each 32-bit lane, none of them saturated: VPMADDWD
 * adds those of bytes 0 and 2, and of 1 and 3, exactly. */
EMULATED __m256i emulated_dpbusd256(__m256i sum, __m256i a, __m256i b)
{
    const __m256i low = _mm256_set1_epi16(0xff);
    __m256i even =
        _mm256_madd_epi16(_mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));

    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

EMULATED __m512i emulated_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    return emulated_si(emulated_dpbusd256(emulated_half_si(sum, 0), emulated_half_si(a, 0),
                                          emulated_half_si(b, 0)),
                       emulated_dpbusd256(emulated_half_si(sum, 1), emulated_half_si(a, 1),
                                          emulated_half_si(b, 1)));
}
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, a, b) emulated_dpbusd_epi32(sum, a, b)
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32(sum, a, b) emulated_dpbusd256(sum, a, b)

EMULATED __m512i emulated_dpwssd_epi32(__m512i sum, __m512i a, __m512i b)
{
    return emulated_si(
        _mm256_add_epi32(emulated_half_si(sum, 0),
                         _mm256_madd_epi16(emulated_half_si(a, 0), emulated_half_si(b, 0))),
        _mm256_add_epi32(emulated_half_si(sum, 1),
                         _mm256_madd_epi16(emulated_half_si(a, 1), emulated_half_si(b, 1))));
}
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32(sum, a, b) emulated_dpwssd_epi32(sum, a, b)

/* ---- all lanes to one ---- */

EMULATED int32_t emulated_reduce_add_epi32(__m512i a)
{
    union emulated512 v = {.si = a};
    uint32_t sum = 0;

    for (uint32_t i = 0; i < 16; i++)
        sum += v.u32[i];
    return (int32_t)sum;
}
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32(a) emulated_reduce_add_epi32(a)

EMULATED int32_t emulated_reduce_max_epi32(__m512i a)
{
    union emulated512 v = {.si = a};
    int32_t max = v.i32[0];

    for (uint32_t i = 1; i < 16; i++)
        max = v.i32[i] > max ? v.i32[i] : max;
    return max;
}
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32(a) emulated_reduce_max_epi32(a)

/* Halves, then quarters and so on, as compilers do it: so a NaN goes the same ways. */
EMULATED float emulated_reduce_max_ps(__m512 a)
{
    __m256 v8 = _mm256_max_ps(emulated_half_ps(a, 1), emulated_half_ps(a, 0));
    __m128 v4 = _mm_max_ps(_mm256_extractf128_ps(v8, 1), _mm256_castps256_ps128(v8));
    __m128 v2 = _mm_max_ps(v4, _mm_permute_ps(v4, 0x4e));

    return _mm_cvtss_f32(_mm_max_ps(v2, _mm_permute_ps(v2, 0xb1)));
}
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps(a) emulated_reduce_max_ps(a)

/* Lanes that are not in the mask count as the largest. */
EMULATED uint32_t emulated_mask_reduce_min_epu32(__mmask16 k, __m512i a)
{
    union emulated512 v = {.si = a};
    uint32_t min = UINT32_MAX;

    for (uint32_t i = 0; i < 16; i++)
        if (k >> i & 1 && v.u32[i] < min)
            min = v.u32[i];
    return min;
}
#undef _mm512_mask_reduce_min_epu32
#define _mm512_mask_reduce_min_epu32(k, a) emulated_mask_reduce_min_epu32(k, a)

#endif
