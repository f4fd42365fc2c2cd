/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h - a request's final output to its client's ring.
 *
 * What is published may lag what was generated: a full ring loses nothing and blocks nobody, the
 * publisher goes on where it stopped. The terminal CQE has its own reserved slot; after SLOW it
 * comes without what the reader left unread, which counts as discarded.
 */
#ifndef RUNTIME_PUBLISH_H
#define RUNTIME_PUBLISH_H

#include "runtime/job.h"

enum publish_state {
    PUBLISH_IDLE,    /* all that is final is out; more may come */
    PUBLISH_LAGGING, /* the ring is full */
    PUBLISH_DONE     /* the terminal CQE is out: the tag is free */
};

/* Takes bulk memory for `count` results of 4 bytes, before they are computed: 0, or -ENOSPC with
 * message and want set. */
int publish_reserve(struct job *job, uint32_t count);

/* Before publish_job() of many: fetches the place of this one's next line, if it has one. */
void publish_soon(const struct job *job);

/* model_hash: [32], for the result record. */
enum publish_state publish_job(struct job *job, const uint8_t *model_hash);

#endif
