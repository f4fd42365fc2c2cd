/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - a no-op through the whole daemon path, against what the machine's caches allow.
 *
 *   bench_ring [--peers]      --peers: also other projects' message libraries, where they are
 *              installed
 *
 * Two processes, each spinning on a core of its own under SCHED_FIFO: one runs the daemon's real
 * transport (runtime/io), the other submits through the client library. What is compared is
 * measured
 * in turns, a round each, by the same two processes. Then a third process counts, by ptrace, the
 * system calls of both while tokens stream.
 *
 * Two spinning SCHED_FIFO processes on one core would lock the machine up: fewer than two cores
 * end it
 * at once, and where only one side is to spin, the other one sleeps.
 */
#include "bench/ring.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <tokenring/tokenring.h>
#include "runtime/base/clock.h"

#define WARM         5000u
#define WARM_FEW     200u
#define ATTACHES     200u
#define FIRSTS       200u
#define IDLE_S       3
#define LIMIT_S      120 /* for the whole */
#define STREAM_DEPTH 128u

struct shared *shared;
char ring_paths[TRANSPORTS][128];
int cpu_daemon = -1, cpu_client = -1;

static char folder[64];
static pid_t daemon_pid;

/* ---- the client process ---------------------------------------------------------------------- */

static void mode_set(enum mode mode)
{
    struct timespec moment = {.tv_nsec = 200000};

    TKR_STORE_RELEASE(&shared->mode, (uint32_t)mode);
    while (TKR_LOAD_ACQUIRE(&shared->serving) != mode)
        nanosleep(&moment, NULL);
}

/* arena 0: the default sizes. */
static tkr_conn *conn_open(int transport, uint32_t max_inflight, size_t arena, int64_t spin_ns)
{
    tkr_opt opt = {.size = sizeof opt,
                   .path = ring_paths[transport],
                   .max_inflight = max_inflight,
                   .arena_bytes = arena,
                   .bulk_bytes = arena,
                   .spin_ns = spin_ns};
    tkr_conn *conn;

    if (tkr_open(&conn, &opt) < 0) {
        fprintf(stderr, "bench_ring: %s\n", tkr_open_error());
        exit(1);
    }
    return conn;
}

static void event_check(const tkr_event *event)
{
    if (event->type == TKR_EV_DONE && event->status != TKR_OK) {
        fprintf(stderr, "bench_ring: a request ended: %s\n", tkr_strerror(event->status));
        exit(1);
    }
}

/* One request to its end, without a system call; the number of TEXT events. */
static uint32_t request_run(tkr_conn *conn, tkr_req *req)
{
    uint32_t texts = 0;
    tkr_event event;

    if (tkr_submit(conn, req, 1) != 1)
        die("tkr_submit");
    for (;;) {
        int n = tkr_peek(conn, &event, 1);

        if (n < 0) {
            errno = -n;
            die("tkr_peek");
        }
        if (n && event.type == TKR_EV_DONE)
            break;
        texts += (uint32_t)n;
    }
    event_check(&event);
    return texts;
}

static void request_run_sleeping(tkr_conn *conn, tkr_req *req)
{
    tkr_event event;

    if (tkr_submit(conn, req, 1) != 1)
        die("tkr_submit");
    if (tkr_wait(conn, &event, 1, TKR_FOREVER) != 1)
        die("tkr_wait");
    event_check(&event);
}

static void noop_round(tkr_conn *conn, uint32_t *ret_ns, uint32_t n, uint32_t warm, int sleeping)
{
    tkr_req req;

    tkr_req_init(&req, TKR_OP_NOOP);
    for (uint32_t i = 0; i < warm + n; i++) {
        uint64_t t;

        if (sleeping)
            peer_sleeps();
        t = ticks();
        if (sleeping)
            request_run_sleeping(conn, &req);
        else
            request_run(conn, &req);
        if (i >= warm)
            ret_ns[i - warm] = to_ns(ticks() - t);
        tkr_release(conn, req.id);
    }
}

static tkr_req generate_of(uint32_t max_tokens)
{
    tkr_req req;

    tkr_req_init(&req, TKR_OP_GENERATE);
    req.data_kind = TKR_DATA_TEXT;
    req.text = "prompt";
    req.len = 6;
    req.max_tokens = max_tokens;
    return req;
}

