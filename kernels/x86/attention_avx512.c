/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_avx512.c - the tiles of attention (attention.h) with AVX-512, up to six queries each.
 *
 * Scores: 16 positions are the 16 lanes (K pages are stored for that), so a chain over d needs no
 * horizontal sum; two blocks of 16 positions share each element of a query. Values: 64 dimensions
 * of every query stay in registers while the positions pass by.
 */
#include "kernels/x86/attention.h"
#include "kernels/x86/avx512.h"

#define TILE   6
#define BLOCKS 2 /* of 16 positions */
#define VECS   4 /* of 16 dimensions */

/* Tiles by queries and by whether they read floats; floats are read by more than TILE queries, which
 * are shared out evenly. */
#define TILE_KIND(N, WIDE) ((N) + ((WIDE) ? TILE : 0u))
#define EACH_TILE(CASE)                                                                            \
    CASE(1, 0)                                                                                     \
    CASE(2, 0)                                                                                     \
    CASE(3, 0)                                                                                     \
    CASE(4, 0)                                                                                     \
    CASE(5, 0)                                                                                     \
    CASE(6, 0)                                                                                     \
    CASE(3, 1)                                                                                     \
    CASE(4, 1)                                                                                     \
    CASE(5, 1)                                                                                     \
    CASE(6, 1)

void avx512_kv_store(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k,
                     const float *v, uint32_t hd)
{
    uint16_t *column = k_page + (size_t)(slot / 16) * hd * 16 + slot % 16;
    uint16_t half[16];

    for (uint32_t d = 0; d < hd; d += 16) {
        _mm256_storeu_si256((void *)half,
                            _mm512_cvtps_ph(_mm512_loadu_ps(k + d), _MM_FROUND_TO_NEAREST_INT));
        for (uint32_t i = 0; i < 16; i++)
            column[(d + i) * 16] = half[i];
        _mm256_storeu_si256((void *)(v_page + (size_t)slot * hd + d),
                            _mm512_cvtps_ph(_mm512_loadu_ps(v + d), _MM_FROUND_TO_NEAREST_INT));
    }
}

/* Elements i .. i + 15 of a piece. */
KERN_INLINE __m512 elements(const void *piece, size_t i, const int wide)
{
    return wide ? _mm512_load_ps((const float *)piece + i) : halves512((const uint16_t *)piece + i);
}

static void widen(float *dst, const uint16_t *src, uint32_t n, const char *next)
{
    for (size_t i = 0; i < n; i += 16) {
        if (i % 32 == 0)
            _mm_prefetch(next + 2 * i, _MM_HINT_T0);
        _mm512_store_ps(dst + i, halves512(src + i));
    }
}

KERN_INLINE void score_tile(const struct tile *t, uint32_t p0, const uint32_t n, const int wide)
{
    __m512 chain[TILE][2][BLOCKS]; /* [query][even, odd d][block] */
    const float *q = t->q;
    size_t hd = t->hd;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++)
            chain[i][0][b] = chain[i][1][b] = _mm512_setzero_ps();
    }
    for (size_t d = 0; d < hd; d += 2) {
        KERN_UNROLL
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m512 keys[BLOCKS];

            KERN_UNROLL
            for (uint32_t b = 0; b < BLOCKS; b++)
                keys[b] = elements(t->piece, (b * hd + d + odd) * 16, wide);
            if (!wide)
                _mm_prefetch(t->next + (odd * hd + d) * 32, _MM_HINT_T0);
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                __m512 qd = _mm512_set1_ps(q[i * hd + d + odd]);

                KERN_UNROLL
                for (uint32_t b = 0; b < BLOCKS; b++)
                    chain[i][odd][b] = _mm512_fmadd_ps(qd, keys[b], chain[i][odd][b]);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t b = 0; b < BLOCKS; b++)
            _mm512_store_ps(&t->s[i][p0 + b * 16],
                            _mm512_mul_ps(_mm512_add_ps(chain[i][0][b], chain[i][1][b]),
                                          _mm512_set1_ps(t->scale)));
    }
}

static void score(const struct tile *t, uint32_t p0)
{
#define CASE(N, WIDE)                                                                              \
    case TILE_KIND(N, WIDE):                                                                       \
        score_tile(t, p0, N, WIDE);                                                                \
        break;
    switch (TILE_KIND(t->n, t->wide)) {
        EACH_TILE(CASE)
    }
#undef CASE
}

static __mmask16 valid_lanes(uint32_t n, uint32_t p)
{
    return n - p >= 16 ? 0xffff : (__mmask16)((1u << (n - p)) - 1);
}

/* The largest of m and n scores. */
KERN_INLINE float max_score(const float s[KERN_PAGE], uint32_t n, float m)
{
    __m512 max = _mm512_set1_ps(m);

    for (uint32_t p = 0; p < n; p += 16)
        max = _mm512_mask_max_ps(max, valid_lanes(n, p), _mm512_load_ps(s + p), max);
    return _mm512_reduce_max_ps(max) + 0; /* -0 becomes +0 */
}

/* Turns n scores into weights; returns their sum. */
KERN_INLINE float weigh_scores(float s[KERN_PAGE], uint32_t n, float m)
{
    __m512 lanes = _mm512_setzero_ps();

    for (uint32_t p = 0; p < n; p += 16) {
        __m512 x = _mm512_sub_ps(_mm512_load_ps(s + p), _mm512_set1_ps(m));
        __m512 w = exp512_lanes(x, valid_lanes(n, p));

        lanes = _mm512_add_ps(lanes, w);
        _mm512_store_ps(s + p, w);
    }
    return tree512(lanes);
}

