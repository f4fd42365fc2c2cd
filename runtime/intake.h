/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intake.h - from a submission slot to a private, checked request.
 *
 * Everything the client wrote is copied once (io_arena_copy) and only the copy is looked at. A
 * wrong or unsupported field ends the request with a status and a message that names the field and
 * its range.
 */
#ifndef RUNTIME_INTAKE_H
#define RUNTIME_INTAKE_H

#include "runtime/job.h"
#include "runtime/model/model.h"

struct intake {
    const struct model *model;
    uint32_t model_gen;
    int has_template;
    uint64_t seed_base; /* random, drawn at start */
    uint64_t seed_count;
};

/* Copies the head of the parameter block, once: it says whose the request is before there is one.
 * Returns it, or NULL when the slot has none, or none that could be read. */
const struct tkr_param *intake_head(struct io_client *client, const struct tkr_sqe *sqe,
                                    struct tkr_param *ret_head);

/* Fills job and job->req from the slot and from what intake_head() returned for it; 0, or -EINVAL
 * with req->status, message, have and want set. */
int intake_read(struct intake *in, struct job *job, const struct tkr_sqe *sqe,
                const struct tkr_param *head);

#endif
