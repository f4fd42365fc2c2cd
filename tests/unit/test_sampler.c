/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sampler.c - the sampler against a witness that orders the whole vocabulary with qsort and
 * computes in f64 with libm. The two round differently, so a draw is not compared when it falls
 * within 1e-5 of the edge of a candidate or a filter's cut within 1e-5 of its threshold; the tests
 * bound how many are skipped.
 */
#include <check.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/sample/best.h"
#include "runtime/sample/sampler.h"

#define N_MAX 6000
#define EDGE  1e-5

static struct sampler *sampler_for(uint32_t n_vocab)
{
    struct sampler *s;

    ck_assert_int_eq(sampler_new(&s, n_vocab, cpu_kernels_get(CPU_REF, NULL), NULL), 0);
    return s;
}

/* One row alone, whose maxima nobody has computed. */
static int sampler_pick(struct sampler *s, const float *logits, const struct sampling *how,
                        uint64_t pos, uint32_t *ret_id)
{
    struct draw draw = {.how = how, .pos = pos, .id = 77};

    sampler_draw(s, logits, NULL, &draw, 1);
    ck_assert(draw.err == 0 || draw.id == 77);
    *ret_id = draw.id;
    return draw.err;
}

static int logprob_of(struct sampler *s, const float *logits, uint32_t id, float *ret_lp)
{
    struct draw draw = {.id = id, .logprob = 7};

    sampler_draw(s, logits, NULL, &draw, 1);
    ck_assert(draw.err == 0 || draw.logprob == 7);
    *ret_lp = draw.logprob;
    return draw.err;
}

/* ---- the witness ----------------------------------------------------------------------------- */

static const float *witness_logits;

static int witness_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    if (witness_logits[x] != witness_logits[y])
        return witness_logits[x] > witness_logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The id, or -1 when the choice hangs on rounding. */
static int64_t witness_pick(const float *logits, uint32_t n, const struct sampling *how, double u)
{
    static uint32_t order[N_MAX];
    static double w[N_MAX];
    int filtered = (how->top_k > 0 && how->top_k < n) || (how->top_p > 0 && how->top_p < 1);
    double total = 0, sum = 0;
    uint32_t kept = n;

    witness_logits = logits;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort(order, n, sizeof *order, witness_order);
    for (uint32_t i = 0; i < n; i++)
        w[i] =
            exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)how->temperature);

    if (how->top_k > 0 && how->top_k < n)
        kept = how->top_k;
    for (uint32_t i = 0; i < kept; i++)
        total += w[i];
    if (how->top_p > 0 && how->top_p < 1) {
        for (uint32_t i = 0; i < kept; i++) {
            sum += w[i];
            if (fabs(sum - (double)how->top_p * total) < EDGE * total)
                return -1;
            if (sum >= (double)how->top_p * total)
                kept = i + 1;
        }
    }
    for (uint32_t i = 0; i < kept; i++) {
        if (how->min_p > 0 && fabs(w[i] - (double)how->min_p) < EDGE)
            return -1;
        if (w[i] < (double)how->min_p)
            kept = i;
    }
    if (!filtered) { /* walks ids, without an order */
        double *by_id = calloc(n, sizeof *by_id);

        ck_assert_ptr_nonnull(by_id);
        for (uint32_t i = 0; i < kept; i++)
            by_id[order[i]] = w[i];
        for (uint32_t i = 0; i < n; i++) {
            order[i] = i;
            w[i] = by_id[i];
        }
        free(by_id);
        kept = n;
    }
    total = 0;
    for (uint32_t i = 0; i < kept; i++)
        total += w[i];
    sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        sum += w[i];
        if (fabs(sum - u * total) < EDGE * total)
            return -1;
        if (sum > u * total)
            return order[i];
    }
    return -1;
}

/* ---- random numbers of the tests: xorshift64* (Vigna, 2016) ---------------------------------- */

static uint64_t rng_state;

static uint64_t rng(void)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return rng_state * 2685821657736338717ull;
}

static float rng_float(void) /* [0, 1) */
{
    return (float)(rng() >> 40) * 0x1p-24f;
}

