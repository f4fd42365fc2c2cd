/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h - continuous batching: which rows enter the next step.
 *
 * Knows no ring and no clock of its own: time comes in as an argument, so the same code runs under
 * a fake clock and a scripted backend in tests. All memory is taken at sched_new. One thread; while
 * the backend computes, its hook may call everything but sched_step and sched_free. What touches a
 * running request then waits for the step's end: sched_end() and req->cancel take effect there.
 *
 * Whose a request is: an owner is a user, or one of those that a trusted user speaks for, and has
 * clients, which are connections. Owners share rows, places, pages and the queue fairly, whatever
 * number of clients they have; inside an owner its clients share what it gets, by the same rules.
 * Below, a "party" is an owner among owners, or a client among those of its owner; the parties of
 * two requests are their owners, or, where these are one, their clients.
 *
 * Packing: one row for each request that decodes, then at most chunk_rows rows of prompts: an equal
 * part for each owner that has prompts in the batch, and of that an equal part for each of its
 * clients; what one leaves goes to the others, its own owner's first. Of its part a client's oldest
 * prompt gets half at least, so it advances; the other half goes to the shortest remainder first
 * (older first among equals), so a short prompt waits for a few steps and not for a long prefill;
 * what is left over goes to the oldest again.
 *
 * Admission is in order of arrival within a client. Between parties, the one enters that had least:
 * rows computed for it count, and who comes back from having nothing begins level with the least of
 * those that have something, so idling saves nothing up. With one client this is first come, first
 * served. Entering reserves pages for prompt + max_tokens; who waits for pages is not overtaken.
 * When there is no place, or no pages, and another party keeps more of them than the new one gets,
 * the youngest request of that party (of its client with most) is displaced: it goes back to the
 * queue, gives its pages back, and is computed again when its turn comes, so the bits of its stream
 * do not change. So who has little to do waits for one step, and not for the end of another's
 * requests. A full queue does the same: the party that fills it loses its youngest request that has
 * not begun (OVERLOADED), if the new one's party has less than that one.
 *
 * A request without max_tokens reserves its prompt and takes pages as it grows; when none is left,
 * the youngest such request of the owner with most pages, of its client with most, ends OVERLOADED
 * with its text so far. A full queue answers OVERLOADED at once. All of these say retry_after_ns.
 *
 * A reader may lag: with more than lag_tokens_max final ids not published (n_out - n_published) the
 * request leaves the batch, PAUSED with its pages, and comes back when half of them are. Paused for
 * lag_timeout_ns it ends SLOW.
 *
 * How a generation ends (status OK unless said):
 *   end-of-sequence token, stop id   STOP; that token is neither in out_ids nor counted
 *   stop string                      STOP; text ends before the match, ids from the match on are
 * discarded
 *   max_tokens, or the context full  LENGTH, also when an explicit max_tokens does not fit;
 * max_tokens 0
 *                                    or a prompt that fills the context: the prompt is evaluated, 0
 * tokens
 *   prompt longer than the context   CONTEXT with have and want, not started
 *   deadline, cancel, sched_end      that status at the next step boundary
 *   NaN or infinity in its logits    NUMERIC; nobody else is touched
 *   more text than out_bytes_max     CONTEXT, have in bytes
 *
 * A request may go on where another daemon left it: the ids that its client has (n_resume) are
 * computed after the prompt and count as output; the sampler is a function of (seed, position), so
 * the same stream comes. They pass through the detokeniser again, so a stop string over the seam
 * matches, and pieces are cut as they were; the publisher leaves out what was received. If a stop
 * string begins among them (their client had them from a request that ended early), output ends
 * with them.
 *
 * Except after a stop string, what the detokeniser held back is delivered at the end: at an
 * end-of-sequence token or stop id all of it, else up to the last whole character.
 */
#ifndef RUNTIME_SCHED_SCHED_H
#define RUNTIME_SCHED_SCHED_H

#include <stdint.h>
#include "runtime/exec/backend.h"
#include "runtime/sched/request.h"

struct sched;

/* What one party may have, 0: no limit of its own. A request above it ends OVERLOADED with have and
 * want. */
struct sched_limits {
    uint32_t requests; /* from sched_request_take to sched_request_give */
    uint32_t queued;   /* that wait for a place, beside those that the free places take */
    uint32_t pages;    /* taken and reserved; who would have more than that waits for its own */
    uint32_t prompt_tokens; /* of its queued, running and paused requests together */
};

