/* SPDX-License-Identifier: Apache-2.0 */
/* Several submission queues of one connection, with a thread each; poll loops; full queues. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/fake_daemon.h"

static struct fake fake;
static tkr_conn *conn;
static tkr_event event;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    conn = NULL;
}

static void teardown(void)
{
    tkr_close(conn);
    fake_close(&fake);
}

static void open_with(uint32_t n_queues, uint32_t max_inflight, uint32_t wake_every)
{
    tkr_opt opt = {.size = sizeof opt,
                   .n_queues = n_queues,
                   .max_inflight = max_inflight,
                   .spin_ns = -1,
                   .arena_bytes = 8192,
                   .wake_every = wake_every};

    ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
}

static uint64_t wait_word(void)
{
    return TKR_LOAD_ACQUIRE((const uint64_t *)(const void *)(fake.r_ctl + TKR_R_WAIT));
}

/* ---- queues ---------------------------------------------------------------------------------- */

START_TEST(each_queue_has_tags_and_arena_of_its_own)
{
    tkr_req req = TKR_TEXT("a");
    uint32_t low[8], n = 0;
    char *first, *second;
    struct tkr_sqe sqe;

    open_with(4, 8, 0);
    ck_assert_uint_eq(fake.hello.nsq, 4);
    for (unsigned q = 0; q < 4; q++) {
        /* two tags each of 8 */
        ck_assert_int_eq(tkr_submit_on(conn, q, &req, 1), 1);
        ck_assert_int_eq(tkr_submit_on(conn, q, &req, 1), 1);
        ck_assert_int_eq(tkr_submit_on(conn, q, &req, 1), 0);
        for (uint32_t i = 0; i < 2; i++) {
            ck_assert_int_eq(fake_take_from(&fake, q, &sqe), 0);
            ck_assert_uint_eq(sqe.tag / 2, q);
            /* docs/abi.md: low halves differ while the requests live */
            low[n] = (uint32_t)sqe.user;
            for (uint32_t j = 0; j < n; j++)
                ck_assert_uint_ne(low[j], low[n]);
            n++;
            ck_assert_mem_eq(fake_arena(&fake, sqe.data_off), "a", 1);
        }
        ck_assert_int_eq(fake_take_from(&fake, q, &sqe), -EAGAIN);
    }
    ck_assert_int_eq(tkr_submit_on(conn, 4, &req, 1), -EINVAL);
    ck_assert_ptr_null(tkr_arena_on(conn, 4, 1));
    first = tkr_arena_on(conn, 1, 1024);
    second = tkr_arena_on(conn, 2, 1024);
    ck_assert(first && second);
    ck_assert_ptr_null(tkr_arena_on(conn, 1, 2048)); /* a quarter of 8192 is all, and not free */
    tkr_arena_free(conn, first);
    tkr_arena_free(conn, second);
}
END_TEST

START_TEST(memory_of_another_queue_is_einval)
{
    tkr_req req = TKR_TEXT("a");

    open_with(2, 8, 0);
    for (unsigned q = 0; q < 2; q++) {
        char *text = tkr_arena_on(conn, q, 64);

        ck_assert_ptr_nonnull(text);
        memcpy(text, "x", 1);
        req.text = text;
        ck_assert_int_eq(tkr_submit_on(conn, 1 - q, &req, 1), -EINVAL);
        ck_assert_int_eq(tkr_submit_on(conn, q, &req, 1), 1);
    }
}
END_TEST

START_TEST(fewer_queues_may_be_granted_but_not_more_or_fewer_requests_than_queues)
{
    tkr_limits limits = {.size = sizeof limits};
    tkr_req req = {.size = sizeof req, .op = TKR_OP_NOOP};
    tkr_opt opt = {.size = sizeof opt, .n_queues = 4};

    fake.nsq_max = 2;
    open_with(4, 8, 0);
    ck_assert_int_eq(tkr_get_limits(conn, &limits), 0);
    ck_assert_uint_eq(limits.n_queues, 2);
    ck_assert_int_eq(tkr_submit_on(conn, 1, &req, 1), 1);
    ck_assert_int_eq(tkr_submit_on(conn, 2, &req, 1), -EINVAL);
    teardown();

    setup();
    fake.inflight_max = 3;
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), -EDQUOT);
    fake_close(&fake);

    setup();
    fake.nsq_max = 5;
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), -EPROTO);
    opt.n_queues = 9; /* abi.h: 8 */
    ck_assert_int_eq(tkr_open(&conn, &opt), -EINVAL);
    opt.n_queues = 4;
    opt.max_inflight = 3;
    ck_assert_int_eq(tkr_open(&conn, &opt), -EINVAL);
}
END_TEST

