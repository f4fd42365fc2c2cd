/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_state.h - the daemon's insides, for its two files: daemon.c, the loop, and daemon_start.c,
 * what comes before it and after. All of it belongs to the loop's thread.
 */
#ifndef RUNTIME_DAEMON_STATE_H
#define RUNTIME_DAEMON_STATE_H

#include <signal.h>

#include "runtime/base/team.h"
#include "runtime/client_stats.h"
#include "runtime/daemon.h"
#include "runtime/exec/echo.h"
#include "runtime/intake.h"
#include "runtime/io/io.h"
#include "runtime/job.h"
#include "runtime/keeper.h"
#include "runtime/model/model.h"
#include "runtime/sample/sampler.h"
#include "runtime/sched/sched.h"
#include "runtime/textwork.h"
#include "runtime/tune/profile.h"
#include "shm/stats.h"

struct daemon {
    struct config config;
    char socket_path[128];
    struct team *team;
    const struct cpu_kernels *kernels;
    struct model *model;
    struct profile profile; /* what steps cost here, if tuned */
    int tuned;
    int is_echo; /* no model: the echo backend */
    struct echo_opt echo;
    struct backend *backend;
    struct sampler *sampler;
    struct template *template;
    struct sched *sched;
    struct textwork *text;
    struct io *io;
    struct tkr_stats_file stats;
    struct client_stats *client_stats;
    struct keeper *keeper;
    struct tkr_model_entry entry;

    struct intake intake;
    struct job *jobs; /* [n_slots], by scheduler slot */
    void *texts;      /* [n_slots] prompt and ids of each */
    uint32_t n_slots;
    uint32_t *alive; /* slots of living jobs, dense */
    uint32_t n_alive;
    struct job **staged; /* arrived inside a step: handed to the scheduler at its end */
    uint32_t n_staged;
    int in_step;
    int lagging; /* some output waits for room in its ring */
    int draining;
    int aborting;   /* the drain limit has passed */
    uint32_t quiet; /* passes without traffic */
    uint64_t drain_until_ns;
    uint64_t stats_at_ns;
    uint64_t stats_clients; /* attaches, detaches and refusals at the last store */
    int stats_dirty;        /* requests came or went since */
    uint64_t rows, step_ns_sum, step_ns_last;
    uint64_t run_ns, sleep_ns; /* when the loop began; how long it slept since */
    uint64_t turned_away;      /* requests that found no place: the scheduler never saw them */
    volatile sig_atomic_t stop;
};

/* daemon.c: what the transport calls; the team's hook, arg is the daemon; figures into their file. */
struct io_ops daemon_io_ops(struct daemon *d);
void daemon_on_barrier(void *arg);
void daemon_stats_store(struct daemon *d, uint64_t now);

#endif
