/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ctl.c - the control socket, against arbitrary datagrams, descriptors and orders of them.
 *
 * The whole transport runs in this process, listening on a real socket; a few connections of the
 * fuzzer talk to it: good messages, spoilt ones, raw bytes, surplus and odd descriptors, regions
 * that are nobody's, somebody's or the daemon's own, hang-ups in between. Region R changes between
 * any two loads. After each input nothing may be left: no client, no descriptor, no mapping.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"
#include "tests/fuzz/steps.h"

#define CONNS     3
#define CTL_BYTES 256u
#define FDS_MAX   6 /* of one message: more than the daemon makes room for */
#define ODD_FDS   4
#define MAPS_EACH 64u /* inputs between two looks at the list of mappings */
#define END_NS    20000000000ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct conn {
    int socket, t_fd; /* -1: none */
    int welcomed, ready;
    struct tkr_grant grant;
    struct tkr_region r;
    struct tkr_r_header layout;
    uint32_t sq_pos;
};

static struct io *io;
static char address[64];
static struct conn conns[CONNS];
static int odd_fds[ODD_FDS];
static int first_free_fd, maps_before;

/* ---- the daemon ------------------------------------------------------------------------------ */

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    (void)ctx;
    (void)seen_ns;
    io_done(client, sqe->tag, sqe->user, TKR_OK, NULL);
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    (void)ctx;
    (void)client;
    (void)tag;
    (void)user;
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    (void)client;
}

/* The daemon's own mapping of R is read-only; the writer's is another. */
void tkr_load_hook(const void *ptr, size_t bytes)
{
    const struct conn *conn;
    uint8_t choice;

    (void)ptr;
    (void)bytes;
    steps++;
    choice = next_byte();
    conn = &conns[choice % CONNS];
    if (choice < 32 && conn->r.base)
        ((uint8_t *)conn->r.base)[next_byte() & 1 ? next_byte() : next_word() % conn->r.bytes] =
            next_byte();
}

static int maps_count(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    TRAP_UNLESS(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "memfd:") != NULL;
    fclose(maps);
    return n;
}

static int fd_lowest(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static void start(void)
{
    char folder[64], path[128];
    struct io_opt opt = {
        .io = IO_KIND_EPOLL,
        .socket_path = path,
        .socket_mode = 0600,
        .clients_max = CONNS,
        .inflight_max = 16,
        .arena_max = 65536,
        .bulk_max = 65536,
        .op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_PAD | 1u << TKR_OP_CANCEL |
                      1u << TKR_OP_GENERATE},
    };
    struct io_ops ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    struct diag diag;
    int pipes[2], file;

    snprintf(folder, sizeof folder, "/tmp/tokenring-fuzz-XXXXXX");
    TRAP_UNLESS(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket", folder);
    TRAP_UNLESS(io_new(&io, &opt, &ops, &diag) == 0 && io_listen(io, &diag) == 0);
    /* The open file is address enough: nothing is left in /tmp, however this ends. */
    file = open(path, O_PATH);
    TRAP_UNLESS(file >= 0 && unlink(path) == 0 && rmdir(folder) == 0);
    snprintf(address, sizeof address, "/proc/self/fd/%d", file);
    TRAP_UNLESS(pipe(pipes) == 0);
    odd_fds[0] = pipes[0];
    odd_fds[1] = open("/dev/null", O_RDWR);
    odd_fds[2] = open("/", O_RDONLY | O_DIRECTORY);
    odd_fds[3] = memfd_create("odd", MFD_ALLOW_SEALING);
    TRAP_UNLESS(odd_fds[1] >= 0 && odd_fds[2] >= 0 && odd_fds[3] >= 0);
    for (int i = 0; i < CONNS; i++)
        conns[i] = (struct conn){.socket = -1, .t_fd = -1, .r.fd = -1};
    maps_before = maps_count();
}

static void stop(void)
{
    io_free(io);
}

/* ---- the peer -------------------------------------------------------------------------------- */

static void conn_open(struct conn *c)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    if (c->socket >= 0)
        return;
    c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    TRAP_UNLESS(c->socket >= 0);
    strcpy(addr.sun_path, address);
    if (connect(c->socket, (const struct sockaddr *)&addr, sizeof addr)) {
        TRAP_UNLESS(errno == EAGAIN);
        close(c->socket);
        c->socket = -1;
    }
}

