/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_avx2.c - the tiles of attention (attention.h) with AVX2, up to three queries each.
 *
 * Scores: the 16 positions of a K block are two vectors, so a chain over d needs no horizontal sum.
 * Values: 32 dimensions of every query stay in registers while the positions pass by.
 */
#include "kernels/x86/attention.h"
#include "kernels/x86/avx2.h"

#define TILE 3
#define VECS 4 /* of 8 dimensions */

/* Tiles by queries and by whether they read floats; floats are read by more than TILE queries, which
 * are shared out evenly. */
#define TILE_KIND(N, WIDE) ((N) + ((WIDE) ? TILE : 0u))
#define EACH_TILE(CASE)                                                                            \
    CASE(1, 0)                                                                                     \
    CASE(2, 0)                                                                                     \
    CASE(3, 0)                                                                                     \
    CASE(2, 1)                                                                                     \
    CASE(3, 1)

static void store_halves(uint16_t *dst, const float *src)
{
    _mm_storeu_si128((void *)dst, _mm256_cvtps_ph(_mm256_loadu_ps(src), _MM_FROUND_TO_NEAREST_INT));
}

void avx2_kv_store(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k,
                   const float *v, uint32_t hd)
{
    uint16_t *column = k_page + (size_t)(slot / 16) * hd * 16 + slot % 16;
    uint16_t half[8];

    for (uint32_t d = 0; d < hd; d += 8) {
        store_halves(half, k + d);
        for (uint32_t i = 0; i < 8; i++)
            column[(d + i) * 16] = half[i];
        store_halves(v_page + (size_t)slot * hd + d, v + d);
    }
}

/* Elements i .. i + 7 of a piece. */
KERN_INLINE __m256 elements(const void *piece, size_t i, const int wide)
{
    return wide ? _mm256_load_ps((const float *)piece + i) : halves256((const uint16_t *)piece + i);
}

static void widen(float *dst, const uint16_t *src, uint32_t n, const char *next)
{
    for (size_t i = 0; i < n; i += 8) {
        if (i % 32 == 0)
            _mm_prefetch(next + 2 * i, _MM_HINT_T0);
        _mm256_store_ps(dst + i, halves256(src + i));
    }
}

KERN_INLINE void score_tile(const struct tile *t, uint32_t p0, const uint32_t n, const int wide)
{
    __m256 chain[TILE][2][2]; /* [query][even, odd d][positions 0 .. 7, 8 .. 15] */
    const float *q = t->q;
    size_t hd = t->hd;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        chain[i][0][0] = chain[i][0][1] = _mm256_setzero_ps();
        chain[i][1][0] = chain[i][1][1] = _mm256_setzero_ps();
    }
    for (size_t d = 0; d < hd; d += 2) {
        if (!wide)
            _mm_prefetch(t->next + d * 32, _MM_HINT_T0);
        KERN_UNROLL
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m256 low = elements(t->piece, (d + odd) * 16, wide);
            __m256 high = elements(t->piece, (d + odd) * 16 + 8, wide);

            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                __m256 qd = _mm256_set1_ps(q[i * hd + d + odd]);

                chain[i][odd][0] = _mm256_fmadd_ps(qd, low, chain[i][odd][0]);
                chain[i][odd][1] = _mm256_fmadd_ps(qd, high, chain[i][odd][1]);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t half = 0; half < 2; half++)
            _mm256_store_ps(&t->s[i][p0 + half * 8],
                            _mm256_mul_ps(_mm256_add_ps(chain[i][0][half], chain[i][1][half]),
                                          _mm256_set1_ps(t->scale)));
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

/* The largest of m and n scores. */
KERN_INLINE float max_score(const float s[KERN_PAGE], uint32_t n, float m)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 max = _mm256_set1_ps(m);

    for (uint32_t p = 0; p < n; p += 8) {
        __m256 valid = _mm256_castsi256_ps(first_lanes256(n - p));

        max = _mm256_max_ps(_mm256_blendv_ps(lowest, _mm256_load_ps(s + p), valid), max);
    }
    return max256(max) + 0; /* -0 becomes +0 */
}

/* Turns n scores into weights; returns their sum. */
KERN_INLINE float weigh_scores(float s[KERN_PAGE], uint32_t n, float m)
{
    __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

    for (uint32_t p = 0; p < n; p += 8) {
        __m256 x = _mm256_sub_ps(_mm256_load_ps(s + p), _mm256_set1_ps(m));
        __m256 w = exp256_lanes(x, first_lanes256(n - p));

        lanes[p / 8 % 2] = _mm256_add_ps(lanes[p / 8 % 2], w);
        _mm256_store_ps(s + p, w);
    }
    return tree256(lanes[0], lanes[1]);
}

