/* SPDX-License-Identifier: Apache-2.0 */
/* The library's way in: events, waiting, pointers' lives, a daemon that dies or lies, fork. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/fake_daemon.h"

#define BULK 65536u

static struct fake fake;
static tkr_conn *conn;
static tkr_event event;
static struct tkr_sqe sqe; /* of the request that open_one() submitted */
static tkr_req req;

static void setup(void)
{
    tkr_opt opt = {.size = sizeof opt, .spin_ns = -1, .arena_bytes = 4096, .bulk_bytes = BULK};

    memset(&fake, 0, sizeof fake);
    conn = NULL;
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
    req = TKR_TEXT("prompt");
    req.user_data = 4711;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
}

static void teardown(void)
{
    tkr_close(conn);
    fake_close(&fake);
}

static uint32_t cq_head(void)
{
    return *fake_r_word(&fake, TKR_R_CQ_HEAD);
}

/* ---- honest daemons -------------------------------------------------------------------------- */

START_TEST(text_is_handed_out_where_it_lies_until_the_next_peek)
{
    fake_put_text(&fake, &sqe, 0, 42, "Hello");
    fake_put_text(&fake, &sqe, 1, 43, " you");
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_int_eq(event.type, TKR_EV_TEXT);
    ck_assert_uint_eq(event.user_data, 4711);
    ck_assert_uint_eq(event.id, req.id);
    ck_assert_uint_eq(event.len, 5);
    ck_assert_mem_eq(event.text, "Hello", 5);
    ck_assert_uint_eq(event.n, 1);
    ck_assert_uint_eq(event.tokens[0], 42);
    ck_assert_uint_eq(event.pos, 0);
    ck_assert_uint_eq(cq_head(), 0); /* the line is still ours */
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(cq_head(), 1);
    ck_assert_mem_eq(event.text, " you", 4);
    ck_assert_uint_eq(event.pos, 1);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0);
    ck_assert_uint_eq(cq_head(), 2);
}
END_TEST

START_TEST(long_text_continues_in_an_event_without_ids)
{
    struct tkr_cqe more = {.kind = TKR_CQE_TOKEN,
                           .nbytes = 24,
                           .flags = TKR_CQE_RAW,
                           .user = sqe.user,
                           .pos = 1,
                           .tag = sqe.tag};
    tkr_event events[3];

    fake_put_text(&fake, &sqe, 0, 5, "123456789012345678901234");
    memset(more.u.token.utf8, 0xff, 24);
    fake_put(&fake, &more);
    ck_assert_int_eq(tkr_peek(conn, events, 3), 2);
    ck_assert_uint_eq(events[0].len, 24);
    ck_assert_uint_eq(events[0].raw, 0);
    ck_assert_uint_eq(events[1].n, 0);
    ck_assert_uint_eq(events[1].len, 24);
    ck_assert_uint_eq(events[1].raw, 1);
    ck_assert_uint_eq((uint8_t)events[1].text[23], 0xff);
}
END_TEST

START_TEST(done_carries_the_whole_result_and_its_message_lives_until_release)
{
    struct tkr_result result = {.user = sqe.user,
                                .status = TKR_E_CONTEXT,
                                .finish = TKR_FINISH_LENGTH,
                                .prompt = 9,
                                .cached = 3,
                                .output = 4,
                                .discarded = 1,
                                .retry_after_ns = 77,
                                .seed = 5,
                                .have = 2048,
                                .want = 2050,
                                .stamp = {10, 20, 30, 40, 50, 60, 70},
                                .message = "prompt is too long"};
    tkr_event next;

    result.model_hash[31] = 0xcd;
    fake_put_done(&fake, &sqe, TKR_E_CONTEXT, &result);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_int_eq(event.type, TKR_EV_DONE);
    ck_assert_uint_eq(event.status, TKR_E_CONTEXT);
    ck_assert_uint_eq(event.finish, TKR_FINISH_LENGTH);
    ck_assert_uint_eq(event.prompt_tokens, 9);
    ck_assert_uint_eq(event.cached_tokens, 3);
    ck_assert_uint_eq(event.output_tokens, 4);
    ck_assert_uint_eq(event.discarded_tokens, 1);
    ck_assert_uint_eq(event.retry_after_ns, 77);
    ck_assert_uint_eq(event.seed, 5);
    ck_assert_uint_eq(event.have, 2048);
    ck_assert_uint_eq(event.want, 2050);
    ck_assert_uint_eq(event.times.submit, 10);
    ck_assert_uint_eq(event.times.seen, 20);
    ck_assert_uint_eq(event.times.admitted, 30);
    ck_assert_uint_eq(event.times.prefill, 40);
    ck_assert_uint_eq(event.times.first_token, 50);
    ck_assert_uint_eq(event.times.last_token, 60);
    ck_assert_uint_eq(event.times.done, 70);
    ck_assert_uint_eq(event.model_hash[31], 0xcd);
    ck_assert_uint_eq(event.user_data, 4711);
    ck_assert_int_eq(tkr_peek(conn, &next, 1), 0);
    ck_assert_str_eq(event.message, "prompt is too long");
    ck_assert_int_eq(tkr_release(conn, req.id), 0);
}
END_TEST

