/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport with the daemon's loop in a thread of its own: parking, doorbells, wakes, kicks.
 * idle_park_ns is 0, so every quiet moment parks the queue and puts the daemon to sleep: each
 * message races with that.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/io.h"
#include "tests/unit/io_way.h"
#include "tests/unit/raw_client.h"

#define MESSAGES 4000
#define HANG_NS  30000000000ll /* a wait that takes longer has hung: a lost wake-up */

struct daemon {
    pthread_t thread;
    pid_t tid;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int started;                       /* 1: listening, -1: could not */
    uint32_t stop, kicked, busy, gone; /* atomic */
    uint32_t turns;                    /* atomic: io_sleep() returns */
    struct io *io;
    struct io_counts counts; /* at the end */
    uint32_t detaches;
};

static char folder[64], path[128];
static struct daemon *d;

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
    struct daemon *daemon = ctx;

    (void)client;
    daemon->detaches++;
}

static void started(struct daemon *daemon, int how)
{
    pthread_mutex_lock(&daemon->mutex);
    daemon->started = how;
    pthread_cond_signal(&daemon->cond);
    pthread_mutex_unlock(&daemon->mutex);
}

static void *daemon_run(void *arg)
{
    struct daemon *daemon = arg;
    struct io_ops ops = {
        .ctx = daemon, .submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    struct io_opt opt = {.socket_path = path,
                         .socket_mode = 0600,
                         .clients_max = 8,
                         .inflight_max = 8,
                         .arena_max = 1 << 20,
                         .bulk_max = 1 << 20,
                         .idle_park_ns = 0,
                         .op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_GENERATE}};
    struct diag diag;

    daemon->tid = gettid();
    io_way_set(&opt);
    /* Made by the thread that runs it: the io_uring has a single issuer. */
    if (io_new(&daemon->io, &opt, &ops, &diag) < 0 || io_listen(daemon->io, &diag) < 0) {
        started(daemon, -1);
        return NULL;
    }
    started(daemon, 1);
    while (!__atomic_load_n(&daemon->stop, __ATOMIC_ACQUIRE)) {
        io_busy(daemon->io, (int)__atomic_load_n(&daemon->busy, __ATOMIC_RELAXED));
        if (!io_pass(daemon->io))
            io_sleep(daemon->io, 0);
        __atomic_fetch_add(&daemon->turns, 1, __ATOMIC_RELEASE);
    }
    if (__atomic_load_n(&daemon->gone, __ATOMIC_RELAXED))
        io_gone(daemon->io);
    io_counts(daemon->io, &daemon->counts);
    while (!__atomic_load_n(&daemon->kicked, __ATOMIC_ACQUIRE)) /* its descriptor is still used */
        sched_yield();
    io_free(daemon->io);
    return NULL;
}

static void setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/tokenring-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket", folder);
    d = calloc(1, sizeof *d);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->cond, NULL);
    ck_assert_int_eq(pthread_create(&d->thread, NULL, daemon_run, d), 0);
    pthread_mutex_lock(&d->mutex);
    while (!d->started)
        pthread_cond_wait(&d->cond, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
    ck_assert_int_eq(d->started, 1);
}

static void daemon_stop(void)
{
    __atomic_store_n(&d->stop, 1, __ATOMIC_RELEASE);
    io_kick(d->io);
    __atomic_store_n(&d->kicked, 1, __ATOMIC_RELEASE);
    pthread_join(d->thread, NULL);
}

static void teardown(void)
{
    if (!d->stop)
        daemon_stop();
    ck_assert_int_eq(rmdir(folder), 0);
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->cond);
    free(d);
}

static int client_start(struct raw_client *c)
{
    c->r.fd = c->t.fd = -1;
    c->hello.arena_len = c->hello.bulk_len = 4096;
    c->hello.sq_log2 = 4;
    c->hello.cq_log2 = 5;
    c->hello.max_inflight = 4;
    c->socket = raw_connect(path);
    return c->socket < 0 ? c->socket : raw_attach(c);
}

static int client_open(struct raw_client *c)
{
    memset(c, 0, sizeof *c);
    return client_start(c);
}

/* Sleeps until the next completion, as the library does but without spinning: bell, wait word,
 * fence, last look, futex. */
