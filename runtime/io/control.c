/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the control socket: HELLO, WELCOME, ATTACH, READY, or REFUSED with a typed reason.
 *
 * One datagram is one message of 256 bytes. Everything that a peer sends is checked on a private
 * copy; whoever breaks a rule gets one REFUSED and is disconnected. Descriptors that were not asked
 * for are closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif
#define BACKLOG          128
#define ACCEPTS_MAX      16 /* at one go */
#define CTL_BYTES        256u
#define SQ_LOG2_DEFAULT  6u
#define CQ_LOG2_DEFAULT  8u
#define INFLIGHT_DEFAULT 64u
#define ARENA_DEFAULT    (1u << 20)
#define LOCK_TRIES       100 /* of 10 ms */

struct message {
    union {
        struct tkr_ctl_head head;
        struct tkr_hello hello;
        struct tkr_attach attach;
        uint8_t bytes[CTL_BYTES];
    } u;
    ssize_t bytes; /* 0: hang-up */
    int truncated; /* more descriptors than fit */
    int fds[IO_FDS_PER_MESSAGE];
    uint32_t n_fds;
};

/* ---- messages ------------------------------------------------------------------------------- */

static void fds_collect(struct message *m, struct msghdr *msg)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n && m->n_fds < IO_FDS_PER_MESSAGE; i++)
            memcpy(&m->fds[m->n_fds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
}

/* -EAGAIN: nothing there. */
static int message_recv(int socket, struct message *m)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(IO_FDS_PER_MESSAGE * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = m->u.bytes, .iov_len = CTL_BYTES};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control,
    };

    memset(m, 0, sizeof *m);
    do
        m->bytes = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (m->bytes < 0 && errno == EINTR);
    if (m->bytes < 0)
        return -errno;
    m->truncated = !!(msg.msg_flags & MSG_CTRUNC);
    if (msg.msg_flags & MSG_TRUNC)
        m->bytes = CTL_BYTES + 1; /* longer than any message */
    fds_collect(m, &msg);
    return 0;
}

static void message_close(struct message *m)
{
    while (m->n_fds)
        close(m->fds[--m->n_fds]);
}

/* A peer that does not read its socket loses the message, and is dropped by the caller. */
static int message_send(int socket, const void *bytes, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = CTL_BYTES};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control.bytes;
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.align), &fd, sizeof fd);
    }
    return sendmsg(socket, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)CTL_BYTES ? 0 : -errno;
}

static struct tkr_ctl_head head_of(enum tkr_ctl_type type)
{
    return (struct tkr_ctl_head){
        .magic = TKR_MAGIC_CTL,
        .type = (uint16_t)type,
        .bytes = CTL_BYTES,
        .major = TKR_ABI_MAJOR,
        .minor = TKR_ABI_MINOR,
    };
}

/* The text says which rule and which field, never a name, offset or id of anybody else. */
__attribute__((format(printf, 5, 6))) static void refuse(struct io_client *client,
                                                         enum tkr_refusal reason, uint64_t have,
                                                         uint64_t want, const char *format, ...)
{
    struct tkr_refused refused = {
        .head = head_of(TKR_CTL_REFUSED),
        .reason = (uint16_t)reason,
        .have = have,
        .want = want,
    };
    va_list ap;

    va_start(ap, format);
    vsnprintf(refused.message, sizeof refused.message, format, ap);
    va_end(ap);
    if (client->state == IO_CLIENT_LIVE)
        client->io->counts.struck++;
    else
        client->io->counts.refused++;
    message_send(client->socket, &refused, -1);
    client_detach(client);
}

static int all_zero(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++)
        any |= bytes[i];
    return !any;
}

/* 0, or -EPROTO: it was refused. */
static int message_check(struct io_client *client, const struct message *m, enum tkr_ctl_type want)
{
    const struct tkr_ctl_head *head = &m->u.head;

    if (m->bytes != (ssize_t)CTL_BYTES || head->magic != TKR_MAGIC_CTL ||
        head->bytes != CTL_BYTES) {
        refuse(client, TKR_REFUSED_MESSAGE, (uint64_t)m->bytes, CTL_BYTES,
               "not a control message of this protocol");
        return -EPROTO;
    }
    if (head->major != TKR_ABI_MAJOR) {
        refuse(client, TKR_REFUSED_VERSION, head->major, TKR_ABI_MAJOR,
               "the client speaks version %u.%u, this daemon %u.%u", head->major, head->minor,
               TKR_ABI_MAJOR, TKR_ABI_MINOR);
        return -EPROTO;
    }
    if (head->type != want || head->reserved) {
        refuse(client, TKR_REFUSED_MESSAGE, head->type, want, "message of type %u where %u is due",
               head->type, (unsigned)want);
        return -EPROTO;
    }
    return 0;
}