START_TEST(an_ordered_cancel_goes_behind_its_request)
{
    tkr_req req = TKR_TEXT("a");
    struct tkr_sqe sqe;

    open_with(2, 8, 0);
    ck_assert_int_eq(tkr_submit_on(conn, 1, &req, 1), 1);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0);
    ck_assert_int_eq(fake_take_from(&fake, 0, &sqe), -EAGAIN);
    ck_assert_int_eq(fake_take_from(&fake, 1, &sqe), 0);
    ck_assert_int_eq(fake_take_from(&fake, 1, &sqe), 0);
    ck_assert_uint_eq(sqe.op, TKR_OP_CANCEL);
    ck_assert_uint_eq(sqe.session, req.id);
}
END_TEST

#define SUBMITTERS 4
#define PER_THREAD 2000

static uint8_t seen[SUBMITTERS][PER_THREAD];
static int stop;

/* Echoes the text's length and four bytes of each prompt, until told to stop. */
static void *echo_daemon(void *arg)
{
    (void)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        int idle = 1;

        for (uint32_t q = 0; q < SUBMITTERS; q++) {
            struct tkr_sqe sqe;
            char text[5] = "";

            if (tkr_ring_credit(&fake.cq, TKR_LOAD_ACQUIRE(fake_r_word(&fake, TKR_R_CQ_HEAD))) <
                    2 ||
                fake_take_from(&fake, q, &sqe))
                continue;
            idle = 0;
            if (sqe.op == TKR_OP_GENERATE) {
                tkr_copy_once(text, fake_arena(&fake, sqe.data_off), 4);
                fake_put_text(&fake, &sqe, 0, sqe.data_len, text);
            }
            fake_put_done(&fake, &sqe, TKR_OK, NULL);
            fake_wake(&fake);
        }
        if (idle)
            sched_yield();
    }
    return NULL;
}

static void *submitter(void *arg)
{
    unsigned queue = (unsigned)(uintptr_t)arg;

    for (uint32_t i = 0; i < PER_THREAD; i++) {
        char digits[5];
        tkr_req req = TKR_TEXT(digits);

        snprintf(digits, sizeof digits, "%04u", i);
        req.len = 4;
        req.user_data = queue;
        if (i % 3 == 0) {
            char *text = tkr_arena_on(conn, queue, 4 + i % 60);

            if (text) {
                memcpy(text, digits, 4);
                req.text = text;
            }
        }
        ck_assert_int_eq(tkr_submit_wait_on(conn, queue, &req, 1, TKR_S(60)), 1);
        if (i % 7 == 0)
            tkr_cancel(conn, req.id);
        if (i % 16 == 0)
            tkr_cancel_ordered(conn, req.id);
    }
    return NULL;
}

START_TEST(four_submitting_threads_and_one_consumer_lose_and_mix_nothing)
{
    pthread_t daemon, threads[SUBMITTERS];
    tkr_event events[32];
    uint32_t done = 0;

    open_with(SUBMITTERS, 16, 0);
    ck_assert_int_eq(pthread_create(&daemon, NULL, echo_daemon, NULL), 0);
    for (uintptr_t i = 0; i < SUBMITTERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, submitter, (void *)i), 0);
    while (done < SUBMITTERS * PER_THREAD) {
        int got = tkr_wait(conn, events, 32, TKR_S(60));

        ck_assert_int_gt(got, 0);
        for (int i = 0; i < got; i++) {
            if (events[i].type == TKR_EV_TEXT) {
                char digits[5] = "";

                memcpy(digits, events[i].text, 4);
                ck_assert_uint_eq(events[i].tokens[0], 4); /* the prompt's length */
                ck_assert_uint_eq(seen[events[i].user_data][atoi(digits)]++, 0);
            } else {
                ck_assert_int_eq(events[i].type, TKR_EV_DONE);
                ck_assert_int_eq(tkr_release(conn, events[i].id), 0);
                done++;
            }
        }
    }
    for (int i = 0; i < SUBMITTERS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    ck_assert_int_eq(pthread_join(daemon, NULL), 0);
    for (int i = 0; i < SUBMITTERS; i++)
        for (int j = 0; j < PER_THREAD; j++)
            ck_assert_uint_eq(seen[i][j], 1);
}
END_TEST

