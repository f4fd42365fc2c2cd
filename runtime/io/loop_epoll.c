/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_epoll.c - the ring thread's epoll, where io_uring is forbidden.
 *
 * No flag in memory tells that something has come, so a ring thread that polls its queues looks
 * here every EPOLL_LOOK_NS. The time-outs of epoll_wait are whole milliseconds: the newer call that
 * knows nanoseconds is one more that a seccomp filter may forbid.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"

#define EPOLL_LOOK_NS 20000u /* a look costs a third of a microsecond */

_Static_assert(EPOLLIN == POLLIN && EPOLLRDHUP == POLLRDHUP, "epoll takes the events of poll");

static int epoll_init(struct io *io, struct diag *diag)
{
    io->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (io->epoll_fd >= 0)
        return 0;
    diag_set(diag, "epoll_create1: %s", strerror(errno));
    return -errno;
}

static void epoll_fini(struct io *io)
{
    close(io->epoll_fd);
}

static int epoll_poll(struct io *io, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events | EPOLLONESHOT, .data.u64 = data};

    if (!epoll_ctl(io->epoll_fd, EPOLL_CTL_MOD, fd, &event))
        return 0;
    if (errno == ENOENT && !epoll_ctl(io->epoll_fd, EPOLL_CTL_ADD, fd, &event))
        return 0;
    return -errno;
}

static int epoll_cancel(struct io *io, int fd, uint64_t data)
{
    (void)data;
    epoll_ctl(io->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    return 1;
}

static void epoll_submit(struct io *io)
{
    (void)io; /* epoll_ctl() has done it */
}

static int epoll_flagged(const struct io *io)
{
    return clock_ns() - io->looked_ns > EPOLL_LOOK_NS;
}

static int timeout_ms(uint64_t timeout_ns)
{
    if (timeout_ns == UINT64_MAX)
        return -1;
    if (timeout_ns > 1000000000u)
        return 1000; /* whoever sleeps looks at its deadline again anyway */
    return (int)((timeout_ns + 999999u) / 1000000u);
}

static void epoll_wait_events(struct io *io, uint64_t timeout_ns)
{
    struct epoll_event events[IO_EVENTS_PER_PASS];
    int n = epoll_wait(io->epoll_fd, events, IO_EVENTS_PER_PASS, timeout_ms(timeout_ns));

    io->looked_ns = clock_ns();
    for (int i = 0; i < n; i++)
        loop_handle(io, events[i].data.u64);
}

const struct loop_ops loop_epoll = {
    .name = "epoll",
    .init = epoll_init,
    .fini = epoll_fini,
    .poll = epoll_poll,
    .cancel = epoll_cancel,
    .submit = epoll_submit,
    .flagged = epoll_flagged,
    .wait = epoll_wait_events,
};
