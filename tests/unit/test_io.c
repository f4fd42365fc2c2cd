/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's transport against a raw client, both driven by one thread: each step is decided
 * here, nothing depends on timing. What needs two threads or processes is in test_io_threads.c.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/io.h"
#include "tests/unit/raw_client.h"

#define GENERATE_BIT (1ull << TKR_OP_GENERATE)
#define WORKING_OPS                                                                                \
    (1ull << TKR_OP_NOOP | 1ull << TKR_OP_PAD | 1ull << TKR_OP_CANCEL | GENERATE_BIT)
#define HANG_NS 20000000000ull /* a wait that takes longer has hung */

/* What the callbacks saw. */
static struct {
    uint32_t submits, cancels, detaches;
    struct io_client *client;
    struct tkr_sqe sqe;
    uint64_t seen_ns;
    uint32_t cancel_tag;
    uint64_t cancel_user;
    int end_at_once; /* submit answers with DONE itself */
    int hold;        /* submit takes a reference */
} saw;

static char folder[64], path[128];
static struct io *io;
static struct io_opt opt;

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    (void)ctx;
    saw.submits++;
    saw.client = client;
    saw.sqe = *sqe;
    saw.seen_ns = seen_ns;
    if (saw.hold)
        io_client_ref(client);
    if (saw.end_at_once)
        io_done(client, sqe->tag, sqe->user, TKR_OK, NULL);
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    (void)ctx;
    (void)client;
    saw.cancels++;
    saw.cancel_tag = tag;
    saw.cancel_user = user;
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    (void)client;
    saw.detaches++;
}

static const struct io_ops ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach};

static void setup(void)
{
    struct diag diag;

    memset(&saw, 0, sizeof saw);
    snprintf(folder, sizeof folder, "/tmp/tokenring-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket", folder);
    opt = (struct io_opt){
        .socket_path = path,
        .socket_mode = 0600,
        .clients_max = 8,
        .inflight_max = 8,
        .arena_max = 1 << 20,
        .bulk_max = 1 << 20,
        .idle_park_ns = 0,
        .op_bitmap = {WORKING_OPS},
        .prompt_tokens_max = 100,
        .output_tokens_max = 50,
    };
    ck_assert_msg(io_new(&io, &opt, &ops, &diag) == 0, "%s", diag.text);
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
}

static void teardown(void)
{
    io_free(io);
    ck_assert_int_eq(access(path, F_OK), -1); /* the socket file goes with the daemon */
    ck_assert_int_eq(rmdir(folder), 0);
}

static uint32_t pump(void)
{
    uint32_t n = io_pass(io);

    io_sleep(io, clock_ns() + 1000000);
    return n;
}

static int readable(int socket)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

/* Runs the daemon until cond. */
#define PUMP_UNTIL(cond)                                                                           \
    do {                                                                                           \
        uint64_t hang = clock_ns() + HANG_NS;                                                      \
        while (!(cond)) {                                                                          \
            pump();                                                                                \
            ck_assert_msg(clock_ns() < hang, "hangs: %s", #cond);                                  \
        }                                                                                          \
    } while (0)

static void client_connect(struct raw_client *c)
{
    memset(c, 0, sizeof *c);
    c->r.fd = c->t.fd = -1;
    c->socket = raw_connect(path);
    ck_assert_int_ge(c->socket, 0);
}

static int client_hello(struct raw_client *c)
{
    ck_assert_int_eq(raw_hello_send(c), 0);
    PUMP_UNTIL(readable(c->socket));
    return raw_welcome_recv(c);
}

static int client_attach(struct raw_client *c)
{
    ck_assert_int_eq(raw_attach_send(c), 0);
    PUMP_UNTIL(readable(c->socket));
    return raw_ready_recv(c);
}

static void client_open(struct raw_client *c)
{
    client_connect(c);
    c->hello.arena_len = 65536;
    c->hello.bulk_len = 65536;
    c->hello.cq_log2 = 5;
    c->hello.sq_log2 = 6;
    c->hello.max_inflight = 4;
    ck_assert_int_eq(client_hello(c), 0);
    ck_assert_int_eq(raw_r_make(c), 0);
    ck_assert_int_eq(raw_r_seal(c), 0);
    ck_assert_int_eq(client_attach(c), 0);
}

/* Next completion; the daemon runs until there is one. */
static struct tkr_cqe next(struct raw_client *c)
{
    struct tkr_cqe cqe;

    PUMP_UNTIL(raw_take(c, &cqe, 0) == 0);
    return cqe;
}

static struct tkr_sqe generate(struct raw_client *c, uint16_t tag)
{
    struct tkr_sqe sqe = raw_noop(c, tag);

    sqe.op = TKR_OP_GENERATE;
    sqe.data_kind = TKR_DATA_TEXT;
    sqe.data_len = 5;
    return sqe;
}

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Regions that are mapped into this process. */
static int maps(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:tokenring") != NULL;
    fclose(f);
    return n;
}

/* ---- attach
 * -------------------------------------------------------------------------------------- */

START_TEST(a_client_attaches_and_gets_what_it_was_granted)
{
    struct raw_client c;
    struct io_counts counts;

    client_open(&c);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.clients, 1);
    ck_assert_uint_eq(counts.attached, 1);
    ck_assert_uint_eq(c.welcome.nsq, 1);
    ck_assert_uint_eq(c.welcome.max_inflight, 4);
    ck_assert_uint_eq(c.welcome.arena_len, 65536);
    ck_assert_int_eq(c.welcome.daemon_pid, getpid());
    ck_assert_uint_eq(c.th.op_bitmap[0], WORKING_OPS);
    ck_assert_uint_eq(c.th.prompt_tokens_max, 100);
    ck_assert_uint_eq(c.th.output_tokens_max, 50);
    ck_assert_uint_eq(*c.state, TKR_STATE_RUN);
    raw_close(&c);
}
END_TEST

