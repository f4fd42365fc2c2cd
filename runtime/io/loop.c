/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the ring thread's io_uring.
 *
 * DEFER_TASKRUN: completions are made only in our own system calls, so a client that rings cannot
 * interrupt a step; TASKRUN_FLAG: one load tells that some are waiting. It carries polls of the
 * listening socket, the control sockets, the pidfds and the kick eventfd, and one FUTEX_WAIT per
 * parked queue. The futex wait is one-shot: a hostile client can force one completion per re-arm,
 * no more. liburing 2.3 has no call for it, so its entry is filled in here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "runtime/io/state.h"

#define OP_FUTEX_WAIT 51 /* IORING_OP_FUTEX_WAIT, Linux 6.7 */
#define FUTEX2_U32    2  /* FUTEX2_SIZE_U32, shared */
#define SQ_ENTRIES    256u

static uint64_t user_data(enum io_event event, uint32_t slot)
{
    return (uint64_t)event << 56 | slot;
}

int loop_init(struct io *io, struct diag *diag)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE,
        .cq_entries = SQ_ENTRIES * 2,
    };
    struct io_uring_probe *probe;
    struct utsname host = {.release = "?"};
    int err, has_futex;

    /* Every wait that can be armed at once may complete at once: socket, pidfd and bell of each
     * client. */
    while (params.cq_entries < 3 * io->table_max + SQ_ENTRIES)
        params.cq_entries *= 2;
    uname(&host);
    err = io_uring_queue_init_params(SQ_ENTRIES, &io->ring, &params);
    if (err == -ENOMEM) {
        diag_set(diag, "no memory for io_uring with %u entries: raise LimitMEMLOCK (ulimit -l)",
                 params.cq_entries);
        return err;
    }
    if (err < 0) {
        diag_set(diag,
                 "io_uring is not available: %s (Linux %s; 6.7 or newer is needed, and neither "
                 "kernel.io_uring_disabled nor a seccomp filter may forbid it)",
                 strerror(-err), host.release);
        return err;
    }
    io->ring_ready = 1;
    probe = io_uring_get_probe_ring(&io->ring);
    has_futex = probe && io_uring_opcode_supported(probe, OP_FUTEX_WAIT);
    free(probe);
    if (!has_futex) {
        diag_set(diag, "Linux %s: its io_uring has no FUTEX_WAIT; 6.7 or newer is needed",
                 host.release);
        return -EOPNOTSUPP;
    }
    return 0;
}

void loop_fini(struct io *io)
{
    if (io->ring_ready)
        io_uring_queue_exit(&io->ring);
    io->ring_ready = 0;
}

static struct io_uring_sqe *loop_sqe(struct io *io, enum io_event event, uint32_t slot)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);

    while (!sqe) {
        loop_submit(io);
        sqe = io_uring_get_sqe(&io->ring);
    }
    io_uring_prep_nop(sqe);
    sqe->user_data = user_data(event, slot);
    return sqe;
}

void loop_poll(struct io *io, int fd, uint32_t events, enum io_event event, uint32_t slot)
{
    struct io_uring_sqe *sqe = loop_sqe(io, event, slot);

    io_uring_prep_poll_add(sqe, fd, events);
    sqe->user_data = user_data(event, slot);
}

void loop_bell(struct io_client *client)
{
    struct io_uring_sqe *sqe = loop_sqe(client->io, IO_EVENT_BELL, client->slot);

    sqe->opcode = OP_FUTEX_WAIT;
    sqe->fd = FUTEX2_U32;
    sqe->addr = (uint64_t)(uintptr_t)client->bell;
    sqe->off = client->bell_value;
    sqe->addr3 = UINT32_MAX; /* every bit of the wake mask */
    client->armed_bell = 1;
}

void loop_cancel(struct io *io, enum io_event event, uint32_t slot)
{
    struct io_uring_sqe *sqe = loop_sqe(io, IO_EVENT_NONE, 0);

    io_uring_prep_cancel64(sqe, user_data(event, slot), 0);
    sqe->user_data = user_data(IO_EVENT_NONE, 0);
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
}

void loop_submit(struct io *io)
{
    int ret;

    if (!io_uring_sq_ready(&io->ring))
        return;
    do
        ret = io_uring_submit(&io->ring);
    while (ret == -EINTR || ret == -EAGAIN || ret == -EBUSY);
}

static void loop_kicked(struct io *io)
{
    uint64_t count;
    ssize_t ret = read(io->kick_fd, &count, sizeof count); /* non-blocking; only empties it */

    (void)ret;
    loop_poll(io, io->kick_fd, POLLIN, IO_EVENT_KICK, 0);
}

static void loop_handle(struct io *io, uint64_t data)
{
    uint32_t slot = (uint32_t)data;
    struct io_client *client = slot < io->table_max ? io->table[slot] : NULL;

    switch ((enum io_event)(data >> 56)) {
    case IO_EVENT_ACCEPT:
        io->accept_armed = 0;
        io->accept_pending = 1;
        control_defer(io, NULL);
        break;
    case IO_EVENT_KICK:
        loop_kicked(io);
        break;
    case IO_EVENT_SOCKET:
        client->armed_socket = 0;
        if (client->state != IO_CLIENT_DEAD)
            control_defer(io, client);
        break;
    case IO_EVENT_PIDFD:
        client->armed_pidfd = 0;
        client_detach(client);
        break;
    case IO_EVENT_BELL:
        client->armed_bell = 0;
        if (client->state == IO_CLIENT_LIVE && client->queue_state == IO_QUEUE_PARKED)
            queue_heat(client);
        break;
    case IO_EVENT_NONE:
        break;
    }
}

static void loop_reap(struct io *io)
{
    struct io_uring_cqe *cqe;

    for (uint32_t n = 0; n < IO_EVENTS_PER_PASS && !io_uring_peek_cqe(&io->ring, &cqe); n++) {
        uint64_t data = cqe->user_data;

        io_uring_cqe_seen(&io->ring, cqe);
        loop_handle(io, data);
    }
    loop_submit(io);
}

int loop_flagged(const struct io *io)
{
    /* The kernel sets TASKRUN in the ring's flags; more than one batch may be there already. */
    return (IO_URING_READ_ONCE(*io->ring.sq.kflags) &
            (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) ||
           io_uring_cq_ready(&io->ring);
}

void loop_events(struct io *io)
{
    if (!io_uring_cq_ready(&io->ring))
        io_uring_get_events(&io->ring);
    loop_reap(io);
}

void loop_wait(struct io *io, uint64_t timeout_ns)
{
    struct __kernel_timespec ts = {
        .tv_sec = (long long)(timeout_ns / 1000000000u),
        .tv_nsec = (long long)(timeout_ns % 1000000000u),
    };
    struct io_uring_cqe *cqe;

    if (timeout_ns == UINT64_MAX)
        io_uring_submit_and_wait(&io->ring, 1);
    else
        io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, &ts, NULL);
    loop_reap(io);
}
