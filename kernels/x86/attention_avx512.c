/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_avx512.c - attention over paged keys and values, up to four query heads in one pass.
 *
 * Scores: 16 positions are the 16 lanes (K pages are stored for that), so a chain over d needs no
 * horizontal sum; two blocks of 16 positions keep enough chains in flight. Values: 64 dimensions of
 * every head stay in registers while the positions pass by. Pages lie anywhere, so the hardware
 * prefetcher cannot guess what comes next: the scores' loop asks for the page's values, the values'
 * loop for the next page's keys, line by line.
 */
#include "kernels/x86/avx512.h"

#include <math.h>
#include <string.h>

#define HEADS 4

struct page {
    const uint16_t *k, *v, *next_k; /* next: this page again at the last one */
    uint32_t n;                     /* valid positions */
};

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

/* s[h][16b ..] = q[h] . K for blocks b0 .. b0 + n_blocks - 1 of 16 positions. */
KERN_INLINE void score_blocks(float s[HEADS][KERN_PAGE], const float *q, const struct page *page,
                              uint32_t b0, const uint32_t n_blocks, const uint32_t n_heads,
                              uint32_t hd, float scale)
{
    __m512 chain[2][2][HEADS]; /* [block][even, odd d][head] */
    const uint16_t *k = page->k + (size_t)b0 * hd * 16;
    const char *next = (const char *)(page->v + (size_t)b0 * hd * 16);

    KERN_UNROLL
    for (uint32_t b = 0; b < n_blocks; b++) {
        KERN_UNROLL
        for (uint32_t h = 0; h < n_heads; h++)
            chain[b][0][h] = chain[b][1][h] = _mm512_setzero_ps();
    }
    for (uint32_t d = 0; d < hd; d += 2) {
        KERN_UNROLL
        for (uint32_t b = 0; b < n_blocks; b++) {
            const uint16_t *line = k + ((size_t)b * hd + d) * 16;
            __m512 even = halves512(line), odd = halves512(line + 16);

            _mm_prefetch(next + ((size_t)b * hd + d) * 32, _MM_HINT_T0);
            KERN_UNROLL
            for (uint32_t h = 0; h < n_heads; h++) {
                const float *qd = q + h * hd + d;

                chain[b][0][h] = _mm512_fmadd_ps(_mm512_set1_ps(qd[0]), even, chain[b][0][h]);
                chain[b][1][h] = _mm512_fmadd_ps(_mm512_set1_ps(qd[1]), odd, chain[b][1][h]);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t b = 0; b < n_blocks; b++) {
        KERN_UNROLL
        for (uint32_t h = 0; h < n_heads; h++)
            _mm512_store_ps(&s[h][(b0 + b) * 16],
                            _mm512_mul_ps(_mm512_add_ps(chain[b][0][h], chain[b][1][h]),
                                          _mm512_set1_ps(scale)));
    }
}

static __mmask16 valid_lanes(uint32_t n, uint32_t p)
{
    return n - p >= 16 ? 0xffff : (__mmask16)((1u << (n - p)) - 1);
}

/* Turns the scores of n positions into weights, moves m and sum; returns the factor for o. */
static float weigh(float s[KERN_PAGE], uint32_t n, float *m, float *sum)
{
    __m512 max = _mm512_set1_ps(*m), lanes = _mm512_setzero_ps();
    float new_m, c;

    for (uint32_t p = 0; p < n; p += 16)
        max = _mm512_mask_max_ps(max, valid_lanes(n, p), _mm512_load_ps(s + p), max);
    new_m = _mm512_reduce_max_ps(max) + 0; /* -0 becomes +0 */
    c = _mm512_cvtss_f32(exp512(_mm512_set1_ps(*m - new_m)));
    for (uint32_t p = 0; p < n; p += 16) {
        __m512 w = exp512(_mm512_sub_ps(_mm512_load_ps(s + p), _mm512_set1_ps(new_m)));

        w = _mm512_maskz_mov_ps(valid_lanes(n, p), w);
        lanes = _mm512_add_ps(lanes, w);
        _mm512_store_ps(s + p, w);
    }
    *m = new_m;
    *sum = __builtin_fmaf(*sum, c, tree512(lanes));
    return c;
}

/* o[h][d0 ..] = o * c + weights . V for n_vec vectors of 16 dimensions. */
KERN_INLINE void add_values(float *o, float s[HEADS][KERN_PAGE], const float c[HEADS],
                            const struct page *page, uint32_t d0, const uint32_t n_vec,
                            const uint32_t n_heads, uint32_t hd)
{
    __m512 acc[HEADS][4];
    const uint16_t *v = page->v + d0;
    const char *next = (const char *)(page->next_k + d0);

    KERN_UNROLL
    for (uint32_t h = 0; h < n_heads; h++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n_vec; i++)
            acc[h][i] =
                _mm512_mul_ps(_mm512_loadu_ps(o + h * hd + d0 + 16 * i), _mm512_set1_ps(c[h]));
    }
    for (uint32_t p = 0; p < page->n; p++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n_vec; i++) {
            __m512 value = halves512(v + (size_t)p * hd + 16 * i);

            if (i % 2 == 0)
                _mm_prefetch(next + ((size_t)p * hd + 16 * i) * 2, _MM_HINT_T0);
            KERN_UNROLL
            for (uint32_t h = 0; h < n_heads; h++)
                acc[h][i] = _mm512_fmadd_ps(_mm512_set1_ps(s[h][p]), value, acc[h][i]);
        }
    }
    KERN_UNROLL
    for (uint32_t h = 0; h < n_heads; h++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n_vec; i++)
            _mm512_storeu_ps(o + h * hd + d0 + 16 * i, acc[h][i]);
    }
}

