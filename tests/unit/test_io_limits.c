/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may attach, what one user may have over all of its connections, strikes, and a client that
 * ends in any state. The kernel takes a peer's uid and groups when it connects, so root plays two
 * users by connecting as each.
 */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime/io/state.h"
#include "tests/unit/io_fixture.h"

#define OTHER_UID 4001u
#define GROUP     4002u
#define SECOND    1000000000ull

static void open_to_all(void)
{
    ck_assert_int_eq(chmod(daemon_folder, 0755), 0);
    daemon_opt.socket_mode = 0666;
    daemon_restart();
}

static void connect_as(struct raw_client *c, uid_t uid)
{
    ck_assert_int_eq(seteuid(uid), 0);
    client_connect(c);
    ck_assert_int_eq(seteuid(0), 0);
    c->hello = (struct tkr_hello){.head = raw_head(TKR_CTL_HELLO),
                                  .arena_len = 65536,
                                  .bulk_len = 65536,
                                  .cq_log2 = 5,
                                  .max_inflight = 4};
}

static void attach_on(struct raw_client *c)
{
    ck_assert_int_eq(client_hello(c), 0);
    ck_assert_int_eq(raw_r_make(c), 0);
    ck_assert_int_eq(raw_r_seal(c), 0);
    ck_assert_int_eq(client_attach(c), 0);
}

static void open_as(struct raw_client *c, uid_t uid)
{
    connect_as(c, uid);
    attach_on(c);
}

/* A HELLO that is refused: the answer. */
static struct tkr_refused refused_on(struct raw_client *c)
{
    ck_assert_int_eq(client_hello(c), -EPERM);
    raw_close(c);
    return c->refused;
}

/* ---- the access list ------------------------------------------------------------------------ */

START_TEST(whom_no_rule_names_is_refused_where_the_list_ends_with_nobody)
{
    struct raw_client c;
    struct tkr_refused refused;

    daemon_opt.rules[0] = (struct io_rule){.kind = IO_RULE_UID, .id = geteuid()};
    daemon_opt.n_rules = 1;
    daemon_opt.limits.denied = 1;
    open_to_all();
    client_open(&c);
    raw_close(&c);
    connect_as(&c, OTHER_UID);
    refused = refused_on(&c);
    ck_assert_int_eq(refused.reason, TKR_REFUSED_PEER);
    ck_assert_ptr_null(memmem(refused.message, sizeof refused.message, "4001", 4));
}
END_TEST

START_TEST(a_rule_for_a_group_counts_supplementary_groups_too)
{
    gid_t many[100], group = GROUP;
    struct raw_client c;

    for (gid_t i = 0; i < 99; i++)
        many[i] = 5000 + i;
    many[99] = GROUP;
    daemon_opt.rules[0] = (struct io_rule){.kind = IO_RULE_GID, .id = GROUP};
    daemon_opt.n_rules = 1;
    daemon_opt.limits.denied = 1;
    open_to_all();
    ck_assert_int_eq(setgroups(1, &group), 0);
    open_as(&c, OTHER_UID);
    raw_close(&c);
    ck_assert_int_eq(setgroups(100, many), 0); /* more than are read at first */
    open_as(&c, OTHER_UID);
    raw_close(&c);
    ck_assert_int_eq(setgroups(0, NULL), 0);
    connect_as(&c, OTHER_UID);
    ck_assert_int_eq(refused_on(&c).reason, TKR_REFUSED_PEER);
}
END_TEST

START_TEST(the_first_rule_that_names_a_peer_counts)
{
    gid_t group = GROUP;
    struct raw_client c;
    struct tkr_sqe sqe;

    daemon_opt.rules[0] =
        (struct io_rule){.kind = IO_RULE_UID, .id = OTHER_UID, .limits.inflight = 7};
    daemon_opt.rules[1] = (struct io_rule){.kind = IO_RULE_GID, .id = GROUP, .limits.denied = 1};
    daemon_opt.n_rules = 2;
    open_to_all();
    ck_assert_int_eq(setgroups(1, &group), 0);
    open_as(&c, OTHER_UID);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    ck_assert_uint_eq(io_client_rule(saw.client), 0);
    raw_close(&c);
    connect_as(&c, OTHER_UID + 1);
    ck_assert_int_eq(refused_on(&c).reason, TKR_REFUSED_PEER);
}
END_TEST

/* ---- limits --------------------------------------------------------------------------------- */