/* Rows of several shapes: peaked, flat, with many equal logits, wide, below zero. */
static void random_row(float *logits, uint32_t n)
{
    uint32_t shape = (uint32_t)(rng() % 5);

    for (uint32_t i = 0; i < n; i++) {
        float x = rng_float();

        switch (shape) {
        case 0:
            logits[i] = 20 * x * x * x;
            break;
        case 1:
            logits[i] = x;
            break;
        case 2:
            logits[i] = floorf(8 * x);
            break;
        case 3:
            logits[i] = 200 * x - 100;
            break;
        default:
            logits[i] = -5 - 10 * x;
            break;
        }
    }
}

static double u_of(uint64_t seed, uint64_t pos)
{
    return (double)(counter_random(seed, pos) >> 11) / 9007199254740992.0;
}

/* Compares `rounds` random picks; returns how many hung on rounding. */
static unsigned compare(unsigned rounds, uint32_t n_max, int with_k, int with_p, int with_min_p)
{
    static float logits[N_MAX];
    unsigned skipped = 0;

    rng_state = 0x853c49e6748fea9bull + rounds + n_max;
    for (unsigned round = 0; round < rounds; round++) {
        uint32_t n = 1 + (uint32_t)(rng() % n_max), id = UINT32_MAX;
        struct sampler *s = sampler_for(n);
        struct sampling how = {
            .seed = rng(),
            .temperature = rng() % 2 ? 1 : 0.05f + 3 * rng_float(),
            .top_k = with_k ? 1 + (uint32_t)(rng() % (rng() % 2 ? 50 : n)) : 0,
            .top_p = with_p ? 0.01f + 0.985f * rng_float() : 0,
            .min_p = with_min_p ? rng_float() * rng_float() : 0,
        };
        uint64_t pos = rng() % 8192;
        int64_t want;

        random_row(logits, n);
        want = witness_pick(logits, n, &how, u_of(how.seed, pos));
        ck_assert_int_eq(sampler_pick(s, logits, &how, pos, &id), 0);
        if (want < 0)
            skipped++;
        else
            ck_assert_msg(id == (uint32_t)want, "round %u: n %u T %g k %u p %g m %g: %u, not %lld",
                          round, n, (double)how.temperature, how.top_k, (double)how.top_p,
                          (double)how.min_p, id, (long long)want);
        sampler_free(s);
    }
    return skipped;
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(philox_gives_the_known_answers)
{
    /* Random123 1.14, tests/kat_vectors, philox4x32 with 10 rounds; the last is digits of pi. */
    static const uint32_t answers[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };

    for (int i = 0; i < 3; i++) {
        uint32_t got[4];

        philox4x32(answers[i], answers[i] + 4, got);
        ck_assert_mem_eq(got, answers[i] + 6, sizeof got);
    }
    ck_assert_uint_eq(counter_random(0, 0), 0xe169c58d6627e8d5ull);
}
END_TEST

START_TEST(greedy_takes_the_lowest_id_among_equals)
{
    const float logits[] = {-1, 0.0f, -0.0f, -3};
    const float peaks[] = {1, 5, 2, 5, 5};
    struct sampler *s = sampler_for(4);
    uint32_t id = 9;

    ck_assert_int_eq(sampler_pick(s, logits, &(struct sampling){.seed = 1}, 0, &id), 0);
    ck_assert_uint_eq(id, 1);
    sampler_free(s);
    s = sampler_for(5);
    ck_assert_int_eq(sampler_pick(s, peaks, &(struct sampling){.seed = 1}, 0, &id), 0);
    ck_assert_uint_eq(id, 1);
    sampler_free(s);
}
END_TEST

START_TEST(a_row_that_is_not_finite_draws_nothing)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct sampler *s = sampler_for(600);
    float logits[600] = {0}, lp;
    uint32_t id;

    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t at = 0; at < 600; at += 37) {
            logits[at] = bad[i];
            for (int way = 0; way < 4; way++) {
                struct sampling how = {.temperature = way == 0 ? 0 : 1,
                                       .top_k = way == 1 ? 5 : 0,
                                       .top_p = way == 2 ? 0.5f : 0};

                ck_assert_int_eq(sampler_pick(s, logits, &how, 0, &id), -EDOM);
            }
            ck_assert_int_eq(logprob_of(s, logits, 0, &lp), -EDOM);
            logits[at] = 0;
        }
    }
    sampler_free(s);
}
END_TEST

