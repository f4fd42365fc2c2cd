/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the scheduler's insides, for its own files. */
#ifndef RUNTIME_SCHED_STATE_H
#define RUNTIME_SCHED_STATE_H

#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"

struct share {         /* what one owner has */
    uint64_t served;   /* rows computed for it, moved up when it comes back from having nothing */
    uint32_t n_held;   /* requests taken and not given back */
    uint32_t n_active; /* queued, running, paused */
    uint32_t n_queued, n_running;
    uint32_t n_pages;       /* taken and reserved */
    uint64_t prompt_tokens; /* of its active requests */
    uint64_t seen, passed;  /* marks of a scan and of a round of admission */
    uint64_t dealt;         /* mark of a step: its prompts had their part */
};

struct sched {
    struct sched_opt opt; /* n_ctx and out_bytes_max as they are in effect */
    uint32_t n_ctx_asked;
    uint32_t n_vocab;
    struct backend *backend;
    struct sampler *sampler;
    struct page_pool *pool;

    struct request *slots; /* [n_slots] */
    uint32_t n_slots;
    uint32_t *free; /* [n_slots] slot numbers, n_free of them; the last one given goes first */
    uint32_t n_free;
    uint8_t *slot_memory; /* what the arrays of all requests point into */
    size_t slots_bytes, slot_memory_bytes;

    struct share *shares; /* [shares_max] */
    uint64_t served_floor, scan, round;

    /* in order of arrival */
    struct request **queue; /* [queued_max + 2 * running_max] */
    uint32_t n_queued;
    uint64_t queued_rows;     /* to compute before their first new token */
    struct request **running; /* [running_max] */
    uint32_t n_running;
    struct request **paused; /* [n_slots] */
    uint32_t n_paused;
    uint32_t n_text;
    uint64_t n_arrived;

    int stepping;     /* the backend computes; running requests must stay */
    uint64_t step_ns; /* recent time of a step, 1/8 of the way to each new one */
    uint64_t finished, cancelled, failed, prompt_tokens, output_tokens, steps;
    uint64_t pauses, slow, displaced;

    /* the step in work */
    uint32_t *tokens;         /* [rows_max] */
    uint32_t *logit_rows;     /* [logits_max] */
    struct step_seq *seqs;    /* [running_max] */
    uint32_t *seq_prompt;     /* [running_max] its prompt */
    struct request **seq_req; /* [running_max] whose seqs[i] is */
    uint32_t *seq_logits;     /* [running_max] logits of seqs[i] */
    uint32_t *granted;        /* [running_max] prompt rows of running[i] in this step */
};

/* sched.c: the one place where a request ends. Not while the backend computes if it is running. */
void request_end(struct sched *s, struct request *req, enum end_status status,
                 enum end_finish finish, uint64_t now_ns);

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

/* Rows to compute before the first new token. The last token of a scored prompt predicts nothing
 * that is asked for. */
static inline uint32_t request_prompt_rows(const struct request *req)
{
    return req->op == REQUEST_LOGPROBS ? req->n_prompt - 1 : req->n_prompt + req->n_resume;
}

void pages_return(struct sched *s, struct request *req);

/* queue.c */
uint32_t pages_to_reserve(const struct sched *s, const struct request *req);
void queue_add(struct sched *s, struct request *req);
void queue_remove(struct sched *s, struct request *req); /* from the list that its state names */
void queue_admit(
    struct sched *s,
    uint64_t now_ns); /* moves requests from the queue to running while places and pages last */
void queue_overload(struct sched *s, struct request *req,
                    uint64_t now_ns); /* no page for its growth */
void queue_pause(struct sched *s,
                 uint64_t now_ns); /* takes those out of the batch whose reader lags */

/* share.c */
void share_begin(struct sched *s, struct request *req);
void share_end(struct sched *s, const struct request *req);
/* Who runs and has to give way so that req may: its owner keeps more than req's has. NULL:
 * nobody. */
struct request *share_find_place(const struct sched *s, const struct request *req);
struct request *share_find_pages(const struct sched *s, const struct request *req, uint32_t want);
/* Makes room in a full queue at the expense of the owner that fills it: 1, or 0. */
int queue_push_out(struct sched *s, uint32_t share, uint64_t now_ns);

/* output.c: 0; 1: a stop string matched (feed only); -ENOSPC: the text does not fit. */
int output_feed(struct sched *s, struct request *req, uint32_t id);
int output_flush(struct sched *s, struct request *req, int cut);

#endif
