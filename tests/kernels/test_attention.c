/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages: each variant against the reference bit for bit, and against a plain softmax
 * in double. Pages are separate buffers that end at forbidden pages, in no order.
 */
#include "tests/kernels/kern_test.h"

#include <math.h>
#include <string.h>

#define N_PAGES   (KERN_SPLIT / KERN_PAGE)
#define GROUP_MAX 9
#define HD_MAX    512

/* Keys and values of one split; `keys` and `values` hold them as floats that are halves. */
struct cache {
    enum kv_type type;
    uint32_t hd;
    void *k[N_PAGES], *v[N_PAGES];
    float *q; /* [GROUP_MAX][hd] */
};

static float keys[KERN_SPLIT][HD_MAX], values[KERN_SPLIT][HD_MAX];

static void cache_init(struct cache *c, enum kv_type type, uint32_t hd, uint64_t seed)
{
    size_t page_bytes = kv_page_bytes(type, hd);
    uint64_t state = seed;

    c->type = type;
    c->hd = hd;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        c->k[i] = guard_alloc(page_bytes, 64);
        c->v[i] = guard_alloc(page_bytes, 64);
        memset(c->k[i], 0xff, page_bytes); /* NaN: what a page held before must never show */
        memset(c->v[i], 0xff, page_bytes);
    }
    for (uint32_t p = 0; p < KERN_SPLIT; p++) {
        for (uint32_t d = 0; d < hd; d++) {
            keys[p][d] = f16_to_f32(f32_to_f16(2 * random_float(&state)));
            values[p][d] = f16_to_f32(f32_to_f16(random_float(&state)));
        }
    }
    c->q = guard_alloc(GROUP_MAX * hd * sizeof *c->q, 4);
    for (uint32_t i = 0; i < GROUP_MAX * hd; i++)
        c->q[i] = 2 * random_float(&state);
}

/* Fills positions p0 .. p1 - 1 by the kernel under test. */
static void cache_fill(struct cache *c, uint32_t p0, uint32_t p1)
{
    for (uint32_t p = p0; p < p1; p++) {
        void *k = c->k[p / KERN_PAGE], *v = c->v[p / KERN_PAGE];

        if (c->type == KV_Q8)
            kern->kv_store_q8(k, v, p % KERN_PAGE, keys[p], values[p], c->hd);
        else
            kern->kv_store(k, v, p % KERN_PAGE, keys[p], values[p], c->hd);
    }
}

/* Scales of a page of KV_Q8, behind its codes. */
static float *scales(void *page, uint32_t hd)
{
    return (float *)(void *)((uint8_t *)page + (size_t)KERN_PAGE * hd);
}

static void run(const struct cpu_kernels *table, const struct cache *c, const struct attention *a)
{
    if (c->type == KV_Q8)
        table->attention_q8(a);
    else
        table->attention(a);
}

static void cache_fini(struct cache *c)
{
    size_t page_bytes = kv_page_bytes(c->type, c->hd);

    for (uint32_t i = 0; i < N_PAGES; i++) {
        guard_free(c->k[i], page_bytes);
        guard_free(c->v[i], page_bytes);
    }
    guard_free(c->q, GROUP_MAX * c->hd * sizeof *c->q);
}

struct partial {
    float o[GROUP_MAX * HD_MAX], m[GROUP_MAX], sum[GROUP_MAX];
};

/* One row. */
static void attend(const struct cpu_kernels *table, struct partial *out, const struct cache *c,
                   uint32_t n_pos, uint32_t group, float scale)
{
    struct attention a = {.o = out->o,
                          .m = out->m,
                          .sum = out->sum,
                          .q = c->q,
                          .k = (const void *const *)c->k,
                          .v = (const void *const *)c->v,
                          .n_pos = n_pos,
                          .n_rows = 1,
                          .group = group,
                          .hd = c->hd,
                          .scale = scale};

    run(table, c, &a);
}

/* Queries and results of several rows, each buffer between forbidden pages. */
struct rows {
    uint32_t n_rows, group, hd;
    float *q, *o, *m, *sum;
};

