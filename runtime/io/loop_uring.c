/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_uring.c - the ring thread's io_uring.
 *
 * DEFER_TASKRUN: completions are made only in our own system calls, so a client that rings cannot
 * interrupt a step; TASKRUN_FLAG: one load tells that some are waiting. It carries polls of the
 * listening socket, the control sockets, the pidfds and the kick eventfd, and one FUTEX_WAIT per
 * parked queue where the kernel has it. liburing 2.3 has no call for that, so its entry is filled
 * in here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include "runtime/io/state.h"

#define OP_FUTEX_WAIT 51 /* IORING_OP_FUTEX_WAIT, Linux 6.7 */
#define FUTEX2_U32    2  /* FUTEX2_SIZE_U32, shared */
#define SQ_ENTRIES    256u

static int uring_init(struct io *io, struct diag *diag)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE,
        .cq_entries = SQ_ENTRIES * 2,
    };
    struct utsname host = {.release = "?"};
    int err;

    /* Every wait that can be armed at once may complete at once: socket, pidfd and bells of each
     * client. */
    while (params.cq_entries < (2 + TKR_NSQ_MAX) * io->table_max + SQ_ENTRIES)
        params.cq_entries *= 2;
    err = io_uring_queue_init_params(SQ_ENTRIES, &io->ring, &params);
    if (err == -ENOMEM) {
        diag_set(diag, "no memory for io_uring with %u entries: raise LimitMEMLOCK (ulimit -l)",
                 params.cq_entries);
    } else if (err < 0) {
        uname(&host);
        diag_set(diag,
                 "io_uring is not available: %s (Linux %s; it takes 6.1 or newer, and neither "
                 "kernel.io_uring_disabled nor a seccomp filter that forbids it)",
                 strerror(-err), host.release);
    }
    return err;
}

static void uring_fini(struct io *io)
{
    io_uring_queue_exit(&io->ring);
}

int uring_has_futex(struct io *io)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&io->ring);
    int has = probe && io_uring_opcode_supported(probe, OP_FUTEX_WAIT);

    free(probe);
    return has;
}

static void uring_submit(struct io *io)
{
    int ret;

    if (!io_uring_sq_ready(&io->ring))
        return;
    do
        ret = io_uring_submit(&io->ring);
    while (ret == -EINTR || ret == -EAGAIN || ret == -EBUSY);
}

static struct io_uring_sqe *uring_sqe(struct io *io)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);

    while (!sqe) {
        uring_submit(io);
        sqe = io_uring_get_sqe(&io->ring);
    }
    return sqe;
}

static int uring_poll(struct io *io, int fd, uint32_t events, uint64_t data)
{
    struct io_uring_sqe *sqe = uring_sqe(io);

    io_uring_prep_poll_add(sqe, fd, events);
    sqe->user_data = data;
    return 0;
}

void uring_futex(struct io *io, const uint32_t *word, uint32_t value, uint64_t data)
{
    struct io_uring_sqe *sqe = uring_sqe(io);

    io_uring_prep_nop(sqe); /* every other field is zero */
    sqe->opcode = OP_FUTEX_WAIT;
    sqe->fd = FUTEX2_U32;
    sqe->addr = (uint64_t)(uintptr_t)word;
    sqe->off = value;
    sqe->addr3 = UINT32_MAX; /* every bit of the wake mask */
    sqe->user_data = data;
}

static int uring_cancel(struct io *io, int fd, uint64_t data)
{
    struct io_uring_sqe *sqe = uring_sqe(io);

    (void)fd;
    io_uring_prep_cancel64(sqe, data, 0);
    sqe->user_data = IO_EVENT_NONE;
    sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
    return 0;
}

static void uring_reap(struct io *io)
{
    struct io_uring_cqe *cqe;

    for (uint32_t n = 0; n < IO_EVENTS_PER_PASS && !io_uring_peek_cqe(&io->ring, &cqe); n++) {
        uint64_t data = cqe->user_data;

        io_uring_cqe_seen(&io->ring, cqe);
        loop_handle(io, data);
    }
    uring_submit(io);
}

static int uring_flagged(const struct io *io)
{
    /* The kernel sets TASKRUN in the ring's flags; more than one batch may be there already. */
    return (IO_URING_READ_ONCE(*io->ring.sq.kflags) &
            (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) ||
           io_uring_cq_ready(&io->ring);
}

static void uring_wait(struct io *io, uint64_t timeout_ns)
{
    struct __kernel_timespec ts = {
        .tv_sec = (long long)(timeout_ns / 1000000000u),
        .tv_nsec = (long long)(timeout_ns % 1000000000u),
    };
    struct io_uring_cqe *cqe;

    if (!timeout_ns) {
        if (!io_uring_cq_ready(&io->ring))
            io_uring_get_events(&io->ring);
    } else if (timeout_ns == UINT64_MAX) {
        io_uring_submit_and_wait(&io->ring, 1);
    } else {
        io_uring_submit_and_wait_timeout(&io->ring, &cqe, 1, &ts, NULL);
    }
    uring_reap(io);
}

const struct loop_ops loop_uring = {
    .name = "io_uring",
    .init = uring_init,
    .fini = uring_fini,
    .poll = uring_poll,
    .cancel = uring_cancel,
    .submit = uring_submit,
    .flagged = uring_flagged,
    .wait = uring_wait,
};