static int wait_next(struct raw_client *c, struct tkr_cqe *ret)
{
    while (raw_take(c, ret, 0) < 0) {
        uint32_t bell = TKR_LOAD_ACQUIRE(c->cq_bell);
        int err = 0;

        TKR_STORE_RELAXED(c->wait, TKR_WAIT_ASLEEP | (uint32_t)(c->cq.pos + 1));
        tkr_fence();
        if (!tkr_ring_ready(&c->cq))
            err = tkr_futex_wait(c->cq_bell, bell, HANG_NS);
        TKR_STORE_RELAXED(c->wait, 0);
        if (err == -ETIMEDOUT)
            return err;
    }
    return 0;
}

/* The same by the socket, as a client with a poll loop of its own. */
static int poll_next(struct raw_client *c, struct tkr_cqe *ret)
{
    struct pollfd p = {.fd = c->socket, .events = POLLIN};
    uint8_t byte;

    while (raw_take(c, ret, 0) < 0) {
        TKR_STORE_RELAXED(c->wait,
                          TKR_WAIT_ASLEEP | TKR_WAIT_BY_SOCKET | (uint32_t)(c->cq.pos + 1));
        tkr_fence();
        if (!tkr_ring_ready(&c->cq) && poll(&p, 1, (int)(HANG_NS / 1000000)) != 1)
            return -ETIMEDOUT;
        TKR_STORE_RELAXED(c->wait, 0);
        while (recv(c->socket, &byte, 1, MSG_DONTWAIT) == 1)
            continue;
    }
    return 0;
}

START_TEST(a_bell_wakes_a_daemon_that_sleeps)
{
    struct raw_client c;
    struct tkr_cqe cqe;

    ck_assert_int_eq(client_open(&c), 0);
    for (int i = 0; i < 200; i++) {
        struct tkr_sqe sqe = raw_noop(&c, 0);
        uint64_t hang = clock_ns() + (uint64_t)HANG_NS;

        while (!TKR_LOAD_RELAXED(c.need_wakeup))
            ck_assert_uint_lt(clock_ns(), hang);
        ck_assert_int_eq(raw_put(&c, &sqe), 1);
        ck_assert_int_eq(wait_next(&c, &cqe), 0);
        ck_assert_uint_eq(cqe.user, sqe.user);
    }
    raw_close(&c);
}
END_TEST

/* Both sides sleep whenever they may; who wakes the client is chosen by io_busy(). */
static void race(uint32_t busy, int (*next)(struct raw_client *, struct tkr_cqe *))
{
    struct raw_client c;
    struct tkr_cqe cqe;

    __atomic_store_n(&d->busy, busy, __ATOMIC_RELAXED);
    ck_assert_int_eq(client_open(&c), 0);
    for (int i = 0; i < MESSAGES; i++) {
        struct tkr_sqe sqe = raw_noop(&c, 0);

        /* Gaps of every length, so that puts meet each point of the daemon's way to sleep. */
        for (volatile int k = 0; k < (i * 37) % 3000; k++)
            continue;
        raw_put(&c, &sqe);
        ck_assert_msg(next(&c, &cqe) == 0, "message %d: a wake-up was lost", i);
        ck_assert_uint_eq(cqe.user, sqe.user);
    }
    raw_close(&c);
    daemon_stop();
    ck_assert_uint_gt(d->counts.wakes, 0);
}

START_TEST(no_wake_up_is_lost_when_the_ring_thread_wakes)
{
    race(0, wait_next);
}
END_TEST

START_TEST(no_wake_up_is_lost_when_the_waker_thread_wakes)
{
    race(1, wait_next);
}
END_TEST

START_TEST(no_wake_up_by_socket_is_lost_when_the_ring_thread_wakes)
{
    race(0, poll_next);
}
END_TEST

START_TEST(no_wake_up_by_socket_is_lost_when_the_waker_thread_wakes)
{
    race(1, poll_next);
}
END_TEST

#define SUBMITTERS 4u

struct submitter { /* one thread, one queue of 16 slots */
    pthread_t thread;
    struct raw_client *client;
    uint32_t q, slept;
    int failed;
};

