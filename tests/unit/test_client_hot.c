/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise of tokenring.h: no system call and no allocation while the daemon polls.
 *
 * Each case runs in a process of its own that opens a connection, then puts itself under a seccomp
 * filter that kills it (or traps, to count), then works. The linker replaces the allocation calls
 * of the library (--wrap).
 */
#include <check.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/fake_daemon.h"

/* A sanitizer's runtime makes system calls of its own, so its builds leave the filters out. */
#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static unsigned n_allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *ptr, size_t bytes);
void __real_free(void *ptr);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *ptr, size_t bytes);
void __wrap_free(void *ptr);

void *__wrap_malloc(size_t bytes)
{
    n_allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    n_allocations++;
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *ptr, size_t bytes)
{
    n_allocations++;
    return __real_realloc(ptr, bytes);
}

void __wrap_free(void *ptr)
{
    n_allocations++;
    __real_free(ptr);
}

/* ---- filters --------------------------------------------------------------------------------- */

#define ALLOW(nr)                                                                                  \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Everything but the end of the process (and of a signal handler) gives `action`. */
static void filter(uint32_t action)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_exit_group),
        ALLOW(SYS_rt_sigreturn),
        BPF_STMT(BPF_RET | BPF_K, action),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(99);
}

static volatile sig_atomic_t n_traps, last_nr;

static void trapped(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    n_traps++;
    last_nr = info->si_syscall;
}

/* System calls come to nothing and are counted. */
static void count_system_calls(void)
{
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};

    sigaction(SIGSYS, &action, NULL);
    filter(SECCOMP_RET_TRAP);
}

/* Runs body in a child: its wait status. */
static int in_child(int (*body)(void))
{
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (!pid)
        _exit(body());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

/* Only _exit() may follow a filter, so a failure is its line. */
#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return (__LINE__ % 200) + 1;                                                           \
    } while (0)

/* ---- cases ----------------------------------------------------------------------------------- */

static struct fake fake;
static tkr_conn *conn;
static uint32_t n_queues, reconnect; /* options of opened(); 0 is the usual */

static void opened(void)
{
    tkr_opt opt = {.size = sizeof opt,
                   .max_inflight = 16,
                   .arena_bytes = 16384,
                   .n_queues = n_queues,
                   .reconnect = reconnect};

    if (fake_open(&fake, &conn, &opt))
        _exit(98);
    unlink(fake.path); /* nobody can clean up later */
    rmdir(fake.dir);
}

/* Rounds of all that a hot program does: batch, text in place, text, cancel, end, release; on one queue
 * after the other. */
static int hot_rounds(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        unsigned queue = n_queues ? i % n_queues : 0;
        tkr_bytes stop = {.text = "stop", .len = 4};
        tkr_req reqs[3] = {TKR_CHAT("one"), TKR_TEXT("two"), TKR_TEXT("three")};
        tkr_event events[16];
        struct tkr_sqe sqe;
        char *text = tkr_arena_on(conn, queue, 100);
        int got;

        MUST(text);
        memcpy(text, "in place", 8);
        reqs[1].text = text;
        reqs[1].len = 8;
        reqs[2].stops = &stop;
        reqs[2].n_stops = 1;
        for (int j = 0; j < 3; j++)
            reqs[j].max_tokens = 8;
        MUST(tkr_submit_on(conn, queue, reqs, 3) == 3);
        MUST(tkr_cancel(conn, reqs[1].id) == 0);
        MUST(tkr_cancel_ordered(conn, reqs[2].id) == 0);
        MUST(tkr_peek(conn, events, 16) == 0);
        while (!fake_take_from(&fake, queue, &sqe)) {
            struct tkr_result result = {.user = sqe.user};

            if (sqe.op == TKR_OP_GENERATE)
                fake_put_text(&fake, &sqe, 0, 1, "token");
            fake_put_done(&fake, &sqe, TKR_OK, &result);
        }
        /* A line is there already, so a wait needs no system call either. */
        got = tkr_wait(conn, events, 16, TKR_S(1));
        MUST(got == 6);
        for (int j = 0; j < got; j++)
            if (events[j].type == TKR_EV_DONE)
                MUST(tkr_release(conn, events[j].id) == 0);
        text = tkr_arena_on(conn, queue, n_queues ? 16384 / n_queues : 16384);
        MUST(text);
        tkr_arena_free(conn, text);
    }
    return 0;
}

static int hot_under_a_killing_filter(void)
{
    opened();
    filter(SECCOMP_RET_KILL_PROCESS);
    return hot_rounds(1000);
}

START_TEST(hot_calls_make_no_system_call)
{
    ck_assert_int_eq(in_child(hot_under_a_killing_filter), 0);
}
END_TEST

static int hot_on_four_queues(void)
{
    n_queues = 4;
    return hot_under_a_killing_filter();
}

START_TEST(hot_calls_on_several_queues_make_no_system_call)
{
    ck_assert_int_eq(in_child(hot_on_four_queues), 0);
}
END_TEST

