/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS_MAX 8

static void must(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "fake daemon: %s: %s\n", what, strerror(errno));
    abort();
}

void fake_listen(struct fake *fake)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    fake->sock = -1;
    if (!*fake->path) {
        strcpy(fake->dir, "/tmp/tokenring-test-XXXXXX");
        must(mkdtemp(fake->dir) != NULL, "mkdtemp");
        snprintf(fake->path, sizeof fake->path, "%s/socket", fake->dir);
    }
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", fake->path);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    must(fake->listener >= 0, "socket");
    must(!bind(fake->listener, (struct sockaddr *)&addr, sizeof addr), "bind");
    must(!listen(fake->listener, 8), "listen");
}

static void ctl_send(int sock, const void *message, const int *fds, unsigned n_fds)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)message,
                        .iov_len = sizeof(struct tkr_hello)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(n_fds * sizeof(int)),
                                        .cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), fds, n_fds * sizeof(int));
    }
    /* A client that left is found when its next message does not come. */
    must(sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)iov.iov_len || errno == EPIPE, "sendmsg");
}

/* Returns the descriptor that came along, -1 if none, -2 if the client hung up. */
static int ctl_recv(int sock, void *ret_message)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = ret_message, .iov_len = sizeof(struct tkr_hello)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    int fd;

    if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) != (ssize_t)iov.iov_len)
        return -2;
    if (!CMSG_FIRSTHDR(&msg))
        return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
    return fd;
}

static struct tkr_ctl_head head_of(enum tkr_ctl_type type)
{
    return (struct tkr_ctl_head){.magic = TKR_MAGIC_CTL,
                                 .type = (uint16_t)type,
                                 .bytes = 256,
                                 .major = TKR_ABI_MAJOR,
                                 .minor = TKR_ABI_MINOR};
}

static void refuse(struct fake *fake, uint16_t reason)
{
    struct tkr_refused message = {
        .head = head_of(TKR_CTL_REFUSED), .reason = reason, .have = 3, .want = 4};

    snprintf(message.message, sizeof message.message, "because of the test");
    ctl_send(fake->sock, &message, NULL, 0);
}

/* T with one model entry, and WELCOME. */
static void welcome(struct fake *fake, const struct tkr_grant *grant)
{
    struct tkr_model_entry model = {
        .gen = 2, .n_ctx = 2048, .n_vocab = 49152, .flags = TKR_MODEL_PRESENT | TKR_MODEL_CHAT};
    struct tkr_welcome message = {
        .head = head_of(TKR_CTL_WELCOME),
        .arena_len = grant->arena_len,
        .bulk_len = grant->bulk_len,
        .nsq = grant->nsq,
        .sq_log2 = grant->sq_log2,
        .cq_log2 = grant->cq_log2,
        .max_inflight = grant->max_inflight,
        .colour = grant->colour,
        .doorbell = fake->doorbell,
        .daemon_pid = (int32_t)getpid(),
    };
    int fds[FDS_MAX];
    uint8_t *base;

    tkr_t_layout(&fake->th, grant);
    message.t_region_len = fake->th.region_len;
    must(!tkr_region_create(&fake->t, fake->th.region_len), "T");
    base = fake->t.base;
    fake->th.n_models = 1;
    fake->th.prompt_tokens_max = 2047;
    fake->th.output_tokens_max = 2048;
    memcpy(base, &fake->th, sizeof fake->th);
    if (fake->spoil_t)
        fake->spoil_t((struct tkr_t_header *)(void *)base);
    snprintf(model.name, sizeof model.name, "fake");
    memset(model.hash, 0xab ^ fake->model, sizeof model.hash);
    memcpy(base + fake->th.models_off, &model, sizeof model);
    fake->ctl = base + fake->th.ctl_off;
    *fake_t_word(fake, TKR_T_STATE) = TKR_STATE_RUN;
    *fake_t_word(fake, TKR_T_DAEMON_CPU) = UINT32_MAX;
    tkr_ring_out_init(&fake->cq, base + fake->th.cq_off, fake->th.cq_log2);
    if (!fake->unsealed)
        must(!tkr_region_seal(&fake->t), "seal");
    if (fake->spoil_welcome)
        fake->spoil_welcome(&message);
    for (unsigned i = 0; i < 1 + fake->extra_fds; i++)
        fds[i] = fake->t.fd;
    ctl_send(fake->sock, &message, fds, 1 + fake->extra_fds);
}

static int attach(struct fake *fake, const struct tkr_grant *grant)
{
    struct tkr_ready ready = {.head = head_of(TKR_CTL_READY)};
    struct tkr_region_fault fault;
    struct tkr_attach message;
    const char *field;
    int fd = ctl_recv(fake->sock, &message);

    if (fd < 0)
        return -1;
    if (fake->refuse_attach) {
        refuse(fake, fake->refuse_attach);
        close(fd);
        return -1;
    }
    must(!tkr_region_check(fd, message.region_len, &fake->r_id, &fault), "R's file");
    must(!tkr_region_map(&fake->r, fd, message.region_len), "map R");
    close(fd);
    memcpy(&fake->rh, fake->r.base, sizeof fake->rh);
    must(!tkr_r_check(&fake->rh, grant, &field), "R's header");
    fake->r_ctl = (const uint8_t *)fake->r.base + fake->rh.ctl_off;
    for (uint32_t i = 0; i < fake->rh.nsq; i++)
        tkr_ring_in_init(&fake->sq[i],
                         (const uint8_t *)fake->r.base + fake->rh.sq_off + i * fake->rh.sq_stride,
                         fake->rh.sq_log2);
    ctl_send(fake->sock, &ready, NULL, 0);
    fake->attached = 1;
    return 0;
}

