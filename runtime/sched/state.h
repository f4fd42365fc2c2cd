/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the scheduler's insides, for its own files. */
#ifndef RUNTIME_SCHED_STATE_H
#define RUNTIME_SCHED_STATE_H

#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"

/* What an owner or a client has: a tree of the root (parties[0], of which only served_floor counts),
 * the owners below it and their clients. Each counts for its clients too. */
struct party {
    struct party *parent; /* NULL: the root */
    uint64_t name[2];     /* uid and tenant; or the client, 0 */
    const struct sched_limits *limits;
    uint32_t bucket_next;        /* number of the next party of its bucket, 0: none */
    struct party *older, *newer; /* in the ring of those that are idle; NULL: it is not */
    uint32_t n_children;

    uint64_t served; /* rows computed for it, moved up when it comes back from having nothing */
    uint64_t served_floor; /* the least of those below it, when one of them came back last */
    uint32_t n_held;       /* requests taken and not given back */
    uint32_t n_active;     /* queued, running, paused */
    uint32_t n_queued, n_running;
    uint32_t n_pages;             /* taken and reserved */
    uint64_t prompt_tokens;       /* of its active requests */
    uint64_t seen, passed;        /* marks of a scan, and of a round of admission */
    uint64_t dealt;               /* mark of a step: its prompts had their part */
    uint32_t gives, gives_before; /* pages it would give in this scan, of its running before here */

    /* of those below it, in the round of admission that is marked */
    uint64_t counted, waits;
    uint32_t most_running; /* the most places that one has */
    uint32_t waits_pages;  /* the least pages that one has who waits for some */
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

    struct party *parties; /* [parties_max] the first n_parties have been used */
    uint32_t parties_max, n_parties;
    uint32_t *buckets; /* [bucket_mask + 1] numbers of parties by name, 0: none */
    uint32_t bucket_mask;
    struct party idle; /* ring of those without requests: idle.newer is idle for longest */
    uint64_t scan, round;
    const struct party
        *waits_least;        /* the owner with least pages of those that wait in this round */
    uint32_t waits_pages[2]; /* what it has, and the one after it */

    /* in order of arrival */
    struct request **queue; /* [n_slots] those that are displaced are beyond its limit */
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
    struct draw *draws; /* [logits_max] what each row of logits is for, then what came of it */
    uint32_t *granted;  /* [running_max] prompt rows of running[i] in this step */
};

static inline struct party *client_of(const struct sched *s, const struct request *req)
{
    return &s->parties[req->client];
}

static inline struct party *owner_of(const struct sched *s, const struct request *req)
{
    return &s->parties[req->owner];
}

/* The party that req is of below `parent`, which is the root or an owner; NULL: none. */
static inline struct party *party_below(const struct sched *s, const struct request *req,
                                        const struct party *parent)
{
    if (parent == s->parties)
        return owner_of(s, req);
    return owner_of(s, req) == parent ? client_of(s, req) : NULL;
}

static inline int party_has(const struct sched *s, const struct party *party,
                            const struct request *req)
{
    return party == owner_of(s, req) || party == client_of(s, req);
}

/* How messages call it. */
static inline const char *party_word(const struct sched *s, const struct party *party)
{
    return party->parent == s->parties ? "user" : "client";
}

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

/* party.c */
int parties_new(struct sched *s);
void parties_free(struct sched *s);
/* Requests of the owner and of the client that are not given back. */
void party_held(const struct sched *s, const struct sched_who *who, uint32_t *ret_owner,
                uint32_t *ret_client);
void party_take(struct sched *s, struct request *req, const struct sched_who *who);
void party_give(struct sched *s, const struct request *req);
void party_begin(struct sched *s, const struct request *req); /* it becomes active */
void party_end(struct sched *s, const struct request *req);
void party_pages_add(const struct sched *s, const struct request *req, uint32_t n);
void party_pages_sub(const struct sched *s, const struct request *req, uint32_t n);
/* The party, client before owner, that would be above its limit of pages with n more; NULL: none. */
const struct party *party_over_pages(const struct sched *s, const struct request *req, uint32_t n);

/* share.c: who runs and has to give way so that req may, for its party keeps more than req's has.
 * NULL: nobody. */
struct request *share_find_place(const struct sched *s, const struct request *req);
struct request *share_find_pages(struct sched *s, const struct request *req, uint32_t want);
/* Makes room in a full queue at the expense of the party that fills it: 1, or 0. */
int share_push_out(struct sched *s, const struct request *req, uint64_t now_ns);

/* output.c: 0; 1: a stop string matched (feed only); -ENOSPC: the text does not fit. */
int output_feed(struct sched *s, struct request *req, uint32_t id);
int output_flush(struct sched *s, struct request *req, int cut);

#endif
