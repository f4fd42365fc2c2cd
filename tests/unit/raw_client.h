/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_client.h - a client of the daemon's transport that can break every rule: it lies where a test
 * says so.
 *
 * Nothing here waits: who drives the daemon decides that. Used by tests of runtime/io.
 */
#ifndef TESTS_UNIT_RAW_CLIENT_H
#define TESTS_UNIT_RAW_CLIENT_H

#include <stdint.h>
#include "shm/doorbell.h"
#include "shm/region.h"
#include "shm/ring.h"

struct raw_queue { /* the client's end of one submission queue */
    struct tkr_ring_out sq;
    uint32_t *bell, *sq_wait;
    const uint32_t *sq_head, *need_wakeup;
};

struct raw_client {
    int socket;
    struct tkr_hello hello;
    struct tkr_welcome welcome;
    struct tkr_refused refused; /* when the last answer was one */
    struct tkr_region r, t;
    struct tkr_r_header rh;
    struct tkr_t_header th;
    struct tkr_ring_out sq;
    struct tkr_ring_in cq;
    uint32_t *cq_head, *bell, *cancel, *release;
    uint64_t *wait;
    const uint32_t *sq_head, *need_wakeup, *cq_bell, *state;
    const struct tkr_result *results;
    const uint8_t *bulk;
    uint8_t *arena;
    uint64_t user; /* of the last request */
    struct raw_queue queue[TKR_NSQ_MAX]; /* as granted; sq, bell and so on above are those of 0 */
};

int raw_connect(const char *path); /* descriptor or -errno */
struct tkr_ctl_head raw_head(int type);
int raw_send(int socket, const void *bytes, size_t n, const int *fds, int n_fds); /* 0 or -errno */
/* 256 bytes and at most one descriptor (-1: none). 0, -EPIPE: hang-up, or -errno. */
int raw_recv(int socket, void *bytes, int *ret_fd);

/* The steps of an attach; each returns 0 or -errno. */
int raw_hello_send(struct raw_client *c);   /* c->hello as it is; zero: filled in */
int raw_welcome_recv(struct raw_client *c); /* maps T; -EPERM: refused */
int raw_r_make(struct raw_client *c); /* R as WELCOME says, sealed; lie in between through c->r.base
                                         before raw_r_seal() */
int raw_r_seal(struct raw_client *c);
int raw_attach_send(struct raw_client *c);
int raw_ready_recv(struct raw_client *c); /* -EPERM: refused */
/* All of them in turn; for a daemon that serves in another thread or process. */
int raw_attach(struct raw_client *c);
void raw_close(struct raw_client *c);

/* Puts sqe (seq is filled in); rings when parked. 1: it rang. */
int raw_put(struct raw_client *c, const struct tkr_sqe *sqe);
/* The same for any queue. A client uses either this or raw_put() for queue 0. */
int raw_queue_put(struct raw_client *c, struct raw_queue *queue, const struct tkr_sqe *sqe);
struct tkr_sqe raw_noop(struct raw_client *c, uint16_t tag); /* with the next user */
/* -EAGAIN: nothing there. Gives the slot back at once unless keep. */
int raw_take(struct raw_client *c, struct tkr_cqe *ret, int keep);

#endif