START_TEST(done_without_a_result_has_a_status_and_an_empty_message)
{
    fake_put_done(&fake, &sqe, TKR_E_OVERLOADED, NULL);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(event.status, TKR_E_OVERLOADED);
    ck_assert_str_eq(event.message, "");
    ck_assert_uint_eq(event.times.done, 0);
}
END_TEST

START_TEST(bulk_results_stay_until_release)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_BULK, .user = sqe.user, .tag = sqe.tag};
    uint32_t *bulk = (uint32_t *)(void *)((uint8_t *)fake.t.base + fake.th.bulk_off);
    float f = -1.5f;
    tkr_event events[2];

    bulk[16] = 9;
    bulk[17] = 8;
    memcpy(&bulk[32], &f, sizeof f);
    cqe.u.bulk.off = 64;
    cqe.u.bulk.bytes = 8;
    cqe.u.bulk.count = 2;
    cqe.u.bulk.type = TKR_BULK_U32;
    fake_put(&fake, &cqe);
    cqe.u.bulk.off = 128;
    cqe.u.bulk.bytes = 4;
    cqe.u.bulk.count = 1;
    cqe.u.bulk.type = TKR_BULK_F32;
    fake_put(&fake, &cqe);
    ck_assert_int_eq(tkr_peek(conn, events, 2), 2);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0);
    ck_assert_int_eq(events[0].type, TKR_EV_BULK);
    ck_assert_uint_eq(events[0].n, 2);
    ck_assert_ptr_null(events[0].values);
    ck_assert_uint_eq(events[0].ids[0], 9);
    ck_assert_uint_eq(events[0].ids[1], 8);
    ck_assert_ptr_null(events[1].ids);
    ck_assert(events[1].values[0] == -1.5f);
}
END_TEST

START_TEST(kinds_that_the_library_does_not_know_are_skipped)
{
    struct tkr_cqe cqe = {.kind = 200, .ntok = 255, .user = sqe.user, .tag = sqe.tag};

    fake_put(&fake, &cqe);
    cqe.kind = TKR_CQE_PROGRESS;
    fake_put(&fake, &cqe);
    cqe.kind = TKR_CQE_BULK; /* of a later version's type */
    cqe.u.bulk.type = 99;
    fake_put(&fake, &cqe);
    fake_put_text(&fake, &sqe, 0, 1, "x");
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_mem_eq(event.text, "x", 1);
}
END_TEST

START_TEST(a_long_answer_goes_through_a_small_queue)
{
    uint32_t size = fake.cq.mask + 1;

    for (uint32_t i = 0; i < 3 * size; i++) {
        ck_assert_uint_ge(tkr_ring_credit(&fake.cq, cq_head()), 1);
        fake_put_text(&fake, &sqe, i, i, "t");
        ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
        ck_assert_uint_eq(event.tokens[0], i);
    }
}
END_TEST

/* ---- waiting --------------------------------------------------------------------------------- */

