/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenring.h - the client library: talk to tokenringd through shared memory.
 *
 *   tkr_conn *c;
 *   tkr_req r = TKR_CHAT("Explain quantum computing in one sentence.");
 *   tkr_event e;
 *   tkr_open(&c, NULL);
 *   tkr_submit(c, &r, 1);
 *   while (tkr_wait(c, &e, 1, TKR_FOREVER) == 1 && e.type != TKR_EV_DONE)
 *       fwrite(e.text, 1, e.len, stdout);
 *   tkr_release(c, r.id);
 *   tkr_close(c);
 *
 * No threads, signals, callbacks or locale. tkr_submit, tkr_peek, tkr_cancel, tkr_release and
 * tkr_arena neither allocate nor lock nor make a system call while the daemon polls this
 * connection (HOT); a submit to a PARKED queue makes exactly one, to ring the daemon.
 * One connection belongs to one thread at a time; more threads open more connections.
 * After fork() the child must open its own: calls on the parent's connection return -ESTALE.
 *
 * Functions return 0 or a count, or a negative errno. How a request ended is a `enum tkr_status`
 * in its DONE event (from the wire ABI: TKR_OK, TKR_E_DEADLINE, ...).
 */
#ifndef TOKENRING_H
#define TOKENRING_H

#include <stddef.h>
#include <stdint.h>
#include <tokenring/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TKR_API __attribute__((visibility("default")))
#else
#define TKR_API
#endif

typedef struct tkr_conn tkr_conn;
typedef uint64_t tkr_id; /* names a request of one connection; never reused */

#define TKR_FOREVER INT64_C(-1)
#define TKR_US(n)   (INT64_C(1000) * (n))
#define TKR_MS(n)   (INT64_C(1000000) * (n))
#define TKR_S(n)    (INT64_C(1000000000) * (n))

/* Options of tkr_open; zero = default. */
typedef struct tkr_opt {
    uint32_t size;         /* sizeof(tkr_opt) */
    uint32_t max_inflight; /* requests at once; 64 */
    const char *path; /* daemon's socket; else TOKENRING_SOCKET, $XDG_RUNTIME_DIR/tokenring/socket,
                         /run/tokenring/socket, /tmp/tokenring-UID/socket, the first that answers */
    size_t arena_bytes; /* for prompts in flight; 1 MiB */
    size_t bulk_bytes;  /* for token ids and log-probabilities of TOKENIZE and LOGPROBS; 1 MiB */
    int64_t spin_ns;    /* tkr_wait spins so long before it sleeps; 0 = 50 us, negative = never */
    int64_t timeout_ns; /* for the whole of tkr_open; 0 = 5 s */
} tkr_opt;

/* What the daemon granted. */
typedef struct tkr_limits {
    uint32_t size; /* in: sizeof(tkr_limits) */
    uint32_t max_inflight;
    uint32_t prompt_tokens_max, output_tokens_max;
    uint32_t n_ctx, n_vocab;
    size_t arena_bytes, bulk_bytes;
    uint32_t n_models;
    int32_t daemon_pid;
    char model[80];
    uint8_t model_hash[32];
    uint32_t model_flags; /* TKR_MODEL_CHAT: has a chat template */
    uint32_t model_gen;
} tkr_limits;

typedef struct tkr_msg {
    uint32_t role; /* enum tkr_role */
    uint32_t reserved;
    const char *text;
    size_t len;
} tkr_msg;

typedef struct tkr_bytes {
    const char *text;
    size_t len;
} tkr_bytes;

/*
 * One request. Zero everywhere but size and op is a valid start (tkr_req_init); max_tokens 0 really
 * means 0. TKR_DATA_MESSAGES with n_msgs 0: text[len] is the one message, of the user. Text is
 * copied into the arena at submit, unless it points into memory from tkr_arena().
 */
typedef struct tkr_req {
    uint32_t size;     /* sizeof(tkr_req) */
    uint8_t op;        /* enum tkr_op: GENERATE, TOKENIZE, LOGPROBS, NOOP */
    uint8_t data_kind; /* enum tkr_data_kind: where the prompt is */
    uint8_t on_late;   /* enum tkr_on_late */
    uint8_t class_;    /* enum tkr_class */
    uint16_t model;    /* index in the models table */
    uint16_t n_msgs;   /* TKR_DATA_MESSAGES: msgs[n_msgs] */
    uint32_t n_tokens; /* TKR_DATA_TOKENS: tokens[n_tokens] */
    const char *text;  /* TKR_DATA_TEXT: text[len]; need not end with NUL */
    size_t len;
    const tkr_msg *msgs;
    const uint32_t *tokens;
    const tkr_bytes *stops; /* stop strings[n_stops] */
    const uint32_t *stop_ids;
    uint32_t n_stops, n_stop_ids;
    uint32_t max_tokens;  /* TKR_MAX_TOKENS_NONE: until the context ends */
    uint32_t flags;       /* TKR_PARAM_* */
    uint64_t user_data;   /* yours; comes back in each event */
    uint64_t deadline_ns; /* absolute CLOCK_MONOTONIC; 0 = none */
    uint64_t seed;        /* with TKR_PARAM_SEED */
    float temperature;    /* 0 = greedy */
    float top_p, min_p;
    uint32_t top_k;
    uint32_t model_gen; /* 0, or the generation the model must have */
    uint32_t reserved;
    tkr_id id; /* out, set by tkr_submit */
} tkr_req;

