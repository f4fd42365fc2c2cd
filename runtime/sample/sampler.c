/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.c - filters and draw. A candidate is one u64, larger = earlier: the logit's bits, mapped
 * so that they order as unsigned numbers, above the inverted id. So no two are equal and ties need
 * no code.
 */
#include "runtime/sample/sampler.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Up to HEAP_FIRST candidates are looked for first, most top_p cuts lie there; then HEAP_MAX.
 * Beyond that a heap loses to ordering the whole row by radix, whose time does not depend on the
 * values. */
#define HEAP_FIRST 64u
#define HEAP_MAX   1024u
#define SUM_BLOCK  256u
#define SUM_LANES  8u
#define RADIX_BITS 11
#define RADIX      (1u << RADIX_BITS)

struct sampler {
    const struct cpu_kernels *kernels;
    uint32_t n_vocab;
    float *weight;      /* [n_vocab] by id */
    float *cand_weight; /* [n_vocab] by place in cand */
    uint64_t *cand;     /* [n_vocab] candidates, best first */
    uint64_t *spare;    /* [n_vocab] the other side of a radix pass */
    double *block;      /* [blocks] sums of weight */
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

int sampler_new(struct sampler **ret_sampler, uint32_t n_vocab, const struct cpu_kernels *kernels)
{
    struct sampler *s;

    if (n_vocab == 0)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->kernels = kernels;
    s->n_vocab = n_vocab;
    s->weight = calloc(n_vocab, sizeof *s->weight);
    s->cand_weight = calloc(n_vocab, sizeof *s->cand_weight);
    s->cand = calloc(n_vocab, sizeof *s->cand);
    s->spare = calloc(n_vocab, sizeof *s->spare);
    s->block = calloc(n_vocab / SUM_BLOCK + 1, sizeof *s->block);
    if (!s->weight || !s->cand_weight || !s->cand || !s->spare || !s->block) {
        sampler_free(s);
        return -ENOMEM;
    }
    *ret_sampler = s;
    return 0;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->weight);
    free(s->cand_weight);
    free(s->cand);
    free(s->spare);
    free(s->block);
    free(s);
}

static uint64_t key_of(float logit, uint32_t id)
{
    float plain = logit + 0.0f; /* -0 and 0 are equal logits */
    uint32_t bits;

    memcpy(&bits, &plain, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static uint32_t id_of(uint64_t key)
{
    return ~(uint32_t)key;
}

/* heap[0] is the smallest; the value at i has moved there and may be too large for its place. */
static void heap_sift(uint64_t *heap, uint32_t n, uint32_t i)
{
    uint64_t value = heap[i];

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (value <= heap[child])
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = value;
}

/* The n <= n_vocab best candidates, best first. */
static void best_by_heap(struct sampler *s, const float *logits, uint32_t n)
{
    uint64_t *heap = s->cand;
    float floor_logit;

    for (uint32_t i = 0; i < n; i++)
        heap[i] = key_of(logits[i], i);
    for (uint32_t i = n / 2; i-- > 0;)
        heap_sift(heap, n, i);

    floor_logit = logits[id_of(heap[0])];
    for (uint32_t id = n; id < s->n_vocab; id++) {
        /* Ids ascend, so one that only equals the worst candidate comes after it. */
        if (logits[id] <= floor_logit)
            continue;
        heap[0] = key_of(logits[id], id);
        heap_sift(heap, n, 0);
        floor_logit = logits[id_of(heap[0])];
    }
    for (uint32_t left = n; left-- > 1;) {
        uint64_t least = heap[0];

        heap[0] = heap[left];
        heap_sift(heap, left, 0);
        heap[left] = least;
    }
}

/* All candidates, best first: a stable radix sort by the logit's 32 bits; ids start in ascending
 * order. */
static void order_all(struct sampler *s, const float *logits)
{
    uint64_t *from = s->cand, *to = s->spare;
    uint32_t n = s->n_vocab;

    for (uint32_t id = 0; id < n; id++)
        from[id] = key_of(logits[id], id);
    for (int shift = 32; shift < 64; shift += RADIX_BITS) {
        uint32_t place[RADIX] = {0};
        uint32_t sum = 0;
        uint64_t *swap;

        for (uint32_t i = 0; i < n; i++)
            place[from[i] >> shift & (RADIX - 1)]++;
        for (uint32_t digit = RADIX; digit-- > 0;) {
            uint32_t count = place[digit];

            place[digit] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++)
            to[place[from[i] >> shift & (RADIX - 1)]++] = from[i];
        swap = from;
        from = to;
        to = swap;
    }
    s->cand = from;
    s->spare = to;
}

static void best(struct sampler *s, const float *logits, uint32_t n)
{
    if (n <= HEAP_MAX)
        best_by_heap(s, logits, n);
    else
        order_all(s, logits);
}

static float scaled(float logit, float largest, float temperature)
{
    float x = (logit - largest) / temperature;

    return x < -100.0f ? -100.0f : x; /* also -inf; exp is 0 below -87.33 anyway */
}

/* Sums weight, in the header's order, into block and to the result. */
static double sum_weights(struct sampler *s)
{
    double total = 0;

    for (uint32_t at = 0, b = 0; at < s->n_vocab; b++) {
        uint32_t end = s->n_vocab - at < SUM_BLOCK ? s->n_vocab : at + SUM_BLOCK;
        double lane[SUM_LANES] = {0};

        for (; end - at >= SUM_LANES; at += SUM_LANES) {
            for (uint32_t l = 0; l < SUM_LANES; l++)
                lane[l] += (double)s->weight[at + l];
        }
        for (uint32_t l = 0; at < end; at++, l++)
            lane[l] += (double)s->weight[at];
        s->block[b] = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                      ((lane[1] + lane[5]) + (lane[3] + lane[7]));
        total += s->block[b];
    }
    return total;
}

static double weigh_all(struct sampler *s, const float *logits, float largest, float temperature)
{
    for (uint32_t id = 0; id < s->n_vocab; id++)
        s->weight[id] = scaled(logits[id], largest, temperature);
    s->kernels->exp_f32(s->weight, s->weight, s->n_vocab);
    return sum_weights(s);
}

static double drop_light(struct sampler *s, float min_p)
{
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        if (s->weight[id] < min_p)
            s->weight[id] = 0;
    }
    return sum_weights(s);
}

/* The id at u of the way through all weights, ids ascending. */
static uint32_t draw_by_id(const struct sampler *s, double total, double u)
{
    double target = u * total, before = 0, inside = 0;
    uint32_t n_blocks = (s->n_vocab + SUM_BLOCK - 1) / SUM_BLOCK;
    uint32_t b = 0, last = 0, end;

    while (b + 1 < n_blocks && before + s->block[b] <= target) {
        before += s->block[b];
        b++;
    }
    end = s->n_vocab - b * SUM_BLOCK < SUM_BLOCK ? s->n_vocab : (b + 1) * SUM_BLOCK;
    for (uint32_t id = b * SUM_BLOCK; id < end; id++) {
        if (s->weight[id] == 0)
            continue;
        last = id;
        inside += (double)s->weight[id];
        if (before + inside > target)
            break;
    }
    return last; /* the block's last one when the two orders round to different sums */
}

static void weigh_candidates(struct sampler *s, const float *logits, uint32_t n, float temperature)
{
    float largest = logits[id_of(s->cand[0])];

    for (uint32_t i = 0; i < n; i++)
        s->cand_weight[i] = scaled(logits[id_of(s->cand[i])], largest, temperature);
    s->kernels->exp_f32(s->cand_weight, s->cand_weight, n);
}

/* Candidates of the shortest prefix whose weights reach `want`; n + 1 when all n do not. */
static uint32_t prefix_reaching(const struct sampler *s, uint32_t n, double want)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)s->cand_weight[i];
        if (sum >= want)
            return i + 1;
    }
    return n + 1;
}

