/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doorbell.h - how one side sleeps in a futex and the other wakes it, without a lost wake-up.
 *
 * Both directions are the same protocol. The sleeper: read the bell, say "I sleep", full fence,
 * look once more for work, sleep only while the bell is unchanged. The waker: publish the work,
 * full fence, look whether the peer sleeps, bump the bell, wake. The order of these steps is
 * load-bearing: leave out a fence, or read the bell after the last look, and a wake-up is lost. The
 * words are shared between processes, so no private futexes; FUTEX_WAIT works on a mapping that is
 * read-only.
 *
 *   to the daemon: bell R.bell[q], "I sleep" T.need_wakeup[q]
 *   to the client: bell T.cq_bell, "I sleep" R.wait
 */
#ifndef TKR_SHM_DOORBELL_H
#define TKR_SHM_DOORBELL_H

#include <stdint.h>
#include "shm/abi.h"
#include "shm/atomic.h"
#include "shm/ring.h"

/* FUTEX_WAIT; timeout_ns < 0: none. 0: woken (perhaps for nothing), -EAGAIN: *word != value,
 * -ETIMEDOUT, -EINTR. */
int tkr_futex_wait(const uint32_t *word, uint32_t value, int64_t timeout_ns);
/* FUTEX_WAKE of up to n sleepers: how many, or -errno. */
int tkr_futex_wake(const uint32_t *word, int n);

/* The same by socket, in either direction: one byte of value 1 as a datagram; never waits. 0,
 * -EAGAIN: the peer has bytes enough to be awake, or -errno. */
int tkr_doorbell_send(int socket);

/* Client, after tkr_ring_put() of one or more slots: rings the daemon if it sleeps on this queue.
 * 1: it was rung (one system call). */
static inline int tkr_doorbell_ring(uint32_t *bell, const uint32_t *need_wakeup)
{
    /* Store-load; partner: the fence in tkr_doorbell_park(). */
    tkr_fence();
    if (!TKR_LOAD_RELAXED(need_wakeup))
        return 0;
    /* Only this side writes its bell. Release pairs with the daemon's load of the bell before its
     * next last look. */
    TKR_STORE_RELEASE(bell, TKR_LOAD_RELAXED(bell) + 1);
    tkr_futex_wake(bell, 1);
    return 1;
}

/* Daemon: HOT to PARKED. 1: parked, and *ret_value is what to FUTEX_WAIT for on the bell. 0: a slot
 * has come, stay hot. */
static inline int tkr_doorbell_park(const uint32_t *bell, uint32_t *need_wakeup,
                                    const struct tkr_ring_in *ring, uint32_t *ret_value)
{
    /* Acquire pairs with the release in tkr_doorbell_ring(). */
    uint32_t value = TKR_LOAD_ACQUIRE(bell);

    TKR_STORE_RELAXED(need_wakeup, 1);
    /* Store-load; partner: the fence in tkr_doorbell_ring(). */
    tkr_fence();
    if (tkr_ring_ready(ring)) {
        TKR_STORE_RELAXED(need_wakeup, 0);
        return 0;
    }
    *ret_value = value;
    return 1;
}

/* 1: a client whose wait word is `wait` wants to be woken now that its CQ stands at cq_pos. */
static inline int tkr_wait_due(uint64_t wait, uint32_t cq_pos)
{
    return (wait & TKR_WAIT_ASLEEP) && (int32_t)(cq_pos - (uint32_t)wait) >= 0;
}

#endif