static void rows_init(struct rows *r, uint32_t n_rows, uint32_t group, uint32_t hd)
{
    size_t n = (size_t)n_rows * group;
    uint64_t state = n * hd;

    *r = (struct rows){n_rows,
                       group,
                       hd,
                       guard_alloc(n * hd * 4, 4),
                       guard_alloc(n * hd * 4, 4),
                       guard_alloc(n * 4, 4),
                       guard_alloc(n * 4, 4)};
    for (size_t i = 0; i < n * hd; i++)
        r->q[i] = 2 * random_float(&state);
}

static void rows_fini(struct rows *r)
{
    size_t n = (size_t)r->n_rows * r->group;

    guard_free(r->q, n * r->hd * 4);
    guard_free(r->o, n * r->hd * 4);
    guard_free(r->m, n * 4);
    guard_free(r->sum, n * 4);
}

/* Rows first .. first + n_rows - 1 of r, the first of which sees n_pos positions. */
static void attend_rows(const struct cpu_kernels *table, const struct rows *r,
                        const struct cache *c, uint32_t first, uint32_t n_rows, uint32_t n_pos)
{
    size_t at = (size_t)first * r->group;
    struct attention a = {.o = r->o + at * r->hd,
                          .m = r->m + at,
                          .sum = r->sum + at,
                          .q = r->q + at * r->hd,
                          .k = (const void *const *)c->k,
                          .v = (const void *const *)c->v,
                          .next_k = c->k[0],
                          .n_pos = n_pos,
                          .n_rows = n_rows,
                          .group = r->group,
                          .hd = r->hd,
                          .scale = 0.125f};

    run(table, c, &a);
}

static void ck_assert_same_rows(const struct rows *actual, const struct rows *expected,
                                uint32_t n_rows)
{
    size_t n = (size_t)n_rows * actual->group;

    ck_assert_same_floats(actual->o, expected->o, n * actual->hd);
    ck_assert_mem_eq(actual->m, expected->m, n * 4);
    ck_assert_same_floats(actual->sum, expected->sum, n);
}

/* Rows are called one by one with `table`, and all at once with the kernel under test: what they
 * give must be the same. The pages hold nothing beyond what the last row sees. */
static void check_rows(const struct cpu_kernels *table, enum kv_type type, uint32_t hd,
                       uint32_t n_pos, uint32_t n_rows, uint32_t group)
{
    uint32_t last = n_pos + n_rows - 1;
    struct rows actual, expected;
    struct cache c;

    last = last < KERN_SPLIT ? last : KERN_SPLIT;
    cache_init(&c, type, hd, hd + last);
    cache_fill(&c, 0, last);
    rows_init(&actual, n_rows, group, hd);
    rows_init(&expected, n_rows, group, hd);
    attend_rows(kern, &actual, &c, 0, n_rows, n_pos);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t seen = n_pos + r < KERN_SPLIT ? n_pos + r : KERN_SPLIT;

        attend_rows(table, &expected, &c, r, 1, seen);
    }
    ck_assert_same_rows(&actual, &expected, n_rows);
    rows_fini(&actual);
    rows_fini(&expected);
    cache_fini(&c);
}

static const uint32_t dims[] = {16, 32, 48, 64, 80, 96, 128, 256, 512};
#define N_DIMS 9

/* Of a test that runs for all dimensions with each form of pages. */
static enum kv_type type_of(int i)
{
    return i < N_DIMS ? KV_F16 : KV_Q8;
}

START_TEST(every_number_of_positions_and_heads_gives_the_reference_bits)
{
    static const uint32_t counts[] = {1,  2,  7,  8,  9,  15, 16,  17,  31,  32,  33,
                                      47, 48, 49, 63, 64, 65, 100, 128, 129, 511, 512};
    uint32_t hd = dims[_i % N_DIMS], filled = 0;
    static struct partial actual, expected;
    struct cache c;

    cache_init(&c, type_of(_i), hd, hd);
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        cache_fill(&c, filled, counts[i]);
        filled = counts[i];
        for (uint32_t group = 1; group <= GROUP_MAX; group++) {
            memset(&actual, POISON, sizeof actual);
            memset(&expected, POISON, sizeof expected);
            attend(ref, &expected, &c, counts[i], group, 0.125f);
            attend(kern, &actual, &c, counts[i], group, 0.125f);
            ck_assert_same_floats(actual.o, expected.o, group * hd);
            ck_assert_mem_eq(actual.m, expected.m, sizeof actual.m);
            ck_assert_mem_eq(actual.sum, expected.sum, sizeof actual.sum);
            ck_assert(
                is_poison(actual.o + group * hd, sizeof actual.o - group * hd * sizeof *actual.o));
        }
    }
    cache_fini(&c);
}
END_TEST

