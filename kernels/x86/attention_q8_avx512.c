/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_q8_avx512.c - the tiles of 8-bit attention (attention_q8.h) with AVX-512 VNNI, up to six
 * queries each.
 *
 * VPDPBUSD multiplies unsigned by signed bytes: keys are stored with 128 added, which a query's sums
 * begin with taken off (128 times the sum of its codes); weights are never negative.
 */
#include "kernels/x86/attention_q8.h"
#include "kernels/x86/avx512.h"

#define TILE   6
#define BLOCKS 2 /* of 16 positions */
#define VECS   4 /* of 16 dimensions */

#define EACH_TILE(CASE)                                                                            \
    CASE(1)                                                                                        \
    CASE(2)                                                                                        \
    CASE(3)                                                                                        \
    CASE(4)                                                                                        \
    CASE(5)                                                                                        \
    CASE(6)

static float quantize(int8_t *codes, const float *x, uint32_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i max_lanes = _mm512_setzero_si512();
    __m512 scale;
    int32_t max_bits;
    float max;

    /* As integers, magnitudes are ordered as the floats are, infinity and NaN on top. */
    for (uint32_t i = 0; i < n; i += 16)
        max_lanes = _mm512_max_epi32(
            max_lanes, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + i)), magnitude));
    max_bits = _mm512_reduce_max_epi32(max_lanes);
    max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(max_bits)));
    if (max_bits >= 0x7f800000 || max < KERN_QUANT_MIN) {
        memset(codes, 0, n);
        return max_bits >= 0x7f800000 ? NAN : 0;
    }
    scale = _mm512_set1_ps(127 / max);
    for (uint32_t i = 0; i < n; i += 16)
        _mm_storeu_si128((void *)(codes + i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(
                                                  _mm512_mul_ps(_mm512_loadu_ps(x + i), scale))));
    return max / 127;
}

/* Scores of BLOCKS * 16 positions from p0 on. */
KERN_INLINE void score_blocks(const struct q8_tile *t, uint32_t p0, const uint32_t n)
{
    __m512i sums[TILE][BLOCKS];
    size_t block = (size_t)t->hd * 16, at = (size_t)p0 * t->hd;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++)
            sums[i][b] = _mm512_set1_epi32(-128 * t->q_sum[i]);
    }
    for (uint32_t d = 0; d < t->hd; d += 4, at += LINE) {
        __m512i keys[BLOCKS];

        KERN_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++) {
            keys[b] = _mm512_load_si512(t->piece + at + b * block);
            _mm_prefetch((const char *)(t->next + at + b * block), _MM_HINT_T0);
        }
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m512i q = broadcast4(t->q + (size_t)i * t->hd + d);

            KERN_UNROLL
            for (uint32_t b = 0; b < BLOCKS; b++)
                sums[i][b] = _mm512_dpbusd_epi32(sums[i][b], keys[b], q);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++) {
            __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][b]), _mm512_set1_ps(t->factor[i]));

            _mm512_store_ps(&t->s[i][p0 + b * 16],
                            _mm512_mul_ps(s, _mm512_load_ps(t->d_k + p0 + b * 16)));
        }
    }
}

KERN_INLINE void score_tile(const struct q8_tile *t, const uint32_t n)
{
    for (uint32_t p = 0; p < t->n_pos; p += BLOCKS * 16)
        score_blocks(t, p, n);
}

static void score(const struct q8_tile *t)
{
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        score_tile(t, N);                                                                          \
        break;
    switch (t->n) {
        EACH_TILE(CASE)
    }
#undef CASE
}

static void scale_weights(float weights[KERN_PAGE], const float *d_v, uint32_t n)
{
    for (uint32_t p = 0; p < KERN_PAGE; p += 16) {
        uint32_t left = p < n ? n - p : 0;
        __mmask16 valid = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);

        _mm512_store_ps(weights + p, _mm512_maskz_mul_ps(valid, _mm512_load_ps(weights + p),
                                                         _mm512_load_ps(d_v + p)));
    }
}

/* Dimensions d0 .. of the piece. */
KERN_INLINE void add_tile(const struct q8_tile *t, uint32_t d0, const uint32_t n_vecs,
                          const uint32_t n)
{
    __m512i sums[TILE][VECS];
    size_t stride = (size_t)t->hd * 4, at = (size_t)d0 * 4;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            sums[i][j] = _mm512_setzero_si512();
    }
    for (uint32_t p = 0; p < (t->n_pos + 3) / 4; p++, at += stride) {
        __m512i values[VECS];

        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++) {
            values[j] = _mm512_load_si512(t->piece + at + LINE * j);
            _mm_prefetch((const char *)(t->next + at + LINE * j), _MM_HINT_T0);
        }
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m512i u = broadcast4(&t->u[i][4 * p]);

            KERN_UNROLL
            for (uint32_t j = 0; j < n_vecs; j++)
                sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], u, values[j]);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        float *o = t->o + (size_t)i * t->hd + d0;

        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++) {
            __m512 before = _mm512_mul_ps(_mm512_loadu_ps(o + 16 * j), _mm512_set1_ps(t->c[i]));

            _mm512_storeu_ps(o + 16 * j, _mm512_fmadd_ps(_mm512_set1_ps(t->d_t[i]),
                                                         _mm512_cvtepi32_ps(sums[i][j]), before));
        }
    }
}

KERN_INLINE void add_dims(const struct q8_tile *t, uint32_t n_dims, const uint32_t n)
{
    if (n_dims == VECS * 16) {
        add_tile(t, 0, VECS, n);
        return;
    }
    for (uint32_t d = 0; d < n_dims; d += 16)
        add_tile(t, d, 1, n);
}

static void add_values(const struct q8_tile *t, uint32_t n_dims)
{
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        add_dims(t, n_dims, N);                                                                    \
        break;
    switch (t->n) {
        EACH_TILE(CASE)
    }
#undef CASE
}

static const struct q8_ops ops = {
    .queries = TILE,
    .dims = VECS * 16,
    .lanes = 16,
    .quantize = quantize,
    .score = score,
    .weigh = avx512_attention_weigh,
    .scale_weights = scale_weights,
    .add_values = add_values,
};

void avx512_kv_store_q8(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                        uint32_t hd)
{
    q8_store(k_page, v_page, slot, k, v, hd, quantize);
}

void avx512_attention_q8(const struct attention *a)
{
    q8_attention_walk(a, &ops);
}
