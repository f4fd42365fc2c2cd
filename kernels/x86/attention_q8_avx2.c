/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_q8_avx2.c - the tiles of 8-bit attention (attention_q8.h) with AVX2, up to three queries
 * each.
 *
 * Products are VPMADDUBSW, whose pairs must not saturate: keys go in as |k| and queries with the
 * key's sign, weights are at most 127; a pair is at most 2 * 127 * 127 = 32,258, and each is widened
 * at once. (Widening keys instead, for VPMADDWD, was a tenth slower on Zen 3.)
 */
#include "kernels/x86/attention_q8.h"
#include "kernels/x86/avx2.h"

#define TILE 3
#define VECS 4 /* of 8 dimensions */

#define EACH_TILE(CASE)                                                                            \
    CASE(1)                                                                                        \
    CASE(2)                                                                                        \
    CASE(3)

/* Codes of 8 values: x * scale, rounded. */
KERN_INLINE __m256i codes8(const float *x, __m256 scale)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
}

static float quantize(int8_t *codes, const float *x, uint32_t n)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256i max_lanes = _mm256_setzero_si256();
    __m256 scale;
    int32_t max_bits;
    float max;

    /* As integers, magnitudes are ordered as the floats are, infinity and NaN on top. */
    for (uint32_t i = 0; i < n; i += 8)
        max_lanes = _mm256_max_epi32(
            max_lanes, _mm256_castps_si256(_mm256_and_ps(_mm256_loadu_ps(x + i), magnitude)));
    max_bits = max_epi32(max_lanes);
    max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(max_bits)));
    if (max_bits >= 0x7f800000 || max < KERN_QUANT_MIN) {
        memset(codes, 0, n);
        return max_bits >= 0x7f800000 ? NAN : 0;
    }
    scale = _mm256_set1_ps(127 / max);
    for (uint32_t i = 0; i < n; i += 16) {
        /* Packing works in each half: 0-3 8-11 | 4-7 12-15 is put in order. */
        __m256i words = _mm256_permute4x64_epi64(
            _mm256_packs_epi32(codes8(x + i, scale), codes8(x + i + 8, scale)), 0xd8);

        _mm_storeu_si128((void *)(codes + i), _mm_packs_epi16(_mm256_castsi256_si128(words),
                                                              _mm256_extracti128_si256(words, 1)));
    }
    return max / 127;
}

/* Scores of 16 positions from p0 on. */
KERN_INLINE void score_block(const struct q8_tile *t, uint32_t p0, const uint32_t n)
{
    const __m256i top = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    const uint8_t *keys = t->piece + (size_t)p0 * t->hd, *next = t->next + (size_t)p0 * t->hd;
    __m256i sums[TILE][2]; /* [query][positions 0 .. 7, 8 .. 15] */

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        sums[i][0] = sums[i][1] = _mm256_setzero_si256();
    for (uint32_t d = 0; d < t->hd; d += 4) {
        const uint8_t *line = keys + (size_t)d * 16;

        _mm_prefetch((const char *)(next + (size_t)d * 16), _MM_HINT_T0);
        KERN_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            __m256i k = _mm256_xor_si256(_mm256_load_si256((const void *)(line + 32 * half)), top);
            __m256i size = _mm256_abs_epi8(k);

            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                __m256i q = _mm256_sign_epi8(broadcast4(t->q + (size_t)i * t->hd + d), k);

                sums[i][half] = _mm256_add_epi32(
                    sums[i][half], _mm256_madd_epi16(_mm256_maddubs_epi16(size, q), ones));
            }
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            __m256 s =
                _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i][half]), _mm256_set1_ps(t->factor[i]));

            _mm256_store_ps(&t->s[i][p0 + 8 * half],
                            _mm256_mul_ps(s, _mm256_load_ps(t->d_k + p0 + 8 * half)));
        }
    }
}

KERN_INLINE void score_tile(const struct q8_tile *t, const uint32_t n)
{
    for (uint32_t p = 0; p < t->n_pos; p += 16)
        score_block(t, p, n);
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
    for (uint32_t p = 0; p < KERN_PAGE; p += 8) {
        __m256i valid = first_lanes256(p < n ? n - p : 0);
        __m256 t = _mm256_mul_ps(_mm256_load_ps(weights + p), _mm256_load_ps(d_v + p));

        _mm256_store_ps(weights + p, _mm256_and_ps(t, _mm256_castsi256_ps(valid)));
    }
}

KERN_INLINE void add_tile(const struct q8_tile *t, const uint32_t n_vecs, const uint32_t n)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums[TILE][VECS];
    size_t stride = (size_t)t->hd * 4;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            sums[i][j] = _mm256_setzero_si256();
    }
    for (uint32_t p = 0; p < (t->n_pos + 3) / 4; p++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++) {
            __m256i v = _mm256_load_si256((const void *)(t->piece + p * stride + 32 * j));

            if (j % 2 == 0)
                _mm_prefetch((const char *)(t->next + p * stride + 32 * j), _MM_HINT_T0);
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                __m256i pairs = _mm256_maddubs_epi16(broadcast4(&t->u[i][4 * p]), v);

                sums[i][j] = _mm256_add_epi32(sums[i][j], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        float *o = t->o + (size_t)i * t->hd;

        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++) {
            __m256 before = _mm256_mul_ps(_mm256_loadu_ps(o + 8 * j), _mm256_set1_ps(t->c[i]));

            _mm256_storeu_ps(o + 8 * j, _mm256_fmadd_ps(_mm256_set1_ps(t->d_t[i]),
                                                        _mm256_cvtepi32_ps(sums[i][j]), before));
        }
    }
}

KERN_INLINE void add_dims(const struct q8_tile *t, uint32_t n_dims, const uint32_t n)
{
    if (n_dims == VECS * 8)
        add_tile(t, VECS, n);
    else
        add_tile(t, 2, n); /* 16: what 32 leave of hd */
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
    .dims = VECS * 8,
    .lanes = 8,
    .quantize = quantize,
    .score = score,
    .weigh = avx2_attention_weigh,
    .scale_weights = scale_weights,
    .add_values = add_values,
};

void avx2_kv_store_q8(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                      uint32_t hd)
{
    q8_store(k_page, v_page, slot, k, v, hd, quantize);
}

void avx2_attention_q8(const struct attention *a)
{
    q8_attention_walk(a, &ops);
}
