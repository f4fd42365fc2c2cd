/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - what the daemon knows about a request beside the scheduler's part: whose it is, its
 * prompt as the client sent it (copied), and how far its output is published. One per request slot,
 * for ever.
 */
#ifndef RUNTIME_JOB_H
#define RUNTIME_JOB_H

#include <stdint.h>
#include "runtime/io/io.h"
#include "runtime/sched/request.h"
#include "runtime/text/template.h"
#include "shm/abi.h"

struct job {
    struct request *req;
    struct io_client
        *client; /* a reference is held; NULL: the slot is free, or its client is gone */
    uint32_t tag;
    uint16_t model;

    /* the prompt, private */
    uint8_t
        *text; /* [text_max] pages come with first touch and go back after tokenising when many */
    uint32_t text_max;
    uint32_t n_text;
    uint8_t data_kind; /* enum tkr_data_kind */
    uint32_t n_messages;
    struct message messages[TKR_TAIL_MAX]; /* point into text */

    uint64_t turn; /* its number among those that waited for the text worker */

    /* result of the text work */
    uint32_t *ids; /* TOKENIZE: [text_max]; else req->tokens */
    uint32_t n_ids;
    int text_error;    /* 0 or what bpe_encode / template_encode returned */
    uint8_t text_byte; /* -EILSEQ: the byte that the vocabulary has no token for */

    /* published so far */
    uint32_t mark; /* pieces of req->marks that are out whole */
    uint32_t ids_out, bytes_out;
    int bulk_out;                  /* the BULK line is out */
    uint32_t bulk_off, bulk_bytes; /* reserved in the client's T */
    void *bulk;
};

#endif
