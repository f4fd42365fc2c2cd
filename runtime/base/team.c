/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "runtime/base/clock.h"
#include "runtime/base/cpus.h"
#include "runtime/base/mem.h"

#define CACHE_LINE 64

/* A worker between two regions of a step waits some microseconds; between two steps some tens.
 * Waking a sleeper costs about 35 us, so it spins longer than that before it gives the core away.
 */
#define SPIN_NS         100000u
#define YIELD_NS        300000u /* after the spin: the core goes to whoever else is ready */
#define LEADER_SPIN_NS  20000u  /* at the end of a region; by then a worker was preempted */
#define PAUSES_PER_LOOK 64u     /* at the clock */

struct team {
    unsigned n;
    unsigned n_started;            /* worker threads to join */
    uint64_t spin_ns;              /* 0 when there are more members than CPUs */
    pthread_t *threads;            /* [n - 1] */
    uint64_t cpus[TEAM_CPU_WORDS]; /* that workers are pinned to */
    uint64_t nodes;                /* memory nodes of all members' CPUs; 0: not known */
    team_hook hook;
    void *hook_arg;
    /* Of the region; written by the leader before epoch, read by workers after it. */
    team_fn fn; /* NULL: end */
    void *arg;
    _Alignas(
        CACHE_LINE) _Atomic uint32_t epoch; /* number of the region; the futex word of sleepers */
    _Alignas(CACHE_LINE) _Atomic uint32_t done; /* workers that ended the region */
    _Alignas(
        CACHE_LINE) _Atomic uint32_t sleepers; /* workers in, or on their way into, FUTEX_WAIT */
};