KERN_INLINE void attend_page(float *o, float *m, float *sum, const float *q,
                             const struct page *page, const uint32_t n_heads, uint32_t hd,
                             float scale)
{
    _Alignas(64) float s[HEADS][KERN_PAGE];
    uint32_t n_blocks = (page->n + 15) / 16;
    float c[HEADS];
    uint32_t b = 0, d = 0;

    for (; b + 2 <= n_blocks; b += 2)
        score_blocks(s, q, page, b, 2, n_heads, hd, scale);
    if (b < n_blocks)
        score_blocks(s, q, page, b, 1, n_heads, hd, scale);
    for (uint32_t h = 0; h < n_heads; h++)
        c[h] = weigh(s[h], page->n, &m[h], &sum[h]);
    for (; d + 64 <= hd; d += 64)
        add_values(o, s, c, page, d, 4, n_heads, hd);
    for (; d < hd; d += 16)
        add_values(o, s, c, page, d, 1, n_heads, hd);
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
    case 3:
        attend_page(o, m, sum, q, page, 3, hd, scale);
        break;
    default:
        attend_page(o, m, sum, q, page, 4, hd, scale);
        break;
    }
}

void avx512_attention(float *o, float *m, float *sum, const float *q, const uint16_t *const *k,
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

void avx512_attention_merge(float *out, const float *o, const float *m, const float *sum,
                            uint32_t n_split, uint32_t group, uint32_t hd)
{
    for (uint32_t h = 0; h < group; h++) {
        float max = m[h], total = 0;

        for (uint32_t i = 1; i < n_split; i++)
            max = m[i * group + h] > max ? m[i * group + h] : max;
        memset(out + (size_t)h * hd, 0, hd * sizeof *out);
        for (uint32_t i = 0; i < n_split; i++) {
            __m512 c = exp512(_mm512_set1_ps(m[i * group + h] - max));
            const float *part = o + ((size_t)i * group + h) * hd;

            total = __builtin_fmaf(sum[i * group + h], _mm512_cvtss_f32(c), total);
            for (uint32_t d = 0; d < hd; d += 16) {
                float *dst = out + (size_t)h * hd + d;

                _mm512_storeu_ps(
                    dst, _mm512_fmadd_ps(_mm512_loadu_ps(part + d), c, _mm512_loadu_ps(dst)));
            }
        }
        for (uint32_t d = 0; d < hd; d++)
            out[(size_t)h * hd + d] *= 1 / total;
    }
}
