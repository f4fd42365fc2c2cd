/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.h - logits to a token.
 *
 * Greedy (temperature 0) takes the largest logit, the lowest id among equals. Otherwise, with
 * candidates ordered by logit, the lower id first among equals, and w = exp((logit - largest) / T):
 *   top_k   keeps the first k candidates
 *   top_p   keeps the shortest prefix whose sum of w reaches top_p of the sum over what top_k left
 *           (over the whole vocabulary when top_k is off)
 *   min_p   keeps candidates with w >= min_p, for the largest has w = 1
 *   draw    the first whose running sum exceeds u * (sum of the kept), u in [0, 1)
 * u comes from a counter-based generator keyed by (seed, position of the token in the sequence), so
 * the same request gives the same tokens whatever ran beside it.
 *
 * Every sum is f64 in one fixed order, a function of the row alone. Over the vocabulary: blocks of
 * 256 ids, in each 8 lanes (lane l takes ids l, l + 8, ...) added as ((0+4)+(2+6))+((1+5)+(3+7)),
 * then the blocks in order. Over candidates: in their order. exp and ln are our own, never libm's.
 * Without top_k and top_p the draw walks ids in ascending order instead, so nothing is ordered.
 */
#ifndef RUNTIME_SAMPLE_SAMPLER_H
#define RUNTIME_SAMPLE_SAMPLER_H

#include <stdint.h>
#include "kernels/cpu_kernels.h"
#include "runtime/base/team.h"

struct sampling { /* ranges are checked where a request comes in */
    uint64_t seed;
    float temperature; /* 0 = greedy; 0..100, finite */
    float top_p;       /* 0 or 1 = off */
    float min_p;       /* 0 = off; up to 1 */
    uint32_t top_k;    /* 0 = off; also when it is not below the vocabulary */
};

/* What is wanted of a row of logits, and what came of it. */
struct draw {
    const struct sampling *how; /* NULL: `id` is scored */
    uint64_t pos;               /* of the token that is drawn, in its sequence */
    uint32_t id;                /* < n_vocab: drawn, or given to be scored */
    float logprob;              /* of the scored one: ln softmax(logits)[id] */
    int err; /* 0; -EDOM: the row has a NaN or infinity (-inf too), id and logprob stay as they were */
};

struct sampler; /* working memory for one vocabulary size */

/* The kernels and the team, which may be NULL, outlive it. */
int sampler_new(struct sampler **ret_sampler, uint32_t n_vocab, const struct cpu_kernels *kernels,
                struct team *team);
void sampler_free(struct sampler *s);

/* Does draws[i] with row i of logits [n][n_vocab], rows shared out over the team, whose leader
 * calls. block_max: [n][(n_vocab + 63) / 64] as the kernel of that name makes them; NULL: not known
 * yet. Allocates nothing. */
void sampler_draw(struct sampler *s, const float *logits, const float *block_max,
                  struct draw *draws, uint32_t n);

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* 64 bits from (seed, pos): the first two words of philox4x32 with key = seed and counter = pos,
 * low word first. */
uint64_t counter_random(uint64_t seed, uint64_t pos);

#endif
