/* SPDX-License-Identifier: Apache-2.0 */
/*
 * textwork.h - templates and tokenizing off the step path: one worker thread and two rings of jobs.
 *
 * The ring thread puts and takes; the worker runs. When nothing runs in the engine a short prompt
 * is done by the ring thread itself (textwork_run), which saves two hand-offs and delays nobody.
 *
 * Owners take turns by bytes, and inside an owner its clients do (req->owner, req->client): the
 * worker has one job or TEXTWORK_AHEAD_BYTES before it, the rest waits in the order of start-time
 * fair queueing (Goyal et al. 1996), so many long prompts of one delay another's by about one of
 * them.
 */
#ifndef RUNTIME_TEXTWORK_H
#define RUNTIME_TEXTWORK_H

#include "runtime/job.h"

#define TEXTWORK_INLINE_BYTES 8192u
#define TEXTWORK_AHEAD_BYTES  65536u

struct textwork;

/* n_jobs: jobs alive at most; n_shares: owners and clients are below it, and the number of one that
 * has no job may become another's. done(ctx) is called on the worker after each job. template may
 * be NULL. */
int textwork_new(struct textwork **ret_work, const struct vocab *vocab,
                 const struct template *template, uint32_t n_ctx, uint32_t text_max,
                 uint32_t n_jobs, uint32_t n_shares, void (*done)(void *ctx), void *ctx,
                 struct diag *diag);
void textwork_free(struct textwork *work);

void textwork_put(struct textwork *work, struct job *job);
struct job *
textwork_take(struct textwork *work); /* a finished one, or one cancelled before its turn; NULL */
void textwork_run(struct textwork *work,
                  struct job *job); /* here and now; n_text <= TEXTWORK_INLINE_BYTES */

#endif