/* ---- HELLO ---------------------------------------------------------------------------------- */

static uint32_t bounded(uint32_t wanted, uint32_t otherwise, uint32_t min, uint32_t max)
{
    uint32_t value = wanted ? wanted : otherwise;

    return value < min ? min : value > max ? max : value;
}

static uint64_t line_up(uint64_t bytes)
{
    return (bytes + TKR_LINE - 1) / TKR_LINE * TKR_LINE;
}

static void grant_of(struct tkr_grant *ret, const struct io_client *client,
                     const struct tkr_hello *h)
{
    const struct io_opt *opt = &client->io->opt;
    uint64_t arena = h->arena_len ? h->arena_len : ARENA_DEFAULT;

    *ret = (struct tkr_grant){
        .arena_len = line_up(arena > opt->arena_max ? opt->arena_max : arena),
        .bulk_len = line_up(h->bulk_len > opt->bulk_max ? opt->bulk_max : h->bulk_len),
        .nsq = bounded(h->nsq, 1, 1, TKR_NSQ_MAX),
        .sq_log2 = bounded(h->sq_log2, SQ_LOG2_DEFAULT, TKR_SQ_LOG2_MIN, TKR_SQ_LOG2_MAX),
        .cq_log2 = bounded(h->cq_log2, CQ_LOG2_DEFAULT, TKR_CQ_LOG2_MIN, TKR_CQ_LOG2_MAX),
        .max_inflight = bounded(h->max_inflight, INFLIGHT_DEFAULT, 1, opt->inflight_max),
        .colour = client->slot % TKR_COLOURS,
    };
    /* Room for every terminal and as many lines of output; inflight_max keeps this below
     * TKR_CQ_LOG2_MAX. */
    while (1u << ret->cq_log2 < 2 * ret->max_inflight)
        ret->cq_log2++;
}

static void t_fill(struct io_client *client, struct tkr_t_header *h)
{
    const struct io_opt *opt = &client->io->opt;
    uint8_t *base = client->t.base;
    uint32_t *state = (void *)(base + h->ctl_off + TKR_T_STATE);
    uint32_t *cpu = (void *)(base + h->ctl_off + TKR_T_DAEMON_CPU);

    memcpy(h->op_bitmap, opt->op_bitmap, sizeof h->op_bitmap);
    h->n_models = opt->n_models;
    h->client_id = client->id;
    h->daemon_epoch = client->io->epoch;
    h->prompt_tokens_max = opt->prompt_tokens_max;
    h->output_tokens_max = opt->output_tokens_max;
    memcpy(base, h, sizeof *h);
    if (opt->n_models)
        memcpy(base + h->models_off, opt->models, opt->n_models * sizeof *opt->models);
    *state = client->io->draining ? TKR_STATE_DRAIN : TKR_STATE_RUN;
    *cpu = (uint32_t)client->io->cpu;
    memcpy(base + h->ctl_off + TKR_T_ENGINE_CPUS, opt->engine_cpus, sizeof opt->engine_cpus);
}

/* A descriptor that says when the peer dies. */
static int peer_watch(struct io_client *client)
{
    socklen_t bytes = sizeof client->pidfd;

    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERPIDFD, &client->pidfd, &bytes)) {
        client->pidfd = (int)syscall(SYS_pidfd_open, client->pid, 0);
        if (client->pidfd < 0) {
            client->pidfd = -1;
            return -errno;
        }
    }
    fcntl(client->pidfd, F_SETFD, FD_CLOEXEC);
    return 0;
}

/* Where memory may not be locked, the client is served all the same, and the operator sees it. */
static int region_lock(struct io_client *client, const void *base, size_t bytes)
{
    if (mlock(base, bytes) == 0)
        return 0;
    client->io->counts.mlock_failed++;
    client->unlocked = 1;
    return -errno;
}