/* First row's positions and rows: within a page, across its edge, over several, past the split. */
static const uint32_t spans[][2] = {{1, 2},    {1, 40},   {15, 3},  {33, 16},  {60, 1},  {60, 9},
                                    {64, 2},   {65, 31},  {97, 32}, {100, 70}, {128, 7}, {250, 20},
                                    {481, 32}, {505, 20}, {512, 1}, {512, 33}};
#define N_SPANS (sizeof spans / sizeof spans[0])

START_TEST(rows_together_give_the_bits_of_each_row_alone)
{
    static const uint32_t groups[] = {1, 2, 3, 4, 7, 9};
    const uint32_t n_groups = sizeof groups / sizeof groups[0];

    for (uint32_t i = 0; i < N_SPANS; i++) /* every group meets every span in some dimension */
        check_rows(kern, type_of(_i), dims[_i % N_DIMS], spans[i][0], spans[i][1],
                   groups[(i + (uint32_t)_i) % n_groups]);
}
END_TEST

START_TEST(rows_together_give_the_reference_bits)
{
    check_rows(ref, type_of(_i), dims[_i % N_DIMS], 50, 20, 3);
    check_rows(ref, type_of(_i), dims[_i % N_DIMS], 500, 16, 2);
    check_rows(ref, type_of(_i), dims[_i % N_DIMS], 1, 5, 1);
    check_rows(ref, type_of(_i), dims[_i % N_DIMS], 60, 2,
               100); /* more heads than one walk takes */
}
END_TEST

START_TEST(a_row_never_shows_what_later_positions_hold)
{
    static const uint32_t group = 3, hd = 64, n_rows = 32, n_pos = 49;
    struct rows before, after;
    struct cache c;

    cache_init(&c, KV_F16, hd, 5);
    cache_fill(&c, 0, n_pos + n_rows - 1);
    rows_init(&before, n_rows, group, hd);
    rows_init(&after, n_rows, group, hd);
    attend_rows(kern, &before, &c, 0, n_rows, n_pos);
    for (uint32_t r = n_rows - 1; r > 0; r--) {
        uint32_t p = n_pos + r - 1; /* which row r is the first to see */

        uint16_t *k = c.k[p / 64], *v = c.v[p / 64];

        k[(p % 64 / 16 * hd + 7) * 16 + p % 16] = r % 2 ? 0x7e00 : 0x7c00; /* NaN, inf */
        v[p % 64 * hd + r] = r % 3 ? 0x7c00 : 0x7e00;
        attend_rows(kern, &after, &c, 0, n_rows, n_pos);
        ck_assert_same_rows(&after, &before, r);
        ck_assert(!isfinite(after.o[(size_t)r * group * hd + r]));
    }
    rows_fini(&before);
    rows_fini(&after);
    cache_fini(&c);
}
END_TEST

/* Softmax attention of head h in double over the first n positions; their weights, not normalised,
 * in weight[]. */
static void exact_attention(double *out, double *weight, const struct cache *c, uint32_t h,
                            uint32_t n, double scale)
{
    double max = -INFINITY, total = 0;

    for (uint32_t p = 0; p < n; p++) {
        weight[p] = 0;
        for (uint32_t d = 0; d < c->hd; d++)
            weight[p] += (double)c->q[h * c->hd + d] * (double)keys[p][d] * scale;
        max = fmax(max, weight[p]);
    }
    memset(out, 0, c->hd * sizeof *out);
    for (uint32_t p = 0; p < n; p++) {
        weight[p] = exp(weight[p] - max);
        total += weight[p];
        for (uint32_t d = 0; d < c->hd; d++)
            out[d] += weight[p] * (double)values[p][d];
    }
    for (uint32_t d = 0; d < c->hd; d++)
        out[d] /= total;
}