/* A token to each of PUBLISH clients: the time that the daemon process takes for them. */
static void publish_round(tkr_conn **conns, uint32_t *ret_ns, uint32_t n, uint32_t warm)
{
    tkr_req reqs[PUBLISH];
    tkr_event event;

    for (uint32_t c = 0; c < PUBLISH; c++) {
        reqs[c] = generate_of(TKR_MAX_TOKENS_NONE);
        if (tkr_submit(conns[c], &reqs[c], 1) != 1)
            die("tkr_submit");
    }
    for (uint32_t i = 0; i < warm + n; i++) {
        uint32_t asked = TKR_LOAD_RELAXED(&shared->publish) + 1;

        TKR_STORE_RELEASE(&shared->publish, asked);
        while (TKR_LOAD_ACQUIRE(&shared->published) != asked) /* pairs with publish_serve() */
            continue;
        if (i >= warm)
            ret_ns[i - warm] = shared->publish_ns;
        for (uint32_t c = 0; c < PUBLISH; c++)
            if (tkr_peek(conns[c], &event, 1) != 1 || event.type != TKR_EV_TEXT) {
                fprintf(stderr, "bench_ring: a published token is missing\n");
                exit(1);
            }
    }
    TKR_STORE_RELEASE(&shared->mode, (uint32_t)MODE_REST); /* which ends the streams */
    for (uint32_t c = 0; c < PUBLISH; c++) {
        while (tkr_peek(conns[c], &event, 1) != 1)
            continue;
        event_check(&event);
        tkr_release(conns[c], reqs[c].id);
    }
}

static void rounds_run(tkr_conn *hot, tkr_conn *park, tkr_conn **crowd)
{
    static const enum mode mode_of[CONTESTS] = {
        [CONTEST_PING] = MODE_PING,
        [CONTEST_RING] = MODE_HOT,
        [CONTEST_RING_PARKED] = MODE_CROWD,
        [CONTEST_UNIX] = MODE_UNIX,
        [CONTEST_CK] = MODE_CK,
        [CONTEST_SQPOLL] = MODE_REST,
        [CONTEST_FUTEX] = MODE_FUTEX,
        [CONTEST_PARK] = MODE_PARK,
        [CONTEST_PUBLISH] = MODE_PUBLISH,
    };

    for (uint32_t round = 0; round < ROUNDS; round++) {
        TKR_STORE_RELAXED(&shared->round, round);
        for (int c = 0; c < CONTESTS; c++) {
            uint32_t *ns = shared->ns[c][round], n = shared->n[c];

            if (rival_missing((enum contest)c))
                continue;
            mode_set(mode_of[c]);
            switch (c) {
            case CONTEST_RING:
                noop_round(hot, ns, n, WARM, 0);
                break;
            case CONTEST_RING_PARKED:
                for (int i = 0; i < 3; i++) /* those that were published to park: PARK_NS */
                    rest();
                noop_round(crowd[0], ns, n, WARM, 0);
                break;
            case CONTEST_PARK:
                noop_round(park, ns, n, WARM_FEW, 1);
                break;
            case CONTEST_PUBLISH:
                publish_round(crowd, ns, n, WARM_FEW);
                break;
            default:
                rival_round((enum contest)c, ns, n, n == SAMPLES ? WARM : WARM_FEW);
            }
            mode_set(MODE_REST);
            rest();
        }
    }
}

/* No-ops as fast as they go, STREAM_DEPTH under way: a message to the daemon and one back, each. */
static void stream_up(tkr_conn *conn)
{
    uint32_t sent = 0, done = 0;
    tkr_event events[16];
    tkr_req req;
    uint64_t begin = clock_ns();

    tkr_req_init(&req, TKR_OP_NOOP);
    while (done < STREAMED / 4) {
        int n;

        while (sent < STREAMED / 4 && sent - done < STREAM_DEPTH && tkr_submit(conn, &req, 1) == 1)
            sent++;
        n = tkr_peek(conn, events, 16);
        if (n < 0)
            die("tkr_peek");
        for (int i = 0; i < n; i++) {
            event_check(&events[i]);
            tkr_release(conn, events[i].id);
        }
        done += (uint32_t)n;
    }
    shared->stream_up_ns = (clock_ns() - begin) * 4;
}