START_TEST(filters_that_leave_one_candidate_take_the_greedy_one)
{
    static float logits[3000];
    struct sampler *s = sampler_for(3000);

    rng_state = 5;
    for (uint64_t pos = 0; pos < 200; pos++) {
        struct sampling how[] = {
            {.seed = pos, .temperature = 2, .top_k = 1},
            {.seed = pos, .temperature = 2, .top_p = 1e-6f},
            {.seed = pos, .temperature = 2, .min_p = 1},
            {.seed = pos, .temperature = 1e-30f},
            {.seed = pos, .temperature = 1e-30f, .top_k = 50, .top_p = 0.9f},
        };
        uint32_t greedy, id;

        for (uint32_t i = 0; i < 3000; i++) /* all different */
            logits[i] = (float)((i * 1117u + (uint32_t)pos) % 3000u) * 0.01f;
        ck_assert_int_eq(sampler_pick(s, logits, &(struct sampling){0}, pos, &greedy), 0);
        for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
            ck_assert_int_eq(sampler_pick(s, logits, &how[i], pos, &id), 0);
            ck_assert_uint_eq(id, greedy);
        }
    }
    sampler_free(s);
}
END_TEST

START_TEST(equal_logits_are_cut_at_exactly_the_lowest_ids)
{
    static const float logits[2200]; /* all 0: each weight is 1, so every sum is exact */
    struct sampler *s = sampler_for(2200);
    uint32_t below_k = 0, below_p = 0, id;

    for (uint64_t pos = 0; pos < 8000; pos++) {
        struct sampling top_k = {.seed = 3, .temperature = 1, .top_k = 37};
        struct sampling top_p = {.seed = 3, .temperature = 1, .top_p = 0.5f};

        ck_assert_int_eq(sampler_pick(s, logits, &top_k, pos, &id), 0);
        below_k = id > below_k ? id : below_k;
        ck_assert_int_eq(sampler_pick(s, logits, &top_p, pos, &id), 0);
        below_p = id > below_p ? id : below_p;
    }
    ck_assert_uint_eq(below_k, 36);
    ck_assert_uint_eq(below_p, 1099); /* missed by chance with (1099 / 1100) ^ 8000, below 1e-3 */
    sampler_free(s);
}
END_TEST

START_TEST(zero_and_minus_zero_are_equal_logits)
{
    float logits[200];
    struct sampler *s = sampler_for(200);
    uint32_t id;

    for (uint32_t i = 0; i < 200; i++)
        logits[i] = i < 100 ? -0.0f : 0.0f;
    for (uint64_t pos = 0; pos < 100; pos++) {
        ck_assert_int_eq(
            sampler_pick(s, logits, &(struct sampling){.temperature = 1, .top_k = 1}, pos, &id), 0);
        ck_assert_uint_eq(id, 0);
        ck_assert_int_eq(
            sampler_pick(s, logits, &(struct sampling){.temperature = 1, .top_p = 0.5f}, pos, &id),
            0);
        ck_assert_uint_lt(id, 100);
    }
    sampler_free(s);
}
END_TEST

START_TEST(top_k_keeps_the_lower_ids_among_equals_in_any_place)
{
    float logits[500];
    struct sampler *s = sampler_for(500);
    int seen[500] = {0};

    for (uint32_t i = 0; i < 500; i++)
        logits[i] = i % 100 == 99 ? 3 : i % 10 == 7 ? 1 : 0;
    /* Five 3s (99, 199, ...), then the 1s from the lowest id: 7, 17, 27. */
    for (uint64_t pos = 0; pos < 5000; pos++) {
        uint32_t id;

        ck_assert_int_eq(
            sampler_pick(s, logits, &(struct sampling){.temperature = 5, .top_k = 8}, pos, &id), 0);
        seen[id] = 1;
    }
    for (uint32_t i = 0; i < 500; i++)
        ck_assert_int_eq(seen[i], i % 100 == 99 || i == 7 || i == 17 || i == 27);
    sampler_free(s);
}
END_TEST

START_TEST(top_k_picks_what_a_full_sort_picks)
{
    ck_assert_uint_lt(compare(300, N_MAX, 1, 0, 0), 20);
}
END_TEST

START_TEST(top_p_picks_what_a_full_sort_picks)
{
    ck_assert_uint_lt(compare(300, N_MAX, 0, 1, 0), 40);
}
END_TEST

START_TEST(min_p_picks_what_a_full_sort_picks)
{
    ck_assert_uint_lt(compare(300, N_MAX, 0, 0, 1), 80);
}
END_TEST