START_TEST(attention_equals_softmax_in_double)
{
    static const uint32_t counts[] = {1, 5, 64, 100, 512};
    uint32_t hd = dims[_i];
    static struct partial part;
    static float out[GROUP_MAX * HD_MAX];
    static double weight[KERN_SPLIT];
    double exact[HD_MAX];
    struct cache c;

    cache_init(&c, KV_F16, hd, hd + 1);
    cache_fill(&c, 0, KERN_SPLIT);
    for (uint32_t i = 0; i < 5; i++) {
        attend(kern, &part, &c, counts[i], 3, 0.125f);
        kern->attention_merge(out, part.o, part.m, part.sum, 1, 3, 3, hd);
        for (uint32_t h = 0; h < 3; h++) {
            exact_attention(exact, weight, &c, h, counts[i], 0.125);
            /* |V| <= 1. A score of at most hd / 2 terms of 4 in each chain, times 1/8, is off by up
             * to hd / 2 * 2^-24 * hd / 2: a weight's relative error, twice (sum), plus 512 + 8
             * roundings and exp's 2^-22. */
            for (uint32_t d = 0; d < hd; d++)
                ck_assert(fabs((double)out[h * hd + d] - exact[d]) <=
                          (hd * hd / 2.0 + 600) * 0x1p-24);
        }
    }
    cache_fini(&c);
}
END_TEST

START_TEST(what_lies_beyond_the_positions_never_shows)
{
    /* NaN, infinities, 65504, NaN */
    static const uint16_t stale[] = {0x7e00, 0x7c00, 0xfc00, 0x7bff, 0xffff};
    static struct partial actual, expected;
    struct cache c;

    cache_init(&c, KV_F16, 64, 3);
    cache_fill(&c, 0, 150);
    attend(kern, &expected, &c, 150, 3, 0.125f); /* beyond: 0xff bytes, NaN */
    for (uint32_t s = 0; s < 5; s++) {
        for (uint32_t p = 150; p < 192; p++) {
            for (uint32_t d = 0; d < 64; d++) {
                ((uint16_t *)c.k[2])[(p % 64 / 16 * 64 + d) * 16 + p % 16] = stale[s];
                ((uint16_t *)c.v[2])[p % 64 * 64 + d] = stale[s];
            }
        }
        attend(kern, &actual, &c, 150, 3, 0.125f);
        ck_assert_mem_eq(&actual, &expected, sizeof actual);
    }
    for (uint32_t i = 0; i < 3 * 64; i++)
        ck_assert(isfinite(actual.o[i]));
    cache_fini(&c);
}
END_TEST

START_TEST(a_nan_key_makes_its_heads_nan)
{
    static struct partial part;
    static float out[3 * 64];
    struct cache c;

    cache_init(&c, KV_F16, 64, 3);
    cache_fill(&c, 0, 100);
    ((uint16_t *)c.k[1])[5 * 16 + 3] = 0x7e00; /* position 67, d = 5 */
    attend(kern, &part, &c, 100, 3, 0.125f);
    kern->attention_merge(out, part.o, part.m, part.sum, 1, 3, 3, 64);
    for (uint32_t i = 0; i < 3 * 64; i++)
        ck_assert(isnan(part.o[i]) && isnan(out[i]));
    cache_fini(&c);
}
END_TEST

START_TEST(equal_scores_of_either_zero_give_the_reference_bits)
{
    static struct partial actual, expected;
    struct cache c;

    cache_init(&c, KV_F16, 64, 3);
    cache_fill(&c, 0, 70);
    for (uint32_t i = 0; i < 3 * 64; i++)
        c.q[i] = i % 2 ? 0 : -0.0f;
    attend(ref, &expected, &c, 70, 3, -0.125f);
    attend(kern, &actual, &c, 70, 3, -0.125f);
    ck_assert_mem_eq(&actual, &expected, sizeof actual);
    cache_fini(&c);
}
END_TEST