static void stream_down(tkr_conn *conn)
{
    tkr_req req = generate_of(STREAMED);
    uint64_t begin = clock_ns();
    uint32_t got = request_run(conn, &req);

    shared->stream_down_ns = clock_ns() - begin;
    tkr_release(conn, req.id);
    if (got != STREAMED) {
        fprintf(stderr, "bench_ring: %u of %u tokens came\n", got, STREAMED);
        exit(1);
    }
}

/* The daemon sleeps, this side spins for the answer. */
static void first_after_idle(tkr_conn *conn)
{
    struct timespec pause = {.tv_nsec = 5000000};
    tkr_req req;

    tkr_req_init(&req, TKR_OP_NOOP);
    for (uint32_t i = 0; i < FIRSTS; i++) {
        uint64_t t;

        nanosleep(&pause, NULL);
        t = ticks();
        request_run(conn, &req);
        shared->first_ns[i] = to_ns(ticks() - t);
        tkr_release(conn, req.id);
    }
    shared->n_first = FIRSTS;
}

/* In turns, as the rounds are. The daemon process learns which attack it is before the mode. */
static void attacks_run(tkr_conn *hot)
{
    tkr_conn *parks;
    tkr_req req;

    shared->attack = 1;
    mode_set(MODE_ATTACK);
    parks = conn_open(PARKS, 256, 0, 0);
    mode_set(MODE_REST);
    for (uint32_t round = 0; round < ATTACK_ROUNDS; round++)
        for (uint32_t i = 0; i < ATTACKS; i++) {
            shared->attack = i;
            shared->attack_round = round;
            mode_set(MODE_ATTACK);
            attack_slice(attack_transport(i) == HOT ? hot : parks, i);
            mode_set(MODE_REST);
            rest();
        }
    mode_set(MODE_HOT); /* the daemon lives */
    tkr_req_init(&req, TKR_OP_NOOP);
    request_run(hot, &req);
    tkr_release(hot, req.id);
}

static void attach_many(void)
{
    for (uint32_t i = 0; i < ATTACHES; i++) {
        uint64_t t = ticks();
        tkr_conn *conn = conn_open(2, 1, 0, 0);

        shared->attach_ns[i] = to_ns(ticks() - t);
        tkr_close(conn);
    }
    shared->n_attach = ATTACHES;
}

