/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - a no-op through the whole daemon path, against what the machine's caches allow.
 *
 * Two processes, each spinning on a core of its own under SCHED_FIFO: one runs the daemon's real
 * transport (runtime/io), the other submits through the client library. Rounds alternate with a
 * ping-pong of the same two processes over two cache lines, one per direction, the least that a
 * request and an answer can cost. Then a third process counts, by ptrace, the system calls of both
 * while tokens stream.
 *
 * Two spinning SCHED_FIFO processes on one core would lock the machine up, so fewer than two cores
 * end it at once.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <tokenring/tokenring.h>
#include "runtime/base/clock.h"
#include "runtime/io/io.h"
#include "shm/atomic.h"

#define ROUNDS 17 /* each with other lines: what they cost differs by a fifth */
#define WARM   5000u
#define SAMPLES                                                                                    \
    60000u /* a round trip each; keeps a round far below the kernel's limit of 0.95 s of FIFO a    \
              second */
#define TOKENS  20000u
#define PARK_NS 2000000000u /* both sides spin all the time */

enum mode { MODE_RING = 0, MODE_PING, MODE_END };

struct shared { /* between the three processes */
    struct {
        _Alignas(64) uint64_t ping;
        char pad0[192];
        _Alignas(64) uint64_t pong;
        char pad1[192 + 4096];
    } lines[ROUNDS]; /* a pair a round: how far a line travels depends on its address */
    _Alignas(64) uint32_t round;
    uint32_t mode; /* what the daemon process does; written by the client process */
    uint32_t daemon_ready;
    uint32_t count;        /* 1: system calls are counted */
    uint32_t client_ready; /* waits for the tracer */
    uint32_t traced;
    _Alignas(64) uint32_t ping_ns[ROUNDS][SAMPLES], ring_ns[ROUNDS][SAMPLES];
};

static struct shared *shared;
static char folder[64], path[128];
static int cpu_daemon = -1, cpu_client = -1;
static double ns_per_tick = 1;

/* ---- clock ---------------------------------------------------------------------------------- */

static uint64_t ticks(void)
{
#if defined(__x86_64__)
    unsigned aux;

    return __builtin_ia32_rdtscp(&aux);
#else
    return clock_ns();
#endif
}

static void ticks_calibrate(void)
{
    uint64_t ns = clock_ns(), t = ticks();

    while (clock_ns() - ns < 50000000)
        continue;
    ns_per_tick = (double)(clock_ns() - ns) / (double)(ticks() - t);
}

static uint32_t to_ns(uint64_t t)
{
    double ns = (double)t * ns_per_tick;

    return ns > 4e9 ? UINT32_MAX : (uint32_t)ns;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_ring: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Pins the process; 0 when SCHED_FIFO was allowed too. */
static int own_core(int cpu)
{
    struct sched_param param = {.sched_priority = 10};
    cpu_set_t set;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
    return sched_setscheduler(0, SCHED_FIFO, &param);
}

static void cores_choose(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set))
        die("sched_getaffinity");
    for (int cpu = 0; cpu < CPU_SETSIZE && cpu_client < 0; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &set))
            continue;
        if (cpu_daemon < 0)
            cpu_daemon = cpu;
        else
            cpu_client = cpu;
    }
    if (cpu_client < 0) {
        fprintf(stderr, "bench_ring: two cores are needed\n");
        exit(1);
    }
}

static void cpu_print(void)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');

        if (colon && !strncmp(line, "model name", 10)) {
            printf("CPU%s", colon + 1);
            break;
        }
    }
    if (f)
        fclose(f);
}

/* ---- the daemon process --------------------------------------------------------------------- */

/* One stream at a time: as many TOKEN lines as asked for, one a pass, as a step would publish them. */
static struct {
    struct io_client *client;
    uint64_t user;
    uint32_t tag, left, pos;
} stream;

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    (void)ctx;
    (void)seen_ns;
    stream.client = client;
    stream.user = sqe->user;
    stream.tag = sqe->tag;
    stream.left = sqe->max_tokens;
    stream.pos = 0;
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
    if (stream.client == client)
        stream.client = NULL;
}

static void stream_step(void)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_TOKEN,
                          .ntok = 1,
                          .nbytes = 4,
                          .user = stream.user,
                          .pos = stream.pos,
                          .tag = (uint16_t)stream.tag,
                          .u.token = {.tok = {7}, .utf8 = "tok "}};

    if (stream.left) {
        if (io_put(stream.client, &cqe) < 0)
            return; /* no room: in a later pass */
        stream.left--;
        stream.pos++;
        return;
    }
    io_done(stream.client, stream.tag, stream.user, TKR_OK, NULL);
    stream.client = NULL;
}