static int hot_that_could_reconnect(void)
{
    reconnect = 1;
    return hot_under_a_killing_filter();
}

START_TEST(hot_calls_of_a_connection_that_reconnects_make_no_system_call)
{
    ck_assert_int_eq(in_child(hot_that_could_reconnect), 0);
}
END_TEST

static int getppid_under_a_killing_filter(void)
{
    filter(SECCOMP_RET_KILL_PROCESS);
    return syscall(SYS_getppid) != 0;
}

START_TEST(the_filter_does_kill)
{
    int status = in_child(getppid_under_a_killing_filter);

    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGSYS);
}
END_TEST

static int hot_with_counted_allocations(void)
{
    unsigned before;
    int bad;

    n_queues = 4;
    reconnect = 1;
    opened();
    before = n_allocations;
    bad = hot_rounds(1000);
    if (bad)
        return bad;
    MUST(n_allocations == before);
    return 0;
}

START_TEST(hot_calls_allocate_nothing)
{
    ck_assert_int_eq(in_child(hot_with_counted_allocations), 0);
}
END_TEST

static int open_with_counted_allocations(void)
{
    opened();
    MUST(n_allocations > 0);
    return 0;
}

START_TEST(the_count_of_allocations_does_count)
{
    ck_assert_int_eq(in_child(open_with_counted_allocations), 0);
}
END_TEST

static int submit_to_a_parked_queue(void)
{
    tkr_req reqs[2] = {TKR_TEXT("a"), TKR_TEXT("b")};

    opened();
    *fake_t_word(&fake, TKR_T_NEED_WAKEUP(0)) = 1;
    count_system_calls();
    MUST(tkr_submit(conn, reqs, 2) == 2);
    MUST(n_traps == 1 && last_nr == SYS_futex);
    MUST(*fake_r_word(&fake, TKR_R_BELL(0)) == 1);

    *fake_t_word(&fake, TKR_T_NEED_WAKEUP(0)) = 0;
    MUST(tkr_submit(conn, reqs, 2) == 2);
    MUST(n_traps == 1);
    return 0;
}

START_TEST(a_submit_to_a_parked_queue_makes_exactly_one_system_call)
{
    ck_assert_int_eq(in_child(submit_to_a_parked_queue), 0);
}
END_TEST

static int submit_to_a_parked_queue_of_two(void)
{
    tkr_req req = TKR_TEXT("a");

    n_queues = 2;
    opened();
    *fake_t_word(&fake, TKR_T_NEED_WAKEUP(1)) = 1;
    count_system_calls();
    MUST(tkr_submit_on(conn, 0, &req, 1) == 1);
    MUST(n_traps == 0);
    MUST(tkr_submit_on(conn, 1, &req, 1) == 1);
    MUST(n_traps == 1 && last_nr == SYS_futex);
    MUST(*fake_r_word(&fake, TKR_R_BELL(0)) == 0);
    MUST(*fake_r_word(&fake, TKR_R_BELL(1)) == 1);
    return 0;
}

START_TEST(each_queue_has_a_bell_of_its_own)
{
    ck_assert_int_eq(in_child(submit_to_a_parked_queue_of_two), 0);
}
END_TEST

static int submit_with_a_socket_doorbell(void)
{
    tkr_req req = TKR_TEXT("a");

    fake.doorbell = TKR_DOORBELL_SOCKET;
    opened();
    *fake_t_word(&fake, TKR_T_NEED_WAKEUP(0)) = 1;
    MUST(tkr_submit(conn, &req, 1) == 1);
    MUST(recv(fake.sock, &(char){0}, 1, MSG_DONTWAIT) == 1);
    count_system_calls();
    MUST(tkr_submit(conn, &req, 1) == 1);
    MUST(n_traps == 1 && last_nr == SYS_sendto);
    *fake_t_word(&fake, TKR_T_NEED_WAKEUP(0)) = 0;
    MUST(tkr_submit(conn, &req, 1) == 1);
    MUST(n_traps == 1);
    return 0;
}

START_TEST(a_socket_doorbell_is_one_system_call_too)
{
    ck_assert_int_eq(in_child(submit_with_a_socket_doorbell), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client hot path");
    TCase *tc = tcase_create("hot");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, hot_calls_allocate_nothing);
    tcase_add_test(tc, the_count_of_allocations_does_count);
    if (!SANITIZED) {
        tcase_add_test(tc, hot_calls_make_no_system_call);
        tcase_add_test(tc, hot_calls_on_several_queues_make_no_system_call);
        tcase_add_test(tc, hot_calls_of_a_connection_that_reconnects_make_no_system_call);
        tcase_add_test(tc, the_filter_does_kill);
        tcase_add_test(tc, a_submit_to_a_parked_queue_makes_exactly_one_system_call);
        tcase_add_test(tc, each_queue_has_a_bell_of_its_own);
        tcase_add_test(tc, a_socket_doorbell_is_one_system_call_too);
    }
    suite_add_tcase(suite, tc);

    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
