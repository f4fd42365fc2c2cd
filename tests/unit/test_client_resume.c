/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that dies and comes back: the library submits again what lives, and streams go on. */
#include <check.h>
#include <errno.h>
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
static struct tkr_sqe sqe;

static void open_with(uint32_t n_queues, int64_t reconnect_timeout_ns)
{
    tkr_opt opt = {.size = sizeof opt,
                   .n_queues = n_queues,
                   .max_inflight = 8,
                   .spin_ns = -1,
                   .arena_bytes = 16384,
                   .reconnect = 1,
                   .reconnect_timeout_ns = reconnect_timeout_ns};

    memset(&fake, 0, sizeof fake);
    conn = NULL;
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
}

static void setup(void)
{
    open_with(1, 0);
}

static void teardown(void)
{
    tkr_close(conn);
    fake_close(&fake);
}

static void submit(tkr_req *req)
{
    ck_assert_int_eq(tkr_submit(conn, req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.user, req->id);
}

static int back;

static void *accept_thread(void *arg)
{
    (void)arg;
    /* Not 0: a try that the client gave up meanwhile; with other sizes it gives up all. */
    while (fake_accept(&fake) && !fake.arena_max)
        fake_hang_up(&fake);
    __atomic_store_n(&back, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The daemon dies, another takes its place, and the client finds it. No event comes meanwhile. */
static void restart(void)
{
    pthread_t thread;

    fake_hang_up(&fake);
    fake.colour = (fake.colour + 7) % TKR_COLOURS;
    back = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, accept_thread, NULL), 0);
    while (!__atomic_load_n(&back, __ATOMIC_ACQUIRE) || tkr_state(conn) != TKR_STATE_RUN)
        ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_MS(5)), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

static void expect_text(uint32_t pos, uint32_t id, const char *text)
{
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    ck_assert_int_eq(event.type, TKR_EV_TEXT);
    ck_assert_uint_eq(event.pos, pos);
    ck_assert_uint_eq(event.tokens[0], id);
    ck_assert_uint_eq(event.len, strlen(text));
    ck_assert_mem_eq(event.text, text, event.len);
}

static void expect_done(tkr_id id, uint16_t status)
{
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    ck_assert_int_eq(event.type, TKR_EV_DONE);
    ck_assert_uint_eq(event.id, id);
    ck_assert_uint_eq(event.status, status);
    ck_assert_int_eq(tkr_release(conn, id), 0);
}

/* ---- streams that go on ---------------------------------------------------------------------- */

START_TEST(a_stream_goes_on_behind_what_was_received)
{
    static const uint32_t ids[] = {50, 51, 52};
    tkr_bytes stop = {.text = "END", .len = 3};
    tkr_req req = TKR_CHAT("prompt");
    struct tkr_region_id r_id = fake.r_id;
    const struct tkr_param *param;
    const struct tkr_tail *tail;
    struct tkr_sqe first;
    uint64_t seed;

    req.temperature = 1;
    req.max_tokens = 9;
    req.user_data = 4711;
    req.stops = &stop;
    req.n_stops = 1;
    submit(&req);
    first = sqe;
    param = fake_arena(&fake, sqe.param_off);
    ck_assert_uint_eq(param->flags, TKR_PARAM_SEED); /* the library drew one */
    ck_assert_uint_eq(param->n_tail, 2);
    ck_assert_uint_eq(param->resume_bytes, 0);
    seed = param->seed;
    for (uint32_t i = 0; i < 3; i++)
        fake_put_text(&fake, &sqe, i, 50 + i, i == 1 ? "" : "ab");
    expect_text(0, 50, "ab");
    /* The daemon dies now: what it published comes first. */
    close(fake.sock);
    fake.sock = -1;
    expect_text(1, 51, "");
    expect_text(2, 52, "ab");
    restart();

    ck_assert(r_id.ino == fake.r_id.ino && r_id.dev == fake.r_id.dev); /* the same R */
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.op, TKR_OP_GENERATE);
    ck_assert_uint_eq(sqe.user, req.id);
    ck_assert_uint_eq(sqe.tag, first.tag);
    ck_assert_uint_eq(sqe.max_tokens, 9);
    ck_assert_uint_eq(sqe.resume_pos, 3);
    ck_assert_uint_eq(sqe.param_len, 128 + 16 * 3); /* abi.h: 128 + 16 * n_tail */
    param = fake_arena(&fake, sqe.param_off);
    ck_assert_uint_eq(param->n_tail, 3);
    ck_assert_uint_eq(param->seed, seed);
    ck_assert_uint_eq(param->resume_bytes, 4);
    tail = (const struct tkr_tail *)(param + 1);
    ck_assert_uint_eq(tail[0].kind, TKR_TAIL_MESSAGE);
    ck_assert_mem_eq(fake_arena(&fake, tail[0].off), "prompt", 6);
    ck_assert_uint_eq(tail[1].kind, TKR_TAIL_STOP_TEXT);
    ck_assert_mem_eq(fake_arena(&fake, tail[1].off), "END", 3);
    ck_assert_uint_eq(tail[2].kind, TKR_TAIL_RESUME_IDS);
    ck_assert_uint_eq(tail[2].count, 3);
    ck_assert_uint_eq(tail[2].bytes, 12);
    ck_assert_uint_eq(tail[2].off % 4, 0);
    ck_assert_mem_eq(fake_arena(&fake, tail[2].off), ids, 12);

    fake_put_text(&fake, &sqe, 3, 53, "c");
    expect_text(3, 53, "c");
    ck_assert_uint_eq(event.user_data, 4711);
    restart(); /* and once more */
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.resume_pos, 4);
    ck_assert_uint_eq(sqe.param_len, 128 + 16 * 3);
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    expect_done(req.id, TKR_OK);
}
END_TEST

