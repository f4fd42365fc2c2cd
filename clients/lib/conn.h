/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one connection: both regions, its queues, the request table, and what the files of this
 * folder share.
 *
 * All memory is taken in tkr_open(). Afterwards the library only stores to R, loads from T and
 * works in the tables below. Whatever T says is copied once, checked, and may at worst end the
 * connection.
 *
 * Threads: each submission queue has one submitting thread, which owns the queue's tags and its
 * part of the arena. One thread consumes events. A request's entry goes from hand to hand:
 *
 *   submitting thread   fills it in, stores `user` with release
 *   consuming thread    finds it by `user` (acquire), ends it, on release puts its tag into the
 *                       queue's `returned` ring (release)
 *   submitting thread   takes tags from there (acquire), frees their arena blocks
 *
 * So there is no lock and no compare-and-swap. Only a connection that may reconnect has a `busy`
 * word per queue: the consuming thread must keep submitters out while it lays R out anew.
 *
 * A request's id is its `user` on the wire. The low half names it among all that live (in cancel and
 * release words), so it holds the queue and a counter of the queue that skips 0; the high half holds
 * the tag and how often the counter came round:
 *
 *   63..44 rounds of the counter | 43..32 tag | 31..3 counter | 2..0 queue
 */
#ifndef CLIENTS_LIB_CONN_H
#define CLIENTS_LIB_CONN_H

#include <stdint.h>
#include <tokenring/tokenring.h>
#include "clients/lib/arena.h"
#include "shm/region.h"
#include "shm/ring.h"

#define CONN_TAG_BITS 12u
TKR_ABI_ASSERT(TKR_INFLIGHT_MAX == 1u << CONN_TAG_BITS);

#define CONN_QUEUE_BITS 3u
TKR_ABI_ASSERT(TKR_NSQ_MAX == 1u << CONN_QUEUE_BITS);

#define CONN_CANARY 0x746b72636f6e6e31ull /* any value that a wiped page does not have */

#define SLEEP_NS_MAX TKR_MS(200) /* a dead daemon wakes nobody: then we look by ourselves */

enum request_state {
    REQUEST_FREE = 0,
    REQUEST_LIVE = 1,  /* submitted, its DONE not yet read */
    REQUEST_ENDED = 2, /* DONE was handed out; waits for tkr_release() */
};

struct request {   /* one per tag */
    uint64_t user; /* 0: none. Stored last by the submitting thread, with release */
    uint64_t user_data;
    uint32_t block;       /* own arena block, or ARENA_NONE */
    uint32_t max_tokens;  /* of a GENERATE; else 0 */
    uint32_t received;    /* token ids handed out */
    uint32_t text_bytes;  /* and bytes of their text */
    uint32_t resume_off;  /* of the room for received ids, relative to the arena */
    uint32_t resume_room; /* ids that fit there; 0 without reconnect */
    uint16_t queue;
    uint8_t state;     /* enum request_state */
    uint8_t internal;  /* a CANCEL slot: gives no event */
    uint8_t borrows;   /* parts of it lie in blocks of tkr_arena() */
    uint8_t cancelled; /* tkr_cancel() was called: a resubmitted one is cancelled again */
    uint8_t has_bulk;  /* BULK events were handed out: they point into T until release */
    uint8_t resumed;   /* was submitted again to a restarted daemon */
    uint8_t odd;       /* its ids did not come one after the other: cannot be resumed */
    uint8_t aborted;   /* by a daemon that stops: the next one shall take it */
    uint8_t restarted; /* could not be resumed: DONE of status RESTARTED is due */
    struct tkr_sqe sqe;
    char message[sizeof((struct tkr_result *)0)->message];
};

struct queue {
    /* the submitting thread's */
    struct tkr_ring_out sq;
    uint32_t *bell, *sq_wait;
    const uint32_t *sq_head, *need_wakeup;
    struct arena arena; /* this queue's part */
    uint32_t arena_off; /* where the part begins */
    uint32_t n_free;
    uint16_t *free_tags; /* stack */
    uint16_t tag_first, n_tags;
    uint16_t index;
    uint32_t returned_head;
    uint32_t counter, rounds;
    uint64_t seed_state;  /* of the generator of seeds */
    uint32_t n_submitted; /* that give a DONE event; read by the consuming thread */

    uint32_t busy;     /* only with reconnect: the queue is in somebody's hands */
    uint32_t sleeping; /* the submitting thread waits for tags or arena on returned_tail */

    /* the consuming thread's */
    _Alignas(TKR_LINE) uint32_t returned_tail; /* futex word */
    uint32_t returned_mask;
    uint16_t *returned; /* ring of tags: as many as the queue has fit */
};

/* How a connection that was lost comes back. */
struct reconnect {
    uint8_t on, gave_up;
    uint8_t locked; /* the consuming thread holds all queues */
    char *path;     /* of the socket, or NULL: to be looked for */
    int64_t timeout_ns;
    uint64_t lost_ns, next_ns; /* when the daemon went, when to try again */
    int64_t pause_ns;          /* between two tries */
    struct old_region *old;    /* T's of earlier daemons that BULK events still point into */
};

struct old_region {
    struct tkr_region t;
    struct old_region *next;
};

struct tkr_conn {
    const uint64_t *canary; /* a page of its own; the kernel wipes it in a child of fork() */
    int fd;                 /* control socket; its hang-up means that the daemon is gone */
    struct tkr_grant grant;
    uint32_t max_inflight;
    uint32_t n_queues;
    uint32_t doorbell; /* enum tkr_doorbell */
    int32_t daemon_pid;