START_TEST(merged_splits_equal_softmax_in_double)
{
    /* Three splits of one cache: positions 0 .. 127, 128 .. 383, 384 .. 447, by their pages. */
    static const uint32_t first[] = {0, 2, 6}, n_pos[] = {128, 256, 64};
    static float o[3][3 * 64], m[3][3], sum[3][3], out[3 * 64], expected[3 * 64];
    static double weight[KERN_SPLIT];
    double exact[HD_MAX];
    struct cache c;

    cache_init(&c, KV_F16, 64, 9);
    cache_fill(&c, 0, 448);
    for (uint32_t i = 0; i < 3; i++) {
        struct attention a = {.o = o[i],
                              .m = m[i],
                              .sum = sum[i],
                              .q = c.q,
                              .k = (const void *const *)c.k + first[i],
                              .v = (const void *const *)c.v + first[i],
                              .next_k = i < 2 ? c.k[first[i + 1]] : NULL,
                              .n_pos = n_pos[i],
                              .n_rows = 1,
                              .group = 3,
                              .hd = 64,
                              .scale = 0.125f};

        run(kern, &c, &a);
    }
    ref->attention_merge(expected, o[0], m[0], sum[0], 3, 3, 3, 64);
    kern->attention_merge(out, o[0], m[0], sum[0], 3, 3, 3, 64);
    ck_assert_mem_eq(out, expected, sizeof out);
    for (uint32_t h = 0; h < 3; h++) {
        exact_attention(exact, weight, &c, h, 448, 0.125);
        for (uint32_t d = 0; d < 64; d++) /* bound as above */
            ck_assert(fabs((double)out[h * 64 + d] - exact[d]) <= (64 * 64 / 2.0 + 600) * 0x1p-24);
    }
    cache_fini(&c);
}
END_TEST

#define SPLITS_MAX 33

START_TEST(merge_gives_the_reference_bits_for_any_shape)
{
    static const uint32_t counts[] = {1, 2, 5, 8, 9, 16, 17, SPLITS_MAX};
    static float o[SPLITS_MAX * GROUP_MAX * HD_MAX], m[SPLITS_MAX * GROUP_MAX];
    static float sum[SPLITS_MAX * GROUP_MAX];
    static float out[GROUP_MAX * HD_MAX], expected[GROUP_MAX * HD_MAX];
    uint64_t state = 4;

    for (uint32_t i = 0; i < sizeof o / sizeof o[0]; i++)
        o[i] = random_float(&state);
    for (uint32_t i = 0; i < sizeof m / sizeof m[0]; i++) {
        m[i] = 50 * random_float(&state);
        sum[i] = 2 + random_float(&state);
    }
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (uint32_t group = 1; group <= GROUP_MAX; group++) {
            memset(out, POISON, sizeof out);
            memset(expected, POISON, sizeof expected);
            for (size_t stride = group; stride <= GROUP_MAX; stride += 3) {
                ref->attention_merge(expected, o, m, sum, counts[i], stride, group, dims[_i]);
                kern->attention_merge(out, o, m, sum, counts[i], stride, group, dims[_i]);
                ck_assert_mem_eq(out, expected, sizeof out);
            }
        }
    }
}
END_TEST

START_TEST(kv_store_puts_each_half_where_the_contract_says)
{
    uint32_t hd = dims[_i];
    size_t page_bytes = (size_t)KERN_PAGE * hd * 2;
    uint64_t state = hd;
    float k[HD_MAX], v[HD_MAX];

    for (uint32_t slot = 0; slot < KERN_PAGE; slot += 7) {
        uint16_t *k_page = guard_alloc(page_bytes, 64), *v_page = guard_alloc(page_bytes, 64);

        /* Any bits at all: also NaN, subnormal, beyond half's range. */
        for (uint32_t d = 0; d < hd; d++) {
            uint32_t k_bits = (uint32_t)random_bits(&state), v_bits = (uint32_t)random_bits(&state);

            memcpy(&k[d], &k_bits, 4);
            memcpy(&v[d], &v_bits, 4);
            if (d % 2) {
                k[d] = 70000 * random_float(&state);
                v[d] = 1e-6f * random_float(&state);
            }
        }
        kern->kv_store(k_page, v_page, slot, k, v, hd);
        for (uint32_t p = 0; p < KERN_PAGE; p++) {
            for (uint32_t d = 0; d < hd; d++) {
                uint16_t in_k = k_page[p / 16 * hd * 16 + d * 16 + p % 16],
                         in_v = v_page[p * hd + d];

                ck_assert_uint_eq(in_k, p == slot ? f32_to_f16(k[d]) : POISON * 257);
                ck_assert_uint_eq(in_v, p == slot ? f32_to_f16(v[d]) : POISON * 257);
            }
        }
        guard_free(k_page, page_bytes);
        guard_free(v_page, page_bytes);
    }
}
END_TEST

