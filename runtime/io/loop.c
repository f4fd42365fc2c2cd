/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - which way of waiting this host allows, and what an event means.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"

#define RINGS_PER_EVENT 8u         /* rings taken from a socket at one go; one is usual */
#define REARM_NS        1000000ull /* a doorbell that fired, of a client that does not park */

static uint64_t event_data(enum io_event event, uint32_t slot)
{
    return (uint64_t)event << 56 | slot;
}

/* ---- choosing ------------------------------------------------------------------------------- */

int io_kind_parse(const char *text, enum io_kind *ret_kind)
{
    static const char *const names[] = {"auto", "uring", "epoll"};

    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(text, names[i])) {
            *ret_kind = (enum io_kind)i;
            return 0;
        }
    }
    return -EINVAL;
}

int io_doorbell_parse(const char *text, enum io_doorbell *ret_doorbell)
{
    static const char *const names[] = {"auto", "futex", "socket"};

    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(text, names[i])) {
            *ret_doorbell = (enum io_doorbell)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *io_mode(const struct io *io)
{
    if (io->loop == &loop_epoll)
        return "epoll+socket";
    return io->doorbell == TKR_DOORBELL_FUTEX ? "io_uring+futex" : "io_uring+socket";
}

const char *io_note(const struct io *io)
{
    return io->note.text;
}

static int uring_choose(struct io *io, struct diag *diag)
{
    int err = loop_uring.init(io, diag);

    if (err < 0)
        return err;
    io->loop = &loop_uring;
    if (io->opt.doorbell == IO_DOORBELL_SOCKET)
        return 0;
    if (uring_has_futex(io)) {
        io->doorbell = TKR_DOORBELL_FUTEX;
    } else if (io->opt.doorbell == IO_DOORBELL_FUTEX) {
        diag_set(diag, "doorbell futex: this kernel's io_uring has no FUTEX_WAIT (Linux 6.7 has), "
                       "so it must be auto or socket");
        return -EOPNOTSUPP;
    } else {
        diag_set(&io->note, "this kernel's io_uring has no FUTEX_WAIT (Linux 6.7 has): clients "
                            "ring on their sockets");
    }
    return 0;
}

int loop_init(struct io *io, struct diag *diag)
{
    struct diag why;
    int err;

    io->doorbell = TKR_DOORBELL_SOCKET;
    if (io->opt.io == IO_KIND_EPOLL && io->opt.doorbell == IO_DOORBELL_FUTEX) {
        diag_set(diag, "io epoll cannot wait for futexes: doorbell must be auto or socket");
        return -EINVAL;
    }
    if (io->opt.io != IO_KIND_EPOLL) {
        err = uring_choose(io, &why);
        if (err < 0)
            diag_set(diag, "%s", why.text);
        /* A futex as doorbell was asked for, and only io_uring can wait for it. */
        if (io->loop || io->opt.io == IO_KIND_URING || io->opt.doorbell == IO_DOORBELL_FUTEX)
            return err;
        diag_set(&io->note, "%s: epoll is used, and clients ring on their sockets", why.text);
    }
    err = loop_epoll.init(io, diag);
    if (err == 0)
        io->loop = &loop_epoll;
    return err;
}

void loop_fini(struct io *io)
{
    if (io->loop)
        io->loop->fini(io);
    io->loop = NULL;
}

/* ---- arming --------------------------------------------------------------------------------- */

int loop_arm(struct io *io, int fd, enum io_event event)
{
    return io->loop->poll(io, fd, POLLIN, event_data(event, 0));
}

int loop_arm_socket(struct io_client *client)
{
    int err = client->io->loop->poll(client->io, client->socket, POLLIN | POLLRDHUP,
                                     event_data(IO_EVENT_SOCKET, client->slot));

    client->armed_socket = err == 0;
    return err;
}

int loop_arm_pidfd(struct io_client *client)
{
    int err = client->io->loop->poll(client->io, client->pidfd, POLLIN,
                                     event_data(IO_EVENT_PIDFD, client->slot));

    client->armed_pidfd = err == 0;
    return err;
}

void loop_bell(struct io_queue *queue)
{
    struct io_client *client = queue->client;
    struct io *io = client->io;

    if (io->doorbell == TKR_DOORBELL_SOCKET) {
        set_remove(io, IO_SET_RUNG, client);
        /* Bytes that are there already make it fire at once. */
        if (!client->armed_socket)
            loop_arm_socket(client);
    } else if (!(client->armed_bells >> queue->index & 1)) {
        /* A wait left from an earlier time fires for the next wake just as well. */
        uring_futex(io, queue->bell, queue->bell_value,
                    event_data(IO_EVENT_BELL, queue_number(queue)));
        client->armed_bells |= (uint8_t)(1u << queue->index);
    }
}

void loop_rearm(struct io *io)
{
    uint64_t now = clock_ns();

    for (uint32_t i = io->n_set[IO_SET_RUNG]; i-- > 0;) {
        struct io_client *client = io->set[IO_SET_RUNG][i];

        if (now - client->rung_ns < REARM_NS)
            continue;
        set_remove(io, IO_SET_RUNG, client);
        loop_arm_socket(client);
    }
}

void loop_cancel(struct io_client *client)
{
    struct io *io = client->io;
    const struct loop_ops *loop = io->loop;

    for (uint32_t q = 0; q < client->n_queues; q++)
        if (client->armed_bells >> q & 1)
            loop->cancel(io, -1, event_data(IO_EVENT_BELL, queue_number(&client->queue[q])));
    if (client->armed_socket &&
        loop->cancel(io, client->socket, event_data(IO_EVENT_SOCKET, client->slot)))
        client->armed_socket = 0;
    if (client->armed_pidfd &&
        loop->cancel(io, client->pidfd, event_data(IO_EVENT_PIDFD, client->slot)))
        client->armed_pidfd = 0;
}

int loop_idle(const struct io_client *client)
{
    return !client->armed_bells && !client->armed_socket && !client->armed_pidfd;
}

/* ---- events --------------------------------------------------------------------------------- */

/* Takes a bounded number of rings off the socket: what is left makes the next wait fire. -EAGAIN:
 * nothing there; -EPIPE: a hang-up, or something that is no ring, which is one byte. */
static int rings_take(int socket)
{
    uint8_t bytes[RINGS_PER_EVENT];
    struct iovec iov[RINGS_PER_EVENT];
    struct mmsghdr messages[RINGS_PER_EVENT];
    int n;

    memset(messages, 0, sizeof messages);
    for (unsigned i = 0; i < RINGS_PER_EVENT; i++) {
        iov[i] = (struct iovec){.iov_base = &bytes[i], .iov_len = 1};
        messages[i].msg_hdr.msg_iov = &iov[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    n = recvmmsg(socket, messages, RINGS_PER_EVENT, MSG_DONTWAIT, NULL);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    /* Without room for them the kernel closes descriptors that came along, and says CTRUNC. */
    for (int i = 0; i < n; i++)
        if (messages[i].msg_len != 1 || (messages[i].msg_hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
            return -EPIPE;
    return 0;
}

/* The socket of an attached client whose doorbell it is. */
static void socket_rang(struct io_client *client)
{
    int err = rings_take(client->socket);

    if (err < 0 && err != -EAGAIN) {
        client_detach(client);
        return;
    }
    client->rung_ns = clock_ns();
    set_add(client->io, IO_SET_RUNG, client);
    client_rung(client);
}

static void bell_rang(struct io *io, uint32_t number)
{
    struct io_client *client = io->table[number / TKR_NSQ_MAX];
    struct io_queue *queue = &client->queue[number % TKR_NSQ_MAX];

    client->armed_bells &= (uint8_t) ~(1u << queue->index);
    if (client->state == IO_CLIENT_LIVE && queue->state == IO_QUEUE_PARKED)
        queue_heat(queue);
}

static void kicked(struct io *io)
{
    uint64_t count;
    ssize_t ret = read(io->kick_fd, &count, sizeof count); /* non-blocking; only empties it */

    (void)ret;
    loop_arm(io, io->kick_fd, IO_EVENT_KICK);
}

void loop_handle(struct io *io, uint64_t data)
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
        kicked(io);
        break;
    case IO_EVENT_SOCKET:
        client->armed_socket = 0;
        if (client->state == IO_CLIENT_LIVE && io->doorbell == TKR_DOORBELL_SOCKET)
            socket_rang(client);
        else if (client->state != IO_CLIENT_DEAD)
            control_defer(io, client);
        break;
    case IO_EVENT_PIDFD:
        client->armed_pidfd = 0;
        client_detach(client);
        break;
    case IO_EVENT_BELL:
        bell_rang(io, slot);
        break;
    case IO_EVENT_NONE:
        break;
    }
}

void loop_submit(struct io *io)
{
    io->loop->submit(io);
}

int loop_flagged(const struct io *io)
{
    return io->loop->flagged(io);
}

void loop_events(struct io *io)
{
    io->loop->wait(io, 0);
}

void loop_wait(struct io *io, uint64_t timeout_ns)
{
    io->loop->wait(io, timeout_ns);
}
