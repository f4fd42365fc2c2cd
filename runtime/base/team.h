/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h - the worker team: one pinned thread per physical core, led by the thread that calls.
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

/* n_threads 0: one for each physical core of the CPUs that the process may use (affinity), at most its
 * control group's quota. -EINVAL above TEAM_MAX. Workers are pinned to the allowed CPUs after the
 * first in the order of cpus_order(), when there are enough. The caller is not pinned, but held to
 * the memory nodes of the team where there are others. */
int team_new(struct team **ret_team, unsigned n_threads);
/* The same for a setting: -EINVAL with both numbers above cpus_allowed(). Large memory that is mapped
 * from now on is on the team's nodes. */
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

#endif