/* Puts as fast as there is room, and sleeps on sq_head when there is none. */
static void *submitter_run(void *arg)
{
    struct submitter *s = arg;
    struct raw_queue *queue = &s->client->queue[s->q];

    for (uint32_t i = 1; i <= MESSAGES; i++) {
        struct tkr_sqe sqe = {.op = TKR_OP_NOOP, .user = (uint64_t)s->q << 32 | i};
        uint32_t head;

        while (head = TKR_LOAD_ACQUIRE(queue->sq_head), !tkr_ring_credit(&queue->sq, head)) {
            TKR_STORE_RELAXED(queue->sq_wait, 1u);
            tkr_fence();
            s->slept++;
            if (TKR_LOAD_ACQUIRE(queue->sq_head) == head &&
                tkr_futex_wait(queue->sq_head, head, HANG_NS) == -ETIMEDOUT)
                s->failed = 1;
            TKR_STORE_RELAXED(queue->sq_wait, 0u);
            if (s->failed)
                return NULL;
        }
        raw_queue_put(s->client, queue, &sqe);
    }
    return NULL;
}

static void submitters_race(uint32_t busy)
{
    struct submitter s[SUBMITTERS] = {{0}};
    uint32_t seen[SUBMITTERS] = {0}, slept = 0;
    struct raw_client c;
    struct tkr_cqe cqe;

    __atomic_store_n(&d->busy, busy, __ATOMIC_RELAXED);
    memset(&c, 0, sizeof c);
    c.hello.nsq = SUBMITTERS;
    ck_assert_int_eq(client_start(&c), 0);
    for (uint32_t q = 0; q < SUBMITTERS; q++) {
        s[q] = (struct submitter){.client = &c, .q = q};
        ck_assert_int_eq(pthread_create(&s[q].thread, NULL, submitter_run, &s[q]), 0);
    }
    for (uint32_t i = 0; i < SUBMITTERS * MESSAGES; i++) {
        ck_assert_msg(wait_next(&c, &cqe) == 0, "completion %u: a wake-up was lost", i);
        ck_assert_uint_eq((uint32_t)cqe.user, ++seen[cqe.user >> 32]);
    }
    for (uint32_t q = 0; q < SUBMITTERS; q++) {
        pthread_join(s[q].thread, NULL);
        ck_assert_msg(!s[q].failed, "queue %u: a wake-up was lost", q);
        slept += s[q].slept;
    }
    ck_assert_uint_gt(slept, 0);
    raw_close(&c);
}

START_TEST(submitters_that_sleep_on_full_queues_are_woken_by_the_ring_thread)
{
    submitters_race(0);
}
END_TEST

START_TEST(submitters_that_sleep_on_full_queues_are_woken_by_the_waker_thread)
{
    submitters_race(1);
}
END_TEST

START_TEST(a_client_that_asks_for_a_later_position_is_woken_there)
{
    struct raw_client c;
    struct tkr_cqe cqe;
    struct tkr_sqe sqe;
    uint32_t bell;

    ck_assert_int_eq(client_open(&c), 0);
    bell = TKR_LOAD_ACQUIRE(c.cq_bell);
    TKR_STORE_RELAXED(c.wait, TKR_WAIT_ASLEEP | 3u);
    for (int i = 0; i < 3; i++) {
        sqe = raw_noop(&c, 0);
        raw_put(&c, &sqe);
    }
    while (TKR_LOAD_ACQUIRE(c.cq_bell) == bell)
        ck_assert_int_ne(tkr_futex_wait(c.cq_bell, bell, HANG_NS), -ETIMEDOUT);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(raw_take(&c, &cqe, 0), 0); /* all three are there */
    raw_close(&c);
}
END_TEST

START_TEST(a_kick_ends_a_sleep_without_a_limit)
{
    for (int i = 0; i < 100; i++) {
        uint32_t turns = __atomic_load_n(&d->turns, __ATOMIC_ACQUIRE);
        uint64_t hang = clock_ns() + (uint64_t)HANG_NS;

        io_kick(d->io);
        while (__atomic_load_n(&d->turns, __ATOMIC_ACQUIRE) == turns)
            ck_assert_uint_lt(clock_ns(), hang);
    }
}
END_TEST

/* Voluntary context switches of the daemon's loop so far. */
static unsigned long loop_switches(void)
{
    unsigned long n = 0;
    char path_of[64], line[128];
    FILE *status;

    snprintf(path_of, sizeof path_of, "/proc/self/task/%d/status", d->tid);
    status = fopen(path_of, "r");
    ck_assert_ptr_nonnull(status);
    while (fgets(line, sizeof line, status) &&
           sscanf(line, "voluntary_ctxt_switches: %lu", &n) != 1)
        continue;
    fclose(status);
    return n;
}

