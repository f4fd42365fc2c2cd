/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon runs in this process, on its own threads, with a tiny model. malloc, calloc, realloc and mmap are ours
 * and count calls of every thread but the test's own while `armed`: the ring and step paths must make none.
 * Usage: test_noalloc MODEL.gguf
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <tokenring/tokenring.h>

#include "runtime/config.h"
#include "runtime/daemon.h"
#include "tests/unit/io_way.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *ptr, size_t bytes);

static atomic_int armed;
static atomic_uint counted;
static _Thread_local int is_test_thread;

static void count(void)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed) && !is_test_thread)
        atomic_fetch_add(&counted, 1);
}

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
    count();
    return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t bytes)
{
    count();
    return __libc_calloc(n, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *ptr, size_t bytes)
{
    count();
    return __libc_realloc(ptr, bytes);
}

__attribute__((visibility("default"))) void *mmap(void *addr, size_t len, int prot, int flags,
                                                  int fd, off_t off)
{
    count();
    return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
}

static const char *model_path;
static char socket_path[64];
static struct daemon *daemon_;
static struct diag diag;
static sem_t started;
static pthread_t thread;

/* The ring belongs to the thread that makes it, so all of the daemon's life is here. */
static void *serve(void *arg)
{
    struct config *config = arg;

    if (daemon_new(&daemon_, config, &diag) < 0)
        daemon_ = NULL;
    sem_post(&started);
    if (daemon_)
        daemon_run(daemon_);
    daemon_free(daemon_);
    config_fini(config);
    return NULL;
}

static void setup(void)
{
    static struct config config;

    is_test_thread = 1;
    snprintf(socket_path, sizeof socket_path, "/tmp/tkr-noalloc-%d", (int)getpid());
    config_init(&config);
    ck_assert_int_eq(config_set(&config, "model", model_path, &diag), 0);
    ck_assert_int_eq(config_set(&config, "socket", socket_path, &diag), 0);
    ck_assert_int_eq(config_set(&config, "io", io_way()->io_name, &diag), 0);
    ck_assert_int_eq(config_set(&config, "doorbell", io_way()->doorbell_name, &diag), 0);
    config.threads = 2;
    config.running_max = 4; /* so that requests wait, and some are refused */
    config.queued_max = 4;
    ck_assert_int_eq(config_finish(&config, NULL, &diag), 0);
    sem_init(&started, 0, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &config), 0);
    sem_wait(&started);
    ck_assert_msg(daemon_ != NULL, "%s", diag.text);
}

static void teardown(void)
{
    char stats[80];

    daemon_stop(daemon_);
    pthread_join(thread, NULL);
    unlink(socket_path);
    snprintf(stats, sizeof stats, "%s.stats", socket_path);
    unlink(stats);
}

struct tally {
    unsigned ok, overloaded, cancelled, other;
};

static void event(tkr_conn *conn, const tkr_event *e, struct tally *tally, unsigned *live)
{
    if (e->type != TKR_EV_DONE)
        return;
    if (e->status == TKR_OK)
        tally->ok++;
    else if (e->status == TKR_E_OVERLOADED)
        tally->overloaded++;
    else if (e->status == TKR_E_CANCELLED)
        tally->cancelled++;
    else
        tally->other++;
    ck_assert_int_eq(tkr_release(conn, e->id), 0);
    (*live)--;
}

/* Rounds of every kind of request: chat, raw text, tokenize, log-probabilities, sampled, stopped, cancelled, refused. */
static void traffic(tkr_conn *conn, unsigned rounds, struct tally *tally)
{
    static const tkr_bytes stops[] = {{"e", 1}};
    unsigned live = 0;

    for (unsigned i = 0; i < rounds; i++) {
        tkr_req reqs[6];
        tkr_event events[16];
        int n;

        for (unsigned k = 0; k < 6; k++)
            reqs[k] = k % 2 ? tkr_req_chat("hello there") : tkr_req_text("one two three");
        for (unsigned k = 0; k < 6; k++)
            reqs[k].max_tokens = 8;
        reqs[1].temperature = 0.8f;
        reqs[1].top_p = 0.9f;
        reqs[2].op = TKR_OP_TOKENIZE;
        reqs[3].stops = stops;
        reqs[3].n_stops = 1;
        reqs[4].op = TKR_OP_LOGPROBS;
        n = tkr_submit(conn, reqs, 6);
        ck_assert_int_ge(n, 0);
        live += (unsigned)n;
        if (n > 0 && i % 3 == 0)
            tkr_cancel(conn, reqs[0].id);
        while (live) {
            n = tkr_wait(conn, events, 16, TKR_S(20));
            ck_assert_int_gt(n, 0);
            for (int k = 0; k < n; k++)
                event(conn, &events[k], tally, &live);
        }
    }
}

START_TEST(serving_allocates_nothing_once_a_client_is_attached)
{
    struct tally tally = {0};
    tkr_conn *conn;

    ck_assert_int_eq(tkr_open(&conn, &(tkr_opt){.size = sizeof(tkr_opt), .path = socket_path}), 0);
    traffic(conn, 3, &tally); /* first touch of stacks and lazily bound symbols */
    atomic_store(&armed, 1);
    traffic(conn, 60, &tally);
    atomic_store(&armed, 0);
    tkr_close(conn);
    ck_assert_uint_gt(tally.ok, 100);
    ck_assert_uint_eq(tally.other, 0);
    ck_assert_uint_eq(atomic_load(&counted), 0);
}
END_TEST

/* The counter itself: without this the test above could never fail. */
static void *allocate(void *arg)
{
    free(malloc(32));
    return arg;
}

START_TEST(an_allocation_of_another_thread_is_counted)
{
    pthread_t other;

    atomic_store(&armed, 1);
    ck_assert_int_eq(pthread_create(&other, NULL, allocate, NULL), 0);
    pthread_join(other, NULL);
    atomic_store(&armed, 0);
    ck_assert_uint_gt(atomic_load(&counted), 0);
    atomic_store(&counted, 0);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("noalloc");
    TCase *serve_case = tcase_create("serve"), *counter_case = tcase_create("counter");
    SRunner *runner = srunner_create(suite);
    int failed;

    if (argc != 2) {
        fprintf(stderr, "usage: test_noalloc MODEL.gguf\n");
        return 2;
    }
    if (io_way_skip())
        return 0;
    model_path = argv[1];
    tcase_add_checked_fixture(serve_case, setup, teardown);
    tcase_set_timeout(serve_case, 60);
    tcase_add_test(serve_case, serving_allocates_nothing_once_a_client_is_attached);
    tcase_add_test(counter_case, an_allocation_of_another_thread_is_counted);
    suite_add_tcase(suite, serve_case);
    suite_add_tcase(suite, counter_case);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