static uint64_t daemon_cpu_ns(void)
{
    struct timespec ts;
    clockid_t clock;

    if (clock_getcpuclockid(daemon_pid, &clock) || clock_gettime(clock, &ts))
        die("clock_getcpuclockid");
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* All attached, all parked: what the daemon process costs. */
static void idle_measure(void)
{
    struct timespec settle = {.tv_nsec = 500000000}, length = {.tv_sec = IDLE_S};
    uint64_t begin, cpu;

    mode_set(MODE_IDLE);
    nanosleep(&settle, NULL);
    begin = clock_ns();
    cpu = daemon_cpu_ns();
    nanosleep(&length, NULL);
    shared->idle_cpu_ns = daemon_cpu_ns() - cpu;
    shared->idle_ns = clock_ns() - begin;
}

static void tokens_count(tkr_conn *conn)
{
    tkr_req req = generate_of(TOKENS);
    uint32_t got;

    tkr_req first;

    tkr_req_init(&first, TKR_OP_NOOP);
    TKR_STORE_RELEASE(&shared->client_ready, 1u);
    while (!TKR_LOAD_ACQUIRE(&shared->traced))
        rest();
    /* The queue was parked meanwhile, and parks again while the tracer looks at the ringing: hot
     * when these are over. */
    for (uint32_t i = 0; i < WARM; i++) {
        request_run(conn, &first);
        tkr_release(conn, first.id);
    }
    TKR_STORE_RELEASE(&shared->count, 1u);
    got = request_run(conn, &req);
    TKR_STORE_RELEASE(&shared->count, 0u);
    tkr_release(conn, req.id);
    if (got != TOKENS) {
        fprintf(stderr, "bench_ring: %u of %u tokens came\n", got, TOKENS);
        exit(1);
    }
}

static _Noreturn void client_process(void)
{
    static tkr_conn *crowd[ATTACHED];
    tkr_conn *hot, *park;

    own_core(cpu_client);
    alarm(LIMIT_S); /* whatever hangs must not keep two cores for ever */
    descriptors_raise();
    ticks_calibrate();
    while (!TKR_LOAD_ACQUIRE(&shared->daemon_ready))
        rest();
    mode_set(MODE_HOT);
    hot = conn_open(0, 256, 0, 0);
    mode_set(MODE_PARK);
    park = conn_open(2, 4, 0, -1);
    mode_set(MODE_CROWD);
    crowd[0] = conn_open(1, 256, 0, 0); /* the active one has the shape of the one that is alone */
    for (uint32_t i = 1; i < PARKED + 1; i++)
        crowd[i] = conn_open(1, 1, 4096, 0);
    for (int i = 0; i < 5; i++) /* until all of them are parked: PARK_NS and more */
        rest();
    mode_set(MODE_REST);

    rounds_run(hot, park, crowd);
    attacks_run(hot);
    mode_set(MODE_HOT);
    stream_up(hot);
    mode_set(MODE_STREAM);
    stream_down(hot);
    mode_set(MODE_PARK);
    first_after_idle(park);
    attach_many();
    mode_set(MODE_CROWD);
    for (uint32_t i = PARKED + 1; i < ATTACHED; i++)
        crowd[i] = conn_open(1, 1, 4096, 0);
    shared->attached = ATTACHED;
    idle_measure();

    mode_set(MODE_HOT);
    tokens_count(hot);
    TKR_STORE_RELEASE(&shared->mode, (uint32_t)MODE_END);
    _exit(0);
}

/* ---- the parent: counting -------------------------------------------------------------------- */

/* Traces both processes to their ends: how many system calls began while shared->count was set; -1:
 * ptrace is forbidden, or one of them failed. */
static long syscalls_trace(pid_t daemon, pid_t client, long *ret_example)
{
    long n = 0;
    int alive = 2, status;

    while (!TKR_LOAD_ACQUIRE(&shared->client_ready)) {
        if (waitpid(client, &status, WNOHANG) == client)
            return -1;
        rest();
    }
    if (ptrace(PTRACE_SEIZE, daemon, NULL, PTRACE_O_TRACESYSGOOD) ||
        ptrace(PTRACE_SEIZE, client, NULL, PTRACE_O_TRACESYSGOOD)) {
        TKR_STORE_RELEASE(&shared->traced, 1u);
        while (wait(&status) > 0)
            continue;
        return -1;
    }
    ptrace(PTRACE_INTERRUPT, daemon, NULL, NULL);
    ptrace(PTRACE_INTERRUPT, client, NULL, NULL);
    for (int stopped = 0; alive;) {
        struct __ptrace_syscall_info info = {.op = 0};
        pid_t pid = waitpid(-1, &status, __WALL);

        if (pid < 0)
            break;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            alive--;
            continue;
        }
        /* Both run from stop to stop now: only then may the counting begin. */
        if (++stopped == 2)
            TKR_STORE_RELEASE(&shared->traced, 1u);
        if (WSTOPSIG(status) == (SIGTRAP | 0x80) &&
            ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0 &&
            info.op == PTRACE_SYSCALL_INFO_ENTRY && TKR_LOAD_ACQUIRE(&shared->count)) {
            *ret_example = (long)info.entry.nr;
            n++;
        }
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    }
    return n;
}

/* ---- the figures ----------------------------------------------------------------------------- */

#define NONE (-1.0)

#define FIGURES 24

static struct {
    const char *name, *unit;
    double value;
} figures[FIGURES];
static int n_figures;

/* floor, aim: the largest value that will do, and the one foreseen; NONE: there is none. */
static void figure(const char *name, double value, const char *unit, double aim, double floor)
{
    char aim_text[16] = "-", floor_text[16] = "-";
    const char *verdict = "";

    if (aim != NONE) {
        snprintf(aim_text, sizeof aim_text, "%.3g", aim);
        verdict = value <= aim ? "reaches its aim" : "misses its aim";
    }
    if (floor != NONE) {
        snprintf(floor_text, sizeof floor_text, "%.3g", floor);
        if (value > floor)
            verdict = "MISSES ITS FLOOR";
        else if (value > aim)
            verdict = "holds its floor";
    }
    printf("%-34s %12.4g %-6s %7s %7s  %s\n", name, value, unit, aim_text, floor_text, verdict);
    figures[n_figures].name = name;
    figures[n_figures].unit = unit;
    figures[n_figures++].value = value;
}