START_TEST(sizes_beyond_the_configuration_are_lowered_in_welcome)
{
    struct raw_client c;

    client_connect(&c);
    c.hello = (struct tkr_hello){.head = raw_head(TKR_CTL_HELLO),
                                 .arena_len = 1ull << 40,
                                 .bulk_len = 1ull << 40,
                                 .nsq = 8,
                                 .sq_log2 = 31,
                                 .cq_log2 = 31,
                                 .max_inflight = 1u << 31};
    ck_assert_int_eq(client_hello(&c), 0);
    ck_assert_uint_eq(c.welcome.arena_len, opt.arena_max);
    ck_assert_uint_eq(c.welcome.bulk_len, opt.bulk_max);
    ck_assert_uint_eq(c.welcome.nsq, 1);
    ck_assert_uint_eq(c.welcome.sq_log2, TKR_SQ_LOG2_MAX);
    ck_assert_uint_eq(c.welcome.cq_log2, TKR_CQ_LOG2_MAX);
    ck_assert_uint_eq(c.welcome.max_inflight, opt.inflight_max);
    raw_close(&c);
}
END_TEST

/* Sends a HELLO that is wrong in one place and returns the reason that it was refused for. */
static int hello_refused(const void *bytes, size_t n, const int *fds, int n_fds)
{
    struct raw_client c;
    int reason;

    client_connect(&c);
    ck_assert_int_eq(raw_send(c.socket, bytes, n, fds, n_fds), 0);
    PUMP_UNTIL(readable(c.socket));
    ck_assert_int_eq(raw_welcome_recv(&c), -EPERM);
    reason = c.refused.reason;
    ck_assert_ptr_nonnull(memchr(c.refused.message, 0, sizeof c.refused.message));
    ck_assert_int_eq(raw_welcome_recv(&c), -EPIPE); /* and then the connection is over */
    raw_close(&c);
    return reason;
}

START_TEST(a_malformed_hello_is_refused_with_its_reason)
{
    struct tkr_hello good = {.head = raw_head(TKR_CTL_HELLO)}, bad;
    uint8_t longer[300] = {0};
    int fds[6];

    bad = good;
    bad.head.major = 2;
    ck_assert_int_eq(hello_refused(&bad, sizeof bad, NULL, 0), TKR_REFUSED_VERSION);
    bad = good;
    bad.head.magic ^= 1;
    ck_assert_int_eq(hello_refused(&bad, sizeof bad, NULL, 0), TKR_REFUSED_MESSAGE);
    bad = good;
    bad.head.type = TKR_CTL_ATTACH;
    ck_assert_int_eq(hello_refused(&bad, sizeof bad, NULL, 0), TKR_REFUSED_MESSAGE);
    bad = good;
    bad.reserved[159] = 1;
    ck_assert_int_eq(hello_refused(&bad, sizeof bad, NULL, 0), TKR_REFUSED_MESSAGE);
    bad = good;
    bad.class_ = 99;
    ck_assert_int_eq(hello_refused(&bad, sizeof bad, NULL, 0), TKR_REFUSED_MESSAGE);
    ck_assert_int_eq(hello_refused(&good, 255, NULL, 0), TKR_REFUSED_MESSAGE);
    memcpy(longer, &good, sizeof good);
    ck_assert_int_eq(hello_refused(longer, sizeof longer, NULL, 0), TKR_REFUSED_MESSAGE);
    for (int i = 0; i < 6; i++)
        fds[i] = 0;
    ck_assert_int_eq(hello_refused(&good, sizeof good, fds, 1), TKR_REFUSED_FD);
    ck_assert_int_eq(hello_refused(&good, sizeof good, fds, 6), TKR_REFUSED_FD);
}
END_TEST

START_TEST(descriptors_that_nobody_asked_for_are_closed)
{
    struct tkr_hello good = {.head = raw_head(TKR_CTL_HELLO)};
    int fds[6], before;

    for (int i = 0; i < 6; i++)
        fds[i] = 0;
    hello_refused(&good, sizeof good, fds, 6);
    PUMP_UNTIL(io_pass(io) == 0);
    before = entries("/proc/self/fd");
    for (int i = 0; i < 20; i++)
        hello_refused(&good, sizeof good, fds, 1 + i % 6);
    for (int i = 0; i < 4; i++)
        pump();
    ck_assert_int_eq(entries("/proc/self/fd"), before);
}
END_TEST

/* Gets to ATTACH, lets the caller spoil R or the descriptor, and returns the refusal. */
struct spoil {
    int (*make)(struct raw_client *c); /* makes c->r; NULL: raw_r_make */
    void (*before_seal)(struct raw_client *c);
    int seal;
};

static struct tkr_refused attach_refused(const struct spoil *s)
{
    struct raw_client c;
    struct tkr_refused refused;

    client_connect(&c);
    ck_assert_int_eq(client_hello(&c), 0);
    ck_assert_int_eq(s->make ? s->make(&c) : raw_r_make(&c), 0);
    if (s->before_seal)
        s->before_seal(&c);
    if (s->seal)
        ck_assert_int_eq(raw_r_seal(&c), 0);
    ck_assert_int_eq(client_attach(&c), -EPERM);
    refused = c.refused;
    raw_close(&c);
    return refused;
}

START_TEST(a_region_without_every_seal_is_refused)
{
    struct tkr_refused refused = attach_refused(&(struct spoil){.seal = 0});

    ck_assert_int_eq(refused.reason, TKR_REFUSED_SEALS);
    ck_assert_uint_eq(refused.want, TKR_SEALS_MUST);
    ck_assert_uint_eq(refused.have & TKR_SEALS_MUST, 0);
}
END_TEST

static int make_pipe(struct raw_client *c)
{
    int fds[2];

    ck_assert_int_eq(raw_r_make(c), 0);
    ck_assert_int_eq(pipe(fds), 0);
    close(fds[1]);
    ck_assert_int_eq(dup2(fds[0], c->r.fd), c->r.fd);
    close(fds[0]);
    return 0;
}

START_TEST(a_descriptor_that_is_no_memfd_is_refused)
{
    ck_assert_int_eq(attach_refused(&(struct spoil){.make = make_pipe}).reason, TKR_REFUSED_FD);
}
END_TEST

static int make_huge(struct raw_client *c)
{
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB | MFD_ALLOW_SEALING);

    ck_assert_int_eq(raw_r_make(c), 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, (int)TKR_SEALS_MUST), 0);
    ck_assert_int_eq(dup2(fd, c->r.fd), c->r.fd);
    close(fd);
    return 0;
}

START_TEST(a_region_in_hugetlbfs_is_refused)
{
    struct tkr_refused refused = attach_refused(&(struct spoil){.make = make_huge});

    ck_assert_int_eq(refused.reason, TKR_REFUSED_FILESYSTEM);
    ck_assert_uint_eq(refused.want, 0x01021994); /* TMPFS_MAGIC of linux/magic.h */
}
END_TEST