START_TEST(all_filters_together_pick_what_a_full_sort_picks)
{
    ck_assert_uint_lt(compare(500, N_MAX, 1, 1, 1), 100);
    ck_assert_uint_lt(compare(3000, 5, 1, 1, 1), 300);
}
END_TEST

START_TEST(without_filters_the_draw_walks_the_ids)
{
    ck_assert_uint_lt(compare(300, N_MAX, 0, 0, 0), 20);
    ck_assert_uint_lt(compare(1500, 300, 0, 0, 0), 100);
}
END_TEST

/* Pearson's statistic of 40000 draws of 8 tokens; 24.32 is the 0.999 quantile of chi-square with 7
 * degrees of freedom (any table). Seeds are fixed, so this passes always or never. */
static double chi_square(struct sampling how, const float *logits, const double *p)
{
    struct sampler *s = sampler_for(8);
    unsigned count[8] = {0};
    double sum = 0;

    for (uint64_t pos = 0; pos < 40000; pos++) {
        uint32_t id;

        ck_assert_int_eq(sampler_pick(s, logits, &how, pos, &id), 0);
        count[id]++;
    }
    for (int i = 0; i < 8; i++)
        sum += (count[i] - 40000 * p[i]) * (count[i] - 40000 * p[i]) / (40000 * p[i]);
    sampler_free(s);
    return sum;
}

START_TEST(draws_follow_the_softmax)
{
    const float logits[8] = {0, 1, 2, 3, 1.5f, -1, 0.5f, 2.5f};
    double p[8], total = 0;

    for (int i = 0; i < 8; i++)
        total += p[i] = exp((double)logits[i] / 1.5);
    for (int i = 0; i < 8; i++)
        p[i] /= total;
    for (uint64_t seed = 0; seed < 4; seed++) {
        ck_assert_double_lt(
            chi_square((struct sampling){.seed = seed, .temperature = 1.5f}, logits, p), 24.32);
        /* The same through the ordered walk: top_p that cuts nothing. */
        ck_assert_double_lt(
            chi_square((struct sampling){.seed = seed + 100, .temperature = 1.5f, .top_p = 0.9999f},
                       logits, p),
            24.32);
    }
}
END_TEST

START_TEST(a_pick_depends_on_its_row_seed_and_position_only)
{
    static float logits[N_MAX], other[N_MAX], copy[N_MAX];
    struct sampler *s = sampler_for(N_MAX);

    rng_state = 99;
    for (int round = 0; round < 100; round++) {
        struct sampling how = {.seed = rng(),
                               .temperature = 1,
                               .top_p = round % 2 ? 0.95f : 0,
                               .top_k = round % 3 ? 0 : 2000};
        uint32_t first, second, id;

        random_row(logits, N_MAX);
        random_row(other, N_MAX);
        memcpy(copy, logits, sizeof logits);
        ck_assert_int_eq(sampler_pick(s, logits, &how, 5, &first), 0);
        for (uint64_t pos = 0; pos < 3; pos++)
            ck_assert_int_eq(sampler_pick(s, other, &how, pos, &id), 0);
        ck_assert_int_eq(sampler_pick(s, logits, &how, 5, &second), 0);
        ck_assert_uint_eq(first, second);
        ck_assert_mem_eq(copy, logits, sizeof logits);
    }
    sampler_free(s);
}
END_TEST

START_TEST(huge_logits_and_temperatures_do_no_harm)
{
    const float logits[] = {-3e38f, 3e38f, 0, 1e-40f};
    struct sampler *s = sampler_for(4);

    for (int way = 0; way < 8; way++) {
        struct sampling how = {.seed = 1,
                               .temperature = way & 1 ? 100 : 1e-40f,
                               .top_p = way & 2 ? 0.9f : 0,
                               .top_k = way & 4 ? 2 : 0};
        uint32_t id;

        ck_assert_int_eq(sampler_pick(s, logits, &how, 0, &id), 0);
        ck_assert_uint_eq(id, 1); /* the others are 3e36 temperatures away */
    }
    sampler_free(s);
}
END_TEST