#ifdef __cplusplus
#define TKR_REQ_SIZE static_cast<uint32_t>(sizeof(tkr_req))
#else
#define TKR_REQ_SIZE ((uint32_t)sizeof(tkr_req))
#endif

/* One user message through the model's chat template / bytes as they are, 512 tokens at most,
 * greedy. These fill a request; the strings must live until tkr_submit returns. */
TKR_API void tkr_req_init(tkr_req *req, int op);
#define TKR_CHAT(string) tkr_req_chat(string)
#define TKR_TEXT(string) tkr_req_text(string)
TKR_API tkr_req tkr_req_chat(const char *text);
TKR_API tkr_req tkr_req_text(const char *text);

typedef struct tkr_times { /* CLOCK_MONOTONIC ns; 0 = not reached */
    uint64_t submit, seen, admitted, prefill, first_token, last_token, done;
} tkr_times;

enum tkr_event_type {
    TKR_EV_TEXT = 1, /* text[len], tokens[n]; pos = output position of tokens[0] */
    TKR_EV_BULK = 2, /* ids[n] or values[n], live until tkr_release */
    TKR_EV_DONE = 3  /* terminal: status, finish, counts, times, message */
};

typedef struct tkr_event {
    uint16_t type;   /* enum tkr_event_type */
    uint16_t status; /* DONE: enum tkr_status */
    uint8_t finish;  /* DONE: enum tkr_finish */
    uint8_t raw;     /* TEXT: the bytes are not UTF-8 */
    uint16_t reserved;
    uint64_t user_data;
    tkr_id id;
    const char *text; /* in shared memory, not NUL-terminated; until the next peek or wait */
    uint32_t len;
    uint32_t n;
    const uint32_t *tokens; /* TEXT: until the next peek or wait */
    const uint32_t *ids;    /* BULK of TOKENIZE: until tkr_release */
    const float *values;    /* BULK of LOGPROBS: until tkr_release */
    uint32_t pos;
    uint32_t prompt_tokens, cached_tokens, output_tokens, discarded_tokens; /* DONE */
    uint32_t reserved2;
    uint64_t seed;
    uint64_t retry_after_ns;
    uint64_t have, want;    /* DONE with an error: the limit that was hit and what was asked for */
    tkr_times times;        /* DONE */
    uint8_t model_hash[32]; /* DONE */
    const char *message;    /* DONE with an error: what was wrong, "" if none; until tkr_release */
} tkr_event;

/* -ENOENT / -ECONNREFUSED: no daemon; -EACCES: refused for this user; -EPROTO: not a Tokenring
 * daemon or another major version; -EDQUOT: a limit; -ETIMEDOUT; -EINVAL: an option. errno is set
 * as well. tkr_open_error() says the last reason of this thread in one line. */
TKR_API int tkr_open(tkr_conn **ret_conn, const tkr_opt *opt);
TKR_API void tkr_close(tkr_conn *conn); /* cancels what is in flight; NULL is allowed */
TKR_API const char *tkr_open_error(void);
TKR_API int tkr_get_limits(tkr_conn *conn, tkr_limits *limits);

/* Memory in the request arena to write a prompt into; freed when the request that uses it is
 * released, or by tkr_arena_free. NULL: full, or larger than the arena. 64-byte aligned. */
TKR_API void *tkr_arena(tkr_conn *conn, size_t bytes);
TKR_API void tkr_arena_free(tkr_conn *conn, void *ptr);

/* Takes requests from the front: returns how many (0: queue, tags or arena are full: read events,
 * release, try again). A first request that is wrong in itself: -EINVAL; one that is larger than
 * the whole arena: -EMSGSIZE (nothing was submitted). -ESHUTDOWN: the daemon is gone. */
TKR_API int tkr_submit(tkr_conn *conn, tkr_req *reqs, unsigned n);

/* Up to n events, without waiting. Invalidates the pointers of earlier TEXT events. It never makes
 * a system call, so it cannot notice that the daemon was killed: a program that only peeks calls
 * tkr_wait(..., 0) now and then. */
TKR_API int tkr_peek(tkr_conn *conn, tkr_event *events, unsigned n);

/* Waits for at least one event; 0 = timeout. When the daemon died every live request ends with a
 * DONE event of status TKR_E_GONE, within a second; after those, -ESHUTDOWN. -EDEADLK: TKR_FOREVER
 * with nothing in flight. */
TKR_API int tkr_wait(tkr_conn *conn, tkr_event *events, unsigned n, int64_t timeout_ns);

/* One store; the request still ends with one DONE event. -ENOENT: not alive. */
TKR_API int tkr_cancel(tkr_conn *conn, tkr_id id);
/* Ordered: a CANCEL slot in the submission queue. -EAGAIN: the queue is full. */
TKR_API int tkr_cancel_ordered(tkr_conn *conn, tkr_id id);

/* Frees the tag, arena and bulk memory of a request whose DONE event was read. -EBUSY: still alive.
 * -ENOENT. */
TKR_API int tkr_release(tkr_conn *conn, tkr_id id);

/* Text for a negative errno or a status; never NULL. */
TKR_API const char *tkr_strerror(int error_or_status);
TKR_API int tkr_retryable(int status); /* 1: the same request may succeed later */

#ifdef __cplusplus
}
#endif
#endif