static int t_create(struct io_client *client, struct tkr_t_header *ret_header)
{
    int err;

    tkr_t_layout(ret_header, &client->grant);
    err = tkr_region_create(&client->t, ret_header->region_len);
    if (err < 0)
        return err;
    t_fill(client, ret_header);
    err = tkr_region_seal(&client->t);
    if (err == 0)
        err = tkr_region_id(&client->t, &client->t_id);
    region_lock(client, client->t.base, client->t.bytes);
    return err;
}

static void welcome_send(struct io_client *client, const struct tkr_t_header *t)
{
    struct tkr_welcome welcome = {
        .head = head_of(TKR_CTL_WELCOME),
        .arena_len = client->grant.arena_len,
        .bulk_len = client->grant.bulk_len,
        .nsq = client->grant.nsq,
        .sq_log2 = client->grant.sq_log2,
        .cq_log2 = client->grant.cq_log2,
        .max_inflight = client->grant.max_inflight,
        .colour = client->grant.colour,
        .doorbell = client->io->doorbell,
        .t_region_len = t->region_len,
        .client_id = client->id,
        .daemon_epoch = client->io->epoch,
        .daemon_pid = getpid(),
    };

    if (message_send(client->socket, &welcome, client->t.fd) < 0) {
        client_detach(client);
        return;
    }
    tkr_region_close_fd(&client->t);
    client->state = IO_CLIENT_ATTACH;
}

static void hello(struct io_client *client, const struct message *m)
{
    const struct tkr_hello *h = &m->u.hello;
    struct io *io = client->io;
    struct tkr_r_header r;
    struct tkr_t_header t;
    struct io_refusal refusal;
    uint32_t others = 0;
    int err;

    if (message_check(client, m, TKR_CTL_HELLO) < 0)
        return;
    if (h->reserved0 || !all_zero(h->reserved, sizeof h->reserved) || h->class_ > TKR_CLASS_BATCH) {
        refuse(client, TKR_REFUSED_MESSAGE, 0, 0,
               "HELLO: a reserved byte is set or class is not 0..%u", (unsigned)TKR_CLASS_BATCH);
        return;
    }
    if (m->n_fds || m->truncated) {
        refuse(client, TKR_REFUSED_FD, m->n_fds, 0, "HELLO carries no descriptor");
        return;
    }
    if (io->draining) {
        refuse(client, TKR_REFUSED_DRAIN, 0, 0, "the daemon is stopping");
        return;
    }
    for (uint32_t i = 0; i < io->table_max; i++)
        others += io->table[i] && (io->table[i]->state == IO_CLIENT_LIVE ||
                                   io->table[i]->state == IO_CLIENT_ATTACH);
    if (others >= io->opt.clients_max) {
        refuse(client, TKR_REFUSED_LIMIT, io->opt.clients_max, (uint64_t)others + 1,
               "clients_max is reached");
        return;
    }
    grant_of(&client->grant, client, h);
    tkr_r_layout(&r, &client->grant);
    tkr_t_layout(&t, &client->grant);
    if (user_admit(client, h->class_, r.region_len + t.region_len, &refusal) < 0) {
        refuse(client, refusal.reason, refusal.have, refusal.want, "%s", refusal.what);
        return;
    }
    err = peer_watch(client);
    if (err < 0) {
        refuse(client, TKR_REFUSED_PEER, 0, 0, "the peer cannot be watched: %s", strerror(-err));
        return;
    }
    memcpy(client->library, h->library, sizeof client->library);
    err = tkr_grant_check(&client->grant);
    if (err == 0)
        err = t_create(client, &t);
    if (err < 0) {
        refuse(client, TKR_REFUSED_INTERNAL, 0, 0, "cannot make the token region: %s",
               strerror(-err));
        return;
    }
    welcome_send(client, &t);
}

/* ---- ATTACH --------------------------------------------------------------------------------- */

static const char *fault_text(uint16_t reason)
{
    switch (reason) {
    case TKR_REFUSED_FD:
        return "not a memfd";
    case TKR_REFUSED_SEALS:
        return "the seals SHRINK, GROW, FUTURE_WRITE and SEAL must be set";
    case TKR_REFUSED_FILESYSTEM:
        return "the region must lie in tmpfs (memfd without huge pages)";
    case TKR_REFUSED_SIZE:
        return "the region has not the size that the layout needs";
    default:
        return "a page of the region is missing: populate it before the seals";
    }
}