/* The lines that tools/bench keeps. */
static void figures_print(void)
{
    putchar('\n');
    for (int i = 0; i < n_figures; i++)
        printf("figure %s %.6g %s\n", figures[i].name, figures[i].value, figures[i].unit);
}

static struct row rows[CONTESTS];

static void rows_print(void)
{
    static const char *const names[CONTESTS] = {
        [CONTEST_PING] = "two cache lines",
        [CONTEST_RING] = "no-op through the daemon",
        [CONTEST_RING_PARKED] = "the same, 1023 others parked",
        [CONTEST_UNIX] = "unix stream socket, both spin",
        [CONTEST_CK] = "ck_ring, 64-byte elements",
        [CONTEST_SQPOLL] = "io_uring no-op, SQPOLL",
        [CONTEST_FUTEX] = "futex, both sleep",
        [CONTEST_PARK] = "no-op, both sleep",
        [CONTEST_PUBLISH] = "publish a token to 64 clients",
    };

    printf("%-34s %9s %9s %9s  ns\n", "round trip", "p50", "p99", "p99.9");
    for (int c = 0; c < CONTESTS; c++) {
        const char *missing = rival_missing((enum contest)c);

        if (missing) {
            printf("%-34s not measured: %s\n", names[c], missing);
            continue;
        }
        rows[c] = summary(shared->ns[c], shared->n[c]);
        printf("%-34s %9.0f %9.0f %9.0f\n", names[c], rows[c].p50, rows[c].p99, rows[c].p999);
    }
}

/* Both numbers' contests were measured. */
static double over(enum contest contest, enum contest unit)
{
    return rows[contest].p50 / rows[unit].p50;
}

static void ratios_print(int amd)
{
    double ping = rows[CONTEST_PING].p50,
           budget = 1.25 * ping > ping + 90 ? 1.25 * ping : ping + 90;

    printf("\n%-34s %12s %-6s %7s %7s\n", "no more than", "value", "unit", "aim", "floor");
    figure("ring.rtt_budget", rows[CONTEST_RING].p50 / budget, "ratio",
           (ping + (amd ? 45 : 15)) / budget, 1.0);
    figure("ring.rtt_over_two_line", over(CONTEST_RING, CONTEST_PING), "ratio", amd ? 1.4 : 1.05,
           NONE);
    figure("ring.rtt_1023_parked_over_alone", over(CONTEST_RING_PARKED, CONTEST_RING), "ratio",
           1.02, 1.10);
    figure("ring.p999_over_pingpong_p999", rows[CONTEST_RING].p999 / rows[CONTEST_PING].p999,
           "ratio", 1.5, 3);
    figure("ring.rtt_over_unix_spin", over(CONTEST_RING, CONTEST_UNIX), "ratio", 0.09, NONE);
    if (!rival_missing(CONTEST_CK))
        figure("ring.rtt_over_ck_ring", over(CONTEST_RING, CONTEST_CK), "ratio", amd ? 0.8 : 0.55,
               1.0);
    if (!rival_missing(CONTEST_SQPOLL))
        figure("ring.rtt_over_sqpoll_nop", over(CONTEST_RING, CONTEST_SQPOLL), "ratio", 0.5, 0.75);
    figure("ring.park_rtt_over_futex", over(CONTEST_PARK, CONTEST_FUTEX), "ratio", 1.10, 1.3);
    figure("ring.publish64_over_rtt", over(CONTEST_PUBLISH, CONTEST_RING), "ratio", 3, 6);
}

static void attack_figures(void)
{
    double quiet, flood;

    attacks_print(rows[CONTEST_RING].p99, &quiet, &flood);
    figure("ring.honest_p99_under_attack_over_calm", quiet, "ratio", 1.1, 1.5);
    figure("ring.honest_p99_under_flood_over_calm", flood, "ratio", 1.1, 4);
}