START_TEST(wait_times_out_and_leaves_no_wish_to_be_woken)
{
    ck_assert_int_eq(tkr_wait(conn, &event, 1, 0), 0);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_MS(2)), 0);
    ck_assert_uint_eq(*(const uint64_t *)(const void *)(fake.r_ctl + TKR_R_WAIT), 0);
    ck_assert_int_eq(tkr_wait(conn, &event, 0, 0), -EINVAL);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, -2), -EINVAL);
}
END_TEST

START_TEST(waiting_for_ever_with_nothing_in_flight_is_edeadlk)
{
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_FOREVER), 1);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_FOREVER), -EDEADLK);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_US(1)), 0);
}
END_TEST

#define ROUNDS 1000

/* One line a round, each only when the client has taken the one before: it sleeps in most rounds. */
static void *slow_daemon(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        while (TKR_LOAD_ACQUIRE(fake_r_word(&fake, TKR_R_CQ_HEAD)) != i)
            sched_yield();
        fake_put_text(&fake, &sqe, i, i, "t");
        fake_wake(&fake);
    }
    return NULL;
}

START_TEST(no_wakeup_is_lost_in_thousands_of_sleeps)
{
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, slow_daemon, NULL), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
        ck_assert_uint_eq(event.tokens[0], i);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

static void *daemon_that_reads_wait(void *arg)
{
    const uint64_t *wait = (const uint64_t *)(const void *)(fake.r_ctl + TKR_R_WAIT);
    uint64_t *ret_seen = arg;

    while (!(*ret_seen = TKR_LOAD_ACQUIRE(wait)))
        sched_yield();
    fake_put_text(&fake, &sqe, 0, 1, "x");
    fake_wake(&fake);
    return NULL;
}

START_TEST(a_sleeper_names_the_position_that_it_waits_for)
{
    uint64_t seen = 0;
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, daemon_that_reads_wait, &seen), 0);
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    /* abi.h: the position 0 is there when the queue stands at 1 */
    ck_assert_uint_eq(seen, TKR_WAIT_ASLEEP | 1);
}
END_TEST

/* ---- a daemon that goes ---------------------------------------------------------------------- */

static void expect_gone_after_the_text(void)
{
    tkr_event events[4];

    ck_assert_int_eq(tkr_wait(conn, events, 1, TKR_S(10)), 1);
    ck_assert_int_eq(events[0].type, TKR_EV_TEXT); /* what was published is not lost */
    ck_assert_int_eq(tkr_wait(conn, events, 4, TKR_S(10)), 1);
    ck_assert_int_eq(events[0].type, TKR_EV_DONE);
    ck_assert_uint_eq(events[0].status, TKR_E_GONE);
    ck_assert_uint_eq(events[0].id, req.id);
    ck_assert_uint_eq(events[0].user_data, 4711);
    ck_assert_ptr_nonnull(strstr(events[0].message, "daemon"));
    ck_assert_int_eq(tkr_wait(conn, events, 4, TKR_S(10)), -ESHUTDOWN);
    ck_assert_int_eq(tkr_peek(conn, events, 4), -ESHUTDOWN);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -ESHUTDOWN);
    ck_assert_int_eq(tkr_release(conn, req.id), 0);
}

START_TEST(a_hang_up_ends_every_live_request_as_gone)
{
    fake_put_text(&fake, &sqe, 0, 1, "x");
    close(fake.sock);
    fake.sock = -1;
    expect_gone_after_the_text();
}
END_TEST

START_TEST(a_daemon_that_says_gone_is_seen_without_a_system_call)
{
    fake_put_text(&fake, &sqe, 0, 1, "x");
    TKR_STORE_RELEASE(fake_t_word(&fake, TKR_T_STATE), TKR_STATE_GONE);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -ESHUTDOWN);
    expect_gone_after_the_text();
}
END_TEST