/* 1: the file is mapped for some client already, as R or as T. */
static int region_known(const struct io *io, const struct tkr_region_id *id)
{
    for (uint32_t i = 0; i < io->table_max; i++) {
        const struct io_client *c = io->table[i];

        if (!c)
            continue;
        if (c->r.base && c->r_id.dev == id->dev && c->r_id.ino == id->ino)
            return 1;
        if (c->t.base && c->t_id.dev == id->dev && c->t_id.ino == id->ino)
            return 1;
    }
    return 0;
}

/* Checks, maps and locks R. 0, or -EPROTO: it was refused. */
static int r_map(struct io_client *client, int fd, uint64_t bytes)
{
    struct io *io = client->io;
    struct tkr_region_fault fault;
    int err = tkr_region_check(fd, bytes, &client->r_id, &fault);

    if (err < 0) {
        refuse(client, fault.reason, fault.have, fault.want, "%s", fault_text(fault.reason));
        return -EPROTO;
    }
    if (region_known(io, &client->r_id)) {
        refuse(client, TKR_REFUSED_REUSED, 0, 0, "this region is in use already");
        return -EPROTO;
    }
    err = tkr_region_map(&client->r, fd, bytes);
    if (err < 0) {
        refuse(client, TKR_REFUSED_INTERNAL, 0, 0, "cannot map the region: %s", strerror(-err));
        return -EPROTO;
    }
    if (region_lock(client, client->r.base, bytes) < 0 && io->opt.require_mlock) {
        refuse(client, TKR_REFUSED_MLOCK, 0, bytes, "cannot lock the region: raise LimitMEMLOCK");
        return -EPROTO;
    }
    return 0;
}

static void live(struct io_client *client)
{
    struct io *io = client->io;
    struct tkr_ready ready = {.head = head_of(TKR_CTL_READY)};

    client->state = IO_CLIENT_LIVE;
    client->attached_ns = clock_ns();
    io->n_half_open--;
    io->n_live++;
    io->counts.attached++;
    for (uint32_t q = 0; q < client->n_queues; q++)
        queue_heat(&client->queue[q]);
    if (loop_arm_pidfd(client) < 0 || message_send(client->socket, &ready, -1) < 0)
        client_detach(client);
}

static void attach(struct io_client *client, const struct message *m)
{
    const struct tkr_attach *a = &m->u.attach;
    struct tkr_r_header want, header;
    struct tkr_t_header t;
    const char *field;

    if (message_check(client, m, TKR_CTL_ATTACH) < 0)
        return;
    if (a->flags || a->reserved0 || !all_zero((const uint8_t *)a->sq_pos, sizeof a->sq_pos) ||
        !all_zero(a->reserved, sizeof a->reserved)) {
        refuse(client, TKR_REFUSED_MESSAGE, a->flags, 0,
               "ATTACH: resume is not implemented, all else is 0");
        return;
    }
    if (client->io->draining) {
        refuse(client, TKR_REFUSED_DRAIN, 0, 0, "the daemon is stopping");
        return;
    }
    if (m->n_fds != 1 || m->truncated) {
        refuse(client, TKR_REFUSED_FD, m->n_fds, 1, "ATTACH carries exactly one descriptor");
        return;
    }
    tkr_r_layout(&want, &client->grant);
    if (a->region_len != want.region_len) {
        refuse(client, TKR_REFUSED_SIZE, a->region_len, want.region_len, "%s",
               fault_text(TKR_REFUSED_SIZE));
        return;
    }
    if (r_map(client, m->fds[0], a->region_len) < 0)
        return;

    /* The only read of the header; what the client writes there later changes nothing. */
    tkr_copy_once(&header, client->r.base, sizeof header);
    if (tkr_r_check(&header, &client->grant, &field) < 0) {
        refuse(client, TKR_REFUSED_LAYOUT, 0, 0, "header of the request region: %s", field);
        return;
    }
    tkr_t_layout(&t, &client->grant);
    if (client_bind(client, &header, &t) < 0) {
        refuse(client, TKR_REFUSED_INTERNAL, 0, 0, "out of memory");
        return;
    }
    live(client);
}

/* ---- the sockets ---------------------------------------------------------------------------- */

