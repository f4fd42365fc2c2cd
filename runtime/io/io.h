/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.h - the daemon's side of the transport: attach, rings, doorbells, liveness, wakes.
 *
 * One io_uring (SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG) on the ring thread carries: accept
 * and messages of the control socket, FUTEX_WAIT on the bells of parked queues, POLL on pidfds, a
 * timer and an eventfd that other threads (signals, text worker) use to wake the loop. Where the
 * kernel has less, the socket is the doorbell and epoll waits (loop.h). The ring thread makes
 * passes over the hot list; when nothing is hot and the daemon has no work it sleeps.
 *
 * The daemon never trusts a byte that it reads from R nor reads back what it wrote to T. Callbacks
 * run on the ring thread. io knows nothing of models or requests beyond tags.
 */
#ifndef RUNTIME_IO_IO_H
#define RUNTIME_IO_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "runtime/base/diag.h"
#include "shm/abi.h"
#include "shm/stats.h"

struct io;
struct io_client; /* lives until on_detach returned and io_client_unref()'d to zero */

enum io_kind { IO_KIND_AUTO, IO_KIND_URING, IO_KIND_EPOLL };
enum io_doorbell { IO_DOORBELL_AUTO, IO_DOORBELL_FUTEX, IO_DOORBELL_SOCKET };
/* "auto", "uring", "epoll"; "auto", "futex", "socket": 0 or -EINVAL. */
int io_kind_parse(const char *text, enum io_kind *ret_kind);
int io_doorbell_parse(const char *text, enum io_doorbell *ret_doorbell);

/* What one user (a uid) may have over all of its connections; 0 in a field: no limit of its own. */
struct io_limits {
    uint32_t clients;                   /* connections */
    uint32_t inflight;                  /* requests; one more ends OVERLOADED */
    uint64_t bytes;                     /* of the regions of its connections, both sides' */
    uint32_t attach_rate, attach_burst; /* attaches a second, and so many at once (0: the rate) */
    uint8_t class_max; /* enum tkr_class: REALTIME over INTERACTIVE, which is DEFAULT, over BATCH */
    uint8_t denied;    /* may not attach */
};

enum io_rule_kind { IO_RULE_UID, IO_RULE_GID };

/* The first rule that names a peer's uid, its group or one of its supplementary groups counts: a
 * list of who may attach ends with io_opt.limits.denied. The limits are each uid's own, not the
 * group's. */
struct io_rule {
    enum io_rule_kind kind;
    uint32_t id;
    struct io_limits limits;
};
#define IO_RULES_MAX 64u

struct io_opt {
    enum io_kind io;           /* AUTO: io_uring if this host has it, else epoll */
    enum io_doorbell doorbell; /* AUTO: futex if the kernel can wait for one, else socket */
    const char *socket_path;
    mode_t socket_mode;    /* 0600 */
    uint32_t clients_max;  /* 4096 */
    uint32_t inflight_max; /* per client; 256 */
    uint64_t arena_max;    /* per client; 16 MiB */
    uint64_t bulk_max;     /* per client; 16 MiB */
    uint64_t idle_park_ns; /* a queue without traffic for so long is parked; 50 us */
    int require_mlock;
    int takeover;                  /* replace a daemon that serves the socket */
    struct io_limits limits; /* of whom no rule names */
    struct io_rule rules[IO_RULES_MAX];
    uint32_t n_rules;
    struct io_rule trusted[IO_RULES_MAX]; /* who may speak for others; their limits are not used */
    uint32_t n_trusted;
    uint64_t op_bitmap[4];
    uint32_t prompt_tokens_max, output_tokens_max;
    const struct tkr_model_entry *models; /* copied into each T */
    uint32_t n_models;
    /* Bit n: the engine computes on CPU n, so clients do not spin there (copied into each T). */
    uint64_t engine_cpus[TKR_T_ENGINE_CPU_WORDS];
};

struct io_ops {
    void *ctx;
    /* A slot that passed the checks of form: known fields in range, tag free and now taken, data
     * and param ranges inside the arena. NOOP, CANCEL, PAD, malformed and unsupported slots are
     * answered by io itself. The callee must end it with io_done(). */
    void (*submit)(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                   uint64_t seen_ns);
    /* The client cancelled this tag (by its cancel word or a CANCEL slot); may come twice, and in
     * the middle of a step. */
    void (*cancel)(void *ctx, struct io_client *client, uint32_t tag, uint64_t user);
    /* The client is gone: drop everything of it. io frees the client when the last
     * io_client_unref() came. */
    void (*detach)(void *ctx, struct io_client *client);
};

int io_new(struct io **ret_io, const struct io_opt *opt, const struct io_ops *ops,
           struct diag *diag);
/* Binds and listens. -EADDRINUSE: another daemon answers there (a dead one's socket file is
 * replaced). With io_opt.takeover its place is taken: new clients come here from then on, and it gets
 * SIGTERM, so that it finishes what runs; -EPERM: it belongs to somebody else. */
int io_listen(struct io *io, struct diag *diag);
/* 1: what answered the connect of this socket is only the rest of a dead daemon: io_uring lets go of
 * its listening socket some time later. */
