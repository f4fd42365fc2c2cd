/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exact.h - the same request gives the same bits, whatever runs beside it: plans that run alone
 * first, then together under a setting, with everything compared.
 *
 * The real scheduler drives the real engine. Between them stands a backend that hashes every row of
 * logits which a token is drawn from or a score is made of. Alone means: one request at a time, in
 * chunks of 64, on two threads of the best variant. What has no partner in that run, or another
 * hash, token, piece of text, score or end, is a difference.
 *
 * A schedule is a function of its setting: arrivals at random times of several users and their
 * clients, slow readers, resumed streams, cancels, and fewer pages than all of them want, so that
 * requests are paused and displaced.
 */
#ifndef TESTS_EXACT_EXACT_H
#define TESTS_EXACT_EXACT_H

#include <stdint.h>
#include "kernels/cpu_kernels.h"

#define EXACT_PLANS     64
#define EXACT_BATCH_MAX 64u
#define EXACT_CHUNK_MAX 512u

struct exact_opt {
    const char *model;
    uint32_t n_plans; /* up to EXACT_PLANS */
    enum kv_type kv_type;
    uint32_t
        poison; /* id whose embedding is not finite: every fifth plan has it; UINT32_MAX: none */
};

struct setting {
    enum cpu_variant variant;
    unsigned threads;
    uint32_t batch;      /* requests of one step */
    uint32_t chunk;      /* prompt rows of one step */
    uint32_t n_requests; /* in all */
    uint32_t rows;       /* prompt rows of them all, about: then only short prompts come */
    uint64_t seed;
};

/* What happened in all settings so far, so that a test can demand that it did. */
struct exact_seen {
    uint64_t requests, rows, resumed, cancelled, numeric, pauses, displaced;
};

void exact_open(const struct exact_opt *opt);
void exact_close(void);

/* Runs one setting. Fails the test with the first difference. */
void exact_run(const struct setting *setting);

/* Runs every plan alone that was not needed yet, and fails where a plan with the poisoned id does
 * not end NUMERIC, or another one does. */
void exact_check_poison(void);

const struct exact_seen *exact_seen(void);

/* Whether this machine can run the variant. */
int exact_has(enum cpu_variant variant);

#endif