START_TEST(a_user_has_no_more_connections_than_its_limit_and_others_attach)
{
    struct raw_client c[3], other;
    struct tkr_refused refused;

    daemon_opt.limits.clients = 2;
    open_to_all();
    open_as(&c[0], OTHER_UID);
    open_as(&c[1], OTHER_UID);
    connect_as(&c[2], OTHER_UID);
    refused = refused_on(&c[2]);
    ck_assert_int_eq(refused.reason, TKR_REFUSED_LIMIT);
    ck_assert_uint_eq(refused.have, 2);
    ck_assert_uint_eq(refused.want, 3);
    open_as(&other, OTHER_UID + 1);
    raw_close(&c[0]);
    PUMP_UNTIL(saw.detaches == 1);
    open_as(&c[2], OTHER_UID);
    raw_close(&c[1]);
    raw_close(&c[2]);
    raw_close(&other);
}
END_TEST

START_TEST(connections_that_a_user_only_holds_open_keep_nobody_out)
{
    struct raw_client silent[60], other;

    daemon_opt.limits.clients = 2;
    open_to_all();
    for (int i = 0; i < 60; i++) { /* the whole table has 24 places */
        connect_as(&silent[i], OTHER_UID);
        daemon_pump();
    }
    open_as(&other, OTHER_UID + 1);
    for (int i = 0; i < 60; i++)
        raw_close(&silent[i]);
    raw_close(&other);
}
END_TEST

START_TEST(who_only_connects_is_dropped_early_when_the_table_is_full_and_only_then)
{
    struct raw_client silent[24]; /* the table has 24 places: 8 clients and 16 spare ones */
    uint64_t later;

    for (int n = 23; n <= 24; n++) {
        for (int i = n == 23 ? 0 : 23; i < n; i++) {
            client_connect(&silent[i]);
            daemon_pump();
        }
        later = clock_ns() + IO_SILENT_NS;
        ck_assert_uint_gt(IO_HALF_OPEN_NS, 4 * IO_SILENT_NS);
        control_expire(io, later);
        for (int i = 0; i < n; i++)
            ck_assert_int_eq(socket_readable(silent[i].socket), n == 24);
    }
    for (int i = 0; i < 24; i++) {
        ck_assert_int_eq(raw_welcome_recv(&silent[i]), -EPERM);
        ck_assert_int_eq(silent[i].refused.reason, TKR_REFUSED_MESSAGE);
        raw_close(&silent[i]);
    }
}
END_TEST

START_TEST(a_user_has_no_more_memory_in_regions_than_its_limit)
{
    struct raw_client c[3];
    struct tkr_refused refused;
    struct tkr_grant grant = {.arena_len = 65536,
                              .bulk_len = 65536,
                              .nsq = 1,
                              .sq_log2 = 6,
                              .cq_log2 = 5,
                              .max_inflight = 4};
    struct tkr_r_header r;
    struct tkr_t_header t;
    uint64_t each;

    grant.colour = TKR_COLOURS - 1; /* the largest */
    tkr_r_layout(&r, &grant);
    tkr_t_layout(&t, &grant);
    each = r.region_len + t.region_len;
    daemon_opt.limits.bytes = 2 * each;
    daemon_restart();
    for (int i = 0; i < 3; i++) {
        client_connect(&c[i]);
        c[i].hello.arena_len = c[i].hello.bulk_len = 65536;
        c[i].hello.cq_log2 = 5;
        c[i].hello.max_inflight = 4;
        if (i < 2)
            attach_on(&c[i]);
    }
    refused = refused_on(&c[2]);
    ck_assert_int_eq(refused.reason, TKR_REFUSED_LIMIT);
    ck_assert_uint_eq(refused.have, 2 * each);
    ck_assert_uint_gt(refused.want, 2 * each);
    raw_close(&c[0]);
    PUMP_UNTIL(saw.detaches == 1);
    for (int tries = 0;; tries++) { /* comes back when the kernel has let go of the region */
        ck_assert_int_lt(tries, 1000);
        client_connect(&c[2]);
        c[2].hello = c[1].hello;
        if (client_hello(&c[2]) == 0)
            break;
        raw_close(&c[2]);
    }
    raw_close(&c[1]);
    raw_close(&c[2]);
}
END_TEST

