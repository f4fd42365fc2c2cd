/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tune/crew.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct member {
    struct spin_barrier *start;
    crew_work work;
    void *arg;
    unsigned thread, n_threads;
    double begin_s, end_s;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void spin_barrier_wait(struct spin_barrier *barrier)
{
    unsigned round = atomic_load_explicit(&barrier->round, memory_order_relaxed);

    /* acq_rel: the last one sees what each thread did before, and publishes it by `round`. */
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) + 1 ==
        barrier->n_threads) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->round, round + 1, memory_order_release);
        return;
    }
    /* Acquire pairs with the release above. */
    for (unsigned spins = 1; atomic_load_explicit(&barrier->round, memory_order_acquire) == round;
         spins++)
        if (spins % 65536 == 0)
            sched_yield(); /* the others may be waiting for this very CPU */
}

/* Moves the calling thread to the i-th of the CPUs that it may use, round and round. */
static void pin(unsigned i)
{
    cpu_set_t allowed, one;
    unsigned n, seen = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return;
    n = (unsigned)CPU_COUNT(&allowed);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || seen++ != i % n)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);
    }
}

static void *member_main(void *arg)
{
    struct member *m = arg;

    pin(m->thread);
    spin_barrier_wait(m->start);
    m->begin_s = now_s();
    m->work(m->arg, m->thread, m->n_threads);
    m->end_s = now_s();
    return NULL;
}

/* One try. */
static double run_once(unsigned n_threads, crew_work work, void *arg, pthread_t *threads,
                       struct member *members)
{
    struct spin_barrier start = {.n_threads = n_threads};
    double begin = INFINITY, end = 0;

    for (unsigned i = 0; i < n_threads; i++) {
        members[i] = (struct member){&start, work, arg, i, n_threads, 0, 0};
        if (pthread_create(&threads[i], NULL, member_main, &members[i]) != 0)
            abort(); /* those started wait for ever: who measures has nothing better to do */
    }
    for (unsigned i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
        begin = fmin(begin, members[i].begin_s);
        end = fmax(end, members[i].end_s);
    }
    return end - begin;
}

double crew_best_s(unsigned n_threads, unsigned n_tries, crew_work work, void *arg)
{
    pthread_t *threads = calloc(n_threads, sizeof *threads);
    struct member *members = calloc(n_threads, sizeof *members);
    double best = threads && members ? INFINITY : -1;

    for (unsigned i = 0; i < n_tries && best > 0; i++)
        best = fmin(best, run_once(n_threads, work, arg, threads, members));
    free(threads);
    free(members);
    return best;
}
