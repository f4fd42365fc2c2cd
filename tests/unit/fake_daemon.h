/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon.h - the daemon's end of one connection, under a test's control.
 *
 * fake_open() opens a connection to itself: a thread answers the handshake and ends, so that
 * afterwards the test alone writes T and reads R, in whatever order it likes, lies included.
 */
#ifndef TESTS_UNIT_FAKE_DAEMON_H
#define TESTS_UNIT_FAKE_DAEMON_H

#include <stdint.h>
#include <sys/types.h>
#include <tokenring/tokenring.h>
#include "shm/doorbell.h"
#include "shm/region.h"
#include "shm/ring.h"

struct fake {
    /* set before fake_open(); zero is an honest daemon */
    void (*spoil_welcome)(struct tkr_welcome *welcome);
    void (*spoil_t)(struct tkr_t_header *header);
    uint16_t refuse_hello,
        refuse_attach;                /* enum tkr_refusal: answered instead of WELCOME or READY */
    int hang_up;                      /* closes after HELLO */
    int silent;                       /* never answers HELLO */
    int unsealed;                     /* T without seals */
    unsigned extra_fds;               /* more descriptors than T's beside WELCOME */
    uint32_t arena_max, inflight_max; /* 0: grants what is asked */
    uint32_t nsq_max;
    uint8_t model; /* another number is another model's hash */
    uint32_t doorbell, colour;

    char dir[64], path[96]; /* path is the socket */
    int listener, sock;
    struct tkr_hello hello;
    struct tkr_region t, r;
    struct tkr_t_header th;
    struct tkr_r_header rh;
    struct tkr_ring_out cq;
    struct tkr_ring_in sq[TKR_NSQ_MAX];
    struct tkr_region_id r_id;
    uint8_t *ctl;         /* T's control lines */
    const uint8_t *r_ctl; /* R's */
    int attached;
};

/* Binds a socket in a folder of its own. */
void fake_listen(struct fake *fake);
/* Answers one client's handshake. 0, or -1 when it did not come to READY. */
int fake_accept(struct fake *fake);
/* fake_listen(), a thread with fake_accept(), and tkr_open() with opt->path set (opt may be NULL):
 * its result. */
int fake_open(struct fake *fake, tkr_conn **ret_conn, tkr_opt *opt);
void fake_hang_up(struct fake *fake); /* this client's socket and regions */
void fake_close(struct fake *fake);   /* all, the folder too */

uint32_t *fake_t_word(struct fake *fake, uint32_t off);             /* control word of T */
const uint32_t *fake_r_word(const struct fake *fake, uint32_t off); /* control word of R */
const void *fake_arena(const struct fake *fake, uint32_t off);

/* Takes the oldest slot of a queue: 0 or -EAGAIN. Gives it back to the client at once, and wakes it if
 * it sleeps for that. fake_take() is queue 0. */
int fake_take_from(struct fake *fake, uint32_t queue, struct tkr_sqe *ret_sqe);
int fake_take(struct fake *fake, struct tkr_sqe *ret_sqe);
/* Publishes a line; its seq is filled in. */
void fake_put(struct fake *fake, const struct tkr_cqe *cqe);
/* Fence, and wakes the client if it sleeps, by the socket if it asked for that. */
void fake_wake(struct fake *fake);
/* A TOKEN line with one id and up to 24 bytes. */
void fake_put_text(struct fake *fake, const struct tkr_sqe *sqe, uint32_t pos, uint32_t id,
                   const char *text);
/* Result record (NULL: none) and DONE. */
void fake_put_done(struct fake *fake, const struct tkr_sqe *sqe, uint16_t status,
                   const struct tkr_result *result);

#endif