void control_socket(struct io_client *client)
{
    struct message m;
    int err = message_recv(client->socket, &m);

    if (err == 0) {
        if (m.bytes == 0 && !m.n_fds)
            client_detach(client); /* it closed its end; an empty datagram is no message either */
        else if (client->state == IO_CLIENT_HELLO)
            hello(client, &m);
        else if (client->state == IO_CLIENT_ATTACH)
            attach(client, &m);
        else
            client_detach(client); /* nothing may come on a connection that is attached */
        message_close(&m);
    } else if (err != -EAGAIN) {
        client_detach(client);
    }
    if (client->state != IO_CLIENT_DEAD && loop_arm_socket(client) < 0)
        client_detach(client);
}

static void accept_arm(struct io *io)
{
    if (io->accept_armed || io->listen_fd < 0)
        return;
    if (loop_arm(io, io->listen_fd, IO_EVENT_ACCEPT) == 0)
        io->accept_armed = 1;
}

void control_accept(struct io *io)
{
    for (int i = 0; i < ACCEPTS_MAX && io->n_table < io->table_max; i++) {
        int fd = accept4(io->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct io_client *client;

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0 && errno == EAGAIN)
            break;
        client = fd < 0 ? NULL : client_new(io, fd);
        if (!client) {
            /* Out of descriptors or memory: polling again at once would spin, so look again a
             * little later. */
            if (fd >= 0)
                close(fd);
            io->accept_retry_ns = clock_ns() + IO_SILENT_NS;
            return;
        }
        client->accepted_ns = clock_ns();
        if (user_enter(client) < 0 || loop_arm_socket(client) < 0)
            client_detach(client);
    }
    io->accept_retry_ns = 0;
    /* A full table takes no more until one is freed; the others wait in the backlog. */
    if (io->n_table < io->table_max)
        accept_arm(io);
    else
        io->accept_retry_ns = clock_ns() + IO_SILENT_NS;
}

void control_defer(struct io *io, struct io_client *client)
{
    if (client)
        set_add(io, IO_SET_CONTROL, client);
    if (!io->control_since_ns)
        io->control_since_ns = clock_ns();
}

void control_run(struct io *io)
{
    if (!io->control_since_ns)
        return;
    io->control_since_ns = 0;
    if (io->accept_pending) {
        io->accept_pending = 0;
        control_accept(io);
    }
    while (io->n_set[IO_SET_CONTROL]) {
        struct io_client *client = io->set[IO_SET_CONTROL][0];

        set_remove(io, IO_SET_CONTROL, client);
        if (client->struck)
            refuse(client, TKR_REFUSED_STRIKES, IO_STRIKES, (uint64_t)IO_STRIKES + 1,
                   "too many malformed requests in a second");
        else
            control_socket(client);
    }
    loop_submit(io);
}

void control_expire(struct io *io, uint64_t now)
{
    /* A full table keeps no place for those who only connect: they would keep the others out. */
    uint64_t silent_ns = io->n_table < io->table_max ? IO_HALF_OPEN_NS : IO_SILENT_NS;

    for (uint32_t i = 0; io->n_half_open && i < io->table_max; i++) {
        struct io_client *client = io->table[i];

        if (client && (client->state == IO_CLIENT_HELLO || client->state == IO_CLIENT_ATTACH) &&
            now - client->accepted_ns >
                (client->state == IO_CLIENT_HELLO ? silent_ns : IO_HALF_OPEN_NS))
            refuse(client, TKR_REFUSED_MESSAGE, IO_HALF_OPEN_NS, 0, "the attach took too long");
    }
    /* Last, since whom this takes came after now. */
    if (io->accept_retry_ns && now >= io->accept_retry_ns)
        control_accept(io);
}

/* ---- listening ------------------------------------------------------------------------------ */

/* Serialises daemons that start at once: each would find the dead socket file and replace the
 * other's new one. */
static int folder_lock(const char *path)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    char *copy = strdup(path);
    int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    free(copy);
    for (int i = 0; fd >= 0 && i < LOCK_TRIES && flock(fd, LOCK_EX | LOCK_NB); i++)
        nanosleep(&pause, NULL);
    return fd;
}