START_TEST(a_daemon_whose_clients_are_silent_does_not_wake_up)
{
    const struct timespec second = {.tv_sec = 1};
    struct raw_client c[4];
    uint64_t hang = clock_ns() + (uint64_t)HANG_NS;
    unsigned long before;

    for (int i = 0; i < 4; i++) {
        struct tkr_sqe sqe;
        struct tkr_cqe cqe;

        ck_assert_int_eq(client_open(&c[i]), 0);
        sqe = raw_noop(&c[i], 0);
        raw_put(&c[i], &sqe);
        ck_assert_int_eq(wait_next(&c[i], &cqe), 0);
        while (!TKR_LOAD_RELAXED(c[i].need_wakeup))
            ck_assert_uint_lt(clock_ns(), hang);
    }
    before = loop_switches();
    nanosleep(&second, NULL);
    /* The last way to sleep may have begun after the count; one that wakes up each 250 ms makes 4. */
    ck_assert_uint_le(loop_switches() - before, 2);
    for (int i = 0; i < 4; i++)
        raw_close(&c[i]);
}
END_TEST

START_TEST(a_daemon_that_ends_tells_its_sleeping_clients)
{
    struct raw_client c;
    struct pollfd p = {.events = POLLIN};

    ck_assert_int_eq(client_open(&c), 0);
    __atomic_store_n(&d->gone, 1, __ATOMIC_RELAXED);
    daemon_stop();
    ck_assert_uint_eq(TKR_LOAD_ACQUIRE(c.state), TKR_STATE_GONE);
    ck_assert_uint_eq(TKR_LOAD_ACQUIRE(c.cq_bell), 1);
    p.fd = c.socket;
    ck_assert_int_eq(poll(&p, 1, 10000), 1); /* and the socket hangs up */
    raw_close(&c);
}
END_TEST

static void *client_run(void *arg)
{
    intptr_t failed = 0;

    for (int round = 0; round < 30 && !failed; round++) {
        struct raw_client c;
        struct tkr_cqe cqe;

        failed = client_open(&c) != 0;
        for (uint64_t i = 1; i <= 50 && !failed; i++) {
            struct tkr_sqe sqe = raw_noop(&c, (uint16_t)(i % 4));

            sqe.op = i % 2 ? TKR_OP_GENERATE : TKR_OP_NOOP;
            raw_put(&c, &sqe);
            failed = wait_next(&c, &cqe) != 0 || cqe.user != i || cqe.status != TKR_OK;
        }
        raw_close(&c);
    }
    (void)arg;
    return (void *)failed;
}

START_TEST(clients_that_come_and_go_at_once_are_all_served_and_all_detached)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, client_run, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        ck_assert_ptr_null(failed);
    }
    daemon_stop();
    ck_assert_uint_eq(d->counts.attached, 120);
    ck_assert_uint_eq(d->detaches, 120); /* the last of them when the daemon ends, at the latest */
    ck_assert_uint_eq(d->counts.slots, 120 * 50);
    ck_assert_uint_eq(d->counts.rejected, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("io_threads");
    TCase *tc = tcase_create("threads");
    SRunner *sr;
    int failed;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, a_bell_wakes_a_daemon_that_sleeps);
    tcase_add_test(tc, no_wake_up_is_lost_when_the_ring_thread_wakes);
    tcase_add_test(tc, no_wake_up_is_lost_when_the_waker_thread_wakes);
    tcase_add_test(tc, no_wake_up_by_socket_is_lost_when_the_ring_thread_wakes);
    tcase_add_test(tc, no_wake_up_by_socket_is_lost_when_the_waker_thread_wakes);
    tcase_add_test(tc, submitters_that_sleep_on_full_queues_are_woken_by_the_ring_thread);
    tcase_add_test(tc, submitters_that_sleep_on_full_queues_are_woken_by_the_waker_thread);
    tcase_add_test(tc, a_client_that_asks_for_a_later_position_is_woken_there);
    tcase_add_test(tc, a_kick_ends_a_sleep_without_a_limit);
    tcase_add_test(tc, a_daemon_whose_clients_are_silent_does_not_wake_up);
    tcase_add_test(tc, a_daemon_that_ends_tells_its_sleeping_clients);
    tcase_add_test(tc, clients_that_come_and_go_at_once_are_all_served_and_all_detached);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