/* ---- pages of 8-bit integers ----------------------------------------------------------------- */

START_TEST(a_row_never_shows_what_later_8_bit_positions_hold)
{
    static const uint32_t group = 3, hd = 64, n_rows = 32, n_pos = 49;
    static const float stale[] = {NAN, INFINITY, -INFINITY, 3e38f, -1};
    struct rows before, after;
    struct cache c;

    cache_init(&c, KV_Q8, hd, 5);
    cache_fill(&c, 0, n_pos + n_rows - 1);
    rows_init(&before, n_rows, group, hd);
    rows_init(&after, n_rows, group, hd);
    attend_rows(kern, &before, &c, 0, n_rows, n_pos);
    for (uint32_t r = n_rows - 1; r > 0; r--) {
        uint32_t p = n_pos + r - 1; /* which row r is the first to see */

        for (uint32_t d = 0; d < hd; d++) {
            ((uint8_t *)c.k[p / 64])[(p % 64 / 16 * hd / 4 + d / 4) * 64 + p % 16 * 4 + d % 4] =
                (uint8_t)(r + d);
            ((uint8_t *)c.v[p / 64])[(p % 64 / 4 * hd + d) * 4 + p % 4] = 0x80;
        }
        scales(c.k[p / 64], hd)[p % 64] = stale[r % 5];
        scales(c.v[p / 64], hd)[p % 64] = stale[r % 3];
        attend_rows(kern, &after, &c, 0, n_rows, n_pos);
        ck_assert_same_rows(&after, &before, r);
        ck_assert(!isfinite(after.o[(size_t)r * group * hd + r]));
    }
    rows_fini(&before);
    rows_fini(&after);
    cache_fini(&c);
}
END_TEST

/* Vectors of whole numbers, the largest 127, have a scale of 1 and are their own codes. */
static void whole_numbers(float *x, uint32_t n, uint64_t *state)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(random_bits(state) % 255) - 127;
    x[random_bits(state) % n] = 127;
}

START_TEST(whole_numbers_to_127_are_kept_in_8_bits_without_a_loss)
{
    static struct partial part;
    uint64_t state = 77;
    struct cache c;

    cache_init(&c, KV_Q8, 64, 1);
    for (uint32_t p = 0; p < 3; p++) {
        whole_numbers(keys[p], 64, &state);
        whole_numbers(values[p], 64, &state);
    }
    for (uint32_t h = 0; h < 3; h++)
        whole_numbers(c.q + h * 64, 64, &state);
    cache_fill(&c, 0, 3);
    for (uint32_t n = 1; n <= 3; n++) {
        attend(kern, &part, &c, n, 3, 0x1p-10f);
        for (uint32_t h = 0; h < 3; h++) {
            float max = -INFINITY;

            for (uint32_t p = 0; p < n; p++) { /* integers below 2^24: exact in any order */
                float s = 0;

                for (uint32_t d = 0; d < 64; d++)
                    s += c.q[h * 64 + d] * keys[p][d];
                max = fmaxf(max, s * 0x1p-10f);
            }
            ck_assert_float_eq(part.m[h], max);
            /* One position: weight 1 is 127 of 127, and 1 / 127 is off by at most 2^-24 of it; then
             * one rounding. */
            for (uint32_t d = 0; d < 64 && n == 1; d++)
                ck_assert(fabsf(part.o[h * 64 + d] - values[0][d]) <=
                          fabsf(values[0][d]) * 0x1p-22f);
        }
    }
    cache_fini(&c);
}
END_TEST