static void grow(struct raw_client *c)
{
    ck_assert_int_eq(ftruncate(c->r.fd, (off_t)c->r.bytes + TKR_PAGE), 0);
}

START_TEST(a_region_of_another_size_is_refused)
{
    struct tkr_refused refused = attach_refused(&(struct spoil){.before_seal = grow, .seal = 1});

    ck_assert_int_eq(refused.reason, TKR_REFUSED_SIZE);
    ck_assert_uint_eq(refused.have, refused.want + TKR_PAGE);
}
END_TEST

static void announce_more(struct raw_client *c)
{
    c->rh.region_len += TKR_PAGE;
}

START_TEST(a_region_announced_with_another_size_is_refused)
{
    ck_assert_int_eq(
        attach_refused(&(struct spoil){.before_seal = announce_more, .seal = 1}).reason,
        TKR_REFUSED_SIZE);
}
END_TEST

static void punch(struct raw_client *c)
{
    ck_assert_int_eq(
        fallocate(c->r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * TKR_PAGE, TKR_PAGE), 0);
}

START_TEST(a_region_with_a_hole_is_refused)
{
    struct tkr_refused refused = attach_refused(&(struct spoil){.before_seal = punch, .seal = 1});

    ck_assert_int_eq(refused.reason, TKR_REFUSED_HOLES);
    ck_assert_uint_eq(refused.have, 2 * TKR_PAGE);
}
END_TEST

static void spoil_ctl_off(struct raw_client *c)
{
    ((struct tkr_r_header *)c->r.base)->ctl_off += 64;
}

static void spoil_reserved(struct raw_client *c)
{
    ((struct tkr_r_header *)c->r.base)->reserved[159] = 1;
}

static void spoil_arena(struct raw_client *c)
{
    ((struct tkr_r_header *)c->r.base)->arena_off = UINT64_MAX - 63;
}

static void spoil_stride(struct raw_client *c)
{
    ((struct tkr_r_header *)c->r.base)->sq_stride = 64;
}

START_TEST(a_header_that_is_not_the_granted_layout_is_refused)
{
    static void (*const spoils[])(struct raw_client *) = {spoil_ctl_off, spoil_reserved,
                                                          spoil_arena, spoil_stride};

    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++)
        ck_assert_int_eq(
            attach_refused(&(struct spoil){.before_seal = spoils[i], .seal = 1}).reason,
            TKR_REFUSED_LAYOUT);
}
END_TEST

START_TEST(a_region_that_is_attached_already_is_refused)
{
    struct raw_client a, b;
    int own;

    client_open(&a);
    client_connect(&b);
    b.hello = a.hello;
    ck_assert_int_eq(client_hello(&b), 0);
    ck_assert_int_eq(raw_r_make(&b), 0);
    own = b.r.fd;
    b.r.fd = a.r.fd;
    ck_assert_int_eq(client_attach(&b), -EPERM);
    ck_assert_int_eq(b.refused.reason, TKR_REFUSED_REUSED);
    b.r.fd = own;
    raw_close(&a);
    raw_close(&b);
}
END_TEST

START_TEST(a_client_cannot_pass_a_region_of_the_daemon_as_its_own)
{
    struct raw_client c;
    struct tkr_welcome welcome;
    struct tkr_r_header want;
    struct tkr_grant grant;
    struct tkr_attach attach = {.head = raw_head(TKR_CTL_ATTACH)};
    int fd;

    client_connect(&c);
    /* Sizes for which T is exactly as large as R must be: T satisfies every other check. */
    c.hello = (struct tkr_hello){.head = raw_head(TKR_CTL_HELLO),
                                 .arena_len = 65536,
                                 .max_inflight = 4,
                                 .sq_log2 = 6,
                                 .cq_log2 = 6};
    grant = (struct tkr_grant){
        .arena_len = 65536, .nsq = 1, .sq_log2 = 6, .cq_log2 = 6, .max_inflight = 4};
    tkr_r_layout(&want, &grant);
    for (struct tkr_t_header t = {0}; t.region_len < want.region_len;
         c.hello.bulk_len += TKR_PAGE) {
        grant.bulk_len = c.hello.bulk_len + TKR_PAGE;
        tkr_t_layout(&t, &grant);
    }
    ck_assert_int_eq(raw_hello_send(&c), 0);
    PUMP_UNTIL(readable(c.socket));
    ck_assert_int_eq(raw_recv(c.socket, &welcome, &fd), 0);
    ck_assert_uint_eq(welcome.t_region_len, want.region_len);
    attach.region_len = want.region_len;
    ck_assert_int_eq(raw_send(c.socket, &attach, sizeof attach, &fd, 1), 0);
    PUMP_UNTIL(readable(c.socket));
    ck_assert_int_eq(raw_ready_recv(&c), -EPERM);
    ck_assert_int_eq(c.refused.reason, TKR_REFUSED_REUSED);
    close(fd);
    raw_close(&c);
}
END_TEST

START_TEST(an_attach_without_or_with_two_descriptors_is_refused)
{
    for (int n = 0; n <= 2; n += 2) {
        struct raw_client c;
        struct tkr_attach attach = {.head = raw_head(TKR_CTL_ATTACH)};
        int fds[2];

        client_connect(&c);
        ck_assert_int_eq(client_hello(&c), 0);
        ck_assert_int_eq(raw_r_make(&c), 0);
        fds[0] = fds[1] = c.r.fd;
        attach.region_len = c.rh.region_len;
        ck_assert_int_eq(raw_send(c.socket, &attach, sizeof attach, fds, n), 0);
        PUMP_UNTIL(readable(c.socket));
        ck_assert_int_eq(raw_ready_recv(&c), -EPERM);
        ck_assert_int_eq(c.refused.reason, TKR_REFUSED_FD);
        ck_assert_uint_eq(c.refused.have, (unsigned)n);
        ck_assert_uint_eq(c.refused.want, 1);
        raw_close(&c);
    }
}
END_TEST

START_TEST(resume_is_not_implemented_and_says_so)
{
    struct raw_client c;
    struct tkr_attach attach = {.head = raw_head(TKR_CTL_ATTACH), .flags = 1};

    client_connect(&c);
    ck_assert_int_eq(client_hello(&c), 0);
    ck_assert_int_eq(raw_r_make(&c), 0);
    ck_assert_int_eq(raw_send(c.socket, &attach, sizeof attach, &c.r.fd, 1), 0);
    PUMP_UNTIL(readable(c.socket));
    ck_assert_int_eq(raw_ready_recv(&c), -EPERM);
    ck_assert_int_eq(c.refused.reason, TKR_REFUSED_MESSAGE);
    raw_close(&c);
}
END_TEST

