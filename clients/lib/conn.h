/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one connection: both regions, the request table, and what the files of this folder
 * share.
 *
 * All memory is taken in tkr_open(). Afterwards the library only stores to R, loads from T and
 * works in the tables below. Whatever T says is copied once, checked, and may at worst end the
 * connection.
 *
 * A request's id is its `user` on the wire. The low half is a counter that skips 0 (cancel and
 * release words name a request by it), the high half holds the tag and how often the counter came
 * round:
 *
 *   63..44 rounds of the counter | 43..32 tag | 31..0 counter
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

#define CONN_CANARY 0x746b72636f6e6e31ull /* any value that a wiped page does not have */

enum request_state {
    REQUEST_FREE = 0,
    REQUEST_LIVE = 1,  /* submitted, its DONE not yet read */
    REQUEST_ENDED = 2, /* DONE was handed out; waits for tkr_release() */
};

struct request { /* one per tag */
    uint64_t user;
    uint64_t user_data;
    uint32_t block;     /* own arena block, or ARENA_NONE */
    uint32_t param_off; /* of its parameter block, for release */
    uint32_t data_off, data_len;
    uint16_t n_tail;
    uint8_t data_kind;
    uint8_t state;    /* enum request_state */
    uint8_t internal; /* a CANCEL slot: gives no event */
    uint8_t borrows;  /* parts of it lie in blocks of tkr_arena() */
    char message[sizeof((struct tkr_result *)0)->message];
};

struct tkr_conn {
    const uint64_t *canary; /* a page of its own; the kernel wipes it in a child of fork() */
    int fd;                 /* control socket; its hang-up means that the daemon is gone */
    uint32_t max_inflight;
    uint32_t doorbell; /* enum tkr_doorbell */
    int32_t daemon_pid;

    /* R: ours to write */
    struct tkr_region r;
    uint8_t *arena_base;
    uint32_t arena_len;
    uint32_t *cq_head, *bell, *cancel, *release;
    uint64_t *wait;
    struct tkr_ring_out sq;

    /* T: the daemon's, read-only */
    struct tkr_region t;
    struct tkr_t_header t_header; /* the checked copy */
    const uint32_t *state, *daemon_cpu, *cq_bell, *sq_head, *need_wakeup;
    const uint64_t *engine_cpus;
    const uint8_t *bulk_base;
    struct tkr_ring_in cq;
    uint32_t cq_head_told; /* what *cq_head says: slots before it are the daemon's again */

    struct arena arena;
    struct request *requests; /* [max_inflight] */
    uint16_t *free_tags;      /* stack */
    uint32_t n_free;
    uint32_t n_live; /* LIVE and not internal: as many DONE events are to come */
    uint32_t counter, rounds;

    int64_t spin_ns;     /* 0: never */
    uint8_t spin_forced; /* the caller set it: spins also on an engine's core */
    uint8_t gone;        /* nothing more can be sent; what was published can still be read */
    uint8_t broken;      /* nor that: it would mean nothing */
    const char *gone_why;
    uint64_t looked_ns; /* when the socket was last looked at */
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

    if (!id || tag >= conn->max_inflight || conn->requests[tag].user != id)
        return NULL;
    return &conn->requests[tag];
}

uint64_t clock_ns(void);

/* Marks the daemon as gone; requests that live get their GONE events from the next peek. */
void conn_lost(tkr_conn *conn, const char *why);

/* ---- attach.c -------------------------------------------------------------------------------- */
/* Connects and exchanges HELLO .. READY; fills in the regions' part of conn. The reason of a
 * failure goes to open_fail(). */
int conn_attach(tkr_conn *conn, const struct tkr_opt *opt, uint64_t deadline_ns);
/* Sets the text of tkr_open_error() and returns err. */
__attribute__((format(printf, 2, 3))) int open_fail(int err, const char *format, ...);

/* ---- submit.c -------------------------------------------------------------------------------- */
/* Frees tag and arena of an ended request. */
void request_free(tkr_conn *conn, struct request *request);

#endif