START_TEST(logprobs_equal_a_long_double_softmax)
{
    static float logits[N_MAX];

    rng_state = 1234;
    for (int round = 0; round < 60; round++) {
        uint32_t n = 1 + (uint32_t)(rng() % N_MAX), id = (uint32_t)(rng() % n);
        struct sampler *s = sampler_for(n);
        long double sum = 0, max = -1e30L, want;
        float lp;

        random_row(logits, n);
        for (uint32_t i = 0; i < n; i++)
            max = (long double)logits[i] > max ? (long double)logits[i] : max;
        for (uint32_t i = 0; i < n; i++)
            sum += expl((long double)logits[i] - max);
        want = (long double)logits[id] - max - logl(sum);
        ck_assert_int_eq(logprob_of(s, logits, id, &lp), 0);
        /* exp's 2^-22 and the rounding of the result */
        ck_assert_ldouble_le(fabsl((long double)lp - want), 3e-7L + fabsl(want) * 1e-7L);
        sampler_free(s);
    }
}
END_TEST

/* ---- rows of a step: maxima known, a team --------------------------------------------------- */

#define STEP_ROWS 24u

/* Every third row is scored, the others are drawn in every way; row 7 has a NaN, row 8 a -infinity. */
static void step_make(float *logits, uint32_t n, struct sampling *how, struct draw *draws)
{
    for (uint32_t i = 0; i < STEP_ROWS; i++) {
        how[i] = (struct sampling){.seed = rng(),
                                   .temperature = i % 4 == 0 ? 0 : 0.2f + 2 * rng_float(),
                                   .top_k = i % 2 ? 0 : 1 + (uint32_t)(rng() % (2 * n)),
                                   .top_p = i % 8 < 4 ? 0.99f * rng_float() : 0,
                                   .min_p = i % 5 ? 0 : 0.1f};
        draws[i] = i % 3 ? (struct draw){.how = &how[i], .pos = rng() % 100}
                         : (struct draw){.id = (uint32_t)(rng() % n)};
        random_row(logits + (size_t)i * n, n);
    }
    logits[7 * n + n / 2] = NAN;
    logits[8 * n] = -INFINITY;
}

START_TEST(rows_give_the_same_whoever_draws_them_and_knows_their_maxima)
{
    const struct cpu_kernels *ref = cpu_kernels_get(CPU_REF, NULL);
    static const enum cpu_variant variants[] = {CPU_REF, CPU_AVX2, CPU_AVX512};
    static float logits[STEP_ROWS * N_MAX], max[STEP_ROWS * N_MAX];
    struct sampling how[STEP_ROWS];
    struct draw wanted[STEP_ROWS], alone[STEP_ROWS];
    struct team *team;

    ck_assert_int_eq(team_new(&team, 3), 0);
    rng_state = 77;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t n = round < 5 ? 63 + round : 1 + (uint32_t)(rng() % N_MAX);
        struct sampler *s;

        step_make(logits, n, how, wanted);
        memcpy(alone, wanted, sizeof alone);
        s = sampler_for(n);
        for (uint32_t i = 0; i < STEP_ROWS; i++)
            sampler_draw(s, logits + (size_t)i * n, NULL, &alone[i], 1);
        sampler_free(s);
        ck_assert_int_eq(alone[7].err, -EDOM);
        ck_assert_int_eq(alone[8].err, -EDOM);
        for (uint32_t i = 0; i < STEP_ROWS; i++)
            ref->block_max(max + (size_t)i * ((n + 63) / 64), logits + (size_t)i * n, n);
        for (uint32_t v = 0; v < 3; v++) {
            const struct cpu_kernels *kernels = cpu_kernels_get(variants[v], NULL);
            struct draw together[STEP_ROWS];

            if (!kernels)
                continue;
            ck_assert_int_eq(sampler_new(&s, n, kernels, v % 2 ? NULL : team), 0);
            memcpy(together, wanted, sizeof together);
            sampler_draw(s, logits, max, together, STEP_ROWS);
            for (uint32_t i = 0; i < STEP_ROWS; i++) {
                ck_assert_int_eq(together[i].err, alone[i].err);
                ck_assert_uint_eq(together[i].id, alone[i].id);
                ck_assert_mem_eq(&together[i].logprob, &alone[i].logprob, sizeof(float));
            }
            sampler_free(s);
        }
    }
    team_free(team);
}
END_TEST

/* ---- the best candidates, against a full sort ------------------------------------------------ */

