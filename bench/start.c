/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.c - how fast a daemon is there, what it holds, and what a client waits for:
 * bench_start [MODEL [ROUNDS]]
 *
 * Starts the real tokenringd (from TOKENRING_BIN) in turn with and without packed weights in a cache file
 * and takes the time from exec to the first token of a prompt of 32 tokens in this process, which is
 * a client. The model file is in the page cache, as is the cache file. Packing is timed in this
 * process, into fresh memory, as a share of what the machine's memory does.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench/latency.h"
#include "bench/median.h"
#include "clients/tokenring.h"
#include "runtime/base/clock.h"
#include "runtime/base/cpus.h"
#include "runtime/base/mem.h"
#include "runtime/base/team.h"
#include "runtime/model/model.h"

#define ROUNDS_MAX   9
#define CTX          "8192"
#define WAIT_S_MAX   120
#define TRIAD_FLOATS ((size_t)16 << 20) /* of each array and thread: far beyond any cache */
#define TRIAD_TRIES  8

/* 32 tokens of the default model's vocabulary. */
static const char prompt[] =
    "The harbour was quiet when the first boats came back in the morning, and the people who had "
    "waited all night on the stones began to count the lights one by";

/* The socket's folder is a tmpfs, as /run is; the cache's is on a disk. */
static char scratch[64], disk[64], binary[4096];

struct run {
    double ready_ms, first_ms; /* since exec */
    double rss_mb, own_mb;     /* after the first token */
};

/* By round. */
struct results {
    int n_rounds;
    double cold[ROUNDS_MAX], warm[ROUNDS_MAX], cold_ready[ROUNDS_MAX], warm_ready[ROUNDS_MAX];
    double rss[ROUNDS_MAX], own[ROUNDS_MAX];
    double ttft32[ROUNDS_MAX], overhead[ROUNDS_MAX], overhead_idle[ROUNDS_MAX];
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_start: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The first tokenringd in TOKENRING_BIN. */
static void find_binary(void)
{
    const char *places = getenv("TOKENRING_BIN");

    while (places && *places) {
        size_t n = strcspn(places, ":");

        snprintf(binary, sizeof binary, "%.*s/tokenringd", (int)n, places);
        if (access(binary, X_OK) == 0)
            return;
        places += n + (places[n] == ':');
    }
    fprintf(stderr, "bench_start: no tokenringd in TOKENRING_BIN\n");
    exit(2);
}

static int notify_open(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/notify", scratch);
    unlink(addr.sun_path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        fail("the socket for readiness");
    setenv("NOTIFY_SOCKET", addr.sun_path, 1);
    return fd;
}

static pid_t daemon_start(const char *model, const char *cache)
{
    char socket_path[96], log[96];
    pid_t pid;

    snprintf(socket_path, sizeof socket_path, "%s/socket", scratch);
    snprintf(log, sizeof log, "%s/log", scratch);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (!freopen(log, "w", stderr))
            _exit(126);
        execl(binary, "tokenringd", "--model", model, "--socket", socket_path, "--cache", cache,
              "--ctx", CTX, (char *)NULL);
        _exit(127);
    }
    if (pid < 0)
        fail("fork");
    return pid;
}

static void wait_ready(int notify)
{
    struct pollfd poll_fd = {.fd = notify, .events = POLLIN};
    char text[256];
    ssize_t n = -1;

    if (poll(&poll_fd, 1, WAIT_S_MAX * 1000) == 1)
        n = recv(notify, text, sizeof text - 1, 0);
    if (n < 0)
        fail("the daemon is not ready");
    text[n] = '\0';
    if (!strstr(text, "READY=1"))
        fail(text);
}

static void first_token(void)
{
    char path[96];
    tkr_opt opt = {.size = sizeof opt, .path = path};
    tkr_req req = TKR_TEXT(prompt);
    tkr_event event = {0};
    tkr_conn *c;

    snprintf(path, sizeof path, "%s/socket", scratch);
    req.max_tokens = 1;
    if (tkr_open(&c, &opt) || tkr_submit(c, &req, 1) != 1)
        fail("cannot ask");
    while (tkr_wait(c, &event, 1, TKR_FOREVER) == 1 && event.type != TKR_EV_DONE)
        ;
    if (event.status) {
        fprintf(stderr, "bench_start: the request ended with %s\n", tkr_strerror(event.status));
        exit(1);
    }
    tkr_release(c, req.id);
    tkr_close(c);
}

static double proc_mb(pid_t pid, const char *key)
{
    char path[64], line[256];
    double kb = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kb = strtod(line + strlen(key), NULL);
    if (file)
        fclose(file);
    return kb * 1024 / 1e6;
}

/* Until the daemon says that the cache is written; it says why not, too. */
static void wait_written(void)
{
    uint64_t until = clock_ns() + WAIT_S_MAX * 1000000000ull;
    char path[96], text[8192];

    snprintf(path, sizeof path, "%s/log", scratch);
    while (clock_ns() < until) {
        FILE *file = fopen(path, "re");
        size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;

        text[n] = '\0';
        if (file)
            fclose(file);
        if (strstr(text, "cache="))
            return;
        poll(NULL, 0, 10);
    }
    fprintf(stderr, "bench_start: the cache is not written: %s\n", text);
    exit(1);
}

/* Writes the cache if asked to; asks for latencies if there is room for them. */
static struct run start_once(const char *model, const char *cache, int write,
                             struct latency *ret_latency)
{
    char path[96];
    struct run run;
    int notify = notify_open(), status;
    uint64_t begin = clock_ns();
    pid_t pid = daemon_start(model, cache);