/* Answers until the mode changes, which is looked at only now and then. */
static void pong(void)
{
    uint32_t round = TKR_LOAD_RELAXED(&shared->round);
    uint64_t seen = 0;

    for (uint32_t i = 1; i % 1024 || TKR_LOAD_RELAXED(&shared->mode) == MODE_PING; i++) {
        uint64_t n =
            TKR_LOAD_ACQUIRE(&shared->lines[round].ping); /* pairs with the client's release */

        if (n == seen)
            continue;
        seen = n;
        TKR_STORE_RELEASE(&shared->lines[round].pong, n);
    }
}

static void daemon_process(void)
{
    struct io_ops ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    struct io_opt opt = {.socket_path = path,
                         .socket_mode = 0600,
                         .clients_max = 4,
                         .inflight_max = 16,
                         .arena_max = 1 << 20,
                         .bulk_max = 1 << 20,
                         .idle_park_ns = PARK_NS,
                         .op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_GENERATE}};
    struct diag diag;
    struct io *io;
    int fifo = own_core(cpu_daemon);

    alarm(120);
    if (io_new(&io, &opt, &ops, &diag) < 0 || io_listen(io, &diag) < 0) {
        fprintf(stderr, "bench_ring: %s\n", diag.text);
        exit(1);
    }
    if (fifo)
        printf("note: SCHED_FIFO is not allowed here, the tails below are the scheduler's\n");
    fflush(stdout);
    TKR_STORE_RELEASE(&shared->daemon_ready, 1u);
    for (;;) {
        uint32_t mode = TKR_LOAD_RELAXED(&shared->mode);

        if (mode == MODE_END)
            break;
        if (mode == MODE_PING) {
            pong();
            continue;
        }
        if (!io_pass(io) && !stream.client)
            io_sleep(io, 0);
        if (stream.client)
            stream_step();
    }
    io_free(io);
    exit(0);
}

/* ---- the client process --------------------------------------------------------------------- */

static void rest(void)
{
    struct timespec ts = {.tv_nsec = 30000000};

    nanosleep(&ts, NULL);
}

static void ping_round(uint32_t round, uint32_t *ret_ns)
{
    uint64_t n = 0;

    TKR_STORE_RELAXED(&shared->round, round);
    TKR_STORE_RELEASE(&shared->mode, (uint32_t)MODE_PING);
    for (uint32_t i = 0; i < WARM + SAMPLES; i++) {
        uint64_t t = ticks();

        TKR_STORE_RELEASE(&shared->lines[round].ping, ++n);
        while (TKR_LOAD_ACQUIRE(&shared->lines[round].pong) != n)
            continue;
        if (i >= WARM)
            ret_ns[i - WARM] = to_ns(ticks() - t);
    }
    TKR_STORE_RELEASE(&shared->mode, (uint32_t)MODE_RING);
}

/* One request to its end; the number of TEXT events. */
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
    if (event.status != TKR_OK) {
        fprintf(stderr, "bench_ring: a request ended: %s\n", tkr_strerror(event.status));
        exit(1);
    }
    return texts;
}

static void ring_round(tkr_conn *conn, uint32_t *ret_ns)
{
    tkr_req req;

    tkr_req_init(&req, TKR_OP_NOOP);
    for (uint32_t i = 0; i < WARM + SAMPLES; i++) {
        uint64_t t = ticks();

        request_run(conn, &req);
        if (i >= WARM)
            ret_ns[i - WARM] = to_ns(ticks() - t);
        tkr_release(conn, req.id);
    }
}

static void tokens_count(tkr_conn *conn)
{
    tkr_req req;
    uint32_t got;

    tkr_req_init(&req, TKR_OP_GENERATE);
    req.data_kind = TKR_DATA_TEXT;
    req.text = "prompt";
    req.len = 6;
    req.max_tokens = TOKENS;
    TKR_STORE_RELEASE(&shared->client_ready, 1u);
    while (!TKR_LOAD_ACQUIRE(&shared->traced))
        rest();
    TKR_STORE_RELEASE(&shared->count, 1u);
    got = request_run(conn, &req);
    TKR_STORE_RELEASE(&shared->count, 0u);
    tkr_release(conn, req.id);
    if (got != TOKENS) {
        fprintf(stderr, "bench_ring: %u of %u tokens came\n", got, TOKENS);
        exit(1);
    }
}