START_TEST(a_daemon_that_ends_the_connection_is_quoted)
{
    struct tkr_refused refused = {.head = {.magic = TKR_MAGIC_CTL, .type = TKR_CTL_REFUSED},
                                  .reason = TKR_REFUSED_LIMIT,
                                  .message = "too much of it"};
    tkr_opt opt = {.size = sizeof opt, .reconnect = 1, .spin_ns = -1};

    for (int i = 0; i < 2; i++) { /* also one that would come back to a dead daemon */
        ck_assert_int_eq(send(fake.sock, &refused, sizeof refused, 0), sizeof refused);
        close(fake.sock);
        fake.sock = -1;
        ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
        ck_assert_uint_eq(event.status, TKR_E_GONE);
        ck_assert_str_eq(event.message, "too much of it");
        ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), -ESHUTDOWN);
        teardown();
        memset(&fake, 0, sizeof fake);
        ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
        ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    }
}
END_TEST

START_TEST(a_client_that_was_struck_out_is_told_so_and_does_not_come_back)
{
    struct tkr_refused refused = {.head = {.magic = TKR_MAGIC_CTL, .type = TKR_CTL_REFUSED},
                                  .reason = 15, /* STRIKES of docs/abi.md, section 1 */
                                  .have = 64,
                                  .want = 65};
    tkr_opt opt = {.size = sizeof opt, .reconnect = 1, .spin_ns = -1};

    teardown();
    memset(&fake, 0, sizeof fake);
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(send(fake.sock, &refused, sizeof refused, 0), sizeof refused);
    close(fake.sock);
    fake.sock = -1;
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
    ck_assert_uint_eq(event.status, TKR_E_GONE); /* docs/abi.md, section 8 */
    ck_assert_ptr_nonnull(strstr(event.message, "too many malformed requests"));
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), -ESHUTDOWN);
}
END_TEST

START_TEST(an_own_cancel_slot_gives_no_gone_event)
{
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0);
    fake_put_text(&fake, &sqe, 0, 1, "x");
    close(fake.sock);
    fake.sock = -1;
    expect_gone_after_the_text();
}
END_TEST

START_TEST(gone_events_come_in_portions)
{
    tkr_req more[3] = {TKR_TEXT("a"), TKR_TEXT("b"), TKR_TEXT("c")};
    tkr_event events[3];

    ck_assert_int_eq(tkr_submit(conn, more, 3), 3);
    close(fake.sock);
    fake.sock = -1;
    ck_assert_int_eq(tkr_wait(conn, events, 3, TKR_S(10)), 3);
    ck_assert_int_eq(tkr_wait(conn, events, 3, TKR_S(10)), 1);
    ck_assert_int_eq(tkr_wait(conn, events, 3, TKR_S(10)), -ESHUTDOWN);
}
END_TEST

/* The daemon is another process that a signal kills at rest. */
START_TEST(sigkill_of_the_daemon_is_reported_within_a_second)
{
    struct fake other = {0};
    tkr_opt opt = {.size = sizeof opt};
    struct timespec before, after;
    tkr_conn *mine;
    tkr_req r = TKR_TEXT("a");
    pid_t pid;
    double seconds;

    fake_listen(&other);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (!pid) {
        fake_accept(&other);
        for (;;)
            pause();
    }
    opt.path = other.path;
    ck_assert_int_eq(tkr_open(&mine, &opt), 0);
    ck_assert_int_eq(tkr_submit(mine, &r, 1), 1);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_int_eq(tkr_wait(mine, &event, 1, TKR_FOREVER), 1);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_uint_eq(event.status, TKR_E_GONE);
    seconds =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    ck_assert(seconds < 1.0); /* tokenring.h: within a second */
    tkr_close(mine);
    fake_close(&other);
}
END_TEST

/* ---- a daemon that lies ---------------------------------------------------------------------- */

START_TEST(lines_about_requests_that_do_not_live_are_skipped)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_DONE, .user = sqe.user + 1, .tag = sqe.tag};

    fake_put(&fake, &cqe);
    cqe.user = sqe.user;
    cqe.tag = 65535;
    fake_put(&fake, &cqe);
    cqe.tag = (uint16_t)(sqe.tag + 1);
    fake_put(&fake, &cqe);
    cqe.user = UINT64_MAX;
    fake_put(&fake, &cqe);
    cqe.user = 0;
    fake_put(&fake, &cqe);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0);
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    fake_put_done(&fake, &sqe, TKR_E_INTERNAL, NULL);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(event.status, TKR_OK);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0); /* exactly one end */
}
END_TEST

