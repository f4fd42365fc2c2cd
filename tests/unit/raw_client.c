/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/raw_client.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CTL_BYTES 256
#define FDS_MAX   16

int raw_connect(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    strncpy(addr.sun_path, path, sizeof addr.sun_path - 1);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr)) {
        int err = -errno;

        if (fd >= 0)
            close(fd);
        return err;
    }
    return fd;
}

struct tkr_ctl_head raw_head(int type)
{
    return (struct tkr_ctl_head){
        .magic = TKR_MAGIC_CTL, .type = (uint16_t)type, .bytes = CTL_BYTES, .major = 1, .minor = 0};
}

int raw_send(int socket, const void *bytes, size_t n, const int *fds, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        size_t fd_bytes = (size_t)n_fds * sizeof(int);

        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(fd_bytes);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(&control.align), fds, fd_bytes);
    }
    return sendmsg(socket, &msg, MSG_NOSIGNAL) == (ssize_t)n ? 0 : -errno;
}

int raw_recv(int socket, void *bytes, int *ret_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = bytes, .iov_len = CTL_BYTES};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c;

    *ret_fd = -1;
    if (n < 0)
        return -errno;
    if (n != CTL_BYTES)
        return n ? -EPROTO : -EPIPE;
    c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
    return 0;
}

int raw_hello_send(struct raw_client *c)
{
    if (!c->hello.head.magic)
        c->hello.head = raw_head(TKR_CTL_HELLO);
    return raw_send(c->socket, &c->hello, sizeof c->hello, NULL, 0);
}

static struct tkr_grant grant_of(const struct tkr_welcome *w)
{
    return (struct tkr_grant){
        .arena_len = w->arena_len,
        .bulk_len = w->bulk_len,
        .nsq = w->nsq,
        .sq_log2 = w->sq_log2,
        .cq_log2 = w->cq_log2,
        .max_inflight = w->max_inflight,
        .colour = w->colour,
    };
}

/* A REFUSED is kept for the test. */
static int answer_recv(struct raw_client *c, void *bytes, int type, int *ret_fd)
{
    struct tkr_ctl_head head;
    int err = raw_recv(c->socket, bytes, ret_fd);

    if (err < 0)
        return err;
    memcpy(&head, bytes, sizeof head);
    if (head.type == TKR_CTL_REFUSED) {
        memcpy(&c->refused, bytes, sizeof c->refused);
        return -EPERM;
    }
    return head.type == type && head.magic == TKR_MAGIC_CTL ? 0 : -EPROTO;
}

int raw_welcome_recv(struct raw_client *c)
{
    struct tkr_region_fault fault;
    struct tkr_region_id id;
    struct tkr_grant grant;
    const char *field;
    const uint8_t *t;
    int fd, err = answer_recv(c, &c->welcome, TKR_CTL_WELCOME, &fd);

    if (err < 0)
        return err;
    grant = grant_of(&c->welcome);
    err = tkr_region_check(fd, c->welcome.t_region_len, &id, &fault);
    if (!err)
        err = tkr_region_map(&c->t, fd, c->welcome.t_region_len);
    close(fd);
    if (err < 0)
        return err;
    tkr_copy_once(&c->th, c->t.base, sizeof c->th);
    err = tkr_t_check(&c->th, &grant, &field);
    if (err < 0)
        return err;
    t = c->t.base;
    tkr_ring_in_init(&c->cq, t + c->th.cq_off, c->th.cq_log2);
    c->sq_head = (const void *)(t + c->th.ctl_off + TKR_T_SQ_HEAD(0));
    c->need_wakeup = (const void *)(t + c->th.ctl_off + TKR_T_NEED_WAKEUP(0));
    c->cq_bell = (const void *)(t + c->th.ctl_off + TKR_T_CQ_BELL);
    c->state = (const void *)(t + c->th.ctl_off + TKR_T_STATE);
    c->results = (const void *)(t + c->th.res_off);
    c->bulk = t + c->th.bulk_off;
    return 0;
}