static void client_process(void)
{
    tkr_opt opt = {.size = sizeof opt, .path = path, .max_inflight = 4};
    tkr_conn *conn;
    int err;

    own_core(cpu_client);
    alarm(120);
    ticks_calibrate();
    while (!TKR_LOAD_ACQUIRE(&shared->daemon_ready))
        rest();
    err = tkr_open(&conn, &opt);
    if (err < 0) {
        fprintf(stderr, "bench_ring: %s\n", tkr_open_error());
        exit(1);
    }
    for (uint32_t i = 0; i < ROUNDS; i++) {
        ping_round(i, shared->ping_ns[i]);
        rest();
        ring_round(conn, shared->ring_ns[i]);
        rest();
    }
    tokens_count(conn);
    TKR_STORE_RELEASE(
        &shared->mode,
        (uint32_t)MODE_END); /* before the hang-up: without clients the daemon sleeps */
    tkr_close(conn);
    exit(0);
}

/* ---- the parent: counting, figures ---------------------------------------------------------- */

/* Traces both processes to their ends: how many system calls began while shared->count was set; -1:
 * ptrace is forbidden. */
static long syscalls_trace(pid_t daemon, pid_t client)
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
            ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0)
            n += info.op == PTRACE_SYSCALL_INFO_ENTRY && TKR_LOAD_ACQUIRE(&shared->count);
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    }
    return n;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

struct row {
    double p50, p99, p999;
};

/* Each round's percentiles, averaged over the rounds but for the two lowest and highest. A median
 * would jump between the two or three speeds that pairs of lines have. */
static struct row summary(uint32_t (*ns)[SAMPLES])
{
    static const double at[3] = {0.5, 0.99, 0.999};
    uint32_t round[3][ROUNDS];
    double mean[3] = {0};

    for (int i = 0; i < ROUNDS; i++) {
        qsort(ns[i], SAMPLES, sizeof ns[i][0], compare);
        for (int k = 0; k < 3; k++)
            round[k][i] = ns[i][(size_t)(at[k] * SAMPLES)];
    }
    for (int k = 0; k < 3; k++) {
        qsort(round[k], ROUNDS, sizeof round[k][0], compare);
        for (int i = 2; i < ROUNDS - 2; i++)
            mean[k] += round[k][i] / (ROUNDS - 4.0);
    }
    return (struct row){mean[0], mean[1], mean[2]};
}

int main(void)
{
    struct row ping, ring;
    double floor_ns;
    pid_t daemon, client;
    long calls;

    cores_choose();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    memset(shared, 0, sizeof *shared);
    strcpy(folder, "/tmp/tokenring-bench-XXXXXX");
    if (!mkdtemp(folder))
        die("mkdtemp");
    snprintf(path, sizeof path, "%s/socket", folder);
    cpu_print();
    printf("%d rounds of %u, daemon on CPU %d, client on CPU %d\n", ROUNDS, SAMPLES, cpu_daemon,
           cpu_client);
    fflush(stdout);
    daemon = fork();
    if (!daemon)
        daemon_process();
    client = fork();
    if (!client)
        client_process();

    calls = syscalls_trace(daemon, client);
    kill(daemon, SIGKILL);
    while (wait(NULL) > 0)
        continue;
    unlink(path);
    rmdir(folder);
    ping = summary(shared->ping_ns);
    ring = summary(shared->ring_ns);
    if (ping.p50 <= 0 || ring.p50 <= 0)
        return 1;
    printf("%-34s %8s %8s %8s  ns\n", "round trip", "p50", "p99", "p99.9");
    printf("%-34s %8.0f %8.0f %8.0f\n", "two cache lines", ping.p50, ping.p99, ping.p999);
    printf("%-34s %8.0f %8.0f %8.0f\n", "no-op through the daemon", ring.p50, ring.p99, ring.p999);
    floor_ns = 1.25 * ping.p50 > ping.p50 + 90 ? 1.25 * ping.p50 : ping.p50 + 90;
    printf("figure ring.rtt_over_two_line %.3f ratio\n", ring.p50 / ping.p50);
    printf("figure ring.rtt_budget %.3f ratio\n", ring.p50 / floor_ns);
    if (calls < 0) {
        printf("note: ptrace is forbidden here, system calls were not counted\n");
        return 0;
    }
    printf("%ld system calls of both sides while %u tokens came\n", calls, TOKENS);
    printf("figure ring.syscalls_per_token %g count\n", (double)calls / TOKENS);
    return 0;
}