START_TEST(one_client_more_than_clients_max_is_refused_and_a_place_that_is_freed_is_used_again)
{
    struct raw_client c[9];

    for (int i = 0; i < 8; i++)
        client_open(&c[i]);
    client_connect(&c[8]);
    ck_assert_int_eq(client_hello(&c[8]), -EPERM);
    ck_assert_int_eq(c[8].refused.reason, TKR_REFUSED_LIMIT);
    ck_assert_uint_eq(c[8].refused.have, 8);
    ck_assert_uint_eq(c[8].refused.want, 9);
    raw_close(&c[8]);
    raw_close(&c[3]);
    PUMP_UNTIL(saw.detaches == 1);
    client_open(&c[3]);
    for (int i = 0; i < 8; i++)
        raw_close(&c[i]);
}
END_TEST

START_TEST(a_region_that_cannot_be_locked_is_refused_only_under_require_mlock)
{
    struct io_counts counts;
    struct raw_client c;
    struct diag diag;
    void *probe = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rlimit small = {131072,
                           131072}; /* enough for io_uring's own rings, not for regions of 1 MiB */

    /* As in a service with a small LimitMEMLOCK: root is never limited, so it becomes somebody
     * else. */
    io_free(io);
    io = NULL;
    ck_assert_int_eq(chmod(folder, 0777), 0);
    if (getuid() == 0)
        ck_assert_int_eq(setresuid(65534, 65534, 0), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    /* The sanitizers make mlock() do nothing: then there is nothing to see here. */
    for (opt.require_mlock = mlock(probe, 1 << 20) ? 0 : 2; opt.require_mlock < 2;
         opt.require_mlock++) {
        ck_assert_msg(io_new(&io, &opt, &ops, &diag) == 0, "%s", diag.text);
        ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
        client_connect(&c);
        ck_assert_int_eq(client_hello(&c), 0);
        ck_assert_int_eq(raw_r_make(&c), 0);
        ck_assert_int_eq(raw_r_seal(&c), 0);
        ck_assert_int_eq(client_attach(&c), opt.require_mlock ? -EPERM : 0);
        io_counts(io, &counts);
        ck_assert_uint_ge(counts.mlock_failed, 1);
        raw_close(&c);
        if (opt.require_mlock) {
            ck_assert_int_eq(c.refused.reason, TKR_REFUSED_MLOCK);
            ck_assert_uint_eq(c.refused.want, c.rh.region_len);
            break;
        }
        io_free(io);
    }
    if (geteuid() == 65534)
        ck_assert_int_eq(setresuid(0, 0, 0), 0); /* for the teardown */
    munmap(probe, 1 << 20);
}
END_TEST

START_TEST(a_daemon_that_drains_refuses_new_clients_and_ends_new_requests_as_aborted)
{
    struct raw_client c, late;
    struct tkr_sqe sqe;
    struct tkr_cqe cqe;

    client_open(&c);
    io_drain(io);
    ck_assert_uint_eq(*c.state, TKR_STATE_DRAIN);
    client_connect(&late);
    ck_assert_int_eq(client_hello(&late), -EPERM);
    ck_assert_int_eq(late.refused.reason, TKR_REFUSED_DRAIN);
    sqe = generate(&c, 0);
    raw_put(&c, &sqe);
    cqe = next(&c);
    ck_assert_int_eq(cqe.status, TKR_E_ABORTED);
    ck_assert_uint_eq(saw.submits, 0);
    io_gone(io);
    ck_assert_uint_eq(*c.state, TKR_STATE_GONE);
    raw_close(&c);
    raw_close(&late);
}
END_TEST

START_TEST(a_connection_that_says_nothing_is_dropped)
{
    struct raw_client c;

    client_connect(&c);
    PUMP_UNTIL(readable(c.socket)); /* three seconds */
    ck_assert_int_eq(raw_welcome_recv(&c), -EPERM);
    ck_assert_int_eq(c.refused.reason, TKR_REFUSED_MESSAGE);
    raw_close(&c);
}
END_TEST

START_TEST(a_second_daemon_on_the_same_socket_is_refused_and_a_dead_ones_file_is_replaced)
{
    struct diag diag;
    struct io *second;
    int status;
    pid_t pid;

    ck_assert_int_eq(io_new(&second, &opt, &ops, &diag), 0);
    ck_assert_int_eq(io_listen(second, &diag), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(diag.text, path));
    io_free(second);
    ck_assert_int_eq(access(path, F_OK), 0); /* the first one's file is still there */
    io_free(io);

    pid = fork(); /* a daemon that dies without a word */
    if (!pid) {
        if (io_new(&second, &opt, &ops, &diag) || io_listen(second, &diag))
            _exit(1);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(io_new(&io, &opt, &ops, &diag), 0);
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
}
END_TEST

START_TEST(a_file_that_is_no_socket_is_never_replaced)
{
    struct diag diag;
    struct io *second;
    struct io_opt other = opt;
    char file[128];
    struct stat st;

    snprintf(file, sizeof file, "%s/file", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    other.socket_path = file;
    ck_assert_int_eq(io_new(&second, &other, &ops, &diag), 0);
    ck_assert_int_eq(io_listen(second, &diag), -EEXIST);
    io_free(second);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
}
END_TEST

/* ---- slots
 * --------------------------------------------------------------------------------------- */

START_TEST(a_noop_comes_back_with_its_user_and_tag_and_nothing_else)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe cqe;

    client_open(&c);
    for (int i = 0; i < 200; i++) { /* six laps of the CQ, three of the SQ */
        sqe = raw_noop(&c, (uint16_t)(i % 4));
        raw_put(&c, &sqe);
        cqe = next(&c);
        ck_assert_int_eq(cqe.kind, TKR_CQE_DONE);
        ck_assert_int_eq(cqe.flags, TKR_CQE_NO_RESULT);
        ck_assert_int_eq(cqe.status, TKR_OK);
        ck_assert_uint_eq(cqe.user, sqe.user);
        ck_assert_uint_eq(cqe.tag, (unsigned)i % 4);
        ck_assert_uint_eq(cqe.seq, (unsigned)i + 1);
    }
    ck_assert_uint_eq(saw.submits, 0);
    raw_close(&c);
}
END_TEST

START_TEST(a_pad_slot_is_skipped)
{
    struct raw_client c;
    struct tkr_sqe pad = {.op = TKR_OP_PAD, .tag = 99, .flags = 7}, sqe;

    client_open(&c);
    raw_put(&c, &pad);
    sqe = raw_noop(&c, 1);
    raw_put(&c, &sqe);
    ck_assert_uint_eq(next(&c).user, sqe.user);
    ck_assert_uint_eq(*c.sq_head, 2);
    raw_close(&c);
}
END_TEST

static uint16_t answer(struct raw_client *c, const struct tkr_sqe *sqe)
{
    struct tkr_cqe cqe;

    raw_put(c, sqe);
    cqe = next(c);
    ck_assert_int_eq(cqe.kind, TKR_CQE_DONE);
    ck_assert_uint_eq(cqe.user, sqe->user);
    ck_assert_uint_eq(cqe.tag, sqe->tag);
    return cqe.status;
}

/* sqe is a good GENERATE but for one field. */
#define ASSERT_REFUSED(field, value, wanted)                                                       \
    do {                                                                                           \
        struct tkr_sqe bad = generate(&c, 0);                                                      \
        bad.field = (value);                                                                       \
        ck_assert_msg(answer(&c, &bad) == (wanted), #field " = " #value);                          \
    } while (0)

START_TEST(every_field_that_is_wrong_or_not_implemented_is_answered_with_its_status)
{
    struct raw_client c;

    client_open(&c);
    ASSERT_REFUSED(op, TKR_OP_SCORE, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(op, TKR_OP_LABELS, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(op, TKR_OP_COUNT, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(op, 255, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(flags, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(reserved, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(resume_pos, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(class_, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(session, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(tag, 4, TKR_E_INVALID);
    ASSERT_REFUSED(tag, 65535, TKR_E_INVALID);
    ASSERT_REFUSED(user, 0, TKR_E_INVALID);
    ASSERT_REFUSED(user, 1ull << 32, TKR_E_INVALID);
    ASSERT_REFUSED(data_kind, 4, TKR_E_INVALID);
    ASSERT_REFUSED(data_kind, TKR_DATA_NONE, TKR_E_INVALID); /* data_len is set */
    ASSERT_REFUSED(data_kind, TKR_DATA_MESSAGES, TKR_E_INVALID);
    ASSERT_REFUSED(data_kind, TKR_DATA_TOKENS, TKR_E_INVALID); /* 5 bytes */
    ASSERT_REFUSED(data_len, 65537, TKR_E_INVALID);
    ASSERT_REFUSED(data_len, UINT32_MAX, TKR_E_INVALID);
    ASSERT_REFUSED(data_off, 65532, TKR_E_INVALID);
    ASSERT_REFUSED(data_off, UINT32_MAX - 3, TKR_E_INVALID); /* off + len wraps over 2^32 */
    ASSERT_REFUSED(param_len, 127, TKR_E_INVALID);
    ASSERT_REFUSED(param_len, 129, TKR_E_INVALID);
    ASSERT_REFUSED(param_len, 128 + 16 * 65, TKR_E_INVALID);
    ASSERT_REFUSED(param_len, UINT32_MAX - 15, TKR_E_INVALID);
    {
        struct tkr_sqe bad = generate(&c, 0);

        bad.param_len = 128;
        bad.param_off = 4; /* not a multiple of 8 */
        ck_assert_int_eq(answer(&c, &bad), TKR_E_INVALID);
        bad.user = ++c.user;
        bad.param_off = 65536 - 120; /* ends 8 bytes after the arena */
        ck_assert_int_eq(answer(&c, &bad), TKR_E_INVALID);
    }
    ck_assert_uint_eq(saw.submits, 0);
    raw_close(&c);
}
END_TEST

START_TEST(a_request_at_the_last_byte_of_the_arena_is_accepted)
{
    struct raw_client c;
    struct tkr_sqe sqe;

    client_open(&c);
    saw.end_at_once = 1;
    sqe = generate(&c, 3);
    sqe.data_off = 65536 - 5;
    sqe.param_len = 128 + 16 * 64;
    sqe.param_off = 65536 - sqe.param_len;
    ck_assert_int_eq(answer(&c, &sqe), TKR_OK);
    ck_assert_uint_eq(saw.submits, 1);
    ck_assert_uint_eq(saw.sqe.data_off, 65531);
    ck_assert_uint_gt(saw.seen_ns, 0);
    raw_close(&c);
}
END_TEST

START_TEST(the_arena_is_copied_only_inside_its_bounds)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    uint8_t text[64];

    client_open(&c);
    sqe = generate(&c, 0);
    memcpy(c.arena + 3, "hello, ring", 11);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 3, 11), 0);
    ck_assert_mem_eq(text, "hello, ring", 11);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 65536 - 4, 4), 0);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 65536 - 4, 5), -EFAULT);
    ck_assert_int_eq(io_arena_copy(saw.client, text, UINT32_MAX, 2), -EFAULT);
    io_done(saw.client, 0, sqe.user, TKR_OK, NULL);
    raw_close(&c);
}
END_TEST

START_TEST(a_tag_or_user_that_is_alive_is_a_duplicate_and_the_first_request_goes_on)
{
    struct raw_client c;
    struct tkr_sqe first, second;
    struct tkr_cqe cqe;

    client_open(&c);
    first = generate(&c, 2);
    raw_put(&c, &first);
    PUMP_UNTIL(saw.submits == 1);
    second = generate(&c, 2);
    ck_assert_int_eq(answer(&c, &second), TKR_E_DUPLICATE);
    second = generate(&c, 1);
    second.user = first.user | 7ull << 32; /* the low half names requests in the cancel words */
    ck_assert_int_eq(answer(&c, &second), TKR_E_DUPLICATE);
    ck_assert_uint_eq(saw.submits, 1);
    io_done(saw.client, 2, first.user, TKR_OK, NULL);
    cqe = next(&c);
    ck_assert_uint_eq(cqe.user, first.user);
    second = generate(&c, 2); /* free again */
    raw_put(&c, &second);
    PUMP_UNTIL(saw.submits == 2);
    raw_close(&c);
}
END_TEST

START_TEST(a_cancel_word_reaches_the_daemon_once_and_a_stale_one_never)
{
    struct raw_client c;
    struct tkr_sqe sqe;

    client_open(&c);
    sqe = generate(&c, 1);
    TKR_STORE_RELAXED(c.cancel + 1, 77u); /* of some earlier request of this tag */
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    for (int i = 0; i < 3; i++)
        pump();
    ck_assert_uint_eq(saw.cancels, 0);
    TKR_STORE_RELAXED(c.cancel + 1, (uint32_t)sqe.user);
    PUMP_UNTIL(saw.cancels);
    for (int i = 0; i < 3; i++)
        pump();
    ck_assert_uint_eq(saw.cancels, 1);
    ck_assert_uint_eq(saw.cancel_tag, 1);
    ck_assert_uint_eq(saw.cancel_user, sqe.user);
    io_done(saw.client, 1, sqe.user, TKR_E_CANCELLED, NULL);
    ck_assert_int_eq(next(&c).status, TKR_E_CANCELLED);
    raw_close(&c);
}
END_TEST

START_TEST(a_cancel_slot_is_answered_and_cancels_the_request_that_it_names)
{
    struct raw_client c;
    struct tkr_sqe sqe, cancel;

    client_open(&c);
    sqe = generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    cancel = raw_noop(&c, 1);
    cancel.op = TKR_OP_CANCEL;
    cancel.session = sqe.user;
    ck_assert_int_eq(answer(&c, &cancel), TKR_OK);
    ck_assert_uint_eq(saw.cancels, 1);
    ck_assert_uint_eq(saw.cancel_user, sqe.user);
    cancel = raw_noop(&c, 1);
    cancel.op = TKR_OP_CANCEL;
    cancel.session = 424242; /* ended already, or never was */
    ck_assert_int_eq(answer(&c, &cancel), TKR_OK);
    ck_assert_uint_eq(saw.cancels, 1);
    raw_close(&c);
}
END_TEST

START_TEST(garbage_in_seq_stalls_only_its_own_queue)
{
    struct raw_client bad, good;
    struct tkr_sqe sqe;

    client_open(&bad);
    client_open(&good);
    for (uint32_t i = 0; i <= bad.sq.mask; i++)
        *(uint32_t *)(void *)(bad.sq.slots + (size_t)i * TKR_SLOT_WORDS) = 0xdeadbeef + i;
    for (int i = 0; i < 40; i++) {
        sqe = raw_noop(&good, 0);
        ck_assert_int_eq(answer(&good, &sqe), TKR_OK);
    }
    ck_assert_uint_eq(*bad.sq_head, 0);
    raw_close(&bad);
    raw_close(&good);
}
END_TEST

START_TEST(one_pass_takes_eight_slots_of_a_queue_and_no_more)
{
    struct raw_client c;

    client_open(&c);
    for (int i = 0; i < 20; i++) {
        struct tkr_sqe sqe = raw_noop(&c, 0);

        raw_put(&c, &sqe);
    }
    /* Parked at the end of the attach: the first pass finds it by its peek, or the bell does. */
    PUMP_UNTIL(*c.need_wakeup == 0);
    ck_assert_uint_le(io_pass(io), 8);
    ck_assert_uint_le(io_pass(io), 8);
    PUMP_UNTIL(*c.sq_head == 20);
    raw_close(&c);
}
END_TEST

/* ---- back-pressure
 * ------------------------------------------------------------------------------- */

START_TEST(a_full_cq_loses_nothing_delivers_in_order_and_keeps_the_slot_of_the_terminal)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN, .ntok = 1}, cqe;
    uint32_t published = 0, got = 0;

    client_open(&c);
    sqe = generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    line.user = sqe.user;
    while (line.pos = published, io_put(saw.client, &line) == 0)
        published++;
    ck_assert_uint_eq(published, 31); /* 32 slots, one kept for the terminal */
    ck_assert_uint_eq(io_cq_room(saw.client), 0);
    ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    /* A new request finds no room for its answer: it stays in the SQ. */
    sqe = raw_noop(&c, 1);
    raw_put(&c, &sqe);
    for (int i = 0; i < 5; i++)
        pump();
    ck_assert_uint_eq(*c.sq_head, 1);
    for (; got < 10; got++) {
        ck_assert_int_eq(raw_take(&c, &cqe, 0), 0);
        ck_assert_uint_eq(cqe.pos, got);
    }
    while (published < 60) {
        line.pos = published;
        if (io_put(saw.client, &line) == 0)
            published++;
        pump();
        while (raw_take(&c, &cqe, 0) == 0) {
            if (cqe.kind == TKR_CQE_DONE)
                ck_assert_uint_eq(cqe.user, sqe.user);
            else
                ck_assert_uint_eq(cqe.pos, got++);
        }
    }
    io_done(saw.client, 0, line.user, TKR_OK, NULL);
    PUMP_UNTIL(raw_take(&c, &cqe, 0) == 0);
    ck_assert_uint_eq(got, 60);
    ck_assert_int_eq(cqe.kind, TKR_CQE_DONE);
    ck_assert_uint_eq(cqe.user, line.user);
    ck_assert_int_eq(raw_take(&c, &cqe, 0), -EAGAIN);
    raw_close(&c);
}
END_TEST

START_TEST(every_accepted_tag_has_room_for_its_terminal_even_when_nobody_reads)
{
    struct raw_client c;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN}, cqe;
    uint32_t seen = 0;
    uint64_t first;

    client_open(&c);
    first = c.user + 1;
    for (uint16_t tag = 0; tag < 4; tag++) {
        struct tkr_sqe sqe = generate(&c, tag);

        raw_put(&c, &sqe);
    }
    PUMP_UNTIL(saw.submits == 4);
    while (io_put(saw.client, &line) == 0)
        continue;
    for (uint16_t tag = 0; tag < 4; tag++)
        io_done(saw.client, tag, first + tag, TKR_OK, NULL);
    while (raw_take(&c, &cqe, 0) == 0)
        seen |= cqe.kind == TKR_CQE_DONE ? 1u << cqe.tag : 0;
    ck_assert_uint_eq(seen, 15);
    raw_close(&c);
}
END_TEST

START_TEST(a_cq_head_that_lies_changes_nothing_for_the_daemon)
{
    static const uint32_t lies[] = {0x80000000u, 0xffffffffu, 33, 1000, 0};
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN};
    uint32_t n = 0;

    client_open(&c);
    sqe = generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    while (io_put(saw.client, &line) == 0)
        n++;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        TKR_STORE_RELEASE(c.cq_head, lies[i]);
        ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    }
    TKR_STORE_RELEASE(c.cq_head, 5u);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(io_put(saw.client, &line), 0);
    TKR_STORE_RELEASE(c.cq_head, 3u); /* backwards */
    ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    raw_close(&c);
}
END_TEST

