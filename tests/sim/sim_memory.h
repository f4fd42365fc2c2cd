/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_memory.h - put before each source of the transport in the simulator (compiler option
 * -include): loads, stores and fences of shared memory go to sim_world.c, which lets the other side
 * run before each and keeps stores in a buffer for a while, as x86 does.
 */
#ifndef TESTS_SIM_SIM_MEMORY_H
#define TESTS_SIM_SIM_MEMORY_H

#include "shm/atomic.h"

uint64_t sim_load(const void *ptr, size_t bytes);
void sim_store(void *ptr, uint64_t value, size_t bytes);
void sim_fence(void);

#undef TKR_LOAD_RELAXED
#undef TKR_LOAD_ACQUIRE
#undef TKR_STORE_RELAXED
#undef TKR_STORE_RELEASE
#define TKR_LOAD_RELAXED(ptr)         ((__typeof__(*(ptr)))sim_load((ptr), sizeof *(ptr)))
#define TKR_LOAD_ACQUIRE(ptr)         TKR_LOAD_RELAXED(ptr)
#define TKR_STORE_RELAXED(ptr, value) sim_store((ptr), (value), sizeof *(ptr))
#define TKR_STORE_RELEASE(ptr, value) TKR_STORE_RELAXED(ptr, value)
#define tkr_fence                     sim_fence
/* Regions are the simulator's. */
#define tkr_region_close sim_region_close

#endif
