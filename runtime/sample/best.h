/* SPDX-License-Identifier: Apache-2.0 */
/*
 * best.h - the best candidates of a row of logits, in order, with the row looked at only where the
 * maxima of its blocks say that some may be.
 *
 * A candidate is one u64, larger = better: the logit's bits, mapped so that they order as unsigned
 * numbers, above the inverted id. So no two are equal, and the lower id is the better one of equal
 * logits.
 */
#ifndef RUNTIME_SAMPLE_BEST_H
#define RUNTIME_SAMPLE_BEST_H

#include <stdint.h>

struct logit_row { /* finite */
    const float *logits;
    const float *block_max; /* of each KERN_TOP logits */
    uint32_t n_vocab;
};

struct best {        /* candidates of one row */
    uint64_t *cand;  /* [n_vocab] */
    uint64_t *spare; /* [n_vocab] the other side of a radix pass */
    uint32_t n;      /* in cand */
};

static inline uint32_t best_id(uint64_t cand)
{
    return ~(uint32_t)cand;
}

/* The largest logit, the lowest id among equals. */
uint32_t best_one(const struct logit_row *row);

/* All logits that are not below `least`, in no order: later calls want it lower. */
void best_gather(struct best *best, const struct logit_row *row, float least);

/* What was gathered, best first. */
void best_order(struct best *best);

/* The k best, best first; 1 <= k <= n_vocab. */
void best_first(struct best *best, const struct logit_row *row, uint32_t k);

#endif