int io_listener_dead(int socket)
{
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    struct pollfd p = {.events = POLLIN};
    int dead;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) || cred.pid <= 0)
        return 0;
    p.fd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
    if (p.fd < 0)
        return errno == ESRCH;
    dead = poll(&p, 1, 0) == 1;
    close(p.fd);
    return dead;
}

/* -EADDRINUSE: somebody answers at this address, *ret_pid. 0: nobody does, and a socket file that a
 * dead daemon left is gone. */
static int stale_remove(const struct sockaddr_un *addr, pid_t *ret_pid)
{
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    struct stat st;
    int err = 0, fd;

    if (lstat(addr->sun_path, &st))
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -EEXIST;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* EAGAIN: its backlog is full, so it lives. */
    if (!connect(fd, (const struct sockaddr *)addr, sizeof *addr))
        err = io_listener_dead(fd) ? 0 : -EADDRINUSE;
    else if (errno == EAGAIN)
        err = -EADDRINUSE;
    else if (errno != ECONNREFUSED)
        err = -errno;
    if (err == -EADDRINUSE && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes))
        *ret_pid = cred.pid;
    close(fd);
    if (!err && unlink(addr->sun_path))
        err = -errno;
    return err;
}

/* A listening socket at addr; its descriptor. */
static int listen_at(const struct sockaddr_un *addr, mode_t mode)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), err;

    /* Before bind(), so that the file is never open to more users than it will be; after it against
     * the umask. */
    if (fd >= 0 && !fchmod(fd, mode) && !bind(fd, (const struct sockaddr *)addr, sizeof *addr) &&
        !chmod(addr->sun_path, mode) && !listen(fd, BACKLOG))
        return fd;
    err = -errno;
    if (fd >= 0)
        close(fd);
    return err;
}

/* As listen_at(), over the socket file of a living daemon: clients find one or the other, never none.
 * The old one may be told to stop only by its own user or root: asked before anything is done. */
static int listen_over(const struct sockaddr_un *addr, mode_t mode, pid_t pid)
{
    struct sockaddr_un beside = {.sun_family = AF_UNIX};
    int fd, err;

    if (pid <= 0 || kill(pid, 0))
        return pid <= 0 ? -EADDRINUSE : -errno;
    if ((size_t)snprintf(beside.sun_path, sizeof beside.sun_path, "%s.new", addr->sun_path) >=
        sizeof beside.sun_path)
        return -ENAMETOOLONG;
    unlink(beside.sun_path);
    fd = listen_at(&beside, mode);
    if (fd < 0)
        return fd;
    if (rename(beside.sun_path, addr->sun_path)) {
        err = -errno;
        unlink(beside.sun_path);
        close(fd);
        return err;
    }
    kill(pid, SIGTERM);
    return fd;
}

int io_listen(struct io *io, struct diag *diag)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const char *path = io->opt.socket_path;
    pid_t pid = 0;
    struct stat st;
    int lock, fd;

    if (strlen(path) >= sizeof addr.sun_path) {
        diag_set(diag, "%s: the path of a socket has at most %zu bytes", path,
                 sizeof addr.sun_path - 1);
        return -ENAMETOOLONG;
    }
    strcpy(addr.sun_path, path);
    lock = folder_lock(path);
    fd = stale_remove(&addr, &pid);
    if (fd == 0)
        fd = listen_at(&addr, io->opt.socket_mode);
    else if (fd == -EADDRINUSE && io->opt.takeover)
        fd = listen_over(&addr, io->opt.socket_mode, pid);
    if (fd >= 0 && stat(path, &st)) {
        close(fd);
        fd = -errno;
    }
    if (lock >= 0)
        close(lock);
    if (fd < 0) {
        diag_set(diag, "%s: %s", path,
                 fd == -EADDRINUSE ? "another daemon answers there"
                 : fd == -EEXIST   ? "exists and is not a socket"
                                   : strerror(-fd));
        return fd;
    }
    io->listen_id = (struct tkr_region_id){.dev = st.st_dev, .ino = st.st_ino};
    io->listen_fd = fd;
    accept_arm(io);
    loop_submit(io);
    return 0;
}

void control_close(struct io *io)
{
    struct stat st;

    if (io->listen_fd < 0)
        return;
    close(io->listen_fd);
    if (!stat(io->opt.socket_path, &st) && st.st_dev == io->listen_id.dev &&
        st.st_ino == io->listen_id.ino)
        unlink(io->opt.socket_path);
}
