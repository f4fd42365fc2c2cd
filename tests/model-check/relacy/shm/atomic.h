/* SPDX-License-Identifier: Apache-2.0 */
/*
 * atomic.h - stands in for shm/atomic.h when ring.h and doorbell.h run under Relacy.
 *
 * The code under test sees plain memory, as always; only its address counts. Each access goes to
 * the simulated word behind that address, whose order is checked and explored (weak_shm.cc).
 */
#ifndef TKR_SHM_ATOMIC_H
#define TKR_SHM_ATOMIC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum weak_order { WEAK_RELAXED, WEAK_ACQUIRE, WEAK_RELEASE };

uint64_t weak_load(const void *ptr, enum weak_order order);
void weak_store(void *ptr, uint64_t value, enum weak_order order);
void weak_fence(void);

template <typename T> static inline T weak_load_as(const T *ptr, enum weak_order order)
{
    return (T)weak_load(ptr, order);
}

#define TKR_LOAD_RELAXED(ptr)         weak_load_as((ptr), WEAK_RELAXED)
#define TKR_LOAD_ACQUIRE(ptr)         weak_load_as((ptr), WEAK_ACQUIRE)
#define TKR_STORE_RELAXED(ptr, value) weak_store((ptr), (value), WEAK_RELAXED)
#define TKR_STORE_RELEASE(ptr, value) weak_store((ptr), (value), WEAK_RELEASE)

static inline void tkr_fence(void)
{
    weak_fence();
}

#endif