START_TEST(a_user_has_no_more_requests_in_flight_than_its_limit_over_all_of_its_connections)
{
    struct raw_client a, b;
    struct io_client *of[4];
    struct io_counts counts;
    struct tkr_sqe sqe[4];
    struct tkr_cqe cqe;

    daemon_opt.limits.inflight = 3;
    daemon_restart();
    client_open(&a);
    client_open(&b);
    for (uint16_t i = 0; i < 3; i++) {
        struct raw_client *c = i == 1 ? &b : &a;

        sqe[i] = client_generate(c, i);
        raw_put(c, &sqe[i]);
        PUMP_UNTIL(saw.submits == i + 1u);
        of[i] = saw.client;
    }
    sqe[3] = client_generate(&b, 3);
    raw_put(&b, &sqe[3]);
    cqe = client_next(&b);
    ck_assert_uint_eq(cqe.user, sqe[3].user);
    ck_assert_int_eq(cqe.status, TKR_E_OVERLOADED);
    ck_assert_uint_eq(b.results[3].have, 3);
    ck_assert_uint_eq(b.results[3].want, 4);
    ck_assert_uint_eq(b.results[3].user, sqe[3].user);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.rejected, 1); /* one slot; the operator sees it */
    io_done(of[0], 0, sqe[0].user, TKR_OK, NULL);
    sqe[3] = client_generate(&b, 3);
    raw_put(&b, &sqe[3]);
    PUMP_UNTIL(saw.submits == 4);
    /* A client that ends gives back what it had, also when the daemon does not end its requests. */
    raw_close(&b);
    PUMP_UNTIL(saw.detaches == 1);
    for (int i = 0; i < 3; i++)
        daemon_pump();
    for (uint16_t tag = 0; tag < 2; tag++) {
        sqe[tag] = client_generate(&a, tag);
        raw_put(&a, &sqe[tag]);
        PUMP_UNTIL(saw.submits == 5u + tag);
    }
    raw_close(&a);
}
END_TEST

