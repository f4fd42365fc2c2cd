/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h - runs one piece of work on several pinned threads at once, and times it.
 *
 * For measuring a machine. The engine's threads are a team (runtime/base/team.h), which waits and
 * sleeps as a server should.
 */
#ifndef RUNTIME_TUNE_CREW_H
#define RUNTIME_TUNE_CREW_H

#include <stdatomic.h>

/* Threads that wait for each other by spinning. */
struct spin_barrier {
    atomic_uint arrived, round;
    unsigned n_threads;
};

void spin_barrier_wait(struct spin_barrier *barrier);

/* Thread `thread` of n_threads does its part. */
typedef void (*crew_work)(void *arg, unsigned thread, unsigned n_threads);

/* Starts all threads at once, each on a CPU of its own as far as there are any; seconds from the
 * common start to the last one's end, the least of n_tries tries. Negative: out of memory. A thread
 * that cannot be started ends the program. */
double crew_best_s(unsigned n_threads, unsigned n_tries, crew_work work, void *arg);

#endif
