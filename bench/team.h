/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h - runs one piece of work on several pinned threads at once, and times it.
 */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include <stdatomic.h>
#include <stddef.h>

/* Threads that wait for each other by spinning. */
struct spin_barrier {
    atomic_uint arrived, round;
    unsigned n_threads;
};

void spin_barrier_wait(struct spin_barrier *barrier);

/* Thread `thread` of n_threads does its part. */
typedef void (*team_work)(void *arg, unsigned thread, unsigned n_threads);

/* Starts all threads at once, each on a CPU of its own as far as there are any; seconds from the
 * common start to the last one's end, the least of n_tries tries. Negative: out of memory. A thread
 * that cannot be started ends the program. */
double team_best_s(unsigned n_threads, unsigned n_tries, team_work work, void *arg);

/* Anonymous memory in huge pages, as far as the system gives any, already touched; or NULL. */
void *huge_alloc(size_t bytes);
void huge_free(void *memory, size_t bytes);

#endif
