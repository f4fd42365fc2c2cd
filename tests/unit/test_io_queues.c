/* SPDX-License-Identifier: Apache-2.0 */
/* Several submission queues on one connection, parking, and the three ways to be woken; expected
 * values follow from shm/abi.h and docs/abi.md. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "runtime/io/state.h"
#include "tests/unit/io_fixture.h"

/* Eight queues of 64 slots, 256 CQ slots, 8 tags. */
static void open_queues(struct raw_client *c)
{
    client_connect(c);
    c->hello = (struct tkr_hello){.head = raw_head(TKR_CTL_HELLO),
                                  .arena_len = 65536,
                                  .bulk_len = 65536,
                                  .nsq = 8,
                                  .sq_log2 = 6,
                                  .cq_log2 = 8,
                                  .max_inflight = 8};
    ck_assert_int_eq(client_hello(c), 0);
    ck_assert_uint_eq(c->welcome.nsq, 8);
    ck_assert_int_eq(raw_r_make(c), 0);
    ck_assert_int_eq(raw_r_seal(c), 0);
    ck_assert_int_eq(client_attach(c), 0);
}

static void all_parked(uint32_t n)
{
    struct io_counts counts;

    PUMP_UNTIL((io_counts(io, &counts), counts.parked == n && !counts.hot));
}

START_TEST(every_queue_of_a_connection_is_served_and_answers_come_in_the_one_completion_queue)
{
    struct raw_client c;

    open_queues(&c);
    for (uint32_t i = 0; i < 1000; i++) { /* fifteen laps of each submission queue */
        struct raw_queue *queue = &c.queue[i % 8];
        struct tkr_sqe sqe = raw_noop(&c, (uint16_t)(i % 8));
        struct tkr_cqe cqe;

        raw_queue_put(&c, queue, &sqe);
        cqe = client_next(&c);
        ck_assert_uint_eq(cqe.user, sqe.user);
        ck_assert_int_eq(cqe.status, TKR_OK);
        ck_assert_uint_eq(*queue->sq_head, i / 8 + 1);
    }
    raw_close(&c);
}
END_TEST

START_TEST(a_queue_becomes_hot_and_parks_without_the_others)
{
    struct raw_client c;
    struct io_counts counts;
    struct tkr_sqe sqe;

    open_queues(&c);
    all_parked(8);
    for (uint32_t q = 0; q < 8; q++)
        ck_assert_uint_eq(*c.queue[q].need_wakeup, 1);
    sqe = raw_noop(&c, 0);
    tkr_ring_put(&c.queue[5].sq,
                 &sqe); /* without a bell: a daemon that is awake finds it by its peeks */
    for (int i = 0; i < 9; i++)
        io_pass(io);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.hot, 1);
    ck_assert_uint_eq(counts.parked, 7);
    for (uint32_t q = 0; q < 8; q++)
        ck_assert_uint_eq(*c.queue[q].need_wakeup, q != 5);
    ck_assert_uint_eq(*c.queue[5].sq_head, 1);
    all_parked(8);
    raw_close(&c);
}
END_TEST

START_TEST(one_pass_takes_eight_slots_of_a_client_and_its_queues_take_turns)
{
    struct raw_client c;
    struct tkr_cqe cqe;

    open_queues(&c);
    for (uint32_t q = 0; q < 8; q++)
        for (int i = 0; i < 20; i++) {
            struct tkr_sqe sqe = raw_noop(&c, 0);

            tkr_ring_put(&c.queue[q].sq, &sqe);
        }
    for (uint32_t total = 0, pass = 0; total < 160; pass++) {
        uint32_t n = io_pass(io);

        ck_assert_uint_le(n, 8);
        total += n;
        while (raw_take(&c, &cqe, 0) == 0)
            continue;
        for (uint32_t q = 0; pass == 7 && q < 8; q++) /* each had its turn by now */
            ck_assert_uint_eq(*c.queue[q].sq_head, 8);
    }
    raw_close(&c);
}
END_TEST

