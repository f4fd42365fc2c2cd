/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.h - logits to a token.
 *
 * Order: temperature, top_k, top_p, min_p, draw. Greedy (temperature 0) takes the largest logit, the lowest id
 * among equals. The draw is a counter-based generator keyed by (seed, position of the token in the sequence), so the same request
 * gives the same tokens whatever ran beside it. Candidates are ordered by logit, ties by lower id; sums run
 * in one fixed order over the whole vocabulary. exp is our own (kernels), never libm's.
 */
#ifndef RUNTIME_SAMPLE_SAMPLER_H
#define RUNTIME_SAMPLE_SAMPLER_H

#include <stdint.h>
#include "kernels/cpu_kernels.h"

struct sampling {
    uint64_t seed;
    float temperature; /* 0 = greedy; 0..100, finite */
    float top_p;       /* 0 or 1 = off */
    float min_p;       /* 0 = off */
    uint32_t top_k;    /* 0 = off */
};

struct sampler; /* working memory for one vocabulary size; one thread */

int sampler_new(struct sampler **ret_sampler, uint32_t n_vocab, const struct cpu_kernels *kernels);
void sampler_free(struct sampler *s);

/* 0; -EDOM: the row has a NaN or infinity (-inf too) and no token was drawn. logits[n_vocab] is not changed. */
int sampler_pick(struct sampler *s, const float *logits, const struct sampling *how, uint64_t pos, uint32_t *ret_id);

/* ln softmax(logits)[id], with f64 sums in a fixed order: 0 or -EDOM. */
int logprob_of(struct sampler *s, const float *logits, uint32_t id, float *ret_lp);

/* 64 bits from (seed, pos): Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). */
uint64_t counter_random(uint64_t seed, uint64_t pos);

#endif