START_TEST(attention_over_8_bits_is_near_softmax_in_double)
{
    static const uint32_t counts[] = {1, 5, 64, 100, 512};
    uint32_t hd = dims[_i];
    static struct partial part;
    static float out[GROUP_MAX * HD_MAX];
    static double weight[KERN_SPLIT];
    double exact[HD_MAX], scale = 1.0 / hd;
    struct cache c;

    /* |q|, |k| <= 2, so each code is off by at most 1/127 of one, and a product by 4/127 + 1/127^2:
     * a score, hd of these times 1 / hd, by less than 1/31. A weight is off by a factor of e^(1/31),
     * and so is their sum: |V| <= 1 makes of that at most e^(2/31) - 1 of the result; V's own codes
     * are off by 1/254. Codes of a page's weights are off by half a step, 1/254 of the largest w * d_v
     * <= w / 127, times V's codes of up to 127, 64 times: 64/254 of the page's largest weight. */
    const double scores_off = expm1(2.0 / 31) + 1.0 / 254 + 1e-4;

    cache_init(&c, KV_Q8, hd, hd + 1);
    cache_fill(&c, 0, KERN_SPLIT);
    for (uint32_t i = 0; i < 5; i++) {
        attend(kern, &part, &c, counts[i], 3, (float)scale);
        kern->attention_merge(out, part.o, part.m, part.sum, 1, 3, 3, hd);
        for (uint32_t h = 0; h < 3; h++) {
            double largest = 0, total = 0, of_page = 0;

            exact_attention(exact, weight, &c, h, counts[i], scale);
            for (uint32_t p = 0; p < counts[i]; p++) {
                of_page = p % KERN_PAGE ? fmax(of_page, weight[p]) : weight[p];
                total += weight[p];
                largest += p % KERN_PAGE == KERN_PAGE - 1 || p + 1 == counts[i] ? of_page : 0;
            }
            for (uint32_t d = 0; d < hd; d++)
                ck_assert(fabs((double)out[h * hd + d] - exact[d]) <=
                          scores_off + 64.0 / 254 * exp(2.0 / 31) * largest / total);
        }
    }
    cache_fini(&c);
}
END_TEST

START_TEST(what_is_not_finite_reaches_the_result_from_8_bits_too)
{
    static struct partial part, expected;
    struct cache c;

    cache_init(&c, KV_Q8, 64, 3);
    keys[67][5] = _i == 0 ? NAN : keys[67][5];
    values[70][9] = _i == 1 ? -INFINITY : values[70][9];
    c.q[64 + 7] = _i == 2 ? INFINITY : c.q[64 + 7]; /* of head 1 alone */
    cache_fill(&c, 0, 100);
    attend(kern, &part, &c, 100, 3, 0.125f);
    attend(ref, &expected, &c, 100, 3, 0.125f);
    for (uint32_t h = 0; h < 3; h++) {
        int bad = _i < 2 || h == 1;

        ck_assert_int_eq(isnan(part.sum[h]) != 0, _i == 1 ? 0 : bad);
        for (uint32_t d = 0; d < 64; d++)
            ck_assert_int_eq(isnan(part.o[h * 64 + d]) != 0, bad);
    }
    ck_assert_same_floats(part.o, expected.o, 3 * 64);
    ck_assert_same_floats(part.sum, expected.sum, 3);
    ck_assert_mem_eq(part.m, expected.m, sizeof *part.m * 3);
    cache_fini(&c);
}
END_TEST

/* Any bits at all: also NaN, infinities, subnormals and vectors too small for a scale. */
static void any_floats(float *x, uint32_t n, uint32_t kind, uint64_t *state)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)random_bits(state);

        memcpy(&x[i], &bits, 4);
        if (kind > 0)
            x[i] = (kind == 1 ? 70000 : kind == 2 ? 1e-20f : 1e-31f) * random_float(state);
    }
}