START_TEST(a_request_of_which_nothing_came_is_submitted_as_it_was)
{
    tkr_req req = TKR_TEXT("prompt"), noop = {.size = sizeof noop, .op = TKR_OP_NOOP};
    struct tkr_sqe first, second;

    req.flags = TKR_PARAM_SEED;
    req.seed = 5;
    submit(&req);
    first = sqe;
    submit(&noop);
    second = sqe;
    restart();
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_mem_eq(&sqe, &first, sizeof sqe);
    ck_assert_mem_eq(fake_arena(&fake, sqe.data_off), "prompt", 6);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_mem_eq(&sqe, &second, sizeof sqe);
    fake_put_done(&fake, &first, TKR_OK, NULL);
    expect_done(req.id, TKR_OK);
}
END_TEST

START_TEST(slots_that_the_daemon_never_took_are_put_again)
{
    tkr_req reqs[8];
    tkr_event events[8];

    for (int i = 0; i < 8; i++) {
        reqs[i] = TKR_TEXT("x");
        reqs[i].max_tokens = 8;
    }
    ck_assert_int_eq(tkr_submit(conn, reqs, 8), 8);
    restart();
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(fake_take(&fake, &sqe), 0);
        fake_put_done(&fake, &sqe, TKR_OK, NULL);
    }
    ck_assert_int_eq(fake_take(&fake, &sqe), -EAGAIN);
    ck_assert_int_eq(tkr_wait(conn, events, 8, TKR_S(10)), 8);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(tkr_release(conn, events[i].id), 0);
    ck_assert_int_eq(tkr_submit(conn, reqs, 8), 8);
}
END_TEST

START_TEST(a_cancelled_request_is_cancelled_again)
{
    tkr_req req = TKR_TEXT("prompt");
    const uint8_t *words;

    submit(&req);
    ck_assert_int_eq(tkr_cancel(conn, req.id), 0);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0); /* this slot is not put again */
    restart();
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    words = (const uint8_t *)fake.r.base + fake.rh.cancel_off;
    ck_assert_uint_eq(((const uint32_t *)(const void *)words)[sqe.tag], (uint32_t)req.id);
    ck_assert_int_eq(fake_take(&fake, &sqe), -EAGAIN);
}
END_TEST