int io_listener_dead(int socket);
void io_free(struct io *io);

/* Stops accepting, sets state DRAIN in every T: from then on new submits end ABORTED. */
void io_drain(struct io *io);
/* Sets state GONE and wakes every client: the last thing before exit. */
void io_gone(struct io *io);

/* One pass: hot queues (8 slots each at most), cancel words of active tags, CQ space, fences, wakes
 * through the waker thread, io_uring events when flagged. Tens of ns when nothing is new; called
 * between steps and from the engine's barrier hook. Returns the number of slots taken, so the
 * caller knows whether there was traffic. */
uint32_t io_pass(struct io *io);

/* 1: a step runs or is due, so sleeping clients are woken by the waker thread; 0 (at start):
 * nothing else is to be done, so io_pass() wakes them itself, one hop less. */
void io_busy(struct io *io, int busy);

/* Handles what came on the control sockets (attaches, hang-ups: milliseconds) and frees clients
 * that are gone. io_sleep() does it by itself; a caller that is never idle calls this between
 * steps. What waited for 50 ms is handled by io_pass(). */
void io_control(struct io *io);

/* Sleeps until something happens (a bell, a socket, io_kick) or the deadline (absolute ns, 0 =
 * none); parks idle queues first. Returns at once while a queue is HOT and not yet idle long
 * enough: the caller loops over io_pass(). */
void io_sleep(struct io *io, uint64_t until_ns);
/* Wakes io_sleep from another thread or a signal handler (async-signal-safe). */
void io_kick(struct io *io);

/* ---- what the daemon does with a client ----------------------------------------------------- */
void io_client_ref(struct io_client *client);
void io_client_unref(struct io_client *client);
void *io_client_get(const struct io_client *client); /* the daemon's own pointer, NULL at attach */
void io_client_set(struct io_client *client, void *ptr);
uid_t io_client_uid(const struct io_client *client);
pid_t io_client_pid(const struct io_client *client);
uint32_t io_client_rule(const struct io_client *client); /* index of its rule, n_rules: none */
/* Its user speaks for others: limits.inflight does not hold for it, the callee has them by tenant. */
int io_client_trusted(const struct io_client *client);
int io_client_dead(const struct io_client *client); /* detached: publish nothing */

/* Copies bytes [off, off + len) of the arena, each read once, into dst: 0, or -EFAULT when
 * outside. */
int io_arena_copy(struct io_client *client, void *dst, uint32_t off, uint32_t len);

/* Bulk memory of T: a simple allocator private to the daemon: offset from bulk_off or -ENOSPC; one
 * piece per request (a second: -EBUSY); freed when the client's release word names the request,
 * when a new request takes the tag, or at detach. */
int io_bulk_take(struct io_client *client, uint32_t tag, uint32_t bytes, uint32_t *ret_off,
                 void **ret_ptr);

/* Free CQ slots beyond those reserved for the terminals of active tags. */
uint32_t io_cq_room(struct io_client *client);

/* A line will follow soon: fetches its place from the client's cache. The places of many clients
 * then come at once, where writing them in turn waits for each. */
void io_put_soon(const struct io_client *client);

/* Puts a TOKEN, BULK or LOGPROB line; seq is filled in. -EAGAIN: no room (published lags generated:
 * try again in a later pass). */
int io_put(struct io_client *client, const struct tkr_cqe *cqe);

/* Writes the result record (may be NULL: NO_RESULT) and the terminal CQE into the slot reserved for
 * the tag: never fails. Frees the tag for the daemon. */
void io_done(struct io_client *client, uint32_t tag, uint64_t user, uint16_t status,
             const struct tkr_result *result);

struct io_counts {
    uint32_t clients, hot, parked;
    uint64_t attached, refused, detached, slots, rejected, wakes, mlock_failed;
    uint64_t memory_errors; /* of the detached: a memory error in its region */
    uint64_t struck; /* of the detached: for too many malformed slots */
};
void io_counts(const struct io *io, struct io_counts *ret);

/* Attaches, refusals and ends so far: io_sleep() returns when there are new ones. */
static inline uint64_t io_comings_and_goings(const struct io_counts *counts)
{
    return counts->attached + counts->refused + counts->detached;
}

/* ---- for the operator ------------------------------------------------------------------------ */
/* Clients have places 0..places-1 while they are attached; id is never reused. */
uint32_t io_client_places(const struct io *io);
uint32_t io_client_place(const struct io_client *client);
uint64_t io_client_id(const struct io_client *client);

/* Tells fn of the places from `from` on, NULL where nobody is, until it saw clients_max of them.
 * Returns the place after the last one. Only what the transport knows is filled in. */
typedef void io_report_fn(void *ctx, uint32_t place, struct tkr_stats_client *client);
uint32_t io_clients_report(const struct io *io, uint32_t from, uint32_t clients_max,
                           io_report_fn *fn, void *ctx);

/* What runs: "io_uring+futex", "io_uring+socket" or "epoll+socket". */
const char *io_mode(const struct io *io);
/* Why AUTO took less than the best, in one line; "" when it did not. */
const char *io_note(const struct io *io);

#endif
