/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpus.h - what CPUs this machine has, which of them this process may use, and in which order threads
 * that compute should take them.
 */
#ifndef RUNTIME_BASE_CPUS_H
#define RUNTIME_BASE_CPUS_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#define CPUS_NAME_BYTES 96
#define CPUS_NODES_MAX  64u /* memory nodes: a bitmap; CPUs of others count as the last one's */

/* Their model name as /proc/cpuinfo has it, cut to fit; "unknown" where it has none. */
void cpus_name(char *ret_name, size_t bytes);

/* CPUs this process may use: min(affinity, quota of its control group), at least 1. */
unsigned cpus_allowed(void);

/* CPUs that the control groups mounted at `root` (version 2, or version 1 with a folder for each set
 * of controllers) grant the groups that the file `self` names (as /proc/self/cgroup does), quotas
 * rounded up; UINT32_MAX without a limit. Apart, so that tests can lie to it. */
unsigned cpus_of_groups(const char *self, const char *root);

/*
 * CPUs in the order in which threads take them: one of each physical core before the second of any,
 * since two threads of a core share its arithmetic; of these, memory node after memory node, that
 * with most cores first, so that few threads stay near their memory.
 */
struct cpus_order {
    unsigned n, n_cores; /* CPUs; physical cores: the first n_cores CPUs are on one each */
    uint16_t cpus[CPU_SETSIZE];
    uint8_t nodes[CPU_SETSIZE]; /* [n] of each, below CPUS_NODES_MAX */
};

/* Of the CPUs in `allowed`, by what `root` (as /sys/devices/system/cpu) says of them. Where it says
 * nothing, each is a core of its own, on node 0. */
void cpus_order(struct cpus_order *ret_order, const cpu_set_t *allowed, const char *root);

/* Memory nodes of the first n, as a bitmap. */
uint64_t cpus_order_nodes(const struct cpus_order *order, unsigned n);

#endif