/* k candidates of a row, for every k in steps: those of the sort, in its order. */
static void check_best(const float *logits, uint32_t n, uint32_t k_step)
{
    static uint64_t cand[N_MAX], spare[N_MAX];
    static uint32_t order[N_MAX];
    static float max[N_MAX / 64 + 1];
    struct logit_row row = {logits, max, n};
    struct best best = {.cand = cand, .spare = spare};

    cpu_kernels_get(CPU_REF, NULL)->block_max(max, logits, n);
    witness_logits = logits;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort(order, n, sizeof *order, witness_order);
    ck_assert_uint_eq(best_one(&row), order[0]);
    for (uint32_t k = 1; k <= n; k += k < 4 ? 1 : k_step) {
        best_first(&best, &row, k);
        ck_assert_uint_eq(best.n, k);
        for (uint32_t i = 0; i < k; i++)
            ck_assert_msg(best_id(best.cand[i]) == order[i], "n %u, k %u: place %u has %u, not %u",
                          n, k, i, best_id(best.cand[i]), order[i]);
    }
}

START_TEST(the_best_candidates_are_those_of_a_full_sort)
{
    static float logits[N_MAX];

    rng_state = 4711;
    /* Every k of every length around one, two and three blocks, with few different values. */
    for (uint32_t n = 1; n <= 200; n++) {
        uint32_t values = 1 + (uint32_t)(rng() % 6);

        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)(rng() % values) - 2;
        check_best(logits, n, n % 16 == 0 ? 1 : 7);
    }
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t n = 1 + (uint32_t)(rng() % N_MAX);

        random_row(logits, n);
        check_best(logits, n, 1 + n / 7);
    }
}
END_TEST

START_TEST(all_the_best_in_one_block_or_at_the_ends_of_the_range_are_found)
{
    static float logits[N_MAX];

    for (uint32_t i = 0; i < N_MAX; i++)
        logits[i] = i / 64 == 40 ? 5 + (float)(i % 7) : -(float)(i % 3); /* 64 of one block */
    check_best(logits, N_MAX, 37);
    for (uint32_t i = 0; i < N_MAX; i++) /* no distance between two of them is finite */
        logits[i] = i % 2 ? FLT_MAX : -FLT_MAX;
    check_best(logits, N_MAX, 997);
    for (uint32_t i = 0; i < N_MAX; i++) /* denormal, and equal but for the sign of zero */
        logits[i] = i % 3 == 0 ? 1e-45f : i % 3 == 1 ? -0.0f : 0.0f;
    check_best(logits, N_MAX, 997);
}
END_TEST

START_TEST(an_empty_vocabulary_is_refused)
{
    struct sampler *s = NULL;

    ck_assert_int_eq(sampler_new(&s, 0, cpu_kernels_get(CPU_REF, NULL), NULL), -EINVAL);
    ck_assert_ptr_null(s);
    sampler_free(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *tc = tcase_create("sampler");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, philox_gives_the_known_answers);
    tcase_add_test(tc, greedy_takes_the_lowest_id_among_equals);
    tcase_add_test(tc, a_row_that_is_not_finite_draws_nothing);
    tcase_add_test(tc, filters_that_leave_one_candidate_take_the_greedy_one);
    tcase_add_test(tc, equal_logits_are_cut_at_exactly_the_lowest_ids);
    tcase_add_test(tc, zero_and_minus_zero_are_equal_logits);
    tcase_add_test(tc, top_k_keeps_the_lower_ids_among_equals_in_any_place);
    tcase_add_test(tc, top_k_picks_what_a_full_sort_picks);
    tcase_add_test(tc, top_p_picks_what_a_full_sort_picks);
    tcase_add_test(tc, min_p_picks_what_a_full_sort_picks);
    tcase_add_test(tc, all_filters_together_pick_what_a_full_sort_picks);
    tcase_add_test(tc, without_filters_the_draw_walks_the_ids);
    tcase_add_test(tc, draws_follow_the_softmax);
    tcase_add_test(tc, a_pick_depends_on_its_row_seed_and_position_only);
    tcase_add_test(tc, huge_logits_and_temperatures_do_no_harm);
    tcase_add_test(tc, logprobs_equal_a_long_double_softmax);
    tcase_add_test(tc, rows_give_the_same_whoever_draws_them_and_knows_their_maxima);
    tcase_add_test(tc, the_best_candidates_are_those_of_a_full_sort);
    tcase_add_test(tc, all_the_best_in_one_block_or_at_the_ends_of_the_range_are_found);
    tcase_add_test(tc, an_empty_vocabulary_is_refused);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