START_TEST(what_a_draining_daemon_aborts_goes_on_with_the_next_one)
{
    tkr_req req = TKR_TEXT("prompt");

    submit(&req);
    fake_put_text(&fake, &sqe, 0, 7, "x");
    expect_text(0, 7, "x");
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), TKR_STATE_DRAIN);
    fake_put_done(&fake, &sqe, TKR_E_ABORTED, NULL);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0);
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), TKR_STATE_GONE);
    restart();
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.resume_pos, 1);
    /* By a daemon that runs it is an end like any other. */
    fake_put_done(&fake, &sqe, TKR_E_ABORTED, NULL);
    expect_done(req.id, TKR_E_ABORTED);
}
END_TEST

START_TEST(a_draining_daemon_is_left_when_its_last_stream_ended)
{
    tkr_req stream = TKR_TEXT("stream"), late = TKR_TEXT("late");
    struct tkr_sqe first;

    submit(&stream);
    first = sqe;
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), TKR_STATE_DRAIN);
    submit(&late);
    fake_put_done(&fake, &sqe, TKR_E_ABORTED, NULL);
    fake_put_text(&fake, &first, 0, 7, "x");
    expect_text(0, 7, "x");
    ck_assert_int_eq(tkr_wait(conn, &event, 1, 0), 0);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_DRAIN);
    fake_put_done(&fake, &first, TKR_OK, NULL);
    expect_done(stream.id, TKR_OK);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_RECONNECTING); /* it did not hang up */
    restart();
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.user, late.id);
    ck_assert_uint_eq(sqe.resume_pos, 0);
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    expect_done(late.id, TKR_OK);
}
END_TEST

START_TEST(nothing_can_be_submitted_while_the_daemon_is_away_and_all_can_afterwards)
{
    tkr_req req = TKR_TEXT("prompt");

    fake_hang_up(&fake);
    while (tkr_state(conn) != TKR_STATE_RECONNECTING)
        ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_MS(5)), 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 0);
    ck_assert_int_eq(tkr_submit_wait(conn, &req, 1, TKR_MS(1)), 0);
    ck_assert_int_eq(tkr_arm(conn), -EAGAIN);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0);
    restart();
    submit(&req);
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    expect_done(req.id, TKR_OK);
}
END_TEST

static void bulk_put(void)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_BULK,
                          .user = sqe.user,
                          .tag = sqe.tag,
                          .u.bulk = {.bytes = 4, .count = 1, .type = TKR_BULK_U32}};

    *(uint32_t *)(void *)((uint8_t *)fake.t.base + fake.th.bulk_off) = 1234;
    fake_put(&fake, &cqe);
}

START_TEST(bulk_results_of_the_earlier_daemon_stay_until_release)
{
    tkr_req req = TKR_TEXT("prompt");
    const uint32_t *ids;

    req.op = TKR_OP_TOKENIZE;
    submit(&req);
    bulk_put();
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    ids = event.ids;
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    restart();
    restart();
    ck_assert_uint_eq(*ids, 1234);
    ck_assert_int_eq(tkr_release(conn, req.id), 0);
    restart();
}
END_TEST

/* ---- streams that end ------------------------------------------------------------------------ */

START_TEST(what_cannot_go_on_ends_restarted)
{
    tkr_req gap = TKR_TEXT("gap"), bulk = TKR_TEXT("bulk"), old = TKR_TEXT("old"),
            fresh = TKR_TEXT("fresh");

    submit(&gap);
    fake_put_text(&fake, &sqe, 1, 7, "x"); /* position 0 is missing: not a daemon's stream */
    expect_text(1, 7, "x");
    bulk.op = TKR_OP_TOKENIZE;
    submit(&bulk);
    bulk_put();
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    submit(&fresh);
    fake_hang_up(&fake);
    {
        pthread_t thread;
        tkr_event events[4];

        ck_assert_int_eq(pthread_create(&thread, NULL, accept_thread, NULL), 0);
        ck_assert_int_eq(tkr_wait(conn, events, 4, TKR_S(10)), 2);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(events[i].type, TKR_EV_DONE);
            ck_assert_uint_eq(events[i].status, TKR_E_RESTARTED);
            ck_assert(events[i].id == gap.id || events[i].id == bulk.id);
            ck_assert_ptr_nonnull(strstr(events[i].message, "restarted"));
            ck_assert_int_eq(tkr_release(conn, events[i].id), 0);
        }
    }
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.user, fresh.id);
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    expect_done(fresh.id, TKR_OK);

    /* A daemon that does not know how. */
    submit(&old);
    fake_put_text(&fake, &sqe, 0, 7, "x");
    expect_text(0, 7, "x");
    restart();
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    fake_put_done(&fake, &sqe, TKR_E_UNSUPPORTED, NULL);
    expect_done(old.id, TKR_E_RESTARTED);
}
END_TEST

