/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/ring.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include "runtime/base/clock.h"

#define FALL_ASLEEP_NS 60000u

static double ns_per_tick = 1;

uint64_t ticks(void)
{
#if defined(__x86_64__)
    unsigned aux;

    return __builtin_ia32_rdtscp(&aux);
#else
    return clock_ns();
#endif
}

void ticks_calibrate(void)
{
    uint64_t ns = clock_ns(), t = ticks();

    while (clock_ns() - ns < 50000000)
        continue;
    ns_per_tick = (double)(clock_ns() - ns) / (double)(ticks() - t);
}

uint32_t to_ns(uint64_t t)
{
    double ns = (double)t * ns_per_tick;

    return ns > 4e9 ? UINT32_MAX : (uint32_t)ns;
}

void rest(void)
{
    struct timespec ts = {.tv_nsec = 30000000};

    nanosleep(&ts, NULL);
}

void peer_sleeps(void)
{
    uint64_t begin = ticks();

    while (to_ns(ticks() - begin) < FALL_ASLEEP_NS)
        continue;
}

void die(const char *what)
{
    fprintf(stderr, "bench_ring: %s: %s\n", what, strerror(errno));
    exit(1);
}

int own_core(int cpu)
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

void cores_choose(void)
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

void descriptors_raise(void)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int cpu_print(void)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    int amd = 0;

    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');

        if (colon && !strncmp(line, "vendor_id", 9))
            amd = strstr(colon, "AuthenticAMD") != NULL;
        if (colon && !strncmp(line, "model name", 10)) {
            printf("CPU%s", colon + 1);
            break;
        }
    }
    if (f)
        fclose(f);
    return amd;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static const double percentiles[3] = {0.5, 0.99, 0.999};

struct row one_summary(uint32_t *ns, uint32_t n)
{
    double at[3] = {0};

    qsort(ns, n, sizeof ns[0], compare);
    for (int k = 0; k < 3 && n; k++)
        at[k] = ns[(size_t)(percentiles[k] * n)];
    return (struct row){at[0], at[1], at[2]};
}

/* A median over the rounds would jump between the two or three speeds that pairs of lines have. */
struct row summary(uint32_t (*ns)[SAMPLES], uint32_t n)
{
    uint32_t round[3][ROUNDS];
    double mean[3] = {0};

    for (int i = 0; i < ROUNDS; i++) {
        struct row row = one_summary(ns[i], n);

        round[0][i] = (uint32_t)row.p50;
        round[1][i] = (uint32_t)row.p99;
        round[2][i] = (uint32_t)row.p999;
    }
    for (int k = 0; k < 3; k++) {
        qsort(round[k], ROUNDS, sizeof round[k][0], compare);
        for (int i = 2; i < ROUNDS - 2; i++)
            mean[k] += round[k][i] / (ROUNDS - 4.0);
    }
    return (struct row){mean[0], mean[1], mean[2]};
}
