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
 * After fork() the child must open its own: calls on the parent's connection return -ESTALE.
 *
 * Threads: a connection has one to eight submission queues. At any time
 *
 *   one thread per queue     tkr_submit*, tkr_cancel_ordered (the queue of the request), tkr_arena*
 *                            and tkr_arena_free (the queue of the memory)
 *   one thread, any of them  tkr_peek, tkr_wait, tkr_arm, tkr_release, tkr_state, tkr_get_limits
 *   any thread               tkr_cancel, tkr_fd; with tkr_opt.reconnect tkr_cancel belongs to the
 *                            thread that waits
 *
 * None of them waits for another. Tags and arena are divided among the queues when the connection
 * is opened, each gets 1/n_queues. tkr_open and tkr_close have the connection to themselves. More
 * threads open more connections: they are cheap.
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
    uint32_t n_queues;  /* submission queues, one per submitting thread: 1..8; 0 = 1 */
    /* A sleep of tkr_wait ends when so many lines have come (1..4096; 0 = 1), which spares wake-ups:
     * a line is a piece of text or an end. Never more than the live requests still have to come if
     * they run to max_tokens, and 200 ms at most: an answer that ends early is seen by then, or at
     * the time-out of tkr_wait. Lines that are there already are returned at once. */
    uint32_t wake_every;
    /* 1: when the daemon dies, tkr_wait connects again and every live request goes on where it was,
     * the same stream (see tkr_wait). Costs arena: 4 bytes per token of max_tokens. */
    uint32_t reconnect;
    uint32_t reserved;
    int64_t reconnect_timeout_ns; /* for the daemon to come back; 0 = 30 s */
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
    uint32_t n_queues; /* a daemon may grant fewer than asked: 0 .. n_queues - 1 can be used */
    uint32_t reserved;
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
    uint64_t tenant; /* for whom, 0: oneself; TKR_E_DENIED unless the daemon trusts this user */
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

/* TKR_STATE_RUN; DRAIN: the daemon finishes what runs, new requests end ABORTED; GONE;
 * RECONNECTING: it is gone and tkr_wait tries to come back (tkr_opt.reconnect). */
#define TKR_STATE_RECONNECTING 4
TKR_API int tkr_state(tkr_conn *conn);

/* Memory in the request arena to write a prompt into; freed when the request that uses it is
 * released, or by tkr_arena_free. NULL: full, or larger than the queue's part of the arena.
 * 64-byte aligned. Only requests of the same queue may use it. tkr_arena is queue 0. */
TKR_API void *tkr_arena(tkr_conn *conn, size_t bytes);
TKR_API void *tkr_arena_on(tkr_conn *conn, unsigned queue, size_t bytes);
TKR_API void tkr_arena_free(tkr_conn *conn, void *ptr);

/* Takes requests from the front: returns how many (0: queue, tags or arena are full: read events,
 * release, try again). A first request that is wrong in itself, or no such queue: -EINVAL; one that
 * is larger than the queue's whole part of the arena: -EMSGSIZE (nothing was submitted).
 * -ESHUTDOWN: the daemon is gone. tkr_submit is queue 0. While the library comes back to a
 * restarted daemon 0 is returned: call tkr_wait. */
TKR_API int tkr_submit(tkr_conn *conn, tkr_req *reqs, unsigned n);
TKR_API int tkr_submit_on(tkr_conn *conn, unsigned queue, tkr_req *reqs, unsigned n);

/* The same, but when nothing fits sleeps until something does: at least 1, or 0 at the time-out.
 * Tags and arena come back only when another thread reads events and releases. */
TKR_API int tkr_submit_wait(tkr_conn *conn, tkr_req *reqs, unsigned n, int64_t timeout_ns);
TKR_API int tkr_submit_wait_on(tkr_conn *conn, unsigned queue, tkr_req *reqs, unsigned n,
                               int64_t timeout_ns);

/* Up to n events, without waiting. Invalidates the pointers of earlier TEXT events. Without tkr_arm
 * it never makes a system call, so it cannot notice that the daemon was killed: a program that only
 * peeks calls tkr_wait(..., 0) now and then. */
TKR_API int tkr_peek(tkr_conn *conn, tkr_event *events, unsigned n);

/* Waits for at least one event; 0 = timeout. When the daemon died every live request ends with a
 * DONE event of status TKR_E_GONE, within a second; after those, -ESHUTDOWN. -EDEADLK: TKR_FOREVER
 * with nothing in flight.
 *
 * With tkr_opt.reconnect: events that the daemon published come first. Then this call connects to
 * the next daemon, as long as that takes or until reconnect_timeout_ns, and submits every live
 * request again, told what was received, so that the next event of each is what would have come: no
 * id is lost, repeated or changed, by the same model. A sampled request without a seed gets one
 * from the library for that. DONE events of status TKR_E_RESTARTED end what cannot go on (a BULK
 * was received, the model is another, the daemon cannot resume), TKR_E_GONE all when none came. One
 * try takes a second at most, also with timeout_ns 0. What a daemon aborts because it stops goes to
 * the next one as well, when its streams have ended. */
TKR_API int tkr_wait(tkr_conn *conn, tkr_event *events, unsigned n, int64_t timeout_ns);

/* For programs with a poll loop of their own (poll, epoll, asyncio):
 *
 *   do
 *       while (tkr_peek(c, events, n) > 0) ...
 *   while (tkr_arm(c) > 0);
 *   poll() until tkr_fd(c) is readable
 *
 * tkr_fd is the control socket: never read it, never close it. It becomes readable when an event
 * comes after tkr_arm, and when the daemon goes: then tkr_peek returns GONE events and at last
 * -ESHUTDOWN. It may become readable for nothing. tkr_arm returns 1 if there is something already,
 * 0 if the byte is to come, -ESHUTDOWN when the daemon is gone and all was read, -EAGAIN while the
 * library comes back (tkr_opt.reconnect): then call tkr_wait until it is there. A tkr_peek or
 * tkr_wait after tkr_arm makes one system call or two to take the byte. After a reconnect the number
 * is the same, but epoll must be told again. */
TKR_API int tkr_fd(tkr_conn *conn);
TKR_API int tkr_arm(tkr_conn *conn);

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
