/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach.c - finds the daemon's socket and exchanges HELLO, WELCOME, ATTACH and READY.
 *
 * The client lays out R after WELCOME, which says the sizes and the colour. T is checked exactly as
 * the daemon checks R: a program must not take SIGBUS because it trusted a socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "clients/lib/conn.h"

#define SOCKET_PATHS_MAX 3u
#define FDS_MAX          8u /* of a confused daemon; the kernel drops what is beyond */

static _Thread_local char open_error[256];

const char *tkr_open_error(void)
{
    return open_error;
}

int open_fail(int err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(open_error, sizeof open_error, format, args);
    va_end(args);
    return err;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static struct timeval time_left(uint64_t deadline_ns)
{
    uint64_t now = clock_ns();
    uint64_t left_us = deadline_ns > now ? (deadline_ns - now) / 1000 : 0;

    if (!left_us)
        left_us = 1; /* 0 would mean no limit */
    return (struct timeval){.tv_sec = (time_t)(left_us / 1000000),
                            .tv_usec = (suseconds_t)(left_us % 1000000)};
}

/* A folder below /tmp can be made by anybody before us: it must be ours and closed to others. */
static int folder_ours(const char *socket_path)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path] = "";
    const char *slash = strrchr(socket_path, '/');
    struct stat st;

    memcpy(folder, socket_path, (size_t)(slash - socket_path));
    return !lstat(folder, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & 022);
}

static int socket_connect(const char *path, uint64_t deadline_ns, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct timeval left = time_left(deadline_ns);
    int fd, err;

    if (strlen(path) >= sizeof addr.sun_path)
        return -ENAMETOOLONG;
    strcpy(addr.sun_path, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* Bounds connect() as well, which waits while the daemon's backlog is full. */
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left) ||
        connect(fd, (const struct sockaddr *)&addr, sizeof addr)) {
        err = errno == EAGAIN ? -ETIMEDOUT : errno == ENOTDIR ? -ENOENT : -errno;
        close(fd);
        return err == -EPROTOTYPE ? -EPROTO : err;
    }
    *ret_fd = fd;
    return 0;
}

/* The first place that answers; a place that refuses us is a better reason than one that is not
 * there. */
static int socket_find(uint64_t deadline_ns, int *ret_fd)
{
    char paths[SOCKET_PATHS_MAX][sizeof((struct sockaddr_un *)0)->sun_path];
    const char *runtime_dir = getenv("XDG_RUNTIME_DIR");
    unsigned n = 0, worst = 0;
    int err = -ENOENT;

    if (runtime_dir && *runtime_dir &&
        strlen(runtime_dir) + sizeof "/tokenring/socket" <= sizeof paths[0])
        snprintf(paths[n++], sizeof paths[0], "%.80s/tokenring/socket", runtime_dir);
    snprintf(paths[n++], sizeof paths[0], "/run/tokenring/socket");
    snprintf(paths[n++], sizeof paths[0], "/tmp/tokenring-%u/socket", (unsigned)geteuid());

    for (unsigned i = 0; i < n; i++) {
        int try = !strncmp(paths[i], "/tmp/", 5) && i == n - 1 && !folder_ours(paths[i])
                      ? -ENOENT
                      : socket_connect(paths[i], deadline_ns, ret_fd);

        if (!try)
            return 0;
        if (try != -ENOENT && err == -ENOENT) {
            err = try;
            worst = i;
        }
    }
    if (err != -ENOENT)
        return open_fail(err, "%s: %s", paths[worst], tkr_strerror(err));
    return open_fail(err,
                     "no daemon: nothing listens at %s%s%s%s%s; start tokenringd or set "
                     "TOKENRING_SOCKET",
                     paths[0], n > 1 ? ", " : "", n > 1 ? paths[1] : "", n > 2 ? ", " : "",
                     n > 2 ? paths[2] : "");
}

