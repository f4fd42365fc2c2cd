/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library against the daemon's transport, in each way of waiting (io_way.h). The daemon
 * parks at once and the library never spins, so every message races with both ways to sleep.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tokenring/tokenring.h>
#include "tests/unit/io_way.h"

#define MESSAGES 3000
#define HANG     TKR_S(30) /* a wait that takes longer has hung: a lost wake-up */

static char folder[64], path[128];
static pthread_t thread;
static pthread_barrier_t ready;
static struct io *io;
static uint32_t stop, kicked; /* atomic */

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

static void *daemon_run(void *arg)
{
    struct io_ops ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    struct io_opt opt = {
        .socket_path = path,
        .socket_mode = 0600,
        .clients_max = 8,
        .inflight_max = 64,
        .arena_max = 1 << 20,
        .bulk_max = 1 << 20,
        .idle_park_ns = 0,
        .prompt_tokens_max = 100,
        .output_tokens_max = 100,
        .op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_CANCEL | 1u << TKR_OP_GENERATE}};
    struct diag diag;

    (void)arg;
    io_way_set(&opt);
    if (io_new(&io, &opt, &ops, &diag) < 0 || io_listen(io, &diag) < 0)
        abort();
    pthread_barrier_wait(&ready);
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        if (!io_pass(io))
            io_sleep(io, 0);
    while (!__atomic_load_n(&kicked, __ATOMIC_ACQUIRE))
        sched_yield();
    io_free(io);
    return NULL;
}

static void setup(void)
{
    stop = kicked = 0;
    snprintf(folder, sizeof folder, "/tmp/tokenring-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket", folder);
    pthread_barrier_init(&ready, NULL, 2);
    ck_assert_int_eq(pthread_create(&thread, NULL, daemon_run, NULL), 0);
    pthread_barrier_wait(&ready);
}

static void teardown(void)
{
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    io_kick(io);
    __atomic_store_n(&kicked, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&ready);
    ck_assert_int_eq(rmdir(folder), 0);
}

static tkr_conn *opened(void)
{
    const tkr_opt opt = {.size = sizeof opt, .path = path, .spin_ns = -1};
    tkr_conn *conn = NULL;

    ck_assert_msg(tkr_open(&conn, &opt) == 0, "%s", tkr_open_error());
    return conn;
}

/* A request of each kind in turn, after a gap of some length. */
static tkr_req submitted(tkr_conn *conn, int i)
{
    tkr_req req;

    for (volatile int k = 0; k < (i * 37) % 3000; k++)
        continue;
    tkr_req_init(&req, i % 2 ? TKR_OP_NOOP : TKR_OP_GENERATE);
    if (i % 2 == 0) {
        req.data_kind = TKR_DATA_TEXT;
        req.text = "text";
        req.len = 4;
        req.max_tokens = 1;
    }
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    return req;
}

static void check_done(tkr_conn *conn, const tkr_event *event, tkr_id id)
{
    ck_assert_int_eq(event->type, TKR_EV_DONE);
    ck_assert_int_eq(event->status, TKR_OK);
    ck_assert_uint_eq(event->id, id);
    ck_assert_int_eq(tkr_release(conn, id), 0);
}

START_TEST(no_wake_up_is_lost_between_library_and_daemon)
{
    tkr_conn *conn = opened();
    tkr_event event;

    for (int i = 0; i < MESSAGES; i++) {
        tkr_req req = submitted(conn, i);

        ck_assert_msg(tkr_wait(conn, &event, 1, HANG) == 1, "message %d", i);
        check_done(conn, &event, req.id);
    }
    tkr_close(conn);
}
END_TEST

START_TEST(no_wake_up_is_lost_by_a_client_with_a_poll_loop_of_its_own)
{
    tkr_conn *conn = opened();
    struct pollfd p = {.fd = tkr_fd(conn), .events = POLLIN};
    tkr_event event;

    for (int i = 0; i < MESSAGES; i++) {
        tkr_req req = submitted(conn, i);

        while (tkr_peek(conn, &event, 1) == 0)
            if (!tkr_arm(conn))
                ck_assert_msg(poll(&p, 1, (int)(HANG / TKR_MS(1))) == 1, "message %d", i);
        check_done(conn, &event, req.id);
    }
    tkr_close(conn);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_io");
    TCase *tc = tcase_create("client_io");
    SRunner *sr;
    int failed;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, no_wake_up_is_lost_between_library_and_daemon);
    tcase_add_test(tc, no_wake_up_is_lost_by_a_client_with_a_poll_loop_of_its_own);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
