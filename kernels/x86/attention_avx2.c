/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_avx2.c - attention over paged keys and values, up to three query heads in one pass.
 *
 * Scores: the 16 positions of a K block are two vectors, so a chain over d needs no horizontal sum.
 * Values: 32 dimensions of every head stay in registers while the positions pass by. The scores'
 * loop asks for the page's values, the values' loop for the next page's keys, line by line: the
 * hardware prefetcher cannot guess where they are.
 */
#include "kernels/x86/avx2.h"

#include <math.h>
#include <string.h>

#define HEADS 3

struct page {
    const uint16_t *k, *v, *next_k; /* next: this page again at the last one */
    uint32_t n;                     /* valid positions */
};

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

/* s[h][16b ..] = q[h] . K for block b of 16 positions. */
KERN_INLINE void score_block(float s[HEADS][KERN_PAGE], const float *q, const struct page *page,
                             uint32_t b, const uint32_t n_heads, uint32_t hd, float scale)
{
    __m256 chain[2][2][HEADS]; /* [positions 0 .. 7, 8 .. 15][even, odd d][head] */
    const uint16_t *k = page->k + (size_t)b * hd * 16;
    const char *next = (const char *)(page->v + (size_t)b * hd * 16);

    KERN_UNROLL
    for (uint32_t h = 0; h < n_heads; h++) {
        chain[0][0][h] = chain[0][1][h] = _mm256_setzero_ps();
        chain[1][0][h] = chain[1][1][h] = _mm256_setzero_ps();
    }
    for (uint32_t d = 0; d < hd; d += 2) {
        _mm_prefetch(next + (size_t)d * 32, _MM_HINT_T0);
        KERN_UNROLL
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m256 low = halves256(k + (d + odd) * 16), high = halves256(k + (d + odd) * 16 + 8);

            KERN_UNROLL
            for (uint32_t h = 0; h < n_heads; h++) {
                __m256 qd = _mm256_set1_ps(q[h * hd + d + odd]);

                chain[0][odd][h] = _mm256_fmadd_ps(qd, low, chain[0][odd][h]);
                chain[1][odd][h] = _mm256_fmadd_ps(qd, high, chain[1][odd][h]);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t h = 0; h < n_heads; h++) {
        KERN_UNROLL
        for (uint32_t half = 0; half < 2; half++)
            _mm256_store_ps(&s[h][b * 16 + half * 8],
                            _mm256_mul_ps(_mm256_add_ps(chain[half][0][h], chain[half][1][h]),
                                          _mm256_set1_ps(scale)));
    }
}

/* Turns the scores of n positions into weights, moves m and sum; returns the factor for o. */
static float weigh(float s[KERN_PAGE], uint32_t n, float *m, float *sum)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 max = _mm256_set1_ps(*m), lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    float new_m, c;

    for (uint32_t p = 0; p < n; p += 8) {
        __m256 valid = _mm256_castsi256_ps(first_lanes256(n - p));

        max = _mm256_max_ps(_mm256_blendv_ps(lowest, _mm256_load_ps(s + p), valid), max);
    }
    new_m = max256(max) + 0; /* -0 becomes +0 */
    c = _mm256_cvtss_f32(exp256(_mm256_set1_ps(*m - new_m)));
    for (uint32_t p = 0; p < n; p += 8) {
        __m256 valid = _mm256_castsi256_ps(first_lanes256(n - p));
        __m256 w = exp256(_mm256_sub_ps(_mm256_load_ps(s + p), _mm256_set1_ps(new_m)));

        w = _mm256_and_ps(w, valid);
        lanes[p / 8 % 2] = _mm256_add_ps(lanes[p / 8 % 2], w);
        _mm256_store_ps(s + p, w);
    }
    *m = new_m;
    *sum = __builtin_fmaf(*sum, c, tree256(lanes[0], lanes[1]));
    return c;
}