/* Up to 16 queries: their factors are one vector. */
void avx512_attention_weigh(float s[][KERN_PAGE], float *c, float *m, float *sum,
                            const uint32_t *n_pos, uint32_t n)
{
    _Alignas(64) float new_m[16], page_sum[16];
    __mmask16 queries = valid_lanes(n, 0);
    __m512 factors;

    for (uint32_t i = 0; i < n; i++)
        new_m[i] = n_pos[i] == KERN_PAGE ? max_score(s[i], KERN_PAGE, m[i])
                                         : max_score(s[i], n_pos[i], m[i]);
    factors = exp512_lanes(_mm512_sub_ps(_mm512_maskz_loadu_ps(queries, m), _mm512_load_ps(new_m)),
                           queries);
    _mm512_mask_storeu_ps(c, queries, factors);
    _mm512_mask_storeu_ps(m, queries, _mm512_load_ps(new_m));
    for (uint32_t i = 0; i < n; i++)
        page_sum[i] = n_pos[i] == KERN_PAGE ? weigh_scores(s[i], KERN_PAGE, new_m[i])
                                            : weigh_scores(s[i], n_pos[i], new_m[i]);
    _mm512_mask_storeu_ps(
        sum, queries,
        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(queries, sum), factors, _mm512_load_ps(page_sum)));
}

/* Position p, for the queries that see it. */
KERN_INLINE void add_position(__m512 acc[TILE][VECS], const struct tile *t, uint32_t p, uint32_t d0,
                              const uint32_t n_vecs, const uint32_t n, const int wide,
                              const int all)
{
    __m512 values[VECS];

    KERN_UNROLL
    for (uint32_t j = 0; j < n_vecs; j++)
        values[j] = elements(t->piece, (size_t)p * t->stride + d0 + 16 * j, wide);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        __m512 weight = _mm512_set1_ps(t->s[i][p]);

        if (!all && p >= t->n_pos[i])
            continue;
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            acc[i][j] = _mm512_fmadd_ps(weight, values[j], acc[i][j]);
    }
}

/* Dimensions d0 .. of the piece. */
KERN_INLINE void add_tile(const struct tile *t, uint32_t d0, const uint32_t n_vecs,
                          const uint32_t n, const int wide)
{
    __m512 acc[TILE][VECS];
    float *o = t->o + d0;
    uint32_t p = 0;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            acc[i][j] =
                _mm512_mul_ps(_mm512_loadu_ps(o + i * t->hd + 16 * j), _mm512_set1_ps(t->c[i]));
    }
    for (; p < t->n_pos[0]; p++) {
        for (uint32_t j = 0; j < n_vecs && !wide; j += 2)
            _mm_prefetch(t->next + ((size_t)p * t->hd + d0 + 16 * j) * 2, _MM_HINT_T0);
        add_position(acc, t, p, d0, n_vecs, n, wide, 1);
    }
    for (; p < t->n_pos[n - 1]; p++)
        add_position(acc, t, p, d0, n_vecs, n, wide, 0);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            _mm512_storeu_ps(o + i * t->hd + 16 * j, acc[i][j]);
    }
}

KERN_INLINE void add_dims(const struct tile *t, uint32_t n_dims, const uint32_t n, const int wide)
{
    if (n_dims == VECS * 16) {
        add_tile(t, 0, VECS, n, wide);
        return;
    }
    for (uint32_t d = 0; d < n_dims; d += 16)
        add_tile(t, d, 1, n, wide);
}

static void add_values(const struct tile *t, uint32_t n_dims)
{
#define CASE(N, WIDE)                                                                              \
    case TILE_KIND(N, WIDE):                                                                       \
        add_dims(t, n_dims, N, WIDE);                                                              \
        break;
    switch (TILE_KIND(t->n, t->wide)) {
        EACH_TILE(CASE)
    }
#undef CASE
}

static void merge_splits(float *dst, float *total, const float *o, const float *m, const float *sum,
                         uint32_t n, size_t stride, uint32_t hd, float max, int first)
{
    _Alignas(64) float c[16] = {0};

    for (uint32_t i = 0; i < n; i++)
        c[i] = m[i * stride] - max;
    _mm512_store_ps(c, exp512_lanes(_mm512_load_ps(c), 0xffff));
    for (uint32_t i = 0; i < n; i++)
        *total = __builtin_fmaf(sum[i * stride], c[i], *total);
    for (uint32_t d = 0; d < hd; d += 16) {
        __m512 acc = first ? _mm512_setzero_ps() : _mm512_loadu_ps(dst + d);

        for (uint32_t i = 0; i < n; i++)
            acc = _mm512_fmadd_ps(_mm512_loadu_ps(o + i * stride * hd + d), _mm512_set1_ps(c[i]),
                                  acc);
        _mm512_storeu_ps(dst + d, acc);
    }
}

static const struct attention_ops ops = {
    .queries = TILE,
    .positions = BLOCKS * 16,
    .dims = VECS * 16,
    .lanes = 16,
    .widen = widen,
    .score = score,
    .weigh = avx512_attention_weigh,
    .add_values = add_values,
    .merge = merge_splits,
};

void avx512_attention(const struct attention *a)
{
    attention_walk(a, &ops);
}

void avx512_attention_merge(float *out, const float *o, const float *m, const float *sum,
                            uint32_t n_split, size_t stride, uint32_t group, uint32_t hd)
{
    merge_walk(out, o, m, sum, n_split, stride, group, hd, &ops);
}