START_TEST(the_result_record_is_complete_when_the_terminal_is_seen)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe cqe;
    struct tkr_result result = {.user = 1, .status = 9, .prompt = 11, .output = 22, .message = "x"};

    client_open(&c);
    sqe = generate(&c, 3);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    io_done(saw.client, 3, sqe.user, TKR_E_CONTEXT, &result);
    cqe = next(&c);
    ck_assert_int_eq(cqe.flags, 0);
    ck_assert_int_eq(cqe.status, TKR_E_CONTEXT);
    ck_assert_uint_eq(c.results[3].user, sqe.user);
    ck_assert_uint_eq(c.results[3].status, TKR_E_CONTEXT);
    ck_assert_uint_eq(c.results[3].prompt, 11);
    ck_assert_uint_eq(c.results[3].output, 22);
    raw_close(&c);
}
END_TEST

START_TEST(bulk_memory_comes_back_by_the_release_word_and_by_a_new_request_of_the_tag)
{
    struct raw_client c;
    struct tkr_sqe a, b;
    uint32_t off;
    void *ptr;

    client_open(&c); /* 64 KiB of bulk */
    a = generate(&c, 0);
    raw_put(&c, &a);
    b = generate(&c, 1);
    raw_put(&c, &b);
    PUMP_UNTIL(saw.submits == 2);
    ck_assert_int_eq(io_bulk_take(saw.client, 0, 40000, &off, &ptr), 0);
    ck_assert_uint_eq(off, 0);
    memset(ptr, 0x5a, 40000);
    ck_assert_int_eq(c.bulk[39999], 0x5a);
    ck_assert_int_eq(io_bulk_take(saw.client, 0, 8, &off, &ptr), -EBUSY);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 40000, &off, &ptr), -ENOSPC);
    TKR_STORE_RELEASE(c.release, (uint32_t)a.user); /* a live request: nothing is given back */
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 40000, &off, &ptr), -ENOSPC);
    TKR_STORE_RELEASE(c.release, 0u);
    io_done(saw.client, 0, a.user, TKR_OK, NULL);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 40000, &off, &ptr), -ENOSPC);
    TKR_STORE_RELEASE(c.release, (uint32_t)a.user);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65536, &off, &ptr), 0);
    io_done(saw.client, 1, b.user, TKR_OK, NULL);
    a = generate(&c, 0);
    raw_put(&c, &a);
    b = generate(&c, 1);
    raw_put(&c, &b);
    PUMP_UNTIL(saw.submits == 4);
    ck_assert_int_eq(io_bulk_take(saw.client, 0, 100, &off, &ptr), 0);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65536, &off, &ptr), -ENOSPC);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65000, &off, &ptr), 0);
    ck_assert_uint_eq(off, 128); /* 100 rounded up to whole lines */
    raw_close(&c);
}
END_TEST

