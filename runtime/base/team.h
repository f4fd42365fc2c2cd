/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h - the worker team: one pinned thread per core, led by the thread that calls.
 *
 * A region runs one function on every member; members meet at a barrier at its end. Workers spin
 * for a while between regions, then yield, then sleep on a futex, so an idle team costs nothing.
 * The leader calls the hook after each region: the daemon makes its ring pass there.
 */
#ifndef RUNTIME_BASE_TEAM_H
#define RUNTIME_BASE_TEAM_H

#include <stdint.h>
#include "runtime/base/diag.h"

#define TEAM_MAX       256
#define TEAM_CPU_WORDS 6 /* bitmap of CPUs 0 .. 383 */

struct team;

/* member: 0 (the leader, who called team_run) .. n - 1 */
typedef void (*team_fn)(void *arg, unsigned member, unsigned n);
typedef void (*team_hook)(void *arg);

/* n_threads 0: as many as the process may use (affinity and cgroup). -EINVAL above TEAM_MAX. The
 * caller is not pinned; workers are pinned to the allowed CPUs after the first when there are
 * enough. */
int team_new(struct team **ret_team, unsigned n_threads);
/* The same for a setting: -EINVAL with both numbers above team_cpus_allowed(). */
int team_open(struct team **ret_team, uint32_t n_threads, struct diag *diag);
void team_free(struct team *team);

unsigned team_size(const struct team *team);

/* CPUs that workers are pinned to (the leader moves freely): others should not spin there. */
void team_pinned_cpus(const struct team *team, uint64_t ret_cpus[TEAM_CPU_WORDS]);

/* Called by the leader after every region; NULL = none. */
void team_set_hook(struct team *team, team_hook hook, void *arg);

/* Runs fn on all members and returns when all are done. Only ever called by one thread. */
void team_run(struct team *team, team_fn fn, void *arg);

/* The share [*ret_begin, *ret_end) of member m when `total` items are split over n, multiples of
 * `grain`. */
void team_share(uint32_t total, uint32_t grain, unsigned m, unsigned n, uint32_t *ret_begin,
                uint32_t *ret_end);

/* CPUs this process may use: min(affinity, quota of its control group), at least 1. */
unsigned team_cpus_allowed(void);

/* CPUs that the control groups mounted at `root` (version 2, or version 1 with a folder for each set
 * of controllers) grant the groups that the file `self` names (as /proc/self/cgroup does), quotas
 * rounded up; UINT32_MAX without a limit. Apart, so that tests can lie to it. */
unsigned team_cgroup_cpus(const char *self, const char *root);

#endif
