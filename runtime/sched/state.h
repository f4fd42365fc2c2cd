/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the scheduler's insides, for its own files: sched.c, queue.c, output.c, batch.c. */
#ifndef RUNTIME_SCHED_STATE_H
#define RUNTIME_SCHED_STATE_H

#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"

struct sched {
    struct sched_opt opt;       /* n_ctx and out_bytes_max as they are in effect */
    uint32_t n_ctx_asked;
    uint32_t n_vocab;
    struct backend *backend;
    struct sampler *sampler;
    struct page_pool *pool;

    struct request *slots;      /* [n_slots] */
    uint32_t n_slots;
    uint32_t *free;             /* [n_slots] slot numbers, n_free of them; the last one given goes first */
    uint32_t n_free;
    uint8_t *slot_memory;       /* what the arrays of all requests point into */
    size_t slots_bytes, slot_memory_bytes;

    struct request **queue;     /* [queued_max + running_max] in order of arrival */
    uint32_t n_queued;
    uint64_t queued_rows;       /* their prompts */
    struct request **running;   /* [running_max] in order of arrival */
    uint32_t n_running;
    uint32_t n_text;
    uint64_t n_arrived;

    int stepping;               /* the backend computes; running requests must stay */
    uint64_t step_ns;           /* recent time of a step, 1/8 of the way to each new one */
    uint64_t finished, cancelled, failed, prompt_tokens, output_tokens, steps;

    /* the step in work */
    uint32_t *tokens;           /* [rows_max] */
    uint32_t *logit_rows;       /* [logits_max] */
    struct step_seq *seqs;      /* [running_max] */
    struct request **seq_req;   /* [running_max] whose seqs[i] is */
    uint32_t *seq_logits;       /* [running_max] logits of seqs[i] */
    uint32_t *granted;          /* [running_max] prompt rows of running[i] in this step */
};

/* sched.c: the one place where a request ends. Not while the backend computes if it is running. */
void request_end(struct sched *s, struct request *req, enum end_status status, enum end_finish finish, uint64_t now_ns);

/* Output tokens that max_tokens and the context leave, the received ones included. */
static inline uint32_t request_room(const struct sched *s, const struct request *req)
{
    uint32_t room = s->opt.n_ctx - req->n_prompt;

    return req->max_tokens < room ? req->max_tokens : room;
}

/* Whether max_tokens and the context leave room for one more. */
static inline int request_goes_on(const struct sched *s, const struct request *req)
{
    return req->n_tokens - req->n_prompt < request_room(s, req);
}

/* Rows to compute before the first new token. The last token of a scored prompt predicts nothing that is asked for. */
static inline uint32_t request_prompt_rows(const struct request *req)
{
    return req->op == REQUEST_LOGPROBS ? req->n_prompt - 1 : req->n_prompt + req->n_resume;
}

/* queue.c */
void queue_remove(struct sched *s, struct request *req);
void queue_admit(struct sched *s); /* moves requests from the queue to running while slots and pages last */

/* output.c: 0; 1: a stop string matched (feed only); -ENOSPC: the text does not fit. */
int output_feed(struct sched *s, struct request *req, uint32_t id);
int output_flush(struct sched *s, struct request *req, int cut);

#endif
