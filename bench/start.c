/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.c - how fast a daemon is there, and what it holds: bench_start [MODEL]
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
#include "bench/median.h"
#include "clients/tokenring.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/team.h"
#include "runtime/model/model.h"
#include "runtime/tune/limits.h"

#define ROUNDS       9
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
    double rss_mb, own_mb;
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

static struct run start_once(const char *model, const char *cache, int write)
{
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
static double pack_gbs(const char *path, struct team *team)
{
    double gbs[ROUNDS];
    uint64_t tables; /* are computed, not packed */

    for (int round = 0; round < ROUNDS; round++) {
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
    return median(gbs, ROUNDS);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : getenv("TOKENRING_TEST_MODEL");
    double cold[ROUNDS], warm[ROUNDS], cold_ready[ROUNDS], warm_ready[ROUNDS];
    struct run run = {0};
    struct limits limits;
    struct team *team;
    char cache[96], command[160];
    double triad, packing;

    if (!path) {
        fprintf(stderr, "usage: bench_start MODEL\n");
        return 2;
    }
    find_binary();
    snprintf(scratch, sizeof scratch, "/dev/shm/tokenring-start.XXXXXX");
    snprintf(disk, sizeof disk, "/var/tmp/tokenring-start.XXXXXX");
    if (!mkdtemp(scratch) || !mkdtemp(disk))
        fail("folders for the daemon");
    snprintf(cache, sizeof cache, "%s/cache", disk);
    start_once(path, cache, 1);
    for (int round = 0; round < ROUNDS; round++) {
        run = start_once(path, "none", 0);
        cold[round] = run.first_ms;
        cold_ready[round] = run.ready_ms;
        run = start_once(path, cache, 0);
        warm[round] = run.first_ms;
        warm_ready[round] = run.ready_ms;
    }
    if (team_new(&team, 0) < 0 ||
        limits_measure(&limits, &(struct limits_opt){.n_threads = team_size(team)}) < 0)
        fail("the machine's limits");
    triad = triad_gbs(team);
    packing = pack_gbs(path, team);
    printf("%s, %u threads: triad %.1f GB/s\n", limits.cpu, team_size(team), triad);
    printf("%-34s %8s %8s\n", "median of 9 rounds", "ready", "token");
    printf("%-34s %8.1f %8.1f ms\n", "exec, weights packed from GGUF", median(cold_ready, ROUNDS),
           median(cold, ROUNDS));
    printf("%-34s %8.1f %8.1f ms\n", "exec, weights mapped from a cache",
           median(warm_ready, ROUNDS), median(warm, ROUNDS));
    printf("packing %.1f GB/s; resident %.1f MB, of which %.1f MB are the daemon's own\n\n",
           packing, run.rss_mb, run.own_mb);
    printf("figure engine.start_ms %.1f ms\n", median(cold, ROUNDS));
    printf("figure engine.start_cached_ms %.1f ms\n", median(warm, ROUNDS));
    printf("figure engine.rss_mb %.1f MB\n", run.rss_mb);
    printf("figure engine.rss_own_mb %.1f MB\n", run.own_mb);
    printf("figure engine.pack_of_triad %.3f ratio\n", packing / triad);
    team_free(team);
    snprintf(command, sizeof command, "rm -r %s %s", scratch, disk);
    return system(command) != 0;
}
