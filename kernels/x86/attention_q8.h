/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_q8.h - the walk over pages of 8-bit keys and values that the x86 variants share.
 *
 * As in attention.h, but sums are of integers, whose bytes are used as they lie in the page, and
 * from one page to the next: queries are quantised once, weights once a page, together with the
 * scales of the page's values. Whoever reads keys asks for the page's values, whoever reads values
 * for the next page's keys.
 */
#ifndef KERNELS_X86_ATTENTION_Q8_H
#define KERNELS_X86_ATTENTION_Q8_H

#include "kernels/x86/attention.h"

#define LINE        64u
#define Q_BYTES_MAX 16384u /* codes of a walk's queries: they stay in L1 beside a page */

struct q8_tile {           /* some queries of a walk and a piece of a page */
    const int8_t *q;       /* [n][hd] codes */
    const int32_t *q_sum;  /* [n] of these */
    const float *factor;   /* [n] what a sum of products with K's codes is worth, but for d_k */
    float (*s)[KERN_PAGE]; /* [n] scores */
    const int8_t (*u)[KERN_PAGE]; /* [n] codes of weights */
    const float *d_t;             /* [n] their scales */
    const float *c;               /* [n] factors for o */
    float *o;                     /* [n][hd], from the piece's first dimension on */
    const uint8_t *piece;         /* keys, or values of some dimensions */
    const float *d_k;             /* scales of the keys */
    const uint8_t *next;          /* where the bytes that will be read next begin */
    uint32_t n, hd;
    uint32_t n_pos; /* that its last query sees; none sees more */
};

struct q8_ops {       /* the arithmetic of a variant */
    uint32_t queries; /* of a tile, at most */
    uint32_t dims;    /* of values that a tile holds at once */
    uint32_t lanes;   /* queries that are weighed at once */

    /* Quantises n values (n % 16 == 0) with one scale, which it returns. */
    float (*quantize)(int8_t *codes, const float *x, uint32_t n);

    /* s[][] = scores of the positions that the tile sees, and of any after them. */
    void (*score)(const struct q8_tile *t);

    weigh_fn weigh; /* up to ops.lanes queries */

    /* weights[p] *= d_v[p] for p < n, 0 from there on. */
    void (*scale_weights)(float weights[KERN_PAGE], const float *d_v, uint32_t n);

    /* o[] = o * c + weights . values for n_dims dimensions. */
    void (*add_values)(const struct q8_tile *t, uint32_t n_dims);
};

struct q8_walk {
    struct queries qs;
    const struct q8_ops *ops;
    _Alignas(64) int8_t q[Q_BYTES_MAX]; /* [n][hd] */
    _Alignas(64) int8_t u[QUERIES_MAX][KERN_PAGE];
    int32_t q_sum[QUERIES_MAX];
    float factor[QUERIES_MAX], d_t[QUERIES_MAX];
    uint32_t n_tiles, tiles[QUERIES_MAX + 1]; /* of the present page: tile i begins at tiles[i] */
};

KERN_INLINE struct q8_tile q8_tile_at(struct q8_walk *w, uint32_t i)
{
    const struct attention *a = w->qs.a;
    uint32_t t0 = w->tiles[i], t1 = w->tiles[i + 1];

    return (struct q8_tile){.q = w->q + (size_t)t0 * a->hd,
                            .q_sum = w->q_sum + t0,
                            .factor = w->factor + t0,
                            .s = w->qs.s + t0,
                            .u = (const int8_t(*)[KERN_PAGE])(w->u + t0),
                            .d_t = w->d_t + t0,
                            .c = w->qs.c + t0,
                            .o = a->o + (w->qs.first + t0) * a->hd,
                            .n = t1 - t0,
                            .hd = a->hd,
                            .n_pos = w->qs.n_pos[t1 - 1]};
}

KERN_INLINE void quantize_queries(struct q8_walk *w)
{
    const struct attention *a = w->qs.a;

    for (uint32_t i = 0; i < w->qs.n; i++) {
        int8_t *q = w->q + (size_t)i * a->hd;
        int32_t sum = 0;

        w->factor[i] = w->ops->quantize(q, a->q + (w->qs.first + i) * a->hd, a->hd) * a->scale;
        for (uint32_t d = 0; d < a->hd; d++)
            sum += q[d];
        w->q_sum[i] = sum;
    }
}

/* Shares out the queries from q0 on. */
KERN_INLINE void cut_tiles(struct q8_walk *w, uint32_t q0)
{
    uint32_t n = w->qs.n - q0;

    w->n_tiles = (n + w->ops->queries - 1) / w->ops->queries;
    for (uint32_t i = 0; i <= w->n_tiles; i++)
        w->tiles[i] = q0 + i * n / w->n_tiles;
}