/* ---- the end
 * --------------------------------------------------------------------------------------- */

START_TEST(a_client_that_closes_leaves_no_descriptor_and_no_mapping_behind)
{
    int fds = entries("/proc/self/fd"), mapped = maps();

    for (int i = 0; i < 20; i++) {
        struct raw_client c;

        client_open(&c);
        raw_close(&c);
        PUMP_UNTIL(saw.detaches == (uint32_t)i + 1);
    }
    PUMP_UNTIL(entries("/proc/self/fd") == fds && maps() == mapped);
}
END_TEST

START_TEST(a_region_that_is_held_outlives_the_client_that_closed_with_a_request_in_flight)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN};
    char text[4];
    int mapped = maps();

    saw.hold = 1;
    client_open(&c);
    memcpy(c.arena, "abc", 4);
    sqe = generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    raw_close(&c);
    PUMP_UNTIL(saw.detaches == 1);
    for (int i = 0; i < 5; i++)
        pump();
    ck_assert_int_eq(io_client_dead(saw.client), 1);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 0, 4), 0);
    ck_assert_str_eq(text, "abc");
    ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    ck_assert_uint_eq(io_cq_room(saw.client), 0);
    io_done(saw.client, 0, sqe.user, TKR_E_CANCELLED, NULL); /* allowed, goes nowhere */
    io_client_unref(saw.client);
    PUMP_UNTIL(maps() == mapped);
}
END_TEST

