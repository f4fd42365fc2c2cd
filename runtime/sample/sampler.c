/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.c - filters and draw, for each row of a step by one member of the team.
 */
#include "runtime/sample/sampler.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/sample/best.h"

/* How far below the largest, in temperatures, top_p first looks for its candidates, and how much
 * farther each time that their weights do not reach it. From REACH_MAX on a weight is 0. */
#define REACH_FIRST 2.0f
#define REACH_NEXT  1.5f
#define REACH_MAX   88.0f

struct member { /* one row's working memory */
    struct best best;
    float *weight;      /* [n_vocab] by id */
    float *cand_weight; /* [n_vocab] by place in best */
    double *sum;        /* [n_sums] of weight */
    float *block_max;   /* [n_blocks] where the backend has none */
};

struct sampler {
    const struct cpu_kernels *kernels;
    struct team *team; /* NULL: the caller alone */
    uint32_t n_vocab, n_blocks, n_sums, n_members;
    struct member *members;

    /* the draws in work */
    const float *logits, *block_max;
    struct draw *draws;
    uint32_t n_draws;
    _Atomic uint32_t cursor; /* next of them */
};

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c[0];
        uint64_t p1 = (uint64_t)0xcd9e8d57u * c[2];

        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    memcpy(ret, c, sizeof c);
}

uint64_t counter_random(uint64_t seed, uint64_t pos)
{
    const uint32_t counter[4] = {(uint32_t)pos, (uint32_t)(pos >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];

    philox4x32(counter, key, r);
    return (uint64_t)r[1] << 32 | r[0];
}

static int member_new(struct member *m, const struct sampler *s)
{
    m->best.cand = calloc(s->n_vocab, sizeof *m->best.cand);
    m->best.spare = calloc(s->n_vocab, sizeof *m->best.spare);
    m->weight = calloc(s->n_vocab, sizeof *m->weight);
    m->cand_weight = calloc(s->n_vocab, sizeof *m->cand_weight);
    m->sum = calloc(s->n_sums, sizeof *m->sum);
    m->block_max = calloc(s->n_blocks, sizeof *m->block_max);
    if (!m->best.cand || !m->best.spare || !m->weight || !m->cand_weight || !m->sum ||
        !m->block_max)
        return -ENOMEM;
    return 0;
}

int sampler_new(struct sampler **ret_sampler, uint32_t n_vocab, const struct cpu_kernels *kernels,
                struct team *team)
{
    struct sampler *s;

    if (n_vocab == 0)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->kernels = kernels;
    s->team = team;
    s->n_vocab = n_vocab;
    s->n_blocks = (n_vocab + KERN_TOP - 1) / KERN_TOP;
    s->n_sums = (n_vocab + KERN_SUM - 1) / KERN_SUM;
    s->n_members = team ? team_size(team) : 1;
    s->members = calloc(s->n_members, sizeof *s->members);
    if (!s->members)
        goto fail;
    for (uint32_t i = 0; i < s->n_members; i++) {
        if (member_new(&s->members[i], s) < 0)
            goto fail;
    }
    *ret_sampler = s;
    return 0;

fail:
    sampler_free(s);
    return -ENOMEM;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_members && s->members; i++) {
        struct member *m = &s->members[i];

        free(m->best.cand);
        free(m->best.spare);
        free(m->weight);
        free(m->cand_weight);
        free(m->sum);
        free(m->block_max);
    }
    free(s->members);
    free(s);
}

static double weigh_all(const struct sampler *s, struct member *m, const struct logit_row *row,
                        float largest, float temperature, float least)
{
    double total = 0;

    s->kernels->weigh(m->weight, m->sum, row->logits, s->n_vocab, largest, temperature, least);
    for (uint32_t i = 0; i < s->n_sums; i++)
        total += m->sum[i];
    return total;
}

/* The id at u of the way through all weights, ids ascending. */
static uint32_t draw_by_id(const struct sampler *s, const struct member *m, double total, double u)
{
    double target = u * total, before = 0, inside = 0;
    uint32_t b = 0, last = 0, end;

    while (b + 1 < s->n_sums && before + m->sum[b] <= target) {
        before += m->sum[b];
        b++;
    }
    end = s->n_vocab - b * KERN_SUM < KERN_SUM ? s->n_vocab : (b + 1) * KERN_SUM;
    for (uint32_t id = b * KERN_SUM; id < end; id++) {
        if (m->weight[id] == 0)
            continue;
        last = id;
        inside += (double)m->weight[id];
        if (before + inside > target)
            break;
    }
    return last; /* the block's last one when the two orders round to different sums */
}

static void weigh_candidates(const struct sampler *s, struct member *m, const struct logit_row *row,
                             float temperature)
{
    float largest = row->logits[best_id(m->best.cand[0])];

    for (uint32_t i = 0; i < m->best.n; i++)
        m->cand_weight[i] = (row->logits[best_id(m->best.cand[i])] - largest) / temperature;
    s->kernels->exp_f32(m->cand_weight, m->cand_weight, m->best.n);
}

/* Keeps the shortest prefix of the candidates whose weights reach `want`; 0: all together do not. */
static int keep_reaching(struct member *m, double want)
{
    double sum = 0;

    for (uint32_t i = 0; i < m->best.n; i++) {
        sum += (double)m->cand_weight[i];
        if (sum >= want) {
            m->best.n = i + 1;
            return 1;
        }
    }
    return 0;
}

static double sum_candidates(const struct member *m)
{
    double sum = 0;

    for (uint32_t i = 0; i < m->best.n; i++)
        sum += (double)m->cand_weight[i];
    return sum;
}