static int socket_open(const char *path, uint64_t deadline_ns, int *ret_fd)
{
    const char *env = getenv("TOKENRING_SOCKET");
    int err;

    if (!path && env && *env)
        path = env;
    if (!path)
        return socket_find(deadline_ns, ret_fd);
    err = socket_connect(path, deadline_ns, ret_fd);
    return err ? open_fail(err, "%.200s: %s", path, tkr_strerror(err)) : 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

static struct tkr_ctl_head ctl_head(enum tkr_ctl_type type)
{
    return (struct tkr_ctl_head){
        .magic = TKR_MAGIC_CTL,
        .type = (uint16_t)type,
        .bytes = sizeof(struct tkr_hello),
        .major = TKR_ABI_MAJOR,
        .minor = TKR_ABI_MINOR,
    };
}

/* fd < 0: none goes along. */
static int ctl_send(int sock, const void *message, size_t bytes, int fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)message, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t sent;

    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof fd),
            .cmsg_level = SOL_SOCKET,
            .cmsg_type = SCM_RIGHTS,
        };
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    }
    do
        sent = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)bytes)
        return 0;
    if (sent < 0 && errno == EAGAIN)
        return -ETIMEDOUT;
    /* The daemon may have refused us and hung up: its reason still waits in our queue. */
    return sent < 0 && (errno == EPIPE || errno == ECONNRESET) ? 0 : sent < 0 ? -errno : -EPROTO;
}

/* Keeps the first descriptor in *ret_fd (-1: none) and closes any other. Returns how many came. */
static unsigned fds_take(struct msghdr *msg, int *ret_fd)
{
    unsigned count = 0;

    *ret_fd = -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
        size_t n;

        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            if (count++)
                close(fd);
            else
                *ret_fd = fd;
        }
    }
    return count;
}

static int refused(const struct tkr_refused *message)
{
    char text[sizeof message->message];
    int err;

    memcpy(text, message->message, sizeof text);
    text[sizeof text - 1] = '\0';
    switch ((enum tkr_refusal)message->reason) {
    case TKR_REFUSED_PEER:
        err = -EACCES;
        break;
    case TKR_REFUSED_LIMIT:
    case TKR_REFUSED_MLOCK:
    case TKR_REFUSED_STRIKES:
        err = -EDQUOT;
        break;
    case TKR_REFUSED_DRAIN:
        err = -ECONNREFUSED;
        break;
    case TKR_REFUSED_INTERNAL:
        err = -EIO;
        break;
    default:
        err = -EPROTO;
        break;
    }
    return open_fail(err, "the daemon refused: %s (reason %u, have %llu, want %llu)",
                     *text ? text : tkr_strerror(err), message->reason,
                     (unsigned long long)message->have, (unsigned long long)message->want);
}

/*
 * Receives one message of 256 bytes. want_fd: exactly one descriptor must come along. A REFUSED
 * instead of the wanted type becomes its errno.
 */
static int ctl_recv(int sock, enum tkr_ctl_type type, void *ret_message, int *ret_fd,
                    uint64_t deadline_ns)
{
    union {
        struct tkr_ctl_head head;
        struct tkr_refused refused;
        uint8_t bytes[sizeof(struct tkr_hello)];
    } message;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &message, .iov_len = sizeof message};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct timeval left;
    ssize_t got;
    unsigned n_fds;
    int fd;

    do {
        left = time_left(deadline_ns);
        setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &left, sizeof left);
        got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        return open_fail(-ETIMEDOUT, "the daemon accepted but did not answer in time");
    if (got <= 0)
        return open_fail(-ECONNREFUSED, "the daemon hung up during the handshake");

    n_fds = fds_take(&msg, &fd);
    if (got != (ssize_t)sizeof message || message.head.magic != TKR_MAGIC_CTL ||
        message.head.bytes != sizeof message || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        goto protocol;
    if (message.head.type == TKR_CTL_REFUSED && !n_fds)
        return refused(&message.refused);
    if (message.head.major != TKR_ABI_MAJOR || message.head.type != type ||
        n_fds != (ret_fd ? 1u : 0u))
        goto protocol;

    memcpy(ret_message, &message, sizeof message);
    if (ret_fd)
        *ret_fd = fd;
    return 0;

protocol:
    if (fd >= 0)
        close(fd);
    return open_fail(-EPROTO, "what answers here is not tokenringd with protocol %u.%u",
                     TKR_ABI_MAJOR, TKR_ABI_MINOR);
}