/* Hangs up and comes back; the one request that lives ends with this status. */
static void restart_ends(tkr_id id, uint16_t status)
{
    pthread_t thread;

    fake_hang_up(&fake);
    ck_assert_int_eq(pthread_create(&thread, NULL, accept_thread, NULL), 0);
    expect_done(id, status);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

START_TEST(another_model_ends_them_restarted)
{
    tkr_req req = TKR_TEXT("prompt");

    submit(&req);
    fake.model++;
    restart_ends(req.id, TKR_E_RESTARTED);
    submit(&req); /* the connection goes on */
}
END_TEST

START_TEST(other_sizes_end_all_restarted_and_the_connection)
{
    tkr_req req = TKR_TEXT("prompt");

    submit(&req);
    fake.arena_max = 4096;
    restart_ends(req.id, TKR_E_RESTARTED);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, 0), -ESHUTDOWN);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -ESHUTDOWN);
    ck_assert_int_eq(tkr_state(conn), TKR_STATE_GONE);
}
END_TEST

START_TEST(a_daemon_that_does_not_come_back_in_time_is_gone)
{
    tkr_req req = TKR_TEXT("prompt");

    teardown();
    open_with(1, TKR_MS(20));
    submit(&req);
    close(fake.listener);
    fake.listener = -1;
    fake_hang_up(&fake);
    expect_done(req.id, TKR_E_GONE);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), -ESHUTDOWN);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -ESHUTDOWN);
    ck_assert_int_eq(tkr_submit_wait(conn, &req, 1, TKR_S(10)), -ESHUTDOWN);
}
END_TEST

START_TEST(a_daemon_that_lies_is_not_asked_again)
{
    tkr_req req = TKR_TEXT("prompt");
    struct tkr_cqe cqe = {.kind = TKR_CQE_TOKEN, .ntok = 200};

    submit(&req);
    cqe.user = sqe.user;
    cqe.tag = sqe.tag;
    fake_put(&fake, &cqe);
    expect_done(req.id, TKR_E_GONE);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, 0), -ESHUTDOWN);
}
END_TEST

START_TEST(without_the_option_nothing_is_reserved_or_drawn)
{
    tkr_opt opt = {.size = sizeof opt, .spin_ns = -1};
    const struct tkr_param *param;
    tkr_req req = TKR_TEXT("prompt");

    teardown();
    memset(&fake, 0, sizeof fake);
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
    req.temperature = 1;
    submit(&req);
    param = fake_arena(&fake, sqe.param_off);
    ck_assert_uint_eq(param->flags, 0);
    ck_assert_uint_eq(param->seed, 0);
    fake_hang_up(&fake);
    expect_done(req.id, TKR_E_GONE);
}
END_TEST

/* ---- a daemon that dies all the time --------------------------------------------------------- */

#define SUBMITTERS 2
#define PER_THREAD 60
#define ANSWER     5 /* ids of each */

struct going {
    struct tkr_sqe sqe;
    uint32_t pos;
};

static int stop;