/* top_k and top_p: leaves candidates, best first, with their weights, and returns how many. */
static uint32_t filter_ordered(struct sampler *s, const float *logits, float largest,
                               const struct sampling *how)
{
    int has_k = how->top_k > 0 && how->top_k < s->n_vocab;
    int has_p = how->top_p > 0 && how->top_p < 1;
    uint32_t n, cut;
    double total = 0;

    if (has_k) {
        n = how->top_k;
        best(s, logits, n);
        weigh_candidates(s, logits, n, how->temperature);
        if (!has_p)
            return n;
        for (uint32_t i = 0; i < n; i++)
            total += (double)s->cand_weight[i];
        cut = prefix_reaching(s, n, (double)how->top_p * total);
        return cut <= n ? cut : n;
    }

    total = weigh_all(s, logits, largest, how->temperature);
    for (n = HEAP_FIRST;; n = n < HEAP_MAX ? HEAP_MAX : s->n_vocab) {
        if (n > s->n_vocab)
            n = s->n_vocab;
        best(s, logits, n);
        weigh_candidates(s, logits, n, how->temperature);
        cut = prefix_reaching(s, n, (double)how->top_p * total);
        if (cut <= n)
            return cut;
        if (n == s->n_vocab)
            return n;
    }
}

static uint32_t draw_by_order(const struct sampler *s, uint32_t n, double u)
{
    double total = 0, sum = 0, target;
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i++)
        total += (double)s->cand_weight[i];
    target = u * total;
    for (uint32_t i = 0; i < n && s->cand_weight[i] > 0; i++) {
        last = i;
        sum += (double)s->cand_weight[i];
        if (sum > target)
            break;
    }
    return id_of(s->cand[last]);
}

int sampler_pick(struct sampler *s, const float *logits, const struct sampling *how, uint64_t pos,
                 uint32_t *ret_id)
{
    int bad = 0;
    uint32_t top = s->kernels->argmax(logits, s->n_vocab, &bad);
    double u;

    if (bad)
        return -EDOM;
    if (how->temperature == 0) {
        *ret_id = top;
        return 0;
    }

    u = (double)(counter_random(how->seed, pos) >> 11) * 0x1p-53;
    if ((how->top_k > 0 && how->top_k < s->n_vocab) || (how->top_p > 0 && how->top_p < 1)) {
        uint32_t n = filter_ordered(s, logits, logits[top], how);

        while (n > 1 && s->cand_weight[n - 1] < how->min_p)
            n--;
        *ret_id = draw_by_order(s, n, u);
    } else {
        double total = weigh_all(s, logits, logits[top], how->temperature);

        if (how->min_p > 0)
            total = drop_light(s, how->min_p);
        *ret_id = draw_by_id(s, total, u);
    }
    return 0;
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

int logprob_of(struct sampler *s, const float *logits, uint32_t id, float *ret_lp)
{
    int bad = 0;
    uint32_t top = s->kernels->argmax(logits, s->n_vocab, &bad);

    assert(id < s->n_vocab);
    if (bad)
        return -EDOM;
    *ret_lp = (float)((double)logits[id] - (double)logits[top] -
                      ln(weigh_all(s, logits, logits[top], 1.0f)));
    return 0;
}