static void queue_bind(struct raw_client *c, uint32_t q)
{
    struct raw_queue *queue = &c->queue[q];
    uint8_t *r = c->r.base;
    const uint8_t *t = c->t.base;

    tkr_ring_out_init(&queue->sq, r + c->rh.sq_off + (size_t)c->rh.sq_stride * q, c->rh.sq_log2);
    queue->bell = (void *)(r + c->rh.ctl_off + TKR_R_BELL(q));
    queue->sq_wait = (void *)(r + c->rh.ctl_off + TKR_R_SQ_WAIT(q));
    queue->sq_head = (const void *)(t + c->th.ctl_off + TKR_T_SQ_HEAD(q));
    queue->need_wakeup = (const void *)(t + c->th.ctl_off + TKR_T_NEED_WAKEUP(q));
}

int raw_r_make(struct raw_client *c)
{
    struct tkr_grant grant = grant_of(&c->welcome);
    uint8_t *r;
    int err;

    tkr_r_layout(&c->rh, &grant);
    err = tkr_region_create(&c->r, c->rh.region_len);
    if (err < 0)
        return err;
    r = c->r.base;
    memcpy(r, &c->rh, sizeof c->rh);
    tkr_ring_out_init(&c->sq, r + c->rh.sq_off, c->rh.sq_log2);
    c->cq_head = (void *)(r + c->rh.ctl_off + TKR_R_CQ_HEAD);
    c->wait = (void *)(r + c->rh.ctl_off + TKR_R_WAIT);
    c->bell = (void *)(r + c->rh.ctl_off + TKR_R_BELL(0));
    c->cancel = (void *)(r + c->rh.cancel_off);
    c->release = (void *)(r + c->rh.release_off);
    c->arena = r + c->rh.arena_off;
    for (uint32_t q = 0; q < c->rh.nsq; q++)
        queue_bind(c, q);
    return 0;
}

int raw_r_seal(struct raw_client *c)
{
    return tkr_region_seal(&c->r);
}

int raw_attach_send(struct raw_client *c)
{
    struct tkr_attach attach = {.head = raw_head(TKR_CTL_ATTACH), .region_len = c->rh.region_len};

    return raw_send(c->socket, &attach, sizeof attach, &c->r.fd, 1);
}

int raw_ready_recv(struct raw_client *c)
{
    struct tkr_ready ready;
    int fd;

    return answer_recv(c, &ready, TKR_CTL_READY, &fd);
}

int raw_attach(struct raw_client *c)
{
    int (*const steps[])(struct raw_client *) = {raw_hello_send, raw_welcome_recv, raw_r_make,
                                                 raw_r_seal,     raw_attach_send,  raw_ready_recv};
    int err = 0;

    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && err == 0; i++)
        err = steps[i](c);
    return err;
}

void raw_close(struct raw_client *c)
{
    tkr_region_close(&c->r);
    tkr_region_close(&c->t);
    close(c->socket);
}

static int ring_bell(struct raw_client *c, uint32_t *bell, const uint32_t *need_wakeup)
{
    if (c->welcome.doorbell == TKR_DOORBELL_FUTEX)
        return tkr_doorbell_ring(bell, need_wakeup);
    /* Store-load; partner: the fence in tkr_doorbell_park(). */
    tkr_fence();
    if (!TKR_LOAD_RELAXED(need_wakeup))
        return 0;
    tkr_doorbell_send(c->socket);
    return 1;
}

int raw_put(struct raw_client *c, const struct tkr_sqe *sqe)
{
    tkr_ring_credit(&c->sq, TKR_LOAD_ACQUIRE(c->sq_head));
    tkr_ring_put(&c->sq, sqe);
    return ring_bell(c, c->bell, c->need_wakeup);
}

int raw_queue_put(struct raw_client *c, struct raw_queue *queue, const struct tkr_sqe *sqe)
{
    tkr_ring_credit(&queue->sq, TKR_LOAD_ACQUIRE(queue->sq_head));
    tkr_ring_put(&queue->sq, sqe);
    return ring_bell(c, queue->bell, queue->need_wakeup);
}

struct tkr_sqe raw_noop(struct raw_client *c, uint16_t tag)
{
    return (struct tkr_sqe){.op = TKR_OP_NOOP, .tag = tag, .user = ++c->user};
}

int raw_take(struct raw_client *c, struct tkr_cqe *ret, int keep)
{
    if (tkr_ring_take(&c->cq, ret) < 0)
        return -EAGAIN;
    if (!keep)
        TKR_STORE_RELEASE(c->cq_head, c->cq.pos);
    return 0;
}