/* ---- a full queue ---------------------------------------------------------------------------- */

static void *late_taker(void *arg)
{
    struct tkr_sqe sqe;

    (void)arg;
    while (!TKR_LOAD_ACQUIRE(fake_r_word(&fake, TKR_R_SQ_WAIT(0))))
        sched_yield();
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    return NULL;
}

START_TEST(a_submit_to_a_full_queue_sleeps_until_the_daemon_takes_a_slot)
{
    tkr_req req = {.size = sizeof req, .op = TKR_OP_NOOP};
    pthread_t thread;

    open_with(1, 16, 0);
    for (int i = 0; i < 15; i++)
        ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0); /* 16 slots, 16 tags */
    for (int i = 0; i < 4; i++) {
        struct tkr_sqe sqe;

        /* Tags come back, slots do not: the daemon answers what it has not taken. */
        sqe = (struct tkr_sqe){.user = req.id, .tag = (uint16_t)(req.id >> 32 & 4095)};
        fake_put_done(&fake, &sqe, TKR_OK, NULL);
        ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
        ck_assert_int_eq(tkr_release(conn, event.id), 0);
        ck_assert_int_eq(tkr_submit(conn, &req, 1), 0);
        ck_assert_int_eq(tkr_submit_wait(conn, &req, 1, TKR_MS(1)), 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, late_taker, NULL), 0);
        ck_assert_int_eq(tkr_submit_wait(conn, &req, 1, TKR_S(60)), 1);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_uint_eq(*fake_r_word(&fake, TKR_R_SQ_WAIT(0)), 0);
    }
    ck_assert_int_eq(tkr_submit_wait(conn, &req, 1, -2), -EINVAL);
}
END_TEST

START_TEST(a_submit_that_waits_is_told_when_the_daemon_goes)
{
    tkr_req req = {.size = sizeof req, .op = TKR_OP_NOOP};

    open_with(1, 16, 0);
    for (int i = 0; i < 15; i++)
        ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0);
    fake_put_done(&fake, &(struct tkr_sqe){.user = req.id, .tag = (uint16_t)(req.id >> 32 & 4095)},
                  TKR_OK, NULL);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_int_eq(tkr_release(conn, event.id), 0);
    close(fake.sock);
    fake.sock = -1;
    ck_assert_int_eq(tkr_submit_wait(conn, &req, 1, TKR_S(60)), -ESHUTDOWN);
}
END_TEST

/* ---- poll loops ------------------------------------------------------------------------------ */

static int readable(int timeout_ms)
{
    struct pollfd pfd = {.fd = tkr_fd(conn), .events = POLLIN};

    return poll(&pfd, 1, timeout_ms);
}

START_TEST(an_armed_connection_becomes_readable_when_an_event_comes)
{
    tkr_req req = TKR_TEXT("a");
    struct tkr_sqe sqe;

    open_with(1, 8, 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(tkr_arm(conn), 0);
        /* abi.h: bit 63 asleep, bit 61 by the socket, low half the position after the next line */
        ck_assert_uint_eq(wait_word(), 1ull << 63 | 1ull << 61 | (i + 1));
        ck_assert_int_eq(readable(0), 0);
        fake_put_text(&fake, &sqe, i, 1, "x");
        fake_wake(&fake);
        ck_assert_int_eq(readable(10000), 1);
        ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
        ck_assert_uint_eq(wait_word(), 0);
        ck_assert_int_eq(readable(0), 0); /* the byte was taken */
    }
    fake_put_text(&fake, &sqe, 3, 1, "x");
    ck_assert_int_eq(tkr_arm(conn), 1); /* it is there already */
    ck_assert_int_eq(tkr_wait(conn, &event, 1, 0), 1);
    ck_assert_uint_eq(wait_word(), 0);
}
END_TEST