struct worker {
    struct team *team;
    unsigned member;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_until_epoch_changes(struct team *team, uint32_t seen)
{
    /* Sequentially consistent on both sides: either the leader sees the sleeper here, or the
     * sleeper sees the new epoch (in the kernel's own check of the futex word at the latest). */
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->epoch) == seen)
        syscall(SYS_futex, &team->epoch, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

static void wait_for_region(struct team *team, uint32_t seen)
{
    uint64_t start = 0;

    for (unsigned i = 0;; i++) {
        uint64_t waited;

        /* Acquire pairs with the leader's store in open_region(): fn and arg are written before
         * epoch. */
        if (atomic_load_explicit(&team->epoch, memory_order_acquire) != seen)
            return;
        if (team->spin_ns && i % PAUSES_PER_LOOK) {
            pause_cpu();
            continue;
        }
        if (!start)
            start = clock_ns();
        waited = clock_ns() - start;
        if (waited < team->spin_ns)
            pause_cpu();
        else if (waited < team->spin_ns + YIELD_NS)
            sched_yield();
        else
            sleep_until_epoch_changes(team, seen);
    }
}

static void *worker_main(void *arg)
{
    struct worker worker = *(struct worker *)arg;
    struct team *team = worker.team;
    uint32_t seen = 0;

    free(arg);
    for (;;) {
        wait_for_region(team, seen);
        seen++;
        if (!team->fn)
            return NULL;
        team->fn(team->arg, worker.member, team->n);
        /* Release pairs with the leader's acquire in team_run(): what the region wrote comes
         * before. */
        atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
    }
}

static void open_region(struct team *team, team_fn fn, void *arg)
{
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    /* Also the release that wait_for_region() acquires. */
    atomic_fetch_add(&team->epoch, 1);
    if (atomic_load(&team->sleepers))
        syscall(SYS_futex, &team->epoch, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void wait_for_workers(struct team *team)
{
    uint64_t start = 0;

    for (unsigned i = 0;; i++) {
        if (atomic_load_explicit(&team->done, memory_order_acquire) == team->n - 1)
            return;
        if (team->spin_ns && i % PAUSES_PER_LOOK) {
            pause_cpu();
            continue;
        }
        if (!start)
            start = clock_ns();
        if (team->spin_ns && clock_ns() - start < LEADER_SPIN_NS)
            pause_cpu();
        else
            sched_yield();
    }
}

void team_run(struct team *team, team_fn fn, void *arg)
{
    if (team->n > 1)
        open_region(team, fn, arg);
    fn(arg, 0, team->n);
    if (team->n > 1)
        wait_for_workers(team);
    if (team->hook)
        team->hook(team->hook_arg);
}

static int start_worker(struct team *team, unsigned member, const struct cpus_order *order)
{
    struct worker *worker = malloc(sizeof *worker);
    pthread_t *thread = &team->threads[member - 1];
    char name[16];
    int err;

    if (!worker)
        return -ENOMEM;
    *worker = (struct worker){.team = team, .member = member};
    err = pthread_create(thread, NULL, worker_main, worker);
    if (err) {
        free(worker);
        return -err;
    }
    team->n_started++;
    snprintf(name, sizeof name, "team-%u", member);
    pthread_setname_np(*thread, name);
    if (team->spin_ns) {
        size_t cpu = order->cpus[member];
        cpu_set_t one;

        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        /* A refusal (another cpuset since) costs speed only. */
        if (pthread_setaffinity_np(*thread, sizeof one, &one) == 0 && cpu < 64 * TEAM_CPU_WORDS)
            team->cpus[cpu / 64] |= 1ull << (cpu % 64);
    }
    return 0;
}

/* The leader moves freely, but not away from the memory of its team, where there is other. */
static void hold_leader(const struct team *team, const struct cpus_order *order)
{
    cpu_set_t near;

    if (cpus_order_nodes(order, order->n) == team->nodes)
        return;
    CPU_ZERO(&near);
    for (unsigned i = 0; i < order->n; i++)
        if (team->nodes >> order->nodes[i] & 1)
            CPU_SET(order->cpus[i], &near);
    (void)sched_setaffinity(0, sizeof near, &near); /* a refusal costs speed only */
}

/* What the calling thread may use, none when the system does not say. */
static void order_take(struct cpus_order *ret_order)
{
    cpu_set_t allowed;

    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        CPU_ZERO(&allowed);
    cpus_order(ret_order, &allowed, "/sys/devices/system/cpu");
}

/* One for each core, so far as the quota goes. */
static unsigned default_size(const struct cpus_order *order, unsigned allowed)
{
    return order->n_cores && order->n_cores < allowed ? order->n_cores : allowed;
}

int team_new(struct team **ret_team, unsigned n_threads)
{
    unsigned allowed = cpus_allowed();
    struct cpus_order order;
    struct team *team;
    sigset_t all, old;
    int err = 0;

    if (n_threads > TEAM_MAX)
        return -EINVAL;
    team = aligned_alloc(CACHE_LINE, sizeof *team);
    if (!team)
        return -ENOMEM;
    memset(team, 0, sizeof *team);
    order_take(&order);
    team->n = n_threads ? n_threads : default_size(&order, allowed);
    if (team->n > TEAM_MAX)
        team->n = TEAM_MAX;
    team->threads = calloc(team->n, sizeof *team->threads);
    if (!team->threads) {
        team_free(team);
        return -ENOMEM;
    }
    if (team->n <= order.n && team->n <= allowed) {
        team->spin_ns = SPIN_NS;
        team->nodes = cpus_order_nodes(&order, team->n);
    }

    /* Signals are for the threads that wait for them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (unsigned m = 1; m < team->n && err == 0; m++)
        err = start_worker(team, m, &order);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err < 0) {
        team_free(team);
        return err;
    }
    if (team->nodes)
        hold_leader(team, &order);
    *ret_team = team;
    return 0;
}

int team_open(struct team **ret_team, uint32_t n_threads, struct diag *diag)
{
    unsigned allowed = cpus_allowed();
    int err;

    /* More of them wait for each other instead of computing. */
    if (n_threads > allowed) {
        diag_set(diag,
                 "threads: %u are asked for, this process may use %u CPUs (its affinity and its "
                 "control group's quota)",
                 n_threads, allowed);
        return -EINVAL;
    }
    err = team_new(ret_team, n_threads);
    if (err < 0)
        diag_set(diag, "cannot start %u engine threads: %s", n_threads, strerror(-err));
    else
        mem_set_nodes((*ret_team)->nodes);
    return err;
}

void team_free(struct team *team)
{
    if (!team)
        return;
    if (team->n_started)
        open_region(team, NULL, NULL);
    for (unsigned i = 0; i < team->n_started; i++)
        pthread_join(team->threads[i], NULL);
    free(team->threads);
    free(team);
}

unsigned team_size(const struct team *team)
{
    return team->n;
}

void team_pinned_cpus(const struct team *team, uint64_t ret_cpus[TEAM_CPU_WORDS])
{
    memcpy(ret_cpus, team->cpus, sizeof team->cpus);
}

void team_set_hook(struct team *team, team_hook hook, void *arg)
{
    team->hook = hook;
    team->hook_arg = arg;
}

void team_share(uint32_t total, uint32_t grain, unsigned m, unsigned n, uint32_t *ret_begin,
                uint32_t *ret_end)
{
    uint64_t units = ((uint64_t)total + grain - 1) / grain;
    uint64_t begin = units * m / n * grain, end = units * (m + 1) / n * grain;

    *ret_begin = (uint32_t)(begin < total ? begin : total);
    *ret_end = (uint32_t)(end < total ? end : total);
}
