/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.h - the walks over pages, queries and splits that the x86 variants of attention share.
 *
 * A query is one head of one row. Each page gives the scores of all queries, then their weights,
 * then its values, in tiles of queries whose sums a variant holds in registers. A few queries (one
 * row, as in decoding) convert keys and values from halves as they use them; for many, pieces of
 * the page are widened to floats once, which then stay in L1 while all tiles use them.
 *
 * Pages lie anywhere, so the hardware prefetcher cannot guess what comes next: whoever reads keys
 * asks for the page's values, whoever reads values for the next page's keys, line by line.
 */
#ifndef KERNELS_X86_ATTENTION_H
#define KERNELS_X86_ATTENTION_H

#include <math.h>
#include <string.h>

#include "kernels/cpu_kernels.h"
#include "kernels/x86/unroll.h"

#define QUERIES_MAX 96    /* of one walk over the pages: the more, the less widening for each */
#define WIDE_MAX    8192u /* floats of a widened piece: 32 KB */

struct tile {               /* some queries of a walk and a piece of a page */
    const float *q;         /* [n][hd] */
    float (*s)[KERN_PAGE];  /* [n] scores, then weights, of the page's positions */
    float *o;               /* [n][hd], from the piece's first dimension on */
    const float *c;         /* [n] factors for o */
    const uint32_t *n_pos;  /* [n] positions of the page that a query sees; never falls */
    const void *piece;      /* keys of some positions or dimensions of values */
    int wide;               /* they are floats, not halves */
    const char *next;       /* where the bytes that will be read next begin; if not wide */
    uint32_t n, hd, stride; /* stride: from a position's values to the next one's */
    float scale;
};

struct attention_ops {  /* the arithmetic of a variant */
    uint32_t queries;   /* of a tile, at most */
    uint32_t positions; /* whose scores a tile computes at once */
    uint32_t dims;      /* of values that a tile holds at once */
    uint32_t lanes;     /* floats of a vector: whose factors are computed at once */

    /* dst[i] = src[i], i < n; n % 16 == 0. Asks for as many bytes at next. */
    void (*widen)(float *dst, const uint16_t *src, uint32_t n, const char *next);

    /* s[][p0 ..] = scores of ops.positions positions. */
    void (*score)(const struct tile *t, uint32_t p0);

    /* Turns the scores of n <= ops.lanes queries into weights, zero from n_pos[] on, and moves m and
     * sum. */
    void (*weigh)(float s[][KERN_PAGE], float *c, float *m, float *sum, const uint32_t *n_pos,
                  uint32_t n);

    /* o[] = o * c + weights . values for n_dims dimensions. */
    void (*add_values)(const struct tile *t, uint32_t n_dims);

    /* Adds n <= ops.lanes splits of one head to dst and *total; max is the largest m of all its
     * splits. dst holds nothing yet when they are the first. */
    void (*merge)(float *dst, float *total, const float *o, const float *m, const float *sum,
                  uint32_t n, size_t stride, uint32_t hd, float max, int first);
};

struct walk { /* queries first .. first + n - 1 of a call */
    const struct attention *a;
    const struct attention_ops *ops;
    size_t first;
    uint32_t n;
    _Alignas(64) float s[QUERIES_MAX][KERN_PAGE];
    float c[QUERIES_MAX];
    uint32_t seen[QUERIES_MAX];  /* positions of the split that a query sees */
    uint32_t n_pos[QUERIES_MAX]; /* of the present page */
    _Alignas(64) float wide[WIDE_MAX];
};

/* Queries t0 .. t1 - 1 of the walk. */
KERN_INLINE struct tile tile_of(struct walk *w, uint32_t t0, uint32_t t1)
{
    size_t at = (w->first + t0) * w->a->hd;

    return (struct tile){.q = w->a->q + at,
                         .s = w->s + t0,
                         .o = w->a->o + at,
                         .c = w->c + t0,
                         .n_pos = w->n_pos + t0,
                         .n = t1 - t0,
                         .hd = w->a->hd,
                         .scale = w->a->scale};
}

KERN_INLINE void page_scores(struct walk *w, const uint16_t *k, const uint16_t *v, uint32_t q0,
                             uint32_t n_tiles, int wide)
{
    const struct attention_ops *ops = w->ops;
    uint32_t n = w->n - q0;

    for (uint32_t p = 0; p < w->n_pos[w->n - 1]; p += ops->positions) {
        const uint16_t *keys = k + (size_t)p * w->a->hd;
        const char *next = (const char *)(v + (size_t)p * w->a->hd);

        if (wide)
            ops->widen(w->wide, keys, ops->positions * w->a->hd, next);
        for (uint32_t i = 0; i < n_tiles; i++) {
            struct tile t = tile_of(w, q0 + i * n / n_tiles, q0 + (i + 1) * n / n_tiles);

            t.piece = wide ? (const void *)w->wide : keys;
            t.wide = wide;
            t.next = next;
            if (p < t.n_pos[t.n - 1])
                ops->score(&t, p);
        }
    }
}

