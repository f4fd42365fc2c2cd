/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - one request inside the daemon, from a fixed set.
 *
 * A request is made private before anything reads it: sampling block, prompt and stops are copied
 * out of the client's memory once. It knows nothing of rings: `user` is the
 * daemon's.
 */
#ifndef RUNTIME_SCHED_REQUEST_H
#define RUNTIME_SCHED_REQUEST_H

#include <stdint.h>
#include "runtime/sample/sampler.h"
#include "runtime/text/detok.h"

enum request_op { REQUEST_GENERATE, REQUEST_TOKENIZE, REQUEST_LOGPROBS };

enum request_state {
    REQUEST_FREE = 0,
    REQUEST_TEXT,   /* with the text worker */
    REQUEST_QUEUED, /* waits for a running slot and pages */
    REQUEST_RUNNING,
    REQUEST_PAUSED, /* left the batch because its reader lags; pages and place in the order kept */
    REQUEST_ENDED /* terminal; output may still wait to be published; nobody but the publisher holds it */
};

/* Numbers of enum tkr_status and enum tkr_finish in shm/abi.h; asserted equal where the two meet
 * (runtime/publish.c). */
enum end_status {
    END_OK = 0,
    END_INVALID = 1,
    END_UNSUPPORTED = 2,
    END_CONTEXT = 3,
    END_DEADLINE = 4,
    END_OVERLOADED = 5 | 0x8000,
    END_CANCELLED = 6,
    END_ABORTED = 7 | 0x8000,
    END_NUMERIC = 8,
    END_SLOW = 9,
    END_INTERNAL = 14
};
enum end_finish { FINISH_NONE = 0, FINISH_STOP = 1, FINISH_LENGTH = 2 };

/* Numbers of enum tkr_stamp. The daemon stamps the first two. */
enum request_stamp {
    STAMP_SUBMIT = 0,
    STAMP_SEEN = 1,
    STAMP_ADMITTED = 2, /* entered the queue */
    STAMP_PREFILL = 3,  /* first row entered a step */
    STAMP_FIRST = 4,    /* first token generated, also when it only said stop */
    STAMP_LAST = 5,
    STAMP_DONE = 6,
    STAMPS = 7
};

#define REQUEST_STOP_IDS        64
#define REQUEST_MAX_TOKENS_NONE UINT32_MAX

struct piece_mark {
    uint32_t id_end, byte_end, raw;
};

struct request {
    uint32_t slot; /* index in the set, written once by sched_new; sched_request_take keeps it */

    /* set by the daemon before sched_submit */
    enum request_op op;
    uint32_t max_tokens; /* REQUEST_MAX_TOKENS_NONE: until the context ends */
    uint64_t
        deadline_ns; /* 0 = none; a request past it never starts, a running one ends DEADLINE */
    struct sampling sampling;
    int ignore_eos;
    uint32_t stop_ids[REQUEST_STOP_IDS];
    uint32_t n_stop_ids;
    uint64_t stamp[STAMPS]; /* CLOCK_MONOTONIC, ns; 0: not reached */
    uint32_t *tokens;       /* [n_ctx + 1] prompt, then output; fixed memory of this slot */
    uint32_t n_prompt;
    uint32_t
        n_resume; /* GENERATE: the first output ids, received before: out_ids[0 .. n_resume), n_out of them */
    uint32_t resume_bytes;  /* text that was received with them; for the publisher, checked here */
    uint32_t owner, client; /* whose it is, below sched_shares(); kept by sched_request_take */
    uint64_t user;

    /* kept by the scheduler */
    enum request_state state;
    uint32_t n_tokens;   /* prompt + received + generated so far */
    uint32_t n_known;    /* rows to compute before the next new token */
    uint32_t n_counted;  /* rows in the count of prompt tokens: a second time they do not count */
    uint32_t n_fed;      /* of the received ids: through the detokeniser again */
    uint32_t n_computed; /* positions whose K and V are in the pages */
    uint32_t *pages;     /* [pages_for(n_ctx)] page table; fixed memory of this slot */
    uint32_t n_pages;
    uint32_t n_reserved; /* pages promised, not yet taken */
    uint64_t order;      /* arrival number */
    uint64_t paused_ns;  /* since when it is PAUSED */
    uint32_t
        n_discarded; /* generated, but not among out_ids: dropped by a stop match or a cut character */
    enum end_status
        end_asked; /* what sched_end() asked for in the middle of a step; END_OK: nothing */
    enum end_status status;
    enum end_finish finish;
    uint64_t have, want, retry_after_ns;
    char message[80];
    volatile uint32_t cancel; /* set by the ring pass, also inside a step */

    /* output: ids and text that are final, in order, for the publisher. Text is cut in pieces of
     * whole characters. */
    uint32_t *out_ids; /* [n_ctx + 1] */
    uint32_t n_final;  /* ids that the pieces hold */
    uint32_t n_out;    /* output ids: those and the received ones */
    uint8_t *out_text; /* [out_bytes_max], fixed memory of this slot */
    uint32_t n_text;
    uint32_t n_published; /* of n_out: the publisher keeps it, the scheduler pauses who lags */
    struct piece_mark
        *marks; /* [2 * (n_ctx + 1)]: how many ids and bytes the first i + 1 pieces hold */
    uint32_t n_marks;
    int out_full;    /* a piece did not fit: nothing comes after it */
    float *logprobs; /* [n_ctx] LOGPROBS: n_prompt - 1 of them */
    uint32_t n_logprobs;

    /* Set by the daemon before sched_submit: initialised, stops added. Last, for it is large. */
    struct detok detok;
};

#endif