/* As tests/model-check/turn.pml has it: of four hot queues each is looked at in four passes. */
START_TEST(queues_that_are_rung_for_nothing_take_no_turn_from_the_others)
{
    struct raw_client c;
    struct io_client *client;
    uint32_t before = 0, passes = 0;

    open_queues(&c);
    all_parked(8);
    client = io->table[0];
    io_busy(io, 1);
    queue_heat(&client->queue[0]);
    queue_heat(&client->queue[3]);
    for (int i = 0; i < 200; i++) {
        for (uint32_t q = 0; q < 4; q += 3) { /* these two always have slots */
            struct raw_queue *queue = &c.queue[q];
            struct tkr_sqe pad = {.op = TKR_OP_PAD};

            while (tkr_ring_credit(&queue->sq, *queue->sq_head))
                tkr_ring_put(&queue->sq, &pad);
        }
        io_pass(io);
        passes = *c.queue[3].sq_head == before ? passes + 1 : 0;
        before = *c.queue[3].sq_head;
        ck_assert_uint_lt(passes, 4);
        queue_heat(&client->queue[1 + i % 2]); /* parks again in the look after the next */
        io_control(io);
    }
    io_busy(io, 0);
    raw_close(&c);
}
END_TEST

START_TEST(tags_belong_to_the_connection_and_not_to_a_queue)
{
    struct raw_client c;
    struct tkr_sqe first, second;
    struct tkr_cqe cqe;

    open_queues(&c);
    first = client_generate(&c, 2);
    raw_queue_put(&c, &c.queue[1], &first);
    PUMP_UNTIL(saw.submits == 1);
    second = client_generate(&c, 2);
    raw_queue_put(&c, &c.queue[6], &second);
    cqe = client_next(&c);
    ck_assert_uint_eq(cqe.user, second.user);
    ck_assert_int_eq(cqe.status, TKR_E_DUPLICATE);
    second = raw_noop(&c, 3); /* a CANCEL slot reaches requests of every queue */
    second.op = TKR_OP_CANCEL;
    second.session = first.user;
    raw_queue_put(&c, &c.queue[7], &second);
    ck_assert_int_eq(client_next(&c).status, TKR_OK);
    ck_assert_uint_eq(saw.cancel_user, first.user);
    io_done(saw.client, 2, first.user, TKR_E_CANCELLED, NULL);
    ck_assert_uint_eq(client_next(&c).user, first.user);
    raw_close(&c);
}
END_TEST

START_TEST(a_claim_that_is_never_published_stalls_only_its_own_queue)
{
    struct raw_client c;
    struct tkr_sqe sqe;

    open_queues(&c);
    sqe = raw_noop(&c, 0);
    c.queue[3].sq.pos = 1; /* the slot at 0 is left out */
    raw_queue_put(&c, &c.queue[3], &sqe);
    for (int i = 0; i < 40; i++) {
        sqe = raw_noop(&c, 0);
        raw_queue_put(&c, &c.queue[4], &sqe);
        ck_assert_uint_eq(client_next(&c).user, sqe.user);
    }
    ck_assert_uint_eq(*c.queue[3].sq_head, 0);
    raw_close(&c);
}
END_TEST

START_TEST(a_full_completion_queue_blocks_every_queue_of_its_client_and_loses_nothing)
{
    struct raw_client c;
    struct tkr_cqe cqe;
    uint64_t seen[8] = {0};
    uint32_t n = 0;

    open_queues(&c);
    for (uint32_t q = 0; q < 8; q++)
        for (uint64_t i = 1; i <= 64; i++) { /* 512 answers, 256 places */
            struct tkr_sqe sqe = {.op = TKR_OP_NOOP, .user = (uint64_t)q << 40 | i};

            tkr_ring_put(&c.queue[q].sq, &sqe);
        }
    for (int i = 0; i < 100; i++)
        daemon_pump();
    while (n < 512) {
        PUMP_UNTIL(raw_take(&c, &cqe, 0) == 0);
        ck_assert_uint_eq((uint32_t)cqe.user, ++seen[cqe.user >> 40]); /* in order in each queue */
        n++;
    }
    all_parked(8);
    raw_close(&c);
}
END_TEST