struct sched_opt {
    uint32_t running_max;   /* 64; at most the backend's logits_max, and below its rows_max */
    uint32_t queued_max;    /* 500 */
    uint32_t n_pages;       /* of the KV pool; the context is never larger than the pool */
    uint32_t n_ctx;         /* prompt + output of one request */
    uint32_t chunk_rows;    /* prefill rows of one step; 128 */
    uint32_t out_bytes_max; /* text of one request; 0: 16 * n_ctx */
    const struct vocab *vocab;
    uint32_t lag_tokens_max; /* 0: nobody is paused */
    uint64_t lag_timeout_ns;
    struct sched_limits user_limits;   /* of each owner */
    struct sched_limits client_limits; /* of each client of it; both hold */
};

/* Whose a request is. The owner is a user, and of a trusted one the tenant that it speaks for. */
struct sched_who {
    uint32_t uid;
    uint64_t tenant; /* 0: itself */
    uint64_t client; /* a number that no other client has */
};

struct sched_counts {
    uint32_t running, queued, text, paused; /* text: with the text worker */
    uint64_t finished, cancelled,
        failed; /* OK, CANCELLED, all else; each ended request counts once */
    uint64_t prompt_tokens, output_tokens; /* prompt rows computed; ids in out_ids */
    uint64_t steps;
    uint64_t pauses, slow,
        displaced; /* times paused; requests ended SLOW by that; times displaced */
    uint32_t pages_total, pages_used, pages_reserved;
};

/* -EINVAL: a zero or a limit above the backend's (see sched_opt), or a vocabulary of another size
 * than the backend's; -ENOMEM. The backend, the sampler and the vocabulary outlive it. */
int sched_new(struct sched **ret_sched, const struct sched_opt *opt, struct backend *backend,
              struct sampler *sampler);
void sched_free(struct sched *sched);

/* Context of one request: opt.n_ctx or what the pool holds. Arrays of a request have room for
 * opt.n_ctx in any case. */
uint32_t sched_n_ctx(const struct sched *sched);

/* Numbers of owners and clients in requests are below it. One that has no request is forgotten when
 * its number is wanted, who had none for longest first. */
uint32_t sched_shares(const struct sched *sched);

/* A free request for this client, all reset but slot, its fixed memory and detok; state
 * REQUEST_TEXT. NULL when none is left: there are queued_max + 4 * running_max. The second
 * running_max is for requests in text work or waiting to be published, the third for clients that
 * have next to none (up to running_max / 8), the last for owners that have next to none. */
struct request *sched_request_take(struct sched *sched, const struct sched_who *who);

/* Prompt tokens are in: checks limits and queues it, or ends it at once (state REQUEST_ENDED,
 * status and message set). An empty prompt becomes the model's BOS, if it has one. TOKENIZE has
 * nothing to compute: after the checks of stop ids, cancel and deadline it ends OK; its ids are the
 * caller's. now_ns: CLOCK_MONOTONIC. Stamps ADMITTED when it was queued. */
void sched_submit(struct sched *sched, struct request *req, uint64_t now_ns);

/* Ends a request wherever it is now, also one that never reached sched_submit (the caller makes
 * sure that no text worker holds it). In the middle of a step a running one ends at its end, in the
 * status asked for first (not END_OK). No effect on one that has ended. The caller may fill
 * message, have and want before. */
void sched_end(struct sched *sched, struct request *req, enum end_status status, uint64_t now_ns);

/* Whether a step would compute anything. */
int sched_has_work(struct sched *sched);

/* One step: expire and cancel, admit, pack, forward, sample, detokenise. Returns the rows
 * computed. now is called for stamps. */
uint32_t sched_step(struct sched *sched, uint64_t (*now)(void));

/* Ends what was cancelled and what is past its deadline (now_ns >= deadline_ns), in the middle of a
 * step only among the queued. Cheap. Also called by sched_step. Returns the earliest deadline
 * left, 0 = none. */
uint64_t sched_expire(struct sched *sched, uint64_t now_ns);

/* When a refused request may try again: from the recent step time and the prompts that wait; 1
 * ms .. 60 s. */
uint64_t sched_retry_after_ns(const struct sched *sched);

/* Every request in the set, by slot; for the publisher and for detach. */
uint32_t sched_slots(const struct sched *sched);
struct request *sched_slot(struct sched *sched, uint32_t i);

/* Gives an ENDED request back to the set. */
void sched_request_give(struct sched *sched, struct request *req);

void sched_counts(const struct sched *sched, struct sched_counts *ret);

#endif
