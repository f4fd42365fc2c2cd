/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h - large, long-lived memory: anonymous, 2 MiB aligned, MADV_HUGEPAGE, touched lazily.
 *
 * On a machine with several memory nodes, large maps are interleaved over those of the team, because
 * every worker reads all weights and any page. Everything the daemon needs is taken at start or at
 * model load; the step and ring paths take none.
 */
#ifndef RUNTIME_BASE_MEM_H
#define RUNTIME_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#define MEM_PAGE 4096u /* the smallest page of x86-64 */

/* Zeroed, at least 64-byte aligned; NULL on failure. Reserves address space; pages come with first
 * touch. */
void *mem_map(size_t bytes);
void mem_unmap(void *ptr, size_t bytes);

/* The same without huge pages: for arrays of which a little is touched in many places. To be given
 * back with mem_unmap(). */
void *mem_map_small(size_t bytes);

/* A file, read-only and shared with all who map it; NULL on failure. 2 MiB aligned, so that a file
 * system that caches it in huge pages can map them. To be given back with mem_unmap(). */
void *mem_map_file(int fd, size_t bytes);

/* Gathers what mem_map_file() has mapped in small pages into huge ones, for all who map it, where the
 * kernel can (tmpfs; others as it was built). Copies all of it once: not for a hurry. */
void mem_gather(const void *ptr, size_t bytes);

/* Touches all of it, so that its pages are there: 0 or -errno. */
int mem_touch(void *ptr, size_t bytes);

/* Touches and locks all of it: 0 or -errno (-ENOMEM, -EPERM: RLIMIT_MEMLOCK). */
int mem_populate(void *ptr, size_t bytes);

/* Where large maps are from now on; a bitmap, 0: on all nodes. What was mapped stays. */
void mem_set_nodes(uint64_t nodes);

/* Memory nodes that this process may allocate on, at least 1: for the line that says so at
 * start. */
unsigned mem_nodes(void);

#endif