/* One id of one request after the other, in no order, until a death that comes at any of them. */
static void daemon_life(struct going *going, unsigned steps)
{
    unsigned n = 0;

    while (steps && !__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        struct tkr_sqe next;
        struct going *g;

        for (uint32_t q = 0; q < SUBMITTERS; q++)
            if (!fake_take_from(&fake, q, &next))
                going[n++] = (struct going){.sqe = next, .pos = next.resume_pos};
        if (!n ||
            tkr_ring_credit(&fake.cq, TKR_LOAD_ACQUIRE(fake_r_word(&fake, TKR_R_CQ_HEAD))) < 1) {
            sched_yield();
            continue;
        }
        g = &going[(unsigned)rand() % n];
        if (g->pos < ANSWER) {
            fake_put_text(&fake, &g->sqe, g->pos, (uint32_t)g->sqe.user + g->pos, "t");
            g->pos++;
        } else {
            fake_put_done(&fake, &g->sqe, TKR_OK, NULL);
            *g = going[--n];
        }
        fake_wake(&fake);
        steps--;
    }
}

static void *mortal_daemon(void *arg)
{
    struct going going[8];

    (void)arg;
    srand(3);
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        daemon_life(going, (unsigned)rand() % 40);
        if (__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
            break;
        fake_hang_up(&fake);
        fake.colour = (uint32_t)rand() % TKR_COLOURS;
        while (fake_accept(&fake))
            fake_hang_up(&fake);
    }
    return NULL;
}

static void *submitter(void *arg)
{
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        tkr_req req = TKR_TEXT("x");

        req.max_tokens = ANSWER;
        ck_assert_int_eq(tkr_submit_wait_on(conn, (unsigned)(uintptr_t)arg, &req, 1, TKR_S(60)), 1);
    }
    return NULL;
}

START_TEST(no_id_is_lost_repeated_or_changed_by_a_daemon_that_dies_all_the_time)
{
    pthread_t daemon, threads[SUBMITTERS];
    uint32_t next[8] = {0}, done = 0;

    teardown();
    open_with(SUBMITTERS, 0);
    stop = 0;
    ck_assert_int_eq(pthread_create(&daemon, NULL, mortal_daemon, NULL), 0);
    for (uintptr_t i = 0; i < SUBMITTERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, submitter, (void *)i), 0);
    while (done < SUBMITTERS * PER_THREAD) {
        uint32_t *at;

        ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(60)), 1);
        at = &next[event.id >> 32 & 7];
        if (event.type == TKR_EV_TEXT) {
            ck_assert_uint_eq(event.pos, *at);
            ck_assert_uint_eq(event.tokens[0], (uint32_t)event.id + *at);
            ++*at;
        } else {
            ck_assert_uint_eq(event.status, TKR_OK);
            ck_assert_uint_eq(*at, ANSWER);
            *at = 0;
            ck_assert_int_eq(tkr_release(conn, event.id), 0);
            done++;
        }
    }
    for (int i = 0; i < SUBMITTERS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    /* It may stand in accept(): this ends it. */
    while (pthread_tryjoin_np(daemon, NULL))
        tkr_wait(conn, &event, 1, TKR_MS(5));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client resume");
    TCase *tc = tcase_create("resume");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_stream_goes_on_behind_what_was_received);
    tcase_add_test(tc, a_request_of_which_nothing_came_is_submitted_as_it_was);
    tcase_add_test(tc, slots_that_the_daemon_never_took_are_put_again);
    tcase_add_test(tc, a_cancelled_request_is_cancelled_again);
    tcase_add_test(tc, what_a_draining_daemon_aborts_goes_on_with_the_next_one);
    tcase_add_test(tc, a_draining_daemon_is_left_when_its_last_stream_ended);
    tcase_add_test(tc, nothing_can_be_submitted_while_the_daemon_is_away_and_all_can_afterwards);
    tcase_add_test(tc, bulk_results_of_the_earlier_daemon_stay_until_release);
    tcase_add_test(tc, what_cannot_go_on_ends_restarted);
    tcase_add_test(tc, another_model_ends_them_restarted);
    tcase_add_test(tc, other_sizes_end_all_restarted_and_the_connection);
    tcase_add_test(tc, a_daemon_that_does_not_come_back_in_time_is_gone);
    tcase_add_test(tc, a_daemon_that_lies_is_not_asked_again);
    tcase_add_test(tc, without_the_option_nothing_is_reserved_or_drawn);
    tcase_add_test(tc, no_id_is_lost_repeated_or_changed_by_a_daemon_that_dies_all_the_time);
    suite_add_tcase(suite, tc);

    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
