/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h - continuous batching: which rows enter the next step.
 *
 * Decode rows first, then prefill in chunks, first come first served. Knows no ring and no clock of its own:
 * time comes in as an argument, so the same code runs under a fake clock and a scripted backend in tests.
 * All memory is taken at sched_new. One thread, but request_cancel() may be called from the backend's hook in the middle of a step.
 *
 * Admission reserves pages for prompt + max_tokens. A request without max_tokens takes pages as it grows;
 * when none is left, the youngest such request ends OVERLOADED with its text so far.
 * A full queue answers OVERLOADED at once, with retry_after_ns.
 */
#ifndef RUNTIME_SCHED_SCHED_H
#define RUNTIME_SCHED_SCHED_H

#include <stdint.h>
#include "runtime/exec/backend.h"
#include "runtime/sched/request.h"

struct sched;

struct sched_opt {
    uint32_t running_max;    /* 64 */
    uint32_t queued_max;     /* 500 */
    uint32_t n_pages;        /* of the KV pool */
    uint32_t n_ctx;          /* prompt + output of one request */
    uint32_t chunk_rows;     /* prefill rows of one step; 128 */
    uint32_t out_bytes_max;  /* text of one request; 0: 16 * n_ctx */
    const struct vocab *vocab;
};

struct sched_counts {
    uint32_t running, queued, text;            /* text: with the text worker */
    uint64_t finished, cancelled, failed;      /* never go back; each ended request counts once */
    uint64_t prompt_tokens, output_tokens, steps;
    uint32_t pages_total, pages_used;
};

int sched_new(struct sched **ret_sched, const struct sched_opt *opt, struct backend *backend, struct sampler *sampler);
void sched_free(struct sched *sched);

/* A free request, all reset but slot and its fixed memory, state REQUEST_TEXT; NULL when running_max + queued_max are alive.
 * May be called from the backend's hook in the middle of a step. */
struct request *sched_request_take(struct sched *sched);

/* Prompt tokens are in: checks limits and queues it, or ends it at once (state REQUEST_ENDED, status and message set).
 * now_ns: CLOCK_MONOTONIC. Stamps ADMITTED. */
void sched_submit(struct sched *sched, struct request *req, uint64_t now_ns);

/* Ends a request that never reached sched_submit, or wherever it is now; pages and reservations go back at the next step boundary. */
void sched_end(struct sched *sched, struct request *req, enum end_status status, uint64_t now_ns);

/* Whether a step would do anything. */
int sched_has_work(const struct sched *sched);

/* One step: expire and cancel, admit, pack, forward, sample, detokenise. Returns the rows computed. now is called for stamps. */
uint32_t sched_step(struct sched *sched, uint64_t (*now)(void));

/* Deadlines and cancels of queued requests while no step runs; cheap. Also called by sched_step. Returns the earliest deadline, 0 = none. */
uint64_t sched_expire(struct sched *sched, uint64_t now_ns);

/* Every request in the set, by slot; for the publisher and for detach. */
uint32_t sched_slots(const struct sched *sched);
struct request *sched_slot(struct sched *sched, uint32_t i);

/* Gives an ENDED request back to the set. */
void sched_request_give(struct sched *sched, struct request *req);

void sched_counts(const struct sched *sched, struct sched_counts *ret);

#endif