/* A process that attaches, says so through the pipe, and waits to be killed. */
static pid_t client_process(int *ret_pipe, struct raw_client *c, int keep_open_in_a_child)
{
    int fds[2];
    pid_t pid;

    ck_assert_int_eq(pipe(fds), 0);
    pid = fork();
    if (!pid) {
        struct tkr_sqe sqe;

        memset(c, 0, sizeof *c);
        c->socket = raw_connect(path);
        if (c->socket < 0 || raw_hello_send(c) || raw_welcome_recv(c) || raw_r_make(c) ||
            raw_r_seal(c) || raw_attach_send(c) || raw_ready_recv(c))
            _exit(1);
        sqe = generate(c, 0);
        raw_put(c, &sqe);
        if (keep_open_in_a_child && fork() == 0) {
            for (;;)
                pause(); /* holds the socket open */
        }
        if (write(fds[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    *ret_pipe = fds[0];
    return pid;
}

START_TEST(a_client_that_is_killed_is_detached_and_everything_of_it_comes_back)
{
    int fds = entries("/proc/self/fd"), mapped = maps();

    for (uint32_t i = 1; i <= 5; i++) {
        struct raw_client c;
        int ready;
        pid_t pid = client_process(&ready, &c, 0);

        PUMP_UNTIL(saw.submits == i && readable(ready));
        ck_assert_int_eq(io_client_pid(saw.client), pid);
        ck_assert_int_eq((int)io_client_uid(saw.client), (int)getuid());
        kill(pid, SIGKILL);
        PUMP_UNTIL(saw.detaches == i);
        waitpid(pid, NULL, 0);
        close(ready);
    }
    PUMP_UNTIL(entries("/proc/self/fd") == fds && maps() == mapped);
}
END_TEST

START_TEST(a_child_that_keeps_a_dead_clients_socket_open_does_not_keep_it_attached)
{
    struct raw_client c;
    struct io_counts counts;
    int ready;
    pid_t pid;

    setpgid(0, 0); /* the grandchild is ended with the group, see below */
    pid = client_process(&ready, &c, 1);
    PUMP_UNTIL(saw.submits && readable(ready));
    kill(pid, SIGKILL);
    PUMP_UNTIL(saw.detaches == 1);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.clients, 0);
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    waitpid(pid, NULL, 0);
    close(ready);
}
END_TEST

START_TEST(bytes_on_the_socket_of_an_attached_client_end_it)
{
    struct raw_client c;

    client_open(&c);
    ck_assert_int_eq(raw_send(c.socket, "x", 1, NULL, 0), 0);
    PUMP_UNTIL(saw.detaches == 1);
    raw_close(&c);
}
END_TEST

START_TEST(io_says_which_transport_runs)
{
    ck_assert_str_eq(io_mode(io), "io_uring+futex");
}
END_TEST

START_TEST(wrong_options_are_refused_in_one_line)
{
    struct io_opt bad;
    struct io *none = NULL;
    struct diag diag;

    bad = opt;
    bad.clients_max = 0;
    ck_assert_int_eq(io_new(&none, &bad, &ops, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "clients_max"));
    bad = opt;
    bad.inflight_max = 4097;
    ck_assert_int_eq(io_new(&none, &bad, &ops, &diag), -EINVAL);
    bad = opt;
    bad.arena_max = 1ull << 40;
    ck_assert_int_eq(io_new(&none, &bad, &ops, &diag), -EINVAL);
    bad = opt;
    bad.socket_path = "";
    ck_assert_int_eq(io_new(&none, &bad, &ops, &diag), -EINVAL);
    ck_assert_ptr_null(none);
}
END_TEST

static Suite *io_suite(void)
{
    Suite *s = suite_create("io");
    TCase *attach = tcase_create("attach"), *slots = tcase_create("slots"),
          *end = tcase_create("end");

    tcase_add_checked_fixture(attach, setup, teardown);
    tcase_set_timeout(attach, 120);
    tcase_add_test(attach, a_client_attaches_and_gets_what_it_was_granted);
    tcase_add_test(attach, sizes_beyond_the_configuration_are_lowered_in_welcome);
    tcase_add_test(attach, a_malformed_hello_is_refused_with_its_reason);
    tcase_add_test(attach, descriptors_that_nobody_asked_for_are_closed);
    tcase_add_test(attach, a_region_without_every_seal_is_refused);
    tcase_add_test(attach, a_descriptor_that_is_no_memfd_is_refused);
    tcase_add_test(attach, a_region_in_hugetlbfs_is_refused);
    tcase_add_test(attach, a_region_of_another_size_is_refused);
    tcase_add_test(attach, a_region_announced_with_another_size_is_refused);
    tcase_add_test(attach, a_region_with_a_hole_is_refused);
    tcase_add_test(attach, a_header_that_is_not_the_granted_layout_is_refused);
    tcase_add_test(attach, a_region_that_is_attached_already_is_refused);
    tcase_add_test(attach, a_client_cannot_pass_a_region_of_the_daemon_as_its_own);
    tcase_add_test(attach, an_attach_without_or_with_two_descriptors_is_refused);
    tcase_add_test(attach, resume_is_not_implemented_and_says_so);
    tcase_add_test(
        attach,
        one_client_more_than_clients_max_is_refused_and_a_place_that_is_freed_is_used_again);
    tcase_add_test(attach, a_region_that_cannot_be_locked_is_refused_only_under_require_mlock);
    tcase_add_test(attach,
                   a_daemon_that_drains_refuses_new_clients_and_ends_new_requests_as_aborted);
    tcase_add_test(attach, a_connection_that_says_nothing_is_dropped);
    tcase_add_test(attach,
                   a_second_daemon_on_the_same_socket_is_refused_and_a_dead_ones_file_is_replaced);
    tcase_add_test(attach, a_file_that_is_no_socket_is_never_replaced);
    suite_add_tcase(s, attach);

    tcase_add_checked_fixture(slots, setup, teardown);
    tcase_set_timeout(slots, 120);
    tcase_add_test(slots, a_noop_comes_back_with_its_user_and_tag_and_nothing_else);
    tcase_add_test(slots, a_pad_slot_is_skipped);
    tcase_add_test(slots, every_field_that_is_wrong_or_not_implemented_is_answered_with_its_status);
    tcase_add_test(slots, a_request_at_the_last_byte_of_the_arena_is_accepted);
    tcase_add_test(slots, the_arena_is_copied_only_inside_its_bounds);
    tcase_add_test(slots, a_tag_or_user_that_is_alive_is_a_duplicate_and_the_first_request_goes_on);
    tcase_add_test(slots, a_cancel_word_reaches_the_daemon_once_and_a_stale_one_never);
    tcase_add_test(slots, a_cancel_slot_is_answered_and_cancels_the_request_that_it_names);
    tcase_add_test(slots, garbage_in_seq_stalls_only_its_own_queue);
    tcase_add_test(slots, one_pass_takes_eight_slots_of_a_queue_and_no_more);
    tcase_add_test(slots,
                   a_full_cq_loses_nothing_delivers_in_order_and_keeps_the_slot_of_the_terminal);
    tcase_add_test(slots, every_accepted_tag_has_room_for_its_terminal_even_when_nobody_reads);
    tcase_add_test(slots, a_cq_head_that_lies_changes_nothing_for_the_daemon);
    tcase_add_test(slots, the_result_record_is_complete_when_the_terminal_is_seen);
    tcase_add_test(slots,
                   bulk_memory_comes_back_by_the_release_word_and_by_a_new_request_of_the_tag);
    suite_add_tcase(s, slots);

    tcase_add_checked_fixture(end, setup, teardown);
    tcase_set_timeout(end, 120);
    tcase_add_test(end, a_client_that_closes_leaves_no_descriptor_and_no_mapping_behind);
    tcase_add_test(end,
                   a_region_that_is_held_outlives_the_client_that_closed_with_a_request_in_flight);
    tcase_add_test(end, a_client_that_is_killed_is_detached_and_everything_of_it_comes_back);
    tcase_add_test(end, a_child_that_keeps_a_dead_clients_socket_open_does_not_keep_it_attached);
    tcase_add_test(end, bytes_on_the_socket_of_an_attached_client_end_it);
    tcase_add_test(end, io_says_which_transport_runs);
    tcase_add_test(end, wrong_options_are_refused_in_one_line);
    suite_add_tcase(s, end);
    return s;
}

int main(void)
{
    SRunner *sr = srunner_create(io_suite());

    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
