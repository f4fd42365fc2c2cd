/* SPDX-License-Identifier: Apache-2.0 */
/* Every check of an attach, refused one by one; listening. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/io_fixture.h"

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
    ck_assert_uint_eq(((const uint64_t *)(const void *)c.state)[1], 5); /* engine_cpus is at 8 */
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
                                 .nsq = 1000,
                                 .sq_log2 = 31,
                                 .cq_log2 = 31,
                                 .max_inflight = 1u << 31};
    ck_assert_int_eq(client_hello(&c), 0);
    ck_assert_uint_eq(c.welcome.arena_len, daemon_opt.arena_max);
    ck_assert_uint_eq(c.welcome.bulk_len, daemon_opt.bulk_max);
    ck_assert_uint_eq(c.welcome.nsq, 8); /* TKR_NSQ_MAX: its threads decide, no option lowers it */
    ck_assert_uint_eq(c.welcome.sq_log2, TKR_SQ_LOG2_MAX);
    ck_assert_uint_eq(c.welcome.cq_log2, TKR_CQ_LOG2_MAX);
    ck_assert_uint_eq(c.welcome.max_inflight, daemon_opt.inflight_max);
    raw_close(&c);
}
END_TEST

static struct tkr_refused last_refused; /* by hello_refused() */

/* Sends a HELLO that is wrong in one place and returns the reason that it was refused for. */
static int hello_refused(const void *bytes, size_t n, const int *fds, int n_fds)
{
    struct raw_client c;
    int reason;

    client_connect(&c);
    ck_assert_int_eq(raw_send(c.socket, bytes, n, fds, n_fds), 0);
    PUMP_UNTIL(socket_readable(c.socket));
    ck_assert_int_eq(raw_welcome_recv(&c), -EPERM);
    reason = c.refused.reason;
    last_refused = c.refused;
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
    before = folder_entries("/proc/self/fd");
    for (int i = 0; i < 20; i++)
        hello_refused(&good, sizeof good, fds, 1 + i % 6);
    for (int i = 0; i < 4; i++)
        daemon_pump();
    ck_assert_int_eq(folder_entries("/proc/self/fd"), before);
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

/* Who was refused what, in this order; returns how many. */
static size_t refusals_collect(struct tkr_refused ret[16])
{
    static const struct spoil spoils[] = {
        {.seal = 0},
        {.make = make_pipe},
        {.before_seal = grow, .seal = 1},
        {.before_seal = punch, .seal = 1},
        {.before_seal = spoil_ctl_off, .seal = 1},
        {.before_seal = spoil_reserved, .seal = 1},
    };
    struct tkr_hello good = {.head = raw_head(TKR_CTL_HELLO)}, bad[4] = {good, good, good, good};
    size_t n = 0;
    int fd = 0;

    bad[0].head.major = 2;
    bad[1].head.magic ^= 1;
    bad[2].head.type = TKR_CTL_ATTACH;
    bad[3].class_ = 99;
    for (size_t i = 0; i < 4; i++) {
        hello_refused(&bad[i], sizeof bad[i], NULL, 0);
        ret[n++] = last_refused;
    }
    hello_refused(&good, sizeof good, &fd, 1);
    ret[n++] = last_refused;
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++)
        ret[n++] = attach_refused(&spoils[i]);
    return n;
}

START_TEST(a_refusal_says_the_same_whoever_else_is_attached)
{
    struct tkr_refused alone[16], among[16];
    struct raw_client others[3];
    struct tkr_sqe sqe;
    size_t n = refusals_collect(alone);

    for (int i = 0; i < 3; i++) {
        client_open(&others[i]);
        sqe = client_generate(&others[i], 1);
        raw_put(&others[i], &sqe);
    }
    PUMP_UNTIL(saw.submits == 3);
    ck_assert_uint_eq(refusals_collect(among), n);
    for (size_t i = 0; i < n; i++)
        ck_assert_mem_eq(&among[i], &alone[i], sizeof alone[i]);
    for (int i = 0; i < 3; i++)
        raw_close(&others[i]);
}
END_TEST

START_TEST(a_token_region_holds_nothing_of_who_was_attached_before)
{
    struct raw_client first, second;
    struct tkr_result result;
    struct tkr_cqe line;
    struct tkr_sqe sqe;
    uint32_t off;
    void *bulk;

    client_open(&first);
    sqe = client_generate(&first, 1);
    raw_put(&first, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65536, &off, &bulk), 0);
    memset(bulk, 0xa5, 65536);
    memset(&line, 0xa5, sizeof line);
    memset(&result, 0xa5, sizeof result);
    while (io_put(saw.client, &line) == 0)
        continue;
    io_done(saw.client, 1, sqe.user, TKR_OK, &result);
    ck_assert_uint_eq(first.bulk[65535], 0xa5);
    raw_close(&first);
    PUMP_UNTIL(saw.detaches == 1);

    client_open(&second); /* in the same place, of the same sizes */
    for (uint64_t at = second.th.cq_off; at < second.th.region_len; at++)
        ck_assert_msg(!((const uint8_t *)second.t.base)[at], "byte %llu of T",
                      (unsigned long long)at);
    raw_close(&second);
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
    PUMP_UNTIL(socket_readable(c.socket));
    ck_assert_int_eq(raw_recv(c.socket, &welcome, &fd), 0);
    ck_assert_uint_eq(welcome.t_region_len, want.region_len);
    attach.region_len = want.region_len;
    ck_assert_int_eq(raw_send(c.socket, &attach, sizeof attach, &fd, 1), 0);
    PUMP_UNTIL(socket_readable(c.socket));
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
        PUMP_UNTIL(socket_readable(c.socket));
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
    PUMP_UNTIL(socket_readable(c.socket));
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