static void token_too_many_bytes(struct tkr_cqe *c)
{
    c->kind = TKR_CQE_TOKEN;
    c->nbytes = 25;
}
static void token_too_many_ids(struct tkr_cqe *c)
{
    c->kind = TKR_CQE_TOKEN;
    c->ntok = 5;
}
static void bulk_past_the_end(struct tkr_cqe *c)
{
    c->u.bulk.off = BULK - 4;
    c->u.bulk.bytes = 8;
}
static void bulk_that_wraps(struct tkr_cqe *c)
{
    c->u.bulk.off = UINT32_MAX - 3;
    c->u.bulk.bytes = 8;
}
static void bulk_too_long(struct tkr_cqe *c)
{
    c->u.bulk.bytes = BULK + 4;
}
static void bulk_count_beyond_bytes(struct tkr_cqe *c)
{
    c->u.bulk.bytes = 8;
    c->u.bulk.count = 3;
}
static void bulk_unaligned(struct tkr_cqe *c)
{
    c->u.bulk.off = 2;
    c->u.bulk.bytes = 8;
}

START_TEST(a_line_that_points_outside_ends_the_connection)
{
    static void (*const lies[])(struct tkr_cqe *) = {
        token_too_many_bytes, token_too_many_ids,      bulk_past_the_end, bulk_that_wraps,
        bulk_too_long,        bulk_count_beyond_bytes, bulk_unaligned};
    struct tkr_cqe cqe = {
        .kind = TKR_CQE_BULK, .user = sqe.user, .tag = sqe.tag, .u.bulk.type = TKR_BULK_U32};

    lies[_i](&cqe);
    fake_put(&fake, &cqe);
    fake_put_text(&fake, &sqe, 0, 1, "never read");
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_int_eq(event.type, TKR_EV_DONE);
    ck_assert_uint_eq(event.status, TKR_E_GONE);
    ck_assert_ptr_nonnull(strstr(event.message, "protocol"));
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -ESHUTDOWN);
}
END_TEST

START_TEST(a_result_of_another_request_or_without_nul_does_no_harm)
{
    struct tkr_result result = {.user = sqe.user + 1, .prompt = 9};

    fake_put_done(&fake, &sqe, TKR_OK, &result);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(event.prompt_tokens, 0);
    ck_assert_int_eq(tkr_release(conn, req.id), 0);

    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    result.user = sqe.user;
    memset(result.message, 'm', sizeof result.message);
    fake_put_done(&fake, &sqe, TKR_E_INVALID, &result);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(strlen(event.message), sizeof result.message - 1);
}
END_TEST

static volatile uint32_t
    sink; /* what events point to is read, so that a sanitizer or a fault can object */

START_TEST(random_lines_never_lead_outside)
{
    srand(11);
    for (int i = 0; i < 20000; i++) {
        struct tkr_cqe cqe;
        tkr_event events[4];
        int got;

        for (size_t j = 0; j < sizeof cqe; j++)
            ((uint8_t *)&cqe)[j] = (uint8_t)rand();
        cqe.kind = (uint8_t)(rand() % 8);
        if (rand() % 2) {
            cqe.user = sqe.user;
            cqe.tag = sqe.tag;
            cqe.ntok &= 3;
            cqe.nbytes &= 15;
            if (rand() % 8) {
                cqe.u.bulk.off &= 0xfffc;
                cqe.u.bulk.bytes &= 0xfff;
                cqe.u.bulk.count &= 0xff;
            }
            cqe.u.bulk.type = (uint16_t)(rand() % 3);
        }
        fake_put(&fake, &cqe);
        got = tkr_peek(conn, events, 4);
        for (int j = 0; j < got; j++) {
            for (uint32_t k = 0; events[j].type == TKR_EV_BULK && k < events[j].n; k++)
                sink += events[j].ids ? events[j].ids[k] : (uint32_t)events[j].values[k];
            for (uint32_t k = 0; events[j].type == TKR_EV_TEXT && k < events[j].len; k++)
                sink += (uint32_t)events[j].text[k];
        }
        if (got == -ESHUTDOWN || (got == 1 && events[0].type == TKR_EV_DONE)) {
            teardown();
            setup();
        }
    }
}
END_TEST