/* ---- regions --------------------------------------------------------------------------------- */

static uint32_t log2_at_least(uint32_t value, uint32_t low, uint32_t high)
{
    uint32_t log2 = low;

    while (log2 < high && (1u << log2) < value)
        log2++;
    return log2;
}

static struct tkr_hello hello_of(const struct tkr_opt *opt)
{
    struct tkr_hello hello = {
        .head = ctl_head(TKR_CTL_HELLO),
        .arena_len = ((uint64_t)opt->arena_bytes + TKR_LINE - 1) / TKR_LINE * TKR_LINE,
        .bulk_len = ((uint64_t)opt->bulk_bytes + TKR_LINE - 1) / TKR_LINE * TKR_LINE,
        .nsq = opt->n_queues,
        .sq_log2 = log2_at_least(opt->max_inflight, TKR_SQ_LOG2_MIN, TKR_SQ_LOG2_MAX),
        .max_inflight = opt->max_inflight,
        .library = "libtokenring " TKR_VERSION,
    };

    /* Room for a few lines of every request, so that one that is read slowly holds nobody up. */
    hello.cq_log2 = log2_at_least(8 * opt->max_inflight, 8, TKR_CQ_LOG2_MAX);
    return hello;
}

/* Asks a restarted daemon for what the earlier one granted. */
static struct tkr_hello hello_again(const struct tkr_grant *grant)
{
    return (struct tkr_hello){
        .head = ctl_head(TKR_CTL_HELLO),
        .arena_len = grant->arena_len,
        .bulk_len = grant->bulk_len,
        .nsq = grant->nsq,
        .sq_log2 = grant->sq_log2,
        .cq_log2 = grant->cq_log2,
        .max_inflight = grant->max_inflight,
        .library = "libtokenring " TKR_VERSION,
    };
}

/* A socket to a daemon, and what its WELCOME brought. */
struct link {
    int fd;
    struct tkr_grant grant;
    uint64_t features;
    uint32_t doorbell;
    int32_t daemon_pid;
    struct tkr_region t;
    struct tkr_t_header t_header;
};

static void link_close(struct link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    tkr_region_close(&link->t);
}

static int t_open(struct link *link, const struct tkr_welcome *welcome, int fd)
{
    struct tkr_region_fault fault;
    struct tkr_region_id id;
    const char *field;
    int err;

    if (tkr_region_check(fd, welcome->t_region_len, &id, &fault) < 0)
        return open_fail(-EPROTO, "the daemon's region is unsafe: reason %u, have %llu, want %llu",
                         fault.reason, (unsigned long long)fault.have,
                         (unsigned long long)fault.want);
    if (welcome->t_region_len < TKR_PAGE)
        return open_fail(-EPROTO, "the daemon's region has no header");
    err = tkr_region_map(&link->t, fd, welcome->t_region_len);
    if (err < 0)
        return open_fail(err, "cannot map the daemon's region: %s", strerror(-err));
    tkr_copy_once(&link->t_header, link->t.base, sizeof link->t_header);
    if (link->t_header.region_len != welcome->t_region_len ||
        tkr_t_check(&link->t_header, &link->grant, &field) < 0)
        return open_fail(-EPROTO, "the daemon's region has a wrong header");
    return 0;
}

