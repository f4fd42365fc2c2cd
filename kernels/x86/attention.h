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

/* Turns the scores of up to `lanes` queries into weights, zero from n_pos[] on, and moves m and
 * sum. */
typedef void (*weigh_fn)(float s[][KERN_PAGE], float *c, float *m, float *sum,
                         const uint32_t *n_pos, uint32_t n);

struct attention_ops {  /* the arithmetic of a variant */
    uint32_t queries;   /* of a tile, at most */
    uint32_t positions; /* whose scores a tile computes at once */
    uint32_t dims;      /* of values that a tile holds at once */
    uint32_t lanes;     /* floats of a vector: whose factors are computed at once */

    /* dst[i] = src[i], i < n; n % 16 == 0. Asks for as many bytes at next. */
    void (*widen)(float *dst, const uint16_t *src, uint32_t n, const char *next);

    /* s[][p0 ..] = scores of ops.positions positions. */
    void (*score)(const struct tile *t, uint32_t p0);

    weigh_fn weigh; /* up to ops.lanes queries */

    /* o[] = o * c + weights . values for n_dims dimensions. */
    void (*add_values)(const struct tile *t, uint32_t n_dims);

    /* Adds n <= ops.lanes splits of one head to dst and *total; max is the largest m of all its
     * splits. dst holds nothing yet when they are the first. */
    void (*merge)(float *dst, float *total, const float *o, const float *m, const float *sum,
                  uint32_t n, size_t stride, uint32_t hd, float max, int first);
};

struct queries { /* queries first .. first + n - 1 of a call */
    const struct attention *a;
    size_t first;
    uint32_t n;
    _Alignas(64) float s[QUERIES_MAX][KERN_PAGE];
    float c[QUERIES_MAX];
    uint32_t seen[QUERIES_MAX];  /* positions of the split that a query sees */
    uint32_t n_pos[QUERIES_MAX]; /* of the present page */
};

struct walk {
    struct queries qs;
    const struct attention_ops *ops;
    _Alignas(64) float wide[WIDE_MAX];
};

KERN_INLINE void clear_results(const struct attention *a)
{
    size_t n = (size_t)a->n_rows * a->group;

    memset(a->o, 0, n * a->hd * sizeof *a->o);
    memset(a->sum, 0, n * sizeof *a->sum);
    for (size_t i = 0; i < n; i++)
        a->m[i] = -INFINITY;
}

/* Walk i of n_walks, which share the call's queries out evenly. Returns the positions of its last. */
KERN_INLINE uint32_t take_queries(struct queries *qs, const struct attention *a, size_t i,
                                  size_t n_walks)
{
    size_t n = (size_t)a->n_rows * a->group;

    qs->a = a;
    qs->first = i * n / n_walks;
    qs->n = (uint32_t)((i + 1) * n / n_walks - qs->first);
    for (uint32_t j = 0; j < qs->n; j++) {
        size_t row = (qs->first + j) / a->group;

        qs->seen[j] = row < KERN_SPLIT - a->n_pos ? a->n_pos + (uint32_t)row : KERN_SPLIT;
    }
    return qs->seen[qs->n - 1];
}

/* Says what each query sees of the page that begins at position p. Returns the first that sees any:
 * rows that end before come first. */
KERN_INLINE uint32_t meet_page(struct queries *qs, uint32_t p)
{
    uint32_t q0 = 0;

    for (uint32_t i = 0; i < qs->n; i++) {
        uint32_t n = qs->seen[i] > p ? qs->seen[i] - p : 0;

        qs->n_pos[i] = n < KERN_PAGE ? n : KERN_PAGE;
        q0 += n == 0;
    }
    return q0;
}

/* The keys that are read after those of page i. */
KERN_INLINE const void *keys_after(const struct attention *a, uint32_t i, uint32_t n_pos)
{
    if ((i + 1) * KERN_PAGE < n_pos)
        return a->k[i + 1];
    return a->next_k ? a->next_k : a->k[i];
}

KERN_INLINE void weigh_queries(struct queries *qs, uint32_t q0, uint32_t lanes, weigh_fn weigh)
{
    for (uint32_t i = q0, n; i < qs->n; i += n) {
        n = qs->n - i < lanes ? qs->n - i : lanes;
        weigh(qs->s + i, qs->c + i, qs->a->m + qs->first + i, qs->a->sum + qs->first + i,
              qs->n_pos + i, n);
    }
}

/* Queries t0 .. t1 - 1 of the walk. */
KERN_INLINE struct tile tile_of(struct walk *w, uint32_t t0, uint32_t t1)
{
    struct queries *qs = &w->qs;
    size_t at = (qs->first + t0) * qs->a->hd;

    return (struct tile){.q = qs->a->q + at,
                         .s = qs->s + t0,
                         .o = qs->a->o + at,
                         .c = qs->c + t0,
                         .n_pos = qs->n_pos + t0,
                         .n = t1 - t0,
                         .hd = qs->a->hd,
                         .scale = qs->a->scale};
}

KERN_INLINE void page_scores(struct walk *w, const uint16_t *k, const uint16_t *v, uint32_t q0,
                             uint32_t n_tiles, int wide)
{
    const struct attention_ops *ops = w->ops;
    uint32_t n = w->qs.n - q0, hd = w->qs.a->hd;

    for (uint32_t p = 0; p < w->qs.n_pos[w->qs.n - 1]; p += ops->positions) {
        const uint16_t *keys = k + (size_t)p * hd;
        const char *next = (const char *)(v + (size_t)p * hd);

        if (wide)
            ops->widen(w->wide, keys, ops->positions * hd, next);
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
    uint32_t n = w->qs.n - q0, hd = w->qs.a->hd;

    for (uint32_t d = 0; d < hd; d += ops->dims) {
        uint32_t n_dims = hd - d < ops->dims ? hd - d : ops->dims;

        for (uint32_t p = 0; wide && p < w->qs.n_pos[w->qs.n - 1]; p++)
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
    uint32_t q0 = meet_page(&w->qs, p);
    uint32_t n_tiles = (w->qs.n - q0 + w->ops->queries - 1) / w->ops->queries;
    int wide = n_tiles > 1 && w->ops->positions * w->qs.a->hd <= WIDE_MAX;

    page_scores(w, k, v, q0, n_tiles, wide);
    weigh_queries(&w->qs, q0, w->ops->lanes, w->ops->weigh);
    page_values(w, v, next_k, q0, n_tiles, wide);
}

KERN_INLINE void attention_walk(const struct attention *a, const struct attention_ops *ops)
{
    size_t n_walks = ((size_t)a->n_rows * a->group + QUERIES_MAX - 1) / QUERIES_MAX;
    struct walk w;

    w.ops = ops;
    clear_results(a);
    for (size_t i = 0; i < n_walks; i++) {
        uint32_t n_pos = take_queries(&w.qs, a, i, n_walks), p = 0;

        for (uint32_t page = 0; p < n_pos; page++, p += KERN_PAGE)
            walk_page(&w, a->k[page], a->v[page], keys_after(a, page, n_pos), p);
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