/* The code of x[i] by the formula for activations; ret_d the scale. */
static int expected_code(const float *x, uint32_t n, uint32_t i, float *ret_d)
{
    float max = 0;

    for (uint32_t j = 0; j < n; j++) {
        if (!isfinite(x[j])) {
            *ret_d = NAN;
            return 0;
        }
        max = fmaxf(max, fabsf(x[j]));
    }
    *ret_d = max < KERN_QUANT_MIN ? 0 : max / 127;
    return max < KERN_QUANT_MIN ? 0 : (int)rintf(x[i] * (127 / max));
}

START_TEST(kv_store_q8_puts_each_code_where_the_contract_says)
{
    uint32_t hd = dims[_i];
    size_t page_bytes = kv_page_bytes(KV_Q8, hd);
    uint64_t state = hd;
    float k[HD_MAX], v[HD_MAX], d_k, d_v;

    ck_assert_uint_eq(page_bytes, 64 * hd + 256);
    for (uint32_t slot = 0; slot < KERN_PAGE; slot += 7) {
        uint8_t *k_page = guard_alloc(page_bytes, 64), *v_page = guard_alloc(page_bytes, 64);

        any_floats(k, hd, slot % 4, &state);
        any_floats(v, hd, slot / 2 % 4, &state);
        kern->kv_store_q8(k_page, v_page, slot, k, v, hd);
        for (uint32_t p = 0; p < KERN_PAGE; p++) {
            for (uint32_t d = 0; d < hd; d++) {
                uint8_t in_k = k_page[(p / 16 * hd / 4 + d / 4) * 64 + p % 16 * 4 + d % 4];
                uint8_t in_v = v_page[(p / 4 * hd + d) * 4 + p % 4];

                ck_assert_uint_eq(in_k, p == slot ? (uint8_t)(expected_code(k, hd, d, &d_k) + 128)
                                                  : POISON);
                ck_assert_uint_eq(in_v,
                                  p == slot ? (uint8_t)expected_code(v, hd, d, &d_v) : POISON);
            }
            if (p == slot) {
                ck_assert_same_floats(scales(k_page, hd) + p, &d_k, 1);
                ck_assert_same_floats(scales(v_page, hd) + p, &d_v, 1);
            } else {
                ck_assert(is_poison(scales(k_page, hd) + p, 4));
                ck_assert(is_poison(scales(v_page, hd) + p, 4));
            }
        }
        guard_free(k_page, page_bytes);
        guard_free(v_page, page_bytes);
    }
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("attention");
    TCase *tc = tcase_create("attention");

    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, every_number_of_positions_and_heads_gives_the_reference_bits, 0,
                        2 * N_DIMS);
    tcase_add_loop_test(tc, rows_together_give_the_bits_of_each_row_alone, 0, 2 * N_DIMS);
    tcase_add_loop_test(tc, rows_together_give_the_reference_bits, 0, 2 * N_DIMS);
    tcase_add_test(tc, a_row_never_shows_what_later_positions_hold);
    tcase_add_loop_test(tc, attention_equals_softmax_in_double, 0, N_DIMS);
    tcase_add_test(tc, what_lies_beyond_the_positions_never_shows);
    tcase_add_test(tc, a_nan_key_makes_its_heads_nan);
    tcase_add_test(tc, equal_scores_of_either_zero_give_the_reference_bits);
    tcase_add_test(tc, merged_splits_equal_softmax_in_double);
    tcase_add_loop_test(tc, merge_gives_the_reference_bits_for_any_shape, 0, N_DIMS);
    tcase_add_loop_test(tc, kv_store_puts_each_half_where_the_contract_says, 0, N_DIMS);
    tcase_add_test(tc, a_row_never_shows_what_later_8_bit_positions_hold);
    tcase_add_test(tc, whole_numbers_to_127_are_kept_in_8_bits_without_a_loss);
    tcase_add_loop_test(tc, attention_over_8_bits_is_near_softmax_in_double, 0, N_DIMS);
    tcase_add_loop_test(tc, what_is_not_finite_reaches_the_result_from_8_bits_too, 0, 3);
    tcase_add_loop_test(tc, kv_store_q8_puts_each_code_where_the_contract_says, 0, N_DIMS);
    suite_add_tcase(suite, tc);
    return kern_test_main(argc, argv, suite);
}