int fake_accept(struct fake *fake)
{
    struct tkr_grant grant;

    fake->attached = 0;
    fake->sock = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    must(fake->sock >= 0, "accept");
    if (ctl_recv(fake->sock, &fake->hello) == -2 || fake->silent)
        return -1;
    if (fake->hang_up) {
        close(fake->sock);
        fake->sock = -1;
        return -1;
    }
    if (fake->refuse_hello) {
        refuse(fake, fake->refuse_hello);
        return -1;
    }
    grant = (struct tkr_grant){
        .arena_len = fake->arena_max ? fake->arena_max : fake->hello.arena_len,
        .bulk_len = fake->hello.bulk_len,
        .nsq = fake->nsq_max ? fake->nsq_max : fake->hello.nsq,
        .sq_log2 = fake->hello.sq_log2,
        .cq_log2 = fake->hello.cq_log2,
        .max_inflight = fake->inflight_max ? fake->inflight_max : fake->hello.max_inflight,
        .colour = fake->colour,
    };
    welcome(fake, &grant);
    return attach(fake, &grant);
}

static void *accept_thread(void *arg)
{
    fake_accept(arg);
    return NULL;
}

int fake_open(struct fake *fake, tkr_conn **ret_conn, tkr_opt *opt)
{
    tkr_opt o = {.size = sizeof o};
    pthread_t thread;
    int err;

    fake_listen(fake);
    if (!opt)
        opt = &o;
    opt->path = fake->path;
    must(!pthread_create(&thread, NULL, accept_thread, fake), "pthread_create");
    err = tkr_open(ret_conn, opt);
    must(!pthread_join(thread, NULL), "pthread_join");
    return err;
}

void fake_hang_up(struct fake *fake)
{
    if (fake->sock >= 0)
        close(fake->sock);
    fake->sock = -1;
    tkr_region_close(&fake->t);
    tkr_region_close(&fake->r);
}

void fake_close(struct fake *fake)
{
    fake_hang_up(fake);
    close(fake->listener);
    unlink(fake->path);
    if (*fake->dir)
        rmdir(fake->dir);
}

uint32_t *fake_t_word(struct fake *fake, uint32_t off)
{
    return (uint32_t *)(void *)(fake->ctl + off);
}

const uint32_t *fake_r_word(const struct fake *fake, uint32_t off)
{
    return (const uint32_t *)(const void *)(fake->r_ctl + off);
}

const void *fake_arena(const struct fake *fake, uint32_t off)
{
    return (const uint8_t *)fake->r.base + fake->rh.arena_off + off;
}

int fake_take_from(struct fake *fake, uint32_t queue, struct tkr_sqe *ret_sqe)
{
    uint32_t *head = fake_t_word(fake, TKR_T_SQ_HEAD(queue));
    int err = tkr_ring_take(&fake->sq[queue], ret_sqe);

    if (err)
        return err;
    TKR_STORE_RELEASE(head, fake->sq[queue].pos);
    /* Store-load; partner: the client's fence between sq_wait and its last look at sq_head. */
    tkr_fence();
    if (TKR_LOAD_RELAXED(fake_r_word(fake, TKR_R_SQ_WAIT(queue))))
        tkr_futex_wake(head, 1);
    return 0;
}

int fake_take(struct fake *fake, struct tkr_sqe *ret_sqe)
{
    return fake_take_from(fake, 0, ret_sqe);
}

void fake_put(struct fake *fake, const struct tkr_cqe *cqe)
{
    tkr_ring_put(&fake->cq, cqe);
}

void fake_wake(struct fake *fake)
{
    const uint64_t *wait = (const uint64_t *)(const void *)(fake->r_ctl + TKR_R_WAIT);
    uint32_t *bell = fake_t_word(fake, TKR_T_CQ_BELL);
    uint64_t wanted;

    tkr_fence();
    wanted = TKR_LOAD_RELAXED(wait);
    if (!tkr_wait_due(wanted, fake->cq.pos))
        return;
    TKR_STORE_RELEASE(bell, *bell + 1);
    if (wanted & TKR_WAIT_BY_SOCKET)
        send(fake->sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        tkr_futex_wake(bell, 1);
}

void fake_put_text(struct fake *fake, const struct tkr_sqe *sqe, uint32_t pos, uint32_t id,
                   const char *text)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_TOKEN,
                          .ntok = 1,
                          .nbytes = (uint8_t)strlen(text),
                          .user = sqe->user,
                          .pos = pos,
                          .tag = sqe->tag,
                          .u.token.tok = {id}};

    memcpy(cqe.u.token.utf8, text, cqe.nbytes);
    fake_put(fake, &cqe);
}

void fake_put_done(struct fake *fake, const struct tkr_sqe *sqe, uint16_t status,
                   const struct tkr_result *result)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_DONE,
                          .flags = result ? 0 : TKR_CQE_NO_RESULT,
                          .user = sqe->user,
                          .tag = sqe->tag,
                          .status = status};

    if (result)
        memcpy((uint8_t *)fake->t.base + fake->th.res_off + sizeof *result * sqe->tag, result,
               sizeof *result);
    fake_put(fake, &cqe);
}