START_TEST(a_poll_loop_hears_that_the_daemon_died)
{
    tkr_req req = TKR_TEXT("a");

    open_with(1, 8, 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_RUN);
    ck_assert_int_eq(tkr_arm(conn), 0);
    close(fake.sock);
    fake.sock = -1;
    ck_assert_int_eq(readable(10000), 1);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(event.status, TKR_E_GONE);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_GONE);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), -ESHUTDOWN);
    ck_assert_int_eq(tkr_arm(conn), -ESHUTDOWN);
}
END_TEST

START_TEST(the_state_of_the_daemon_is_visible)
{
    open_with(1, 8, 0);
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), TKR_STATE_DRAIN);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_DRAIN);
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), 77); /* no such state */
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_RUN);
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), TKR_STATE_GONE);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_GONE);
}
END_TEST

/* ---- fewer wake-ups -------------------------------------------------------------------------- */

struct watch {
    struct tkr_sqe sqe;
    uint64_t seen; /* the client's wait word once it sleeps: so many lines are published then */
};

static void *daemon_that_watches(void *arg)
{
    struct watch *watch = arg;

    while (!(watch->seen = wait_word()))
        sched_yield();
    for (uint32_t i = 0; i < (uint32_t)watch->seen; i++) {
        fake_put_text(&fake, &watch->sqe, i, 1, "x");
        fake_wake(&fake);
    }
    return NULL;
}

static uint32_t position_slept_for(uint32_t wake_every, uint32_t max_tokens)
{
    tkr_req req = TKR_TEXT("a");
    struct watch watch = {0};
    pthread_t thread;

    setup();
    open_with(1, 8, wake_every);
    req.max_tokens = max_tokens;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &watch.sqe), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, daemon_that_watches, &watch), 0);
    ck_assert_int_ge(tkr_wait(conn, &event, 1, TKR_S(60)), 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    teardown();
    return (uint32_t)watch.seen;
}

START_TEST(a_sleep_may_wait_for_several_lines_but_not_beyond_the_end_of_an_answer)
{
    ck_assert_uint_eq(position_slept_for(1, 1000), 1);
    ck_assert_uint_eq(position_slept_for(4, 1000), 4);
    /* tokenring.h: what is to come at the least: 4 ids a line, and the end */
    ck_assert_uint_eq(position_slept_for(4, 8), 3);
    ck_assert_uint_eq(position_slept_for(4, 0), 1);
    ck_assert_uint_eq(position_slept_for(1000, TKR_MAX_TOKENS_NONE), 128); /* half the queue */
    setup();
    open_with(1, 8, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client queues");
    TCase *tc = tcase_create("queues");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_queue_has_tags_and_arena_of_its_own);
    tcase_add_test(tc, memory_of_another_queue_is_einval);
    tcase_add_test(tc, fewer_queues_may_be_granted_but_not_more_or_fewer_requests_than_queues);
    tcase_add_test(tc, an_ordered_cancel_goes_behind_its_request);
    tcase_add_test(tc, four_submitting_threads_and_one_consumer_lose_and_mix_nothing);
    tcase_add_test(tc, a_submit_to_a_full_queue_sleeps_until_the_daemon_takes_a_slot);
    tcase_add_test(tc, a_submit_that_waits_is_told_when_the_daemon_goes);
    tcase_add_test(tc, an_armed_connection_becomes_readable_when_an_event_comes);
    tcase_add_test(tc, a_poll_loop_hears_that_the_daemon_died);
    tcase_add_test(tc, the_state_of_the_daemon_is_visible);
    tcase_add_test(tc, a_sleep_may_wait_for_several_lines_but_not_beyond_the_end_of_an_answer);
    suite_add_tcase(suite, tc);

    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