/* o[h][d0 ..] = o * c + weights . V for n_vec vectors of 8 dimensions. */
KERN_INLINE void add_values(float *o, float s[HEADS][KERN_PAGE], const float c[HEADS],
                            const struct page *page, uint32_t d0, const uint32_t n_vec,
                            const uint32_t n_heads, uint32_t hd)
{
    __m256 acc[HEADS][4];
    const uint16_t *v = page->v + d0;
    const char *next = (const char *)(page->next_k + d0);

    KERN_UNROLL
    for (uint32_t h = 0; h < n_heads; h++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n_vec; i++)
            acc[h][i] =
                _mm256_mul_ps(_mm256_loadu_ps(o + h * hd + d0 + 8 * i), _mm256_set1_ps(c[h]));
    }
    for (uint32_t p = 0; p < page->n; p++) {
        _mm_prefetch(next + (size_t)p * hd * 2, _MM_HINT_T0);
        KERN_UNROLL
        for (uint32_t i = 0; i < n_vec; i++) {
            __m256 value = halves256(v + (size_t)p * hd + 8 * i);

            KERN_UNROLL
            for (uint32_t h = 0; h < n_heads; h++)
                acc[h][i] = _mm256_fmadd_ps(_mm256_set1_ps(s[h][p]), value, acc[h][i]);
        }
    }
    KERN_UNROLL
    for (uint32_t h = 0; h < n_heads; h++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n_vec; i++)
            _mm256_storeu_ps(o + h * hd + d0 + 8 * i, acc[h][i]);
    }
}

KERN_INLINE void attend_page(float *o, float *m, float *sum, const float *q,
                             const struct page *page, const uint32_t n_heads, uint32_t hd,
                             float scale)
{
    _Alignas(32) float s[HEADS][KERN_PAGE];
    float c[HEADS];
    uint32_t d = 0;

    for (uint32_t b = 0; b < (page->n + 15) / 16; b++)
        score_block(s, q, page, b, n_heads, hd, scale);
    for (uint32_t h = 0; h < n_heads; h++)
        c[h] = weigh(s[h], page->n, &m[h], &sum[h]);
    for (; d + 32 <= hd; d += 32)
        add_values(o, s, c, page, d, 4, n_heads, hd);
    for (; d < hd; d += 16)
        add_values(o, s, c, page, d, 2, n_heads, hd);
}

static void attend(float *o, float *m, float *sum, const float *q, const struct page *page,
                   uint32_t n_heads, uint32_t hd, float scale)
{
    switch (n_heads) {
    case 1:
        attend_page(o, m, sum, q, page, 1, hd, scale);
        break;
    case 2:
        attend_page(o, m, sum, q, page, 2, hd, scale);
        break;
    default:
        attend_page(o, m, sum, q, page, 3, hd, scale);
        break;
    }
}

void avx2_attention(float *o, float *m, float *sum, const float *q, const uint16_t *const *k,
                    const uint16_t *const *v, uint32_t n_pos, uint32_t group, uint32_t hd,
                    float scale)
{
    uint32_t n_pages = (n_pos + KERN_PAGE - 1) / KERN_PAGE;
    uint32_t n_passes = (group + HEADS - 1) / HEADS;

    memset(o, 0, (size_t)group * hd * sizeof *o);
    for (uint32_t h = 0; h < group; h++) {
        m[h] = -INFINITY;
        sum[h] = 0;
    }
    for (uint32_t pass = 0; pass < n_passes; pass++) {
        uint32_t h0 = pass * group / n_passes, h1 = (pass + 1) * group / n_passes;

        for (uint32_t i = 0; i < n_pages; i++) {
            uint32_t next = i + 1 < n_pages ? i + 1 : i, rest = n_pos - i * KERN_PAGE;
            struct page page = {k[i], v[i], k[next], rest < KERN_PAGE ? rest : KERN_PAGE};

            attend(o + (size_t)h0 * hd, m + h0, sum + h0, q + (size_t)h0 * hd, &page, h1 - h0, hd,
                   scale);
        }
    }
}

void avx2_attention_merge(float *out, const float *o, const float *m, const float *sum,
                          uint32_t n_split, uint32_t group, uint32_t hd)
{
    for (uint32_t h = 0; h < group; h++) {
        float max = m[h], total = 0;

        for (uint32_t i = 1; i < n_split; i++)
            max = m[i * group + h] > max ? m[i * group + h] : max;
        memset(out + (size_t)h * hd, 0, hd * sizeof *out);
        for (uint32_t i = 0; i < n_split; i++) {
            __m256 c = exp256(_mm256_set1_ps(m[i * group + h] - max));
            const float *part = o + ((size_t)i * group + h) * hd;

            total = __builtin_fmaf(sum[i * group + h], _mm256_cvtss_f32(c), total);
            for (uint32_t d = 0; d < hd; d += 8) {
                float *dst = out + (size_t)h * hd + d;

                _mm256_storeu_ps(
                    dst, _mm256_fmadd_ps(_mm256_loadu_ps(part + d), c, _mm256_loadu_ps(dst)));
            }
        }
        for (uint32_t d = 0; d < hd; d++)
            out[(size_t)h * hd + d] *= 1 / total;
    }
}