/* HELLO and WELCOME. On failure the caller closes the link. */
static int link_open(struct link *link, const struct tkr_hello *hello, const char *path,
                     uint64_t deadline_ns)
{
    struct tkr_welcome welcome;
    struct tkr_grant *grant = &link->grant;
    int t_fd, err;

    *link = (struct link){.fd = -1, .t.fd = -1};
    err = socket_open(path, deadline_ns, &link->fd);
    if (err < 0)
        return err;
    err = ctl_send(link->fd, hello, sizeof *hello, -1);
    if (err < 0)
        return open_fail(err, "cannot send to the daemon: %s", strerror(-err));
    err = ctl_recv(link->fd, TKR_CTL_WELCOME, &welcome, &t_fd, deadline_ns);
    if (err < 0)
        return err;

    *grant = (struct tkr_grant){
        .arena_len = welcome.arena_len,
        .bulk_len = welcome.bulk_len,
        .nsq = welcome.nsq,
        .sq_log2 = welcome.sq_log2,
        .cq_log2 = welcome.cq_log2,
        .max_inflight = welcome.max_inflight,
        .colour = welcome.colour,
    };
    link->features = welcome.features;
    link->doorbell = welcome.doorbell;
    link->daemon_pid = welcome.daemon_pid;
    /* A daemon may grant less, never more: more would be our memory that we did not ask for. */
    if (tkr_grant_check(grant) < 0 || grant->nsq > hello->nsq ||
        grant->arena_len > hello->arena_len || grant->bulk_len > hello->bulk_len ||
        grant->max_inflight > hello->max_inflight || welcome.doorbell > TKR_DOORBELL_SOCKET)
        err = open_fail(-EPROTO, "the daemon granted sizes that were not asked for");
    else
        err = t_open(link, &welcome, t_fd);
    close(t_fd);
    return err;
}

/* ATTACH and READY. */
static int link_attach(const struct link *link, const struct tkr_region *r, uint64_t deadline_ns)
{
    struct tkr_attach attach = {.head = ctl_head(TKR_CTL_ATTACH), .region_len = r->bytes};
    struct tkr_ready ready;
    int err = ctl_send(link->fd, &attach, sizeof attach, r->fd);

    if (err < 0)
        return open_fail(err, "cannot send to the daemon: %s", strerror(-err));
    return ctl_recv(link->fd, TKR_CTL_READY, &ready, NULL, deadline_ns);
}

static void t_bind(tkr_conn *conn, const struct link *link)
{
    const uint8_t *base = link->t.base;
    const uint8_t *ctl = base + link->t_header.ctl_off;

    conn->t = link->t;
    conn->t_header = link->t_header;
    conn->state = (const uint32_t *)(const void *)(ctl + TKR_T_STATE);
    conn->daemon_cpu = (const uint32_t *)(const void *)(ctl + TKR_T_DAEMON_CPU);
    conn->engine_cpus = (const uint64_t *)(const void *)(ctl + TKR_T_ENGINE_CPUS);
    conn->cq_bell = (const uint32_t *)(const void *)(ctl + TKR_T_CQ_BELL);
    conn->bulk_base = base + link->t_header.bulk_off;
    conn->cq_head_told = 0;
    tkr_ring_in_init(&conn->cq, base + link->t_header.cq_off, link->t_header.cq_log2);
    for (uint32_t i = 0; i < conn->n_queues; i++) {
        conn->queues[i].sq_head = (const uint32_t *)(const void *)(ctl + TKR_T_SQ_HEAD(i));
        conn->queues[i].need_wakeup = (const uint32_t *)(const void *)(ctl + TKR_T_NEED_WAKEUP(i));
    }
    conn->doorbell = link->doorbell;
    conn->daemon_pid = link->daemon_pid;
}

/* R's header and empty queues. The arena stays as it is: where it lies does not depend on the
 * colour, the one size that another daemon may grant differently. */