/* Tiles ask for codes. */
KERN_INLINE void ask_for_scales(const uint8_t *page, uint32_t hd)
{
    for (uint32_t p = 0; p < KERN_PAGE; p += LINE / sizeof(float))
        __builtin_prefetch(page + (size_t)KERN_PAGE * hd + p * sizeof(float));
}

KERN_INLINE void q8_page_scores(struct q8_walk *w, const uint8_t *k, const uint8_t *v)
{
    uint32_t hd = w->qs.a->hd;

    ask_for_scales(v, hd);
    for (uint32_t i = 0; i < w->n_tiles; i++) {
        struct q8_tile t = q8_tile_at(w, i);

        t.piece = k;
        t.d_k = (const float *)(const void *)(k + (size_t)KERN_PAGE * hd);
        t.next = v;
        w->ops->score(&t);
    }
}

KERN_INLINE void quantize_weights(struct q8_walk *w, const uint8_t *v, uint32_t q0)
{
    const float *d_v = (const float *)(const void *)(v + (size_t)KERN_PAGE * w->qs.a->hd);

    for (uint32_t i = q0; i < w->qs.n; i++) {
        w->ops->scale_weights(w->qs.s[i], d_v, w->qs.n_pos[i]);
        w->d_t[i] = w->ops->quantize(w->u[i], w->qs.s[i], KERN_PAGE);
    }
}

KERN_INLINE void q8_page_values(struct q8_walk *w, const uint8_t *v, const uint8_t *next_k)
{
    const struct q8_ops *ops = w->ops;
    uint32_t hd = w->qs.a->hd;

    ask_for_scales(next_k, hd);
    for (uint32_t d = 0; d < hd; d += ops->dims) {
        uint32_t n_dims = hd - d < ops->dims ? hd - d : ops->dims;

        for (uint32_t i = 0; i < w->n_tiles; i++) {
            struct q8_tile t = q8_tile_at(w, i);

            t.piece = v + 4 * (size_t)d;
            t.next = next_k + 4 * (size_t)d;
            t.o += d;
            ops->add_values(&t, n_dims);
        }
    }
}

KERN_INLINE void q8_attention_walk(const struct attention *a, const struct q8_ops *ops)
{
    size_t most = Q_BYTES_MAX / a->hd < QUERIES_MAX ? Q_BYTES_MAX / a->hd : QUERIES_MAX;
    size_t n_walks = ((size_t)a->n_rows * a->group + most - 1) / most;
    struct q8_walk w;

    w.ops = ops;
    clear_results(a);
    for (size_t i = 0; i < n_walks; i++) {
        uint32_t n_pos = take_queries(&w.qs, a, i, n_walks);

        quantize_queries(&w);
        for (uint32_t page = 0; page * KERN_PAGE < n_pos; page++) {
            uint32_t q0 = meet_page(&w.qs, page * KERN_PAGE);

            cut_tiles(&w, q0);
            q8_page_scores(&w, a->k[page], a->v[page]);
            weigh_queries(&w.qs, q0, ops->lanes, ops->weigh);
            quantize_weights(&w, a->v[page], q0);
            q8_page_values(&w, a->v[page], keys_after(a, page, n_pos));
        }
    }
}

/* kv_store_q8 of the contract. */
KERN_INLINE void q8_store(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                          uint32_t hd, float (*quantize)(int8_t *codes, const float *x, uint32_t n))
{
    uint8_t *keys = (uint8_t *)k_page + (size_t)(slot / 16) * (hd / 4) * LINE + slot % 16 * 4;
    int8_t *values = (int8_t *)v_page + (size_t)(slot / 4) * hd * 4 + slot % 4;
    _Alignas(64) int8_t codes[KERN_HD_MAX];
    size_t scales = (size_t)KERN_PAGE * hd;
    uint32_t quad;

    ((float *)(void *)((uint8_t *)k_page + scales))[slot] = quantize(codes, k, hd);
    for (uint32_t d = 0; d < hd; d += 4) {
        memcpy(&quad, codes + d, sizeof quad);
        quad ^= 0x80808080; /* code + 128 as a byte */
        memcpy(keys + d / 4 * LINE, &quad, sizeof quad);
    }
    ((float *)(void *)((uint8_t *)v_page + scales))[slot] = quantize(codes, v, hd);
    for (uint32_t d = 0; d < hd; d++)
        values[4 * d] = codes[d];
}

#endif
