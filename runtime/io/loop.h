/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - how the ring thread waits for descriptors and bells, on every kernel.
 *
 *   io_uring + futex    Linux 6.7 or newer: FUTEX_WAIT on the bell of each parked queue
 *   io_uring + socket   before that: a parked queue is rung by a byte on the control socket
 *   epoll + socket      where io_uring is forbidden: epoll cannot wait on futexes
 *
 * loop.c chooses and says what an event means; loop_uring.c and loop_epoll.c wait. Every wait is
 * one-shot: whoever wants more arms again, so a peer can force one event per arming and no more.
 * A socket as doorbell is emptied by a bounded amount when it fires, all parked queues of its
 * client become HOT, and it is armed again when one of them parks: a flood of bytes costs one event
 * per idle time-out, as a flood of futex wakes does.
 */
#ifndef RUNTIME_IO_LOOP_H
#define RUNTIME_IO_LOOP_H

#include <stdint.h>
#include "runtime/base/diag.h"

struct io;
struct io_client;
struct io_queue;

enum io_event {
    IO_EVENT_NONE = 0,
    IO_EVENT_ACCEPT,
    IO_EVENT_KICK,
    IO_EVENT_SOCKET, /* these two belong to the client in that slot of io->table */
    IO_EVENT_PIDFD,
    IO_EVENT_BELL /* of the queue with that number */
};

/* One way to wait; data is what loop_handle() gets when the wait fires. */
struct loop_ops {
    const char *name;
    int (*init)(struct io *io, struct diag *diag);
    void (*fini)(struct io *io);
    int (*poll)(struct io *io, int fd, uint32_t events, uint64_t data); /* 0 or -errno */
    /* 1: the wait will not fire any more; 0: it fires soon, if only to say that it was cancelled. */
    int (*cancel)(struct io *io, int fd, uint64_t data);
    void (*submit)(struct io *io);
    int (*flagged)(const struct io *io);
    void (*wait)(struct io *io, uint64_t timeout_ns); /* 0: only what is there already */
};

extern const struct loop_ops loop_uring, loop_epoll;
int uring_has_futex(struct io *io);
void uring_futex(struct io *io, const uint32_t *word, uint32_t value, uint64_t data);

int loop_init(struct io *io, struct diag *diag); /* by io->opt.io and io->opt.doorbell */
void loop_fini(struct io *io);
/* What the backends report. */
void loop_handle(struct io *io, uint64_t data);

/* The descriptors of the transport itself, and those of a client: 0 or -errno. Arming what was
 * armed before never fails. */
int loop_arm(struct io *io, int fd, enum io_event event);
int loop_arm_socket(struct io_client *client);
int loop_arm_pidfd(struct io_client *client);
/* Of a queue that has just parked: its doorbell, if that is not armed already. */
void loop_bell(struct io_queue *queue);
/* Doorbells that fired and whose clients have not parked since: armed again after a while, so that
 * hang-ups are seen. */
void loop_rearm(struct io *io);
/* All waits of a client, at its end: the client may be freed when loop_idle() says so. */
void loop_cancel(struct io_client *client);
int loop_idle(const struct io_client *client);

void loop_submit(struct io *io);
int loop_flagged(const struct io *io); /* something may have come: loop_events() is due */
void loop_events(struct io *io);       /* looks and handles what came */
void loop_wait(struct io *io, uint64_t timeout_ns); /* sleeps; UINT64_MAX: no time-out */

#endif