    wait_ready(notify);
    run.ready_ms = (double)(clock_ns() - begin) / 1e6;
    first_token();
    run.first_ms = (double)(clock_ns() - begin) / 1e6;
    run.rss_mb = proc_mb(pid, "Rss:");
    run.own_mb = proc_mb(pid, "Anonymous:");
    if (write)
        wait_written();
    snprintf(path, sizeof path, "%s/socket", scratch);
    if (ret_latency && latency_measure(ret_latency, path) < 0)
        fail("latencies");
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("the daemon did not end well");
    close(notify);
    return run;
}

/* ---- packing -------------------------------------------------------------------------------- */

static float *arrays[3];

/* a = b + 3c: reads two arrays and writes one. */
static void triad_region(void *arg, unsigned member, unsigned n)
{
    float *a = arrays[0] + member * TRIAD_FLOATS;
    const float *b = arrays[1] + member * TRIAD_FLOATS, *c = arrays[2] + member * TRIAD_FLOATS;

    (void)arg;
    (void)n;
    for (size_t i = 0; i < TRIAD_FLOATS; i++)
        a[i] = b[i] + 3 * c[i];
}

static double triad_gbs(struct team *team)
{
    size_t bytes = TRIAD_FLOATS * sizeof(float) * team_size(team);
    double best = 0;

    for (int i = 0; i < 3; i++) {
        arrays[i] = mem_map(bytes);
        if (!arrays[i])
            fail("memory for the triad");
        memset(arrays[i], 0, bytes);
    }
    for (int try = 0; try < TRIAD_TRIES; try++) {
        uint64_t begin = clock_ns();
        double gbs;

        team_run(team, triad_region, NULL);
        gbs = 3.0 * (double)bytes / (double)(clock_ns() - begin);
        best = gbs > best ? gbs : best;
    }
    for (int i = 0; i < 3; i++)
        mem_unmap(arrays[i], bytes);
    return best;
}

/* Bytes read and written a second while packing: what is written is as large as what is read. */
static double pack_gbs(const char *path, struct team *team, int n_rounds)
{
    double gbs[ROUNDS_MAX];
    uint64_t tables; /* are computed, not packed */

    for (int round = 0; round < n_rounds; round++) {
        struct diag diag = {""};
        struct model *model;

        if (model_open(&model, path, 0, NULL, team, &diag) < 0) {
            fprintf(stderr, "bench_start: %s\n", diag.text);
            exit(1);
        }
        tables = (uint64_t)model->n_ctx * model->hp.rope_dim * sizeof(float);
        gbs[round] = 2.0 * (double)(model->memory_bytes - tables) / (double)model->pack_ns;
        model_free(model);
    }
    return median(gbs, (size_t)n_rounds);
}

/* Packing as a share of the triad. */
static double measure_packing(const char *path, int n_rounds)
{
    char cpu[CPUS_NAME_BYTES];
    struct team *team;
    double triad, packing;

    if (team_new(&team, 0) < 0)
        fail("a team");
    cpus_name(cpu, sizeof cpu);
    triad = triad_gbs(team);
    packing = pack_gbs(path, team, n_rounds);
    printf("%s, %u threads: triad %.1f GB/s, packing %.1f GB/s\n\n", cpu, team_size(team), triad,
           packing);
    team_free(team);
    return packing / triad;
}

static void run_rounds(const char *model, const char *cache, struct results *r)
{
    start_once(model, cache, 1, NULL);
    for (int round = 0; round < r->n_rounds; round++) {
        struct latency latency;
        struct run run = start_once(model, "none", 0, NULL);

        r->cold[round] = run.first_ms;
        r->cold_ready[round] = run.ready_ms;
        run = start_once(model, cache, 0, &latency);
        r->warm[round] = run.first_ms;
        r->warm_ready[round] = run.ready_ms;
        r->rss[round] = run.rss_mb;
        r->own[round] = run.own_mb;
        r->ttft32[round] = latency.ttft32_ms;
        r->overhead[round] = latency.overhead_us;
        r->overhead_idle[round] = latency.overhead_idle_us;
    }
}

static double middle(const struct results *r, double values[ROUNDS_MAX])
{
    return median(values, (size_t)r->n_rounds);
}

static void print_results(struct results *r)
{
    double cold = middle(r, r->cold), warm = middle(r, r->warm), rss = middle(r, r->rss);
    double ttft32 = middle(r, r->ttft32), overhead = middle(r, r->overhead);

    printf("median of %d rounds %14s %8s %8s\n", r->n_rounds, "", "ready", "token");
    printf("%-34s %8.1f %8.1f ms\n", "exec, weights packed from GGUF", middle(r, r->cold_ready),
           cold);
    printf("%-34s %8.1f %8.1f ms\n", "exec, weights mapped from a cache", middle(r, r->warm_ready),
           warm);
    printf("resident %.1f MB, of which %.1f MB are the daemon's own\n", rss, middle(r, r->own));
    printf("first token of 32 after %.1f ms; a request of one token takes %.0f us more than its "
           "step, %.0f us when the daemon sleeps\n",
           ttft32, overhead, middle(r, r->overhead_idle));
    printf("figure engine.start_ms %.2f ms\n", cold);
    printf("figure engine.start_cached_ms %.2f ms\n", warm);
    printf("figure engine.rss_mb %.1f MB\n", rss);
    printf("figure engine.rss_own_mb %.1f MB\n", middle(r, r->own));
    printf("figure engine.ttft32_ms %.3f ms\n", ttft32);
    printf("figure engine.request_overhead_us %.1f us\n", overhead);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : getenv("TOKENRING_TEST_MODEL");
    static struct results r;
    char cache[96], command[160];
    double packing;

    r.n_rounds = argc > 2 ? atoi(argv[2]) : ROUNDS_MAX;
    if (!path || r.n_rounds < 1 || r.n_rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_start MODEL [ROUNDS], ROUNDS 1 .. %d\n", ROUNDS_MAX);
        return 2;
    }
    find_binary();
    snprintf(scratch, sizeof scratch, "/dev/shm/tokenring-start.XXXXXX");
    snprintf(disk, sizeof disk, "/var/tmp/tokenring-start.XXXXXX");
    if (!mkdtemp(scratch) || !mkdtemp(disk))
        fail("folders for the daemon");
    snprintf(cache, sizeof cache, "%s/cache", disk);
    run_rounds(path, cache, &r);
    packing = measure_packing(path, r.n_rounds);
    print_results(&r);
    printf("figure engine.pack_of_triad %.3f ratio\n", packing);
    snprintf(command, sizeof command, "rm -r %s %s", scratch, disk);
    return system(command) != 0;
}