START_TEST(a_daemon_that_never_rests_parks_idle_queues_too)
{
    struct raw_client c;
    struct io_counts counts;
    uint64_t hang = clock_ns() + HANG_NS;

    open_queues(&c);
    io_busy(io, 1);
    for (uint32_t q = 0; q < 8; q++) {
        struct tkr_sqe sqe = raw_noop(&c, 0);

        raw_queue_put(&c, &c.queue[q], &sqe);
    }
    do { /* as the engine's loop between two steps: no io_sleep() */
        io_control(io);
        io_pass(io);
        io_counts(io, &counts);
        ck_assert_uint_lt(clock_ns(), hang);
    } while (counts.slots < 8 || counts.hot);
    for (uint32_t q = 0; q < 8; q++)
        ck_assert_uint_eq(*c.queue[q].need_wakeup, 1);
    for (uint32_t q = 0; q < 8; q++) { /* and each one's bell works */
        struct tkr_sqe sqe = raw_noop(&c, 0);

        ck_assert_int_eq(raw_queue_put(&c, &c.queue[q], &sqe), 1);
    }
    do {
        io_control(io);
        io_pass(io);
        io_counts(io, &counts);
        ck_assert_uint_lt(clock_ns(), hang);
    } while (counts.slots < 16);
    io_busy(io, 0);
    raw_close(&c);
}
END_TEST

/* ---- waits by socket ------------------------------------------------------------------------ */

static void wait_by_socket(struct raw_client *c)
{
    TKR_STORE_RELAXED(c->wait, TKR_WAIT_ASLEEP | TKR_WAIT_BY_SOCKET | (uint32_t)(c->cq.pos + 1));
    tkr_fence();
}

static int socket_byte(struct raw_client *c)
{
    uint8_t byte[2] = {0};
    ssize_t n = recv(c->socket, byte, sizeof byte, MSG_DONTWAIT);

    return n == 1 ? byte[0] : -1;
}

START_TEST(who_waits_by_socket_gets_one_byte_and_no_more_until_it_waits_again)
{
    for (int busy = 0; busy < 2; busy++) {
        struct raw_client c;
        struct tkr_cqe cqe;
        uint32_t bell;

        open_queues(&c);
        bell = *c.cq_bell;
        for (uint32_t round = 1; round <= 5; round++) {
            wait_by_socket(&c);
            for (int i = 0; i < 3; i++) { /* three answers in three passes while it sleeps */
                struct tkr_sqe sqe = raw_noop(&c, 0);
                uint32_t before = *c.sq_head;

                raw_put(&c, &sqe);
                io_busy(io, busy);
                PUMP_UNTIL(*c.sq_head == before + 1);
            }
            PUMP_UNTIL(socket_readable(c.socket));
            ck_assert_int_eq(socket_byte(&c), 1); /* docs/abi.md, 6 */
            ck_assert_int_eq(socket_byte(&c), -1);
            ck_assert_uint_eq(*c.cq_bell, bell + round);
            TKR_STORE_RELAXED(c.wait, 0);
            for (int i = 0; i < 3; i++)
                ck_assert_int_eq(raw_take(&c, &cqe, 0), 0);
        }
        io_busy(io, 0);
        raw_close(&c);
        PUMP_UNTIL(saw.detaches == (uint32_t)busy + 1);
    }
}
END_TEST

START_TEST(who_waits_for_a_position_is_woken_when_it_is_reached_and_not_before)
{
    struct raw_client c;

    open_queues(&c);
    TKR_STORE_RELAXED(c.wait, TKR_WAIT_ASLEEP | TKR_WAIT_BY_SOCKET | 4);
    for (uint32_t i = 1; i <= 4; i++) {
        struct tkr_sqe sqe = raw_noop(&c, 0);

        raw_put(&c, &sqe);
        PUMP_UNTIL(*c.sq_head == i);
        daemon_pump();
        ck_assert_int_eq(socket_byte(&c), i == 4 ? 1 : -1);
    }
    raw_close(&c);
}
END_TEST

START_TEST(a_client_that_never_reads_its_socket_holds_nobody_up)
{
    struct raw_client c, other;
    struct tkr_cqe cqe;

    open_queues(&c);
    client_open(&other);
    for (int i = 0; i < 2000; i++) { /* more bytes than a socket holds */
        struct tkr_sqe sqe = raw_noop(&c, 0);

        wait_by_socket(&c);
        raw_put(&c, &sqe);
        io_busy(io, i & 1);
        PUMP_UNTIL(raw_take(&c, &cqe, 0) == 0);
        ck_assert_uint_eq(cqe.user, sqe.user);
    }
    io_busy(io, 0);
    {
        struct tkr_sqe sqe = raw_noop(&other, 0);

        raw_put(&other, &sqe);
        ck_assert_uint_eq(client_next(&other).user, sqe.user);
    }
    raw_close(&c);
    raw_close(&other);
}
END_TEST