/* Up to 8 queries: their factors are one vector. */
void avx2_attention_weigh(float s[][KERN_PAGE], float *c, float *m, float *sum,
                          const uint32_t *n_pos, uint32_t n)
{
    _Alignas(32) float new_m[8], page_sum[8];
    __m256i queries = first_lanes256(n);
    __m256 factors;

    for (uint32_t i = 0; i < n; i++)
        new_m[i] = n_pos[i] == KERN_PAGE ? max_score(s[i], KERN_PAGE, m[i])
                                         : max_score(s[i], n_pos[i], m[i]);
    factors =
        exp256_lanes(_mm256_sub_ps(_mm256_maskload_ps(m, queries), _mm256_load_ps(new_m)), queries);
    _mm256_maskstore_ps(c, queries, factors);
    _mm256_maskstore_ps(m, queries, _mm256_load_ps(new_m));
    for (uint32_t i = 0; i < n; i++)
        page_sum[i] = n_pos[i] == KERN_PAGE ? weigh_scores(s[i], KERN_PAGE, new_m[i])
                                            : weigh_scores(s[i], n_pos[i], new_m[i]);
    _mm256_maskstore_ps(
        sum, queries,
        _mm256_fmadd_ps(_mm256_maskload_ps(sum, queries), factors, _mm256_load_ps(page_sum)));
}

/* Position p, for the queries that see it. */
KERN_INLINE void add_position(__m256 acc[TILE][VECS], const struct tile *t, uint32_t p, uint32_t d0,
                              const uint32_t n_vecs, const uint32_t n, const int wide,
                              const int all)
{
    __m256 weights[TILE];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        weights[i] = _mm256_set1_ps(t->s[i][p]);
    KERN_UNROLL
    for (uint32_t j = 0; j < n_vecs; j++) {
        __m256 values = elements(t->piece, (size_t)p * t->stride + d0 + 8 * j, wide);

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++)
            if (all || p < t->n_pos[i])
                acc[i][j] = _mm256_fmadd_ps(weights[i], values, acc[i][j]);
    }
}

/* Dimensions d0 .. of the piece. */
KERN_INLINE void add_tile(const struct tile *t, uint32_t d0, const uint32_t n_vecs,
                          const uint32_t n, const int wide)
{
    __m256 acc[TILE][VECS];
    float *o = t->o + d0;
    uint32_t p = 0;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            acc[i][j] =
                _mm256_mul_ps(_mm256_loadu_ps(o + i * t->hd + 8 * j), _mm256_set1_ps(t->c[i]));
    }
    for (; p < t->n_pos[0]; p++) {
        if (!wide)
            _mm_prefetch(t->next + ((size_t)p * t->hd + d0) * 2, _MM_HINT_T0);
        add_position(acc, t, p, d0, n_vecs, n, wide, 1);
    }
    for (; p < t->n_pos[n - 1]; p++)
        add_position(acc, t, p, d0, n_vecs, n, wide, 0);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t j = 0; j < n_vecs; j++)
            _mm256_storeu_ps(o + i * t->hd + 8 * j, acc[i][j]);
    }
}

KERN_INLINE void add_dims(const struct tile *t, uint32_t n_dims, const uint32_t n, const int wide)
{
    if (n_dims == VECS * 8)
        add_tile(t, 0, VECS, n, wide);
    else
        add_tile(t, 0, 2, n, wide); /* 16: what 32 leave of hd */
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
    _Alignas(64) float c[8] = {0};

    for (uint32_t i = 0; i < n; i++)
        c[i] = m[i * stride] - max;
    _mm256_store_ps(c, exp256_lanes(_mm256_load_ps(c), _mm256_set1_epi32(-1)));
    for (uint32_t i = 0; i < n; i++)
        *total = __builtin_fmaf(sum[i * stride], c[i], *total);
    for (uint32_t d = 0; d < hd; d += 8) {
        __m256 acc = first ? _mm256_setzero_ps() : _mm256_loadu_ps(dst + d);

        for (uint32_t i = 0; i < n; i++)
            acc = _mm256_fmadd_ps(_mm256_loadu_ps(o + i * stride * hd + d), _mm256_set1_ps(c[i]),
                                  acc);
        _mm256_storeu_ps(dst + d, acc);
    }
}

static const struct attention_ops ops = {
    .queries = TILE,
    .positions = 16,
    .dims = VECS * 8,
    .lanes = 8,
    .widen = widen,
    .score = score,
    .weigh = avx2_attention_weigh,
    .add_values = add_values,
    .merge = merge_splits,
};

void avx2_attention(const struct attention *a)
{
    attention_walk(a, &ops);
}

void avx2_attention_merge(float *out, const float *o, const float *m, const float *sum,
                          uint32_t n_split, size_t stride, uint32_t group, uint32_t hd)
{
    merge_walk(out, o, m, sum, n_split, stride, group, hd, &ops);
}