static void others_print(long calls, long example)
{
    double per_min = (double)shared->idle_cpu_ns / 1e6 * 60e9 / (double)shared->idle_ns;

    figure("ring.idle_cpu_ms_per_min", per_min, "ms", 0, 0);
    if (calls >= 0)
        figure("ring.syscalls_per_token", (double)calls / TOKENS, "count", 0, 0);
    if (calls > 0)
        printf("  %ld of both sides while %u tokens came, the last one number %ld\n", calls, TOKENS,
               example);
    if (calls < 0)
        printf("note: ptrace is forbidden here, system calls were not counted\n");
    figure("ring.attach_us", one_summary(shared->attach_ns, shared->n_attach).p50 / 1e3, "us", NONE,
           NONE);
    figure("ring.stream_msgs_per_s_to_daemon", STREAMED / ((double)shared->stream_up_ns / 1e9),
           "1/s", NONE, NONE);
    figure("ring.stream_msgs_per_s_to_client", STREAMED / ((double)shared->stream_down_ns / 1e9),
           "1/s", NONE, NONE);
    figure("ring.first_after_idle_us", one_summary(shared->first_ns, shared->n_first).p50 / 1e3,
           "us", NONE, NONE);
}

/* ---- other projects -------------------------------------------------------------------------- */

/* Each prints one line of the table itself, for it is another project's way to spin. */
static void peers_run(void)
{
    char cpus[2][16], self[256];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 16);
    const char *python = getenv("TOKENRING_PEERS_PYTHON");
    char *zmq_args[] = {self, cpus[0], cpus[1], NULL};
    char *iceoryx_args[] = {(char *)(uintptr_t)(python ? python : "python3"),
                            PEERS_DIR "/iceoryx2_rtt.py", cpus[0], cpus[1], NULL};
    char **programs[] = {zmq_args, iceoryx_args};

    if (n < 0)
        die("/proc/self/exe");
    self[n] = '\0';
    strcpy(strrchr(self, '/') + 1, "bench_peer_zmq");
    snprintf(cpus[0], sizeof cpus[0], "%d", cpu_daemon);
    snprintf(cpus[1], sizeof cpus[1], "%d", cpu_client);
    printf("\nother projects, both sides spin, 64 bytes there and back, after the rounds above\n");
    fflush(stdout);
    for (unsigned i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        int status = 0;
        pid_t pid = fork();

        if (!pid) {
            execvp(programs[i][0], programs[i]);
            printf("%-34s not measured: %s\n", i ? "iceoryx2" : "libzmq", strerror(errno));
            fflush(stdout);
            _exit(0);
        }
        waitpid(pid, &status, 0);
        if (status)
            printf("%s ended with status %d\n", programs[i][0], status);
    }
}

static void plan(void)
{
    for (int c = 0; c < CONTESTS; c++)
        shared->n[c] = SAMPLES;
    shared->n[CONTEST_UNIX] = 10000;
    shared->n[CONTEST_FUTEX] = shared->n[CONTEST_PARK] = 2000;
    shared->n[CONTEST_PUBLISH] = 5000;
}

static void setup(void)
{
    static const char *const names[TRANSPORTS] = {"hot", "crowd", "park", "parks"};

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    strcpy(folder, "/tmp/tokenring-bench-XXXXXX");
    if (!mkdtemp(folder))
        die("mkdtemp");
    for (int i = 0; i < TRANSPORTS; i++)
        snprintf(ring_paths[i], sizeof ring_paths[i], "%s/%s", folder, names[i]);
    plan();
    rivals_init();
}

int main(int argc, char **argv)
{
    int peers = argc == 2 && !strcmp(argv[1], "--peers"), amd;
    pid_t client;
    long calls, example = -1;

    if (argc > 1 && !peers) {
        fprintf(stderr, "usage: bench_ring [--peers]\n");
        return 2;
    }
    cores_choose();
    setup();
    amd = cpu_print();
    printf("%d rounds of up to %u in turns, daemon on CPU %d, client on CPU %d\n", ROUNDS, SAMPLES,
           cpu_daemon, cpu_client);
    fflush(stdout);
    daemon_pid = fork();
    if (!daemon_pid)
        daemon_process();
    client = fork();
    if (!client)
        client_process();

    calls = syscalls_trace(daemon_pid, client, &example);
    kill(daemon_pid, SIGKILL);
    while (wait(NULL) > 0)
        continue;
    for (int i = 0; i < TRANSPORTS; i++)
        unlink(ring_paths[i]);
    rmdir(folder);
    if (!shared->idle_ns) /* the client process did not come that far, and said why */
        return 1;
    rows_print();
    ratios_print(amd);
    others_print(calls, example);
    attack_figures();
    figures_print();
    if (peers)
        peers_run();
    return 0;
}