KERN_INLINE void page_values(struct walk *w, const uint16_t *v, const uint16_t *next_k, uint32_t q0,
                             uint32_t n_tiles, int wide)
{
    const struct attention_ops *ops = w->ops;
    uint32_t n = w->n - q0, hd = w->a->hd;

    for (uint32_t d = 0; d < hd; d += ops->dims) {
        uint32_t n_dims = hd - d < ops->dims ? hd - d : ops->dims;

        for (uint32_t p = 0; wide && p < w->n_pos[w->n - 1]; p++)
            ops->widen(w->wide + (size_t)p * n_dims, v + (size_t)p * hd + d, n_dims,
                       (const char *)(next_k + (size_t)p * hd + d));
        for (uint32_t i = 0; i < n_tiles; i++) {
            struct tile t = tile_of(w, q0 + i * n / n_tiles, q0 + (i + 1) * n / n_tiles);

            t.piece = wide ? (const void *)w->wide : v + d;
            t.wide = wide;
            t.next = (const char *)(next_k + d);
            t.o += d;
            t.stride = wide ? n_dims : hd;
            ops->add_values(&t, n_dims);
        }
    }
}

/* One page, that begins at position p of the split. */
KERN_INLINE void walk_page(struct walk *w, const uint16_t *k, const uint16_t *v,
                           const uint16_t *next_k, uint32_t p)
{
    const struct attention *a = w->a;
    uint32_t q0 = 0, n_tiles;
    int wide;

    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t n = w->seen[i] > p ? w->seen[i] - p : 0;

        w->n_pos[i] = n < KERN_PAGE ? n : KERN_PAGE;
        q0 += n == 0; /* rows that end before this page come first */
    }
    n_tiles = (w->n - q0 + w->ops->queries - 1) / w->ops->queries;
    wide = n_tiles > 1 && w->ops->positions * a->hd <= WIDE_MAX;
    page_scores(w, k, v, q0, n_tiles, wide);
    for (uint32_t i = q0, n; i < w->n; i += n) {
        n = w->n - i < w->ops->lanes ? w->n - i : w->ops->lanes;
        w->ops->weigh(w->s + i, w->c + i, a->m + w->first + i, a->sum + w->first + i, w->n_pos + i,
                      n);
    }
    page_values(w, v, next_k, q0, n_tiles, wide);
}

KERN_INLINE void attention_walk(const struct attention *a, const struct attention_ops *ops)
{
    size_t n = (size_t)a->n_rows * a->group, n_walks = (n + QUERIES_MAX - 1) / QUERIES_MAX;
    struct walk w;

    w.a = a;
    w.ops = ops;
    memset(a->o, 0, n * a->hd * sizeof *a->o);
    memset(a->sum, 0, n * sizeof *a->sum);
    for (size_t i = 0; i < n; i++)
        a->m[i] = -INFINITY;
    for (size_t i = 0; i < n_walks; i++) {
        uint32_t n_pos, p = 0;

        w.first = i * n / n_walks;
        w.n = (uint32_t)((i + 1) * n / n_walks - w.first);
        for (uint32_t j = 0; j < w.n; j++) {
            size_t row = (w.first + j) / a->group;

            w.seen[j] = row < KERN_SPLIT - a->n_pos ? a->n_pos + (uint32_t)row : KERN_SPLIT;
        }
        n_pos = w.seen[w.n - 1];
        for (uint32_t page = 0; p < n_pos; page++, p += KERN_PAGE) {
            const uint16_t *next = a->next_k ? a->next_k : a->k[page];

            walk_page(&w, a->k[page], a->v[page], p + KERN_PAGE < n_pos ? a->k[page + 1] : next, p);
        }
    }
}

/* attention_merge of the contract. */
KERN_INLINE void merge_walk(float *out, const float *o, const float *m, const float *sum,
                            uint32_t n_split, size_t stride, uint32_t group, uint32_t hd,
                            const struct attention_ops *ops)
{
    for (uint32_t h = 0; h < group; h++) {
        float *dst = out + (size_t)h * hd, max = m[h], total = 0;

        for (uint32_t i = 1; i < n_split; i++)
            max = m[i * stride + h] > max ? m[i * stride + h] : max;
        for (uint32_t i = 0, n; i < n_split; i += n) {
            size_t at = i * stride + h;

            n = n_split - i < ops->lanes ? n_split - i : ops->lanes;
            ops->merge(dst, &total, o + at * hd, m + at, sum + at, n, stride, hd, max, i == 0);
        }
        total = 1 / total;
        for (uint32_t d = 0; d < hd; d++)
            dst[d] *= total;
    }
}

#endif