    /* R: ours to write */
    struct tkr_region r;
    uint64_t nonce;
    uint8_t *arena_base;
    uint32_t arena_len;
    uint32_t *cq_head, *cancel, *release;
    uint64_t *wait;
    struct queue *queues; /* [n_queues] */

    /* T: the daemon's, read-only */
    struct tkr_region t;
    struct tkr_t_header t_header; /* the checked copy */
    const uint32_t *state, *daemon_cpu, *cq_bell;
    const uint64_t *engine_cpus;
    const uint8_t *bulk_base;
    struct tkr_ring_in cq;
    uint32_t cq_head_told; /* what *cq_head says: slots before it are the daemon's again */

    struct request *requests; /* [max_inflight] */
    uint32_t n_done;          /* DONE events handed out */
    uint32_t n_bulk;          /* requests with has_bulk */
    uint32_t n_aborted;       /* requests with aborted */
    uint32_t n_restarted;     /* requests with restarted */

    int64_t spin_ns;      /* 0: never */
    uint32_t wake_every;  /* lines that tkr_wait() sleeps for */
    uint8_t spin_forced;  /* the caller set it: spins also on an engine's core */
    uint8_t armed;        /* tkr_arm(): a byte may come by the socket */
    uint8_t gone;         /* nothing more can be sent; what was published can still be read */
    uint8_t broken;       /* nor that: it would mean nothing */
    uint16_t gone_status; /* how requests end that were alive then */
    const char *gone_why;
    char dismissal[sizeof((struct tkr_refused *)0)->message];
    uint64_t looked_ns; /* when the socket was last looked at */
    struct reconnect reconnect;
};

static inline int conn_stale(const tkr_conn *conn)
{
    return *(const volatile uint64_t *)conn->canary != CONN_CANARY;
}

static inline uint16_t conn_tag(tkr_id id)
{
    return (uint16_t)((id >> 32) & (TKR_INFLIGHT_MAX - 1));
}

/* NULL: no such request, or released. */
static inline struct request *conn_request(const tkr_conn *conn, tkr_id id)
{
    uint16_t tag = conn_tag(id);

    /* Acquire pairs with the submitting thread's release: the entry was filled in before. */
    if (!id || tag >= conn->max_inflight || TKR_LOAD_ACQUIRE(&conn->requests[tag].user) != id)
        return NULL;
    return &conn->requests[tag];
}

/* As many DONE events are to come. */
static inline uint32_t conn_n_live(const tkr_conn *conn)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < conn->n_queues; i++)
        n += TKR_LOAD_ACQUIRE(&conn->queues[i].n_submitted);
    return n - conn->n_done;
}

/* 1: the daemon is gone, and tkr_wait() tries to come back. */
static inline int conn_reconnecting(const tkr_conn *conn)
{
    return conn->reconnect.on && TKR_LOAD_RELAXED(&conn->gone) && !conn->broken &&
           !TKR_LOAD_RELAXED(&conn->reconnect.gave_up);
}

uint64_t clock_ns(void);

/* Marks the daemon as gone; requests that live get their GONE events from the next peek. */
void conn_lost(tkr_conn *conn, const char *why);
/* One entry of a models table that did not change while it was copied. 0 or -EAGAIN. */
int model_read(const struct tkr_region *t, const struct tkr_t_header *header, uint32_t index,
               struct tkr_model_entry *ret_entry);

/* ---- attach.c -------------------------------------------------------------------------------- */
/* Connects and exchanges HELLO .. READY; fills in the regions' part of conn, whose queues[n_queues]
 * must be there. The reason of a failure goes to open_fail(). */
int conn_attach(tkr_conn *conn, const struct tkr_opt *opt, uint64_t deadline_ns);
/* The same with a restarted daemon, with the R that conn has, whose queues start empty again. The
 * arena stays as it is. *ret_t is T of the earlier daemon. On failure conn keeps what it had.
 * -ENOTSUP: the new daemon grants other sizes, so R cannot serve. */
int conn_reattach(tkr_conn *conn, uint64_t deadline_ns, struct tkr_region *ret_t,
                  struct tkr_t_header *ret_t_header);
/* Sets the text of tkr_open_error() and returns err. */
__attribute__((format(printf, 2, 3))) int open_fail(int err, const char *format, ...);

/* ---- queue.c --------------------------------------------------------------------------------- */
/* Divides tags and arena among the queues. -ENOMEM. */
int queues_init(tkr_conn *conn);
void queues_fini(tkr_conn *conn);
/* The submitting thread: takes back what was released. */
void queue_reclaim(tkr_conn *conn, struct queue *queue);
/* The consuming thread: the request's tag, block and shares go back to its queue. */
void request_return(tkr_conn *conn, struct request *request);

/* ---- submit.c -------------------------------------------------------------------------------- */
/* Once per batch: one fence, and a system call only when the daemon sleeps on this queue. */
void queue_ring(tkr_conn *conn, struct queue *queue);

/* ---- events.c -------------------------------------------------------------------------------- */
/* 1: the socket hung up. */
int conn_hung_up(const tkr_conn *conn);

/* ---- reconnect.c ----------------------------------------------------------------------------- */
/* One step of coming back: a try, or a sleep until the next one or end_ns. */
void reconnect_step(tkr_conn *conn, uint64_t now, uint64_t end_ns);
void reconnect_fini(tkr_conn *conn);

#endif