START_TEST(requests_of_one_user_are_not_counted_for_another)
{
    struct raw_client a, b;
    struct tkr_sqe sqe;

    daemon_opt.limits.inflight = 1;
    open_to_all();
    open_as(&a, OTHER_UID);
    open_as(&b, OTHER_UID + 1);
    sqe = client_generate(&a, 0);
    raw_put(&a, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    sqe = client_generate(&b, 0);
    raw_put(&b, &sqe);
    PUMP_UNTIL(saw.submits == 2);
    raw_close(&a);
    raw_close(&b);
}
END_TEST

START_TEST(who_is_trusted_is_known_by_uid_and_group_and_its_requests_are_limited_by_tenant_alone)
{
    gid_t group = GROUP;
    struct raw_client a, b, c;
    struct tkr_sqe sqe[3];

    daemon_opt.limits.inflight = 1;
    daemon_opt.trusted[0] = (struct io_rule){.kind = IO_RULE_UID, .id = OTHER_UID};
    daemon_opt.trusted[1] = (struct io_rule){.kind = IO_RULE_GID, .id = GROUP};
    daemon_opt.n_trusted = 2;
    open_to_all();
    open_as(&a, OTHER_UID);
    for (uint16_t tag = 0; tag < 3; tag++) {
        sqe[tag] = client_generate(&a, tag);
        raw_put(&a, &sqe[tag]);
        PUMP_UNTIL(saw.submits == tag + 1u);
        ck_assert(io_client_trusted(saw.client));
    }
    open_as(&b, OTHER_UID + 1); /* named by nobody */
    sqe[0] = client_generate(&b, 0);
    raw_put(&b, &sqe[0]);
    PUMP_UNTIL(saw.submits == 4);
    ck_assert(!io_client_trusted(saw.client));
    ck_assert_int_eq(setgroups(1, &group), 0);
    open_as(&c, OTHER_UID + 2);
    sqe[0] = client_generate(&c, 0);
    raw_put(&c, &sqe[0]);
    PUMP_UNTIL(saw.submits == 5);
    ck_assert(io_client_trusted(saw.client));
    ck_assert_int_eq(setgroups(0, NULL), 0);
    raw_close(&a);
    raw_close(&b);
    raw_close(&c);
}
END_TEST

START_TEST(a_user_that_attaches_more_often_than_its_rate_is_refused_and_others_attach)
{
    struct raw_client c, other;
    struct tkr_refused refused = {.reason = 0};

    daemon_opt.limits.attach_rate = 1;
    daemon_opt.limits.attach_burst = 3;
    open_to_all();
    /* A hundred take more than 97 seconds if none is refused. */
    for (int i = 0; i < 100 && !refused.reason; i++) {
        connect_as(&c, OTHER_UID);
        if (client_hello(&c) == -EPERM)
            refused = c.refused;
        ck_assert(i >= 3 || !refused.reason);
        raw_close(&c);
    }
    ck_assert_int_eq(refused.reason, TKR_REFUSED_LIMIT);
    ck_assert_uint_eq(refused.have, 1);
    open_as(&other, OTHER_UID + 1);
    raw_close(&other);
}
END_TEST

START_TEST(a_rate_lets_a_burst_through_and_then_one_for_each_period)
{
    uint64_t at = 0, now = 5 * SECOND;

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(rate_take(&at, now, 2, 4), 0);
    ck_assert_int_eq(rate_take(&at, now, 2, 4), -EAGAIN);
    ck_assert_int_eq(rate_take(&at, now + SECOND / 2 - 1, 2, 4), -EAGAIN);
    ck_assert_int_eq(rate_take(&at, now + SECOND / 2, 2, 4), 0);
    ck_assert_int_eq(rate_take(&at, now + SECOND / 2, 2, 4), -EAGAIN);
    for (int i = 0; i < 4; i++) /* after a rest the whole burst again, and no more than that */
        ck_assert_int_eq(rate_take(&at, now + 100 * SECOND, 2, 4), 0);
    ck_assert_int_eq(rate_take(&at, now + 100 * SECOND, 2, 4), -EAGAIN);
}
END_TEST

START_TEST(a_class_above_the_ceiling_of_a_user_is_refused_and_not_lowered)
{
    static const struct {
        uint8_t ceiling, class_;
        int err;
    } cases[] = {{TKR_CLASS_DEFAULT, TKR_CLASS_REALTIME, 0},
                 {TKR_CLASS_REALTIME, TKR_CLASS_REALTIME, 0},
                 {TKR_CLASS_INTERACTIVE, TKR_CLASS_REALTIME, -EPERM},
                 {TKR_CLASS_INTERACTIVE, TKR_CLASS_INTERACTIVE, 0},
                 {TKR_CLASS_INTERACTIVE, TKR_CLASS_DEFAULT, 0},
                 {TKR_CLASS_BATCH, TKR_CLASS_DEFAULT, -EPERM},
                 {TKR_CLASS_BATCH, TKR_CLASS_INTERACTIVE, -EPERM},
                 {TKR_CLASS_BATCH, TKR_CLASS_BATCH, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct raw_client c;

        daemon_opt.limits.class_max = cases[i].ceiling;
        daemon_restart();
        client_connect(&c);
        c.hello.head = raw_head(TKR_CTL_HELLO);
        c.hello.class_ = cases[i].class_;
        ck_assert_int_eq(client_hello(&c), cases[i].err);
        if (cases[i].err) {
            ck_assert_int_eq(c.refused.reason, TKR_REFUSED_LIMIT);
            ck_assert_uint_eq(c.refused.want, cases[i].class_);
        }
        raw_close(&c);
    }
}
END_TEST

/* ---- strikes -------------------------------------------------------------------------------- */

/* Malformed slots until the daemon has had enough: how many were answered. */
static uint32_t misbehave(struct raw_client *c, void (*spoil)(struct tkr_sqe *sqe))
{
    struct tkr_cqe cqe;
    uint32_t n = 0;

    for (int i = 0; i < 100000 && !socket_readable(c->socket); i++) {
        struct tkr_sqe sqe = client_generate(c, 0);

        spoil(&sqe);
        if (tkr_ring_credit(&c->sq, TKR_LOAD_ACQUIRE(c->sq_head)))
            raw_put(c, &sqe);
        daemon_pump();
        while (raw_take(c, &cqe, 0) == 0) {
            ck_assert_int_ne(cqe.status, TKR_OK);
            n++;
        }
    }
    return n;
}

static void spoil_tag(struct tkr_sqe *sqe)
{
    sqe->tag = 999;
}

static void spoil_range(struct tkr_sqe *sqe)
{
    sqe->data_off = UINT32_MAX;
}

static void spoil_op(struct tkr_sqe *sqe)
{
    sqe->op = 200;
}

static void spoil_reserved(struct tkr_sqe *sqe)
{
    sqe->reserved = 1;
}

START_TEST(a_client_that_sends_too_many_malformed_slots_is_told_so_and_detached)
{
    static void (*const spoils[])(struct tkr_sqe *) = {spoil_tag, spoil_range, spoil_op,
                                                       spoil_reserved};
    struct raw_client bad, good;
    struct tkr_sqe sqe;
    struct io_counts counts;

    client_open(&good);
    for (uint32_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        client_open(&bad);
        /* The 65th within a second; what is sent more slowly is forgiven. */
        ck_assert_uint_ge(misbehave(&bad, spoils[i]), 65);
        ck_assert_int_eq(raw_ready_recv(&bad), -EPERM);
        ck_assert_int_eq(bad.refused.reason, TKR_REFUSED_STRIKES);
        ck_assert_uint_eq(bad.refused.have, 64);
        ck_assert_int_eq(raw_ready_recv(&bad), -EPIPE); /* and then the hang-up */
        ck_assert_uint_eq(saw.detaches, i + 1);
        io_counts(io, &counts);
        ck_assert_uint_eq(counts.struck, i + 1);
        ck_assert_uint_eq(counts.refused, 0);
        raw_close(&bad);
        sqe = raw_noop(&good, 0);
        raw_put(&good, &sqe);
        ck_assert_uint_eq(client_next(&good).user, sqe.user);
    }
    raw_close(&good);
}
END_TEST

START_TEST(a_client_that_is_struck_has_its_requests_dropped_and_everything_comes_back)
{
    int fds = folder_entries("/proc/self/fd"), mapped = region_maps();
    struct raw_client bad;
    struct tkr_sqe sqe;

    client_open(&bad);
    sqe = client_generate(&bad, 1);
    raw_put(&bad, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    misbehave(&bad, spoil_tag);
    PUMP_UNTIL(saw.detaches == 1);
    raw_close(&bad);
    PUMP_UNTIL(folder_entries("/proc/self/fd") == fds && region_maps() == mapped);
}
END_TEST

START_TEST(what_a_daemon_does_not_implement_is_no_strike)
{
    struct raw_client c;

    client_open(&c);
    for (int i = 0; i < 300; i++) {
        struct tkr_sqe sqe = client_generate(&c, 0);

        sqe.op = TKR_OP_EMBED;
        raw_put(&c, &sqe);
        ck_assert_int_eq(client_next(&c).status, TKR_E_UNSUPPORTED);
    }
    ck_assert_int_eq(socket_readable(c.socket), 0);
    ck_assert_uint_eq(saw.detaches, 0);
    raw_close(&c);
}
END_TEST

/* ---- the end in any state ------------------------------------------------------------------- */

enum stage {
    CONNECTED,
    HELLO_SENT,
    WELCOMED,
    REGION_MADE,
    ATTACH_SENT,
    READY,
    SUBMITTED, /* slots put and not taken */
    IN_FLIGHT,
    PARKED,
    UNREAD, /* a full completion queue, and slots that wait for room */
    STAGES
};

static void come_to(struct raw_client *c, enum stage stage)
{
    struct tkr_sqe sqe;

    client_connect(c);
    c->hello = (struct tkr_hello){
        .head = raw_head(TKR_CTL_HELLO), .nsq = 3, .cq_log2 = 5, .sq_log2 = 6, .max_inflight = 4};
    if (stage >= HELLO_SENT)
        ck_assert_int_eq(raw_hello_send(c), 0);
    if (stage >= WELCOMED) {
        PUMP_UNTIL(socket_readable(c->socket));
        ck_assert_int_eq(raw_welcome_recv(c), 0);
    }
    if (stage >= REGION_MADE) {
        ck_assert_int_eq(raw_r_make(c), 0);
        ck_assert_int_eq(raw_r_seal(c), 0);
    }
    if (stage >= ATTACH_SENT)
        ck_assert_int_eq(raw_attach_send(c), 0);
    if (stage >= READY) {
        PUMP_UNTIL(socket_readable(c->socket));
        ck_assert_int_eq(raw_ready_recv(c), 0);
    }
    if (stage == IN_FLIGHT) {
        sqe = client_generate(c, 1);
        raw_queue_put(c, &c->queue[2], &sqe);
        PUMP_UNTIL(saw.submits);
    }
    for (int i = 0; stage == UNREAD && i < 60; i++) {
        sqe = raw_noop(c, 0);
        raw_queue_put(c, &c->queue[1], &sqe);
    }
    for (int i = 0; (stage == PARKED || stage == UNREAD) && i < 20; i++)
        daemon_pump();
    for (int i = 0; stage == SUBMITTED && i < 20; i++) {
        sqe = raw_noop(c, 0);
        raw_queue_put(c, &c->queue[i % 3], &sqe);
    }
}

START_TEST(a_client_that_closes_in_any_state_leaves_nothing_behind)
{
    int fds = folder_entries("/proc/self/fd"), mapped = region_maps();
    struct io_counts counts;

    for (int stage = 0; stage < STAGES; stage++) {
        for (int i = 0; i < 5; i++) {
            struct raw_client c;

            saw.submits = 0;
            come_to(&c, (enum stage)stage);
            raw_close(&c);
            for (int k = 0; k < i; k++) /* the daemon sees it early or late */
                io_pass(io);
        }
        PUMP_UNTIL(folder_entries("/proc/self/fd") == fds && region_maps() == mapped);
        io_counts(io, &counts);
        ck_assert_uint_eq(counts.clients, 0);
        ck_assert_uint_eq(counts.hot + counts.parked, 0);
    }
}
END_TEST

START_TEST(a_client_that_unmaps_its_region_with_a_request_in_flight_does_no_harm)
{
    struct raw_client c, other;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN, .ntok = 1};
    struct tkr_sqe sqe;
    char text[8];

    client_open(&c);
    client_open(&other);
    memcpy(c.arena, "prompt", 7);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    tkr_region_close(&c.r); /* the socket stays: the daemon has a mapping of its own */
    tkr_region_close(&c.t);
    for (int i = 0; i < 5; i++)
        daemon_pump();
    ck_assert_int_eq(io_client_dead(saw.client), 0);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 0, 7), 0);
    ck_assert_str_eq(text, "prompt");
    ck_assert_int_eq(io_put(saw.client, &line), 0);
    io_done(saw.client, 0, sqe.user, TKR_OK, NULL);
    sqe = raw_noop(&other, 0);
    raw_put(&other, &sqe);
    ck_assert_uint_eq(client_next(&other).user, sqe.user);
    close(c.socket);
    PUMP_UNTIL(saw.detaches == 1);
    raw_close(&other);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("io_limits");
    TCase *tc = tcase_create("io_limits");
    SRunner *sr;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, daemon_setup, daemon_teardown);
    tcase_set_timeout(tc, 120);
    if (geteuid() == 0) {
        tcase_add_test(tc, whom_no_rule_names_is_refused_where_the_list_ends_with_nobody);
        tcase_add_test(tc, a_rule_for_a_group_counts_supplementary_groups_too);
        tcase_add_test(tc, the_first_rule_that_names_a_peer_counts);
        tcase_add_test(tc, a_user_has_no_more_connections_than_its_limit_and_others_attach);
        tcase_add_test(tc, connections_that_a_user_only_holds_open_keep_nobody_out);
        tcase_add_test(tc, requests_of_one_user_are_not_counted_for_another);
        tcase_add_test(
            tc, who_is_trusted_is_known_by_uid_and_group_and_its_requests_are_limited_by_tenant_alone);
        tcase_add_test(tc,
                       a_user_that_attaches_more_often_than_its_rate_is_refused_and_others_attach);
    } else {
        printf("# not root: the eight tests with two users are left out\n");
        fflush(stdout);
    }
    tcase_add_test(tc, who_only_connects_is_dropped_early_when_the_table_is_full_and_only_then);
    tcase_add_test(tc, a_user_has_no_more_memory_in_regions_than_its_limit);
    tcase_add_test(
        tc, a_user_has_no_more_requests_in_flight_than_its_limit_over_all_of_its_connections);
    tcase_add_test(tc, a_rate_lets_a_burst_through_and_then_one_for_each_period);
    tcase_add_test(tc, a_class_above_the_ceiling_of_a_user_is_refused_and_not_lowered);
    tcase_add_test(tc, a_client_that_sends_too_many_malformed_slots_is_told_so_and_detached);
    tcase_add_test(tc, a_client_that_is_struck_has_its_requests_dropped_and_everything_comes_back);
    tcase_add_test(tc, what_a_daemon_does_not_implement_is_no_strike);
    tcase_add_test(tc, a_client_that_closes_in_any_state_leaves_nothing_behind);
    tcase_add_test(tc, a_client_that_unmaps_its_region_with_a_request_in_flight_does_no_harm);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