START_TEST(a_client_that_ends_while_its_byte_is_due_takes_no_other_clients_socket)
{
    struct raw_client c, next;
    struct tkr_sqe sqe;
    int fds = folder_entries("/proc/self/fd"), mapped = region_maps();

    for (int i = 0; i < 50; i++) {
        open_queues(&c);
        wait_by_socket(&c);
        sqe = raw_noop(&c, 0);
        raw_put(&c, &sqe);
        io_busy(io, 1);
        io_pass(io);
        raw_close(&c);
        client_open(
            &next); /* gets a number that was free: the first thing it reads must be WELCOME */
        raw_close(&next);
        io_busy(io, 0);
        PUMP_UNTIL(saw.detaches == 2 * (uint32_t)i + 2);
    }
    PUMP_UNTIL(folder_entries("/proc/self/fd") == fds && region_maps() == mapped);
}
END_TEST

/* ---- waits for room in a submission queue --------------------------------------------------- */

START_TEST(who_sleeps_on_sq_head_is_woken_when_slots_were_taken_and_only_then)
{
    struct raw_client c;
    struct io_counts before, after;
    struct tkr_sqe pad = {.op = TKR_OP_PAD}; /* no completion: nothing else wakes */

    open_queues(&c);
    io_counts(io, &before);
    for (uint32_t i = 1; i <= 5; i++) {
        raw_queue_put(&c, &c.queue[2], &pad);
        PUMP_UNTIL(*c.queue[2].sq_head == i);
    }
    io_counts(io, &after);
    ck_assert_uint_eq(after.wakes, before.wakes);
    TKR_STORE_RELAXED(c.queue[2].sq_wait, 1u);
    TKR_STORE_RELAXED(c.queue[3].sq_wait, 1u); /* nothing is taken of this one */
    raw_queue_put(&c, &c.queue[2], &pad);
    PUMP_UNTIL(*c.queue[2].sq_head == 6);
    for (int i = 0; i < 5; i++)
        daemon_pump();
    io_counts(io, &after);
    ck_assert_uint_eq(after.wakes, before.wakes + 1);
    raw_close(&c);
}
END_TEST

START_TEST(a_client_with_eight_queues_leaves_no_descriptor_and_no_mapping_behind)
{
    int fds = folder_entries("/proc/self/fd"), mapped = region_maps();

    for (uint32_t i = 0; i < 10; i++) {
        struct raw_client c;

        open_queues(&c);
        if (i & 1)
            all_parked(8);
        raw_close(&c);
        PUMP_UNTIL(saw.detaches == i + 1);
    }
    PUMP_UNTIL(folder_entries("/proc/self/fd") == fds && region_maps() == mapped);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("io_queues");
    TCase *tc = tcase_create("io_queues");
    SRunner *sr;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, daemon_setup, daemon_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(
        tc, every_queue_of_a_connection_is_served_and_answers_come_in_the_one_completion_queue);
    tcase_add_test(tc, a_queue_becomes_hot_and_parks_without_the_others);
    tcase_add_test(tc, one_pass_takes_eight_slots_of_a_client_and_its_queues_take_turns);
    tcase_add_test(tc, queues_that_are_rung_for_nothing_take_no_turn_from_the_others);
    tcase_add_test(tc, tags_belong_to_the_connection_and_not_to_a_queue);
    tcase_add_test(tc, a_claim_that_is_never_published_stalls_only_its_own_queue);
    tcase_add_test(tc, a_full_completion_queue_blocks_every_queue_of_its_client_and_loses_nothing);
    tcase_add_test(tc, a_daemon_that_never_rests_parks_idle_queues_too);
    tcase_add_test(tc, who_waits_by_socket_gets_one_byte_and_no_more_until_it_waits_again);
    tcase_add_test(tc, who_waits_for_a_position_is_woken_when_it_is_reached_and_not_before);
    tcase_add_test(tc, a_client_that_never_reads_its_socket_holds_nobody_up);
    tcase_add_test(tc, a_client_that_ends_while_its_byte_is_due_takes_no_other_clients_socket);
    tcase_add_test(tc, who_sleeps_on_sq_head_is_woken_when_slots_were_taken_and_only_then);
    tcase_add_test(tc, a_client_with_eight_queues_leaves_no_descriptor_and_no_mapping_behind);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