static void r_bind(tkr_conn *conn, const struct link *link)
{
    struct tkr_r_header header;
    uint8_t *base = conn->r.base;
    uint8_t *ctl;

    tkr_r_layout(&header, &link->grant);
    header.features = link->features;
    header.client_nonce = conn->nonce;
    memset(base, 0, header.arena_off);
    memcpy(base, &header, sizeof header);

    ctl = base + header.ctl_off;
    conn->cq_head = (uint32_t *)(void *)(ctl + TKR_R_CQ_HEAD);
    conn->wait = (uint64_t *)(void *)(ctl + TKR_R_WAIT);
    conn->cancel = (uint32_t *)(void *)(base + header.cancel_off);
    conn->release = (uint32_t *)(void *)(base + header.release_off);
    conn->arena_base = base + header.arena_off;
    conn->arena_len = (uint32_t)header.arena_len;
    for (uint32_t i = 0; i < conn->n_queues; i++) {
        struct queue *queue = &conn->queues[i];

        queue->bell = (uint32_t *)(void *)(ctl + TKR_R_BELL(i));
        queue->sq_wait = (uint32_t *)(void *)(ctl + TKR_R_SQ_WAIT(i));
        tkr_ring_out_init(&queue->sq, base + header.sq_off + (size_t)header.sq_stride * i,
                          header.sq_log2);
    }
}

static int r_open(tkr_conn *conn, const struct link *link)
{
    struct tkr_r_header header;
    int err;

    tkr_r_layout(&header, &link->grant);
    /* Only names this connection in the daemon's logs; a poor value is no danger. */
    if (getrandom(&conn->nonce, sizeof conn->nonce, GRND_NONBLOCK) < 0)
        conn->nonce = clock_ns();
    err = tkr_region_create(&conn->r, header.region_len);
    if (err < 0)
        return open_fail(err, "cannot make a region of %llu bytes: %s",
                         (unsigned long long)header.region_len, strerror(-err));
    r_bind(conn, link);
    err = tkr_region_seal(&conn->r);
    if (err < 0)
        return open_fail(err, "cannot seal the region: %s", strerror(-err));
    return 0;
}

int conn_attach(tkr_conn *conn, const struct tkr_opt *opt, uint64_t deadline_ns)
{
    struct tkr_hello hello = hello_of(opt);
    struct link link;
    int err = link_open(&link, &hello, opt->path, deadline_ns);

    if (err < 0)
        goto fail;
    conn->n_queues = link.grant.nsq;
    if (link.grant.max_inflight < conn->n_queues) {
        err = open_fail(-EDQUOT, "the daemon grants %u requests for %u queues",
                        link.grant.max_inflight, conn->n_queues);
        goto fail;
    }
    err = r_open(conn, &link);
    if (err < 0)
        goto fail;
    err = link_attach(&link, &conn->r, deadline_ns);
    if (err < 0)
        goto fail;
    /* A connection that may come back offers the same file again. */
    if (!opt->reconnect)
        tkr_region_close_fd(&conn->r);

    conn->fd = link.fd;
    conn->grant = link.grant;
    conn->max_inflight = link.grant.max_inflight;
    t_bind(conn, &link);
    return 0;

fail:
    link_close(&link);
    return err;
}

int conn_reattach(tkr_conn *conn, uint64_t deadline_ns, struct tkr_region *ret_t,
                  struct tkr_t_header *ret_t_header)
{
    struct tkr_hello hello = hello_again(&conn->grant);
    const struct tkr_grant *had = &conn->grant;
    struct link link;
    int err = link_open(&link, &hello, conn->reconnect.path, deadline_ns);

    if (err < 0)
        goto fail;
    if (link.grant.arena_len != had->arena_len || link.grant.nsq != had->nsq ||
        link.grant.sq_log2 != had->sq_log2 || link.grant.max_inflight != had->max_inflight) {
        err = -ENOTSUP;
        goto fail;
    }
    r_bind(conn, &link);
    err = link_attach(&link, &conn->r, deadline_ns);
    if (err < 0)
        goto fail;
    /* The same number: a program may have it in its poll set. */
    if (dup3(link.fd, conn->fd, O_CLOEXEC) < 0) {
        err = -errno;
        goto fail;
    }
    close(link.fd);

    *ret_t = conn->t;
    *ret_t_header = conn->t_header;
    conn->grant = link.grant;
    t_bind(conn, &link);
    return 0;

fail:
    link_close(&link);
    return err;
}