/* The sum of the weights of what was gathered, in no promised order. */
static double sum_gathered(const struct member *m)
{
    double sum = 0;

    for (uint32_t i = 0; i < m->best.n; i++)
        sum += (double)m->weight[best_id(m->best.cand[i])];
    return sum;
}

/* top_p over the whole vocabulary. What is not among the candidates yet is below all that are, so
 * they are ordered and cut once their weights reach it. */
static void filter_by_p(const struct sampler *s, struct member *m, const struct logit_row *row,
                        float largest, const struct sampling *how)
{
    double want = (double)how->top_p * weigh_all(s, m, row, largest, how->temperature, 0);

    for (float reach = REACH_FIRST;; reach *= REACH_NEXT) {
        int all = reach > REACH_MAX;

        best_gather(&m->best, row, all ? -INFINITY : largest - reach * how->temperature);
        if (sum_gathered(m) < want && !all)
            continue;
        best_order(&m->best);
        for (uint32_t i = 0; i < m->best.n; i++)
            m->cand_weight[i] = m->weight[best_id(m->best.cand[i])];
        /* Their sum in this order may be below the one that was looked at. */
        if (keep_reaching(m, want) || all)
            return;
    }
}

static void filter_by_k(const struct sampler *s, struct member *m, const struct logit_row *row,
                        const struct sampling *how)
{
    best_first(&m->best, row, how->top_k);
    weigh_candidates(s, m, row, how->temperature);
    if (how->top_p > 0 && how->top_p < 1)
        keep_reaching(m, (double)how->top_p * sum_candidates(m));
}

static uint32_t draw_by_order(const struct member *m, double u)
{
    double target = u * sum_candidates(m), sum = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < m->best.n && m->cand_weight[i] > 0; i++) {
        last = i;
        sum += (double)m->cand_weight[i];
        if (sum > target)
            break;
    }
    return best_id(m->best.cand[last]);
}

static uint32_t pick(const struct sampler *s, struct member *m, const struct logit_row *row,
                     const struct sampling *how, uint64_t pos)
{
    uint32_t top = best_one(row);
    float largest = row->logits[top];
    double u;

    if (how->temperature == 0)
        return top;
    u = (double)(counter_random(how->seed, pos) >> 11) * 0x1p-53;
    if (how->top_k > 0 && how->top_k < s->n_vocab) {
        filter_by_k(s, m, row, how);
    } else if (how->top_p > 0 && how->top_p < 1) {
        filter_by_p(s, m, row, largest, how);
    } else {
        double total = weigh_all(s, m, row, largest, how->temperature, how->min_p);

        return draw_by_id(s, m, total, u);
    }
    while (m->best.n > 1 && m->cand_weight[m->best.n - 1] < how->min_p)
        m->best.n--;
    return draw_by_order(m, u);
}

/* ln x for a normal x > 0: x = 2^e * m, ln m = 2 artanh((m - 1) / (m + 1)), m within sqrt(2) of 1.
 * The argument is below 0.172, so 12 terms leave less than an f64 rounding. */
static double ln(double x)
{
    int e;
    double m = frexp(x, &e), z, zz, sum = 0;

    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    z = (m - 1) / (m + 1);
    zz = z * z;
    for (int k = 23; k > 0; k -= 2)
        sum = sum * zz + 1.0 / k;
    return e * 0.69314718055994531 + 2 * z * sum;
}

static float score(const struct sampler *s, struct member *m, const struct logit_row *row,
                   uint32_t id)
{
    float largest = row->logits[best_one(row)];

    assert(id < s->n_vocab);
    return (float)((double)row->logits[id] - (double)largest -
                   ln(weigh_all(s, m, row, largest, 1.0f, 0)));
}

static int is_finite(const struct sampler *s, const float *block_max)
{
    int finite = 1;

    for (uint32_t b = 0; b < s->n_blocks; b++)
        finite &= block_max[b] == block_max[b];
    return finite;
}

static void draw_row(const struct sampler *s, struct member *m, uint32_t i)
{
    struct draw *draw = &s->draws[i];
    struct logit_row row = {s->logits + (size_t)i * s->n_vocab, m->block_max, s->n_vocab};

    if (s->block_max)
        row.block_max = s->block_max + (size_t)i * s->n_blocks;
    else
        s->kernels->block_max(m->block_max, row.logits, s->n_vocab);
    draw->err = is_finite(s, row.block_max) ? 0 : -EDOM;
    if (draw->err < 0)
        return;
    if (draw->how)
        draw->id = pick(s, m, &row, draw->how, draw->pos);
    else
        draw->logprob = score(s, m, &row, draw->id);
}

static void draw_region(void *arg, unsigned member, unsigned n)
{
    struct sampler *s = arg;
    uint32_t i;

    (void)n;
    /* Relaxed: the barrier at the end of the region orders what the draws wrote. */
    while ((i = atomic_fetch_add_explicit(&s->cursor, 1, memory_order_relaxed)) < s->n_draws)
        draw_row(s, &s->members[member], i);
}

void sampler_draw(struct sampler *s, const float *logits, const float *block_max,
                  struct draw *draws, uint32_t n)
{
    s->logits = logits;
    s->block_max = block_max;
    s->draws = draws;
    s->n_draws = n;
    atomic_store_explicit(&s->cursor, 0, memory_order_relaxed); /* the region's start orders it */
    if (n > 1 && s->team)
        team_run(s->team, draw_region, s);
    else
        draw_region(s, 0, 1);
}