/* ---- fork ------------------------------------------------------------------------------------ */

START_TEST(a_child_of_fork_gets_estale_from_every_call)
{
    pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (!pid) {
        tkr_limits limits = {.size = sizeof limits};
        int bad = 0;

        bad += tkr_submit(conn, &req, 1) != -ESTALE;
        bad += tkr_peek(conn, &event, 1) != -ESTALE;
        bad += tkr_wait(conn, &event, 1, 0) != -ESTALE;
        bad += tkr_cancel(conn, req.id) != -ESTALE;
        bad += tkr_cancel_ordered(conn, req.id) != -ESTALE;
        bad += tkr_release(conn, req.id) != -ESTALE;
        bad += tkr_get_limits(conn, &limits) != -ESTALE;
        bad += tkr_arena(conn, 64) != NULL;
        tkr_arena_free(conn, &req);
        tkr_close(conn);
        _exit(bad);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    fake_put_text(&fake, &sqe, 0, 1, "x"); /* the parent's connection is as before */
    ck_assert_int_eq(tkr_wait(conn, &event, 1, TKR_S(10)), 1);
}
END_TEST

START_TEST(close_cancels_what_is_in_flight)
{
    const uint32_t *cancel =
        (const uint32_t *)(const void *)((const uint8_t *)fake.r.base + fake.rh.cancel_off);

    tkr_close(conn);
    conn = NULL;
    ck_assert_uint_eq(cancel[sqe.tag], (uint32_t)sqe.user);
}
END_TEST

static TCase *tcase_new(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return tc;
}

int main(void)
{
    Suite *suite = suite_create("client events");
    TCase *tc = tcase_new(suite, "honest");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_test(tc, text_is_handed_out_where_it_lies_until_the_next_peek);
    tcase_add_test(tc, long_text_continues_in_an_event_without_ids);
    tcase_add_test(tc, done_carries_the_whole_result_and_its_message_lives_until_release);
    tcase_add_test(tc, done_without_a_result_has_a_status_and_an_empty_message);
    tcase_add_test(tc, bulk_results_stay_until_release);
    tcase_add_test(tc, kinds_that_the_library_does_not_know_are_skipped);
    tcase_add_test(tc, a_long_answer_goes_through_a_small_queue);
    tc = tcase_new(suite, "waiting");
    tcase_add_test(tc, wait_times_out_and_leaves_no_wish_to_be_woken);
    tcase_add_test(tc, waiting_for_ever_with_nothing_in_flight_is_edeadlk);
    tcase_add_test(tc, no_wakeup_is_lost_in_thousands_of_sleeps);
    tcase_add_test(tc, a_sleeper_names_the_position_that_it_waits_for);
    tc = tcase_new(suite, "gone");
    tcase_add_test(tc, a_hang_up_ends_every_live_request_as_gone);
    tcase_add_test(tc, a_daemon_that_says_gone_is_seen_without_a_system_call);
    tcase_add_test(tc, a_daemon_that_ends_the_connection_is_quoted);
    tcase_add_test(tc, a_client_that_was_struck_out_is_told_so_and_does_not_come_back);
    tcase_add_test(tc, an_own_cancel_slot_gives_no_gone_event);
    tcase_add_test(tc, gone_events_come_in_portions);
    tcase_add_test(tc, sigkill_of_the_daemon_is_reported_within_a_second);
    tc = tcase_new(suite, "lies");
    tcase_add_test(tc, lines_about_requests_that_do_not_live_are_skipped);
    tcase_add_loop_test(tc, a_line_that_points_outside_ends_the_connection, 0, 7);
    tcase_add_test(tc, a_result_of_another_request_or_without_nul_does_no_harm);
    tcase_add_test(tc, random_lines_never_lead_outside);
    tc = tcase_new(suite, "processes");
    tcase_add_test(tc, a_child_of_fork_gets_estale_from_every_call);
    tcase_add_test(tc, close_cancels_what_is_in_flight);

    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