static void conn_close(struct conn *c)
{
    if (c->socket >= 0)
        close(c->socket);
    if (c->t_fd >= 0)
        close(c->t_fd);
    tkr_region_close(&c->r);
    *c = (struct conn){.socket = -1, .t_fd = -1, .r.fd = -1};
}

static void send_bytes(const struct conn *c, const void *bytes, size_t n, const int *fds, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (c->socket < 0)
        return;
    if (n_fds) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.align), fds, (size_t)n_fds * sizeof(int));
    }
    if (sendmsg(c->socket, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        steps += (n + 7) / 8;
}

static void spoil(void *bytes, size_t n)
{
    for (int k = next_byte() < 96 ? next_byte() % 3 : 0; k > 0; k--)
        ((uint8_t *)bytes)[next_word() % n] = next_byte();
}

static struct tkr_ctl_head head_of(int type)
{
    return (struct tkr_ctl_head){.magic = TKR_MAGIC_CTL,
                                 .type = (uint16_t)type,
                                 .bytes = CTL_BYTES,
                                 .major = TKR_ABI_MAJOR,
                                 .minor = TKR_ABI_MINOR};
}

static void hello_send(const struct conn *c)
{
    struct tkr_hello hello = {.head = head_of(TKR_CTL_HELLO),
                              .arena_len = 4096,
                              .bulk_len = next_byte() & 1 ? 4096 : 0,
                              .nsq = next_byte() % 10,
                              .sq_log2 = 4,
                              .cq_log2 = 5,
                              .max_inflight = 1 + next_byte() % 8};

    spoil(&hello, sizeof hello);
    send_bytes(c, &hello, sizeof hello, NULL, 0);
}

/* Descriptors that are wrong each in its own way, and one that may be right. */
static int fd_pick(const struct conn *c)
{
    uint8_t choice = next_byte();
    const struct conn *other = &conns[choice % CONNS];

    if (choice < 128 && c->r.fd >= 0)
        return c->r.fd;
    if (choice < 160 && other->r.fd >= 0)
        return other->r.fd;
    if (choice < 192 && other->t_fd >= 0)
        return other->t_fd;
    if (choice < 208 && other->socket >= 0)
        return other->socket;
    return odd_fds[choice % ODD_FDS];
}

static void region_make(struct conn *c)
{
    if (c->r.base || !c->welcomed)
        return;
    tkr_r_layout(&c->layout, &c->grant);
    TRAP_UNLESS(tkr_region_create(&c->r, c->layout.region_len) == 0);
    memcpy(c->r.base, &c->layout, sizeof c->layout);
    spoil(c->r.base, sizeof c->layout);
    if (next_byte() >= 16)
        TRAP_UNLESS(tkr_region_seal(&c->r) == 0);
}

static void attach_send(struct conn *c)
{
    struct tkr_attach attach = {.head = head_of(TKR_CTL_ATTACH)};
    int fds[FDS_MAX], n = next_byte() < 224 ? 1 : next_byte() % (FDS_MAX + 1);

    region_make(c);
    attach.region_len = c->layout.region_len;
    spoil(&attach, sizeof attach);
    for (int i = 0; i < n; i++)
        fds[i] = n == 1 && c->r.fd >= 0 && next_byte() < 192 ? c->r.fd : fd_pick(c);
    send_bytes(c, &attach, sizeof attach, fds, n);
}

static void raw_send(const struct conn *c)
{
    uint8_t bytes[600];
    int fds[FDS_MAX], n = next_byte() % (FDS_MAX + 1);
    size_t len = next_byte() < 128 ? CTL_BYTES : next_word() % sizeof bytes;

    for (size_t i = 0; i < len; i++)
        bytes[i] = next_byte();
    for (int i = 0; i < n; i++)
        fds[i] = fd_pick(c);
    send_bytes(c, bytes, len, fds, n);
}

static void rings_send(const struct conn *c)
{
    const uint8_t one = 1;

    for (int n = next_byte() % 16; n > 0; n--)
        send_bytes(c, &one, 1, NULL, 0);
}

static void slot_put(struct conn *c)
{
    struct tkr_sqe sqe = {.op = TKR_OP_NOOP, .user = c->sq_pos + 1u};
    uint8_t *to;

    if (!c->ready || !c->r.base)
        return;
    spoil(&sqe, sizeof sqe);
    sqe.seq = ++c->sq_pos;
    to = (uint8_t *)c->r.base + c->layout.sq_off + (size_t)((c->sq_pos - 1) & 15) * TKR_LINE;
    memcpy(to, &sqe, sizeof sqe);
}

static void welcome_read(struct conn *c, const struct tkr_welcome *w)
{
    c->welcomed = 1;
    c->grant = (struct tkr_grant){.arena_len = w->arena_len,
                                  .bulk_len = w->bulk_len,
                                  .nsq = w->nsq,
                                  .sq_log2 = w->sq_log2,
                                  .cq_log2 = w->cq_log2,
                                  .max_inflight = w->max_inflight,
                                  .colour = w->colour};
    TRAP_UNLESS(tkr_grant_check(&c->grant) == 0);
    TRAP_UNLESS(c->t_fd >= 0);
}

/* Whatever the daemon says is a whole message of the protocol, or a doorbell. */
static void answers_read(struct conn *c)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct tkr_welcome w;
    struct iovec iov = {.iov_base = &w, .iov_len = sizeof w};

    while (c->socket >= 0) {
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
        ssize_t n = recvmsg(c->socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        struct cmsghdr *cmsg = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;

        if (n <= 0) {
            if (n == 0 || errno != EAGAIN)
                conn_close(c);
            return;
        }
        if (c->ready && n == 1) { /* the answer to a wait by socket, which the writer may ask for */
            TRAP_UNLESS(*(const uint8_t *)&w == 1 && !cmsg);
            continue;
        }
        TRAP_UNLESS(n == (ssize_t)CTL_BYTES && w.head.magic == TKR_MAGIC_CTL);
        TRAP_UNLESS((cmsg != NULL) == (w.head.type == TKR_CTL_WELCOME));
        if (cmsg) {
            TRAP_UNLESS(c->t_fd < 0);
            memcpy(&c->t_fd, CMSG_DATA(cmsg), sizeof c->t_fd);
        }
        if (w.head.type == TKR_CTL_WELCOME)
            welcome_read(c, &w);
        else if (w.head.type == TKR_CTL_READY)
            c->ready = 1;
        else
            TRAP_UNLESS(w.head.type == TKR_CTL_REFUSED);
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void pump(void)
{
    io_pass(io);
    io_sleep(io, 1);
}

static void turn(void)
{
    struct conn *c = &conns[next_byte() % CONNS];
    uint8_t action = next_byte();

    conn_open(c);
    if (action < 24)
        conn_close(c);
    else if (action < 32 && c->socket >= 0)
        shutdown(c->socket, action & 1 ? SHUT_WR : SHUT_RDWR);
    else if (action < 48)
        raw_send(c);
    else if (action < 56)
        rings_send(c);
    else if (action < 80)
        hello_send(c);
    else if (action < 96)
        attach_send(c);
    else if (!c->welcomed)
        hello_send(c);
    else if (!c->ready)
        attach_send(c);
    else
        slot_put(c);
    if (next_byte() < 224)
        pump();
    answers_read(c);
}

static void all_closed_check(void)
{
    uint64_t end = clock_ns() + END_NS;

    for (int i = 0; i < CONNS; i++)
        conn_close(&conns[i]);
    /* Some connections may still wait to be accepted. */
    while (io->n_table || fd_lowest() != first_free_fd) {
        pump();
        TRAP_UNLESS(clock_ns() < end);
    }
    TRAP_UNLESS(!io->n_live && !io->n_dead && !io->n_half_open);
    if (inputs % MAPS_EACH == 0)
        TRAP_UNLESS(maps_count() == maps_before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!io) {
        start();
        atexit(stop);
    }
    input_begin(data, size);
    first_free_fd = fd_lowest(); /* libFuzzer opens some of its own between inputs */
    while (!input_is_over())
        turn();
    all_closed_check();
    input_end();
    return 0;
}