static void flags_take(void *ctx, uint32_t place, struct tkr_stats_client *client)
{
    (void)place;
    if (client)
        *(unsigned *)ctx = client->flags;
}

START_TEST(a_region_that_cannot_be_locked_is_refused_only_under_require_mlock)
{
    unsigned flags = 0;
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
    ck_assert_int_eq(chmod(daemon_folder, 0777), 0);
    if (getuid() == 0)
        ck_assert_int_eq(setresuid(65534, 65534, 0), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    /* The sanitizers make mlock() do nothing: then there is nothing to see here. */
    for (daemon_opt.require_mlock = mlock(probe, 1 << 20) ? 0 : 2; daemon_opt.require_mlock < 2;
         daemon_opt.require_mlock++) {
        ck_assert_msg(io_new(&io, &daemon_opt, &daemon_ops, &diag) == 0, "%s", diag.text);
        ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
        client_connect(&c);
        ck_assert_int_eq(client_hello(&c), 0);
        ck_assert_int_eq(raw_r_make(&c), 0);
        ck_assert_int_eq(raw_r_seal(&c), 0);
        ck_assert_int_eq(client_attach(&c), daemon_opt.require_mlock ? -EPERM : 0);
        io_counts(io, &counts);
        ck_assert_uint_ge(counts.mlock_failed, 1);
        if (!daemon_opt.require_mlock) {
            io_clients_report(io, 0, 1, flags_take, &flags);
            ck_assert_uint_eq(flags & TKR_STATS_CLIENT_UNLOCKED, TKR_STATS_CLIENT_UNLOCKED);
        }
        raw_close(&c);
        if (daemon_opt.require_mlock) {
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
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    cqe = client_next(&c);
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
    PUMP_UNTIL(socket_readable(c.socket)); /* three seconds */
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

    ck_assert_int_eq(io_new(&second, &daemon_opt, &daemon_ops, &diag), 0);
    ck_assert_int_eq(io_listen(second, &diag), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(diag.text, daemon_path));
    io_free(second);
    ck_assert_int_eq(access(daemon_path, F_OK), 0); /* the first one's file is still there */
    io_free(io);

    pid = fork(); /* a daemon that dies without a word */
    if (!pid) {
        if (io_new(&second, &daemon_opt, &daemon_ops, &diag) || io_listen(second, &diag))
            _exit(1);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert_int_eq(access(daemon_path, F_OK), 0);
    ck_assert_int_eq(io_new(&io, &daemon_opt, &daemon_ops, &diag), 0);
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
}
END_TEST

START_TEST(a_file_that_is_no_socket_is_never_replaced)
{
    struct diag diag;
    struct io *second;
    struct io_opt other = daemon_opt;
    char file[128];
    struct stat st;

    snprintf(file, sizeof file, "%s/file", daemon_folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    other.socket_path = file;
    ck_assert_int_eq(io_new(&second, &other, &daemon_ops, &diag), 0);
    ck_assert_int_eq(io_listen(second, &diag), -EEXIST);
    io_free(second);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(stat(daemon_path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("io_attach");
    TCase *tc = tcase_create("io_attach");
    SRunner *sr;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, daemon_setup, daemon_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_client_attaches_and_gets_what_it_was_granted);
    tcase_add_test(tc, sizes_beyond_the_configuration_are_lowered_in_welcome);
    tcase_add_test(tc, a_malformed_hello_is_refused_with_its_reason);
    tcase_add_test(tc, descriptors_that_nobody_asked_for_are_closed);
    tcase_add_test(tc, a_region_without_every_seal_is_refused);
    tcase_add_test(tc, a_descriptor_that_is_no_memfd_is_refused);
    tcase_add_test(tc, a_region_in_hugetlbfs_is_refused);
    tcase_add_test(tc, a_region_of_another_size_is_refused);
    tcase_add_test(tc, a_region_announced_with_another_size_is_refused);
    tcase_add_test(tc, a_region_with_a_hole_is_refused);
    tcase_add_test(tc, a_header_that_is_not_the_granted_layout_is_refused);
    tcase_add_test(tc, a_region_that_is_attached_already_is_refused);
    tcase_add_test(tc, a_refusal_says_the_same_whoever_else_is_attached);
    tcase_add_test(tc, a_token_region_holds_nothing_of_who_was_attached_before);
    tcase_add_test(tc, a_client_cannot_pass_a_region_of_the_daemon_as_its_own);
    tcase_add_test(tc, an_attach_without_or_with_two_descriptors_is_refused);
    tcase_add_test(tc, resume_is_not_implemented_and_says_so);
    tcase_add_test(
        tc, one_client_more_than_clients_max_is_refused_and_a_place_that_is_freed_is_used_again);
    tcase_add_test(tc, a_region_that_cannot_be_locked_is_refused_only_under_require_mlock);
    tcase_add_test(tc, a_daemon_that_drains_refuses_new_clients_and_ends_new_requests_as_aborted);
    tcase_add_test(tc, a_connection_that_says_nothing_is_dropped);
    tcase_add_test(tc,
                   a_second_daemon_on_the_same_socket_is_refused_and_a_dead_ones_file_is_replaced);
    tcase_add_test(tc, a_file_that_is_no_socket_is_never_replaced);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
