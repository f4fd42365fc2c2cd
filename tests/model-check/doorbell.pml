/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doorbell.pml - one submission queue: HOT, PARKED, and the FUTEX_WAIT that io_uring holds.
 *
 * client()  tkr_ring_put() of a batch, then tkr_doorbell_ring()       shm/doorbell.h
 * daemon()  client_take(), hot_park(), tkr_doorbell_park(), parked_peek(), queue_heat(),
 *           loop_bell(), loop_reap(), loop_wait()                     runtime/io/{io,loop}.c
 *
 * The queue is idle long enough whenever it is empty, so every moment of parking is tried. A wait
 * that parked_peek() left armed stays armed, as in the code. Lost wake: the daemon stands in
 * loop_wait() for ever with a slot published, which is an invalid end state.
 *
 * Mistakes: NO_FENCE_CLIENT NO_FENCE_DAEMON FENCE_BEFORE_PUT NO_RECHECK LATE_BELL NO_BUMP
 *           NEED_AFTER_RECHECK STALE_WAKE_IGNORED
 */
#ifndef SLOTS
#define SLOTS 3
#endif
#ifndef PASSES
#define PASSES 1
#endif
#define POS  0 /* slots published; the client's */
#define BELL 1 /* the client's */
#define NEED 2 /* need_wakeup; the daemon's */
#define WORDS 3
#include "tso.pml"

chan client_stores = [4] of { byte, byte };
chan daemon_stores = [4] of { byte, byte };

bit waiting;  /* the kernel holds a FUTEX_WAIT on the bell */
bit complete; /* it has completed; the daemon has not reaped it yet */

proctype client()
{
    byte put = 0, bell = 0;
    bit need;

    do
    :: put == SLOTS -> break
    :: put < SLOTS ->
#ifdef FENCE_BEFORE_PUT
        FENCE(client_stores);
#endif
        put++;
        STORE(client_stores, POS, put);
        if /* a batch of two has one fence */
        :: put < SLOTS -> put++; STORE(client_stores, POS, put)
        :: skip
        fi;
#if !defined(NO_FENCE_CLIENT) && !defined(FENCE_BEFORE_PUT)
        FENCE(client_stores);
#endif
        need = mem[NEED];
        if
        :: need ->
#ifndef NO_BUMP
            bell++;
            STORE(client_stores, BELL, bell);
#endif
            SYSCALL(client_stores);
            d_step { /* FUTEX_WAKE */
                if
                :: waiting -> waiting = 0; complete = 1
                :: else
                fi
            }
        :: else
        fi
    od
}

proctype daemon()
{
    byte taken = 0, value = 0, passes = PASSES;
    bit armed = 0;

hot:
    do
    :: taken == SLOTS -> goto over
    :: mem[POS] > taken -> taken++
    :: complete -> d_step { complete = 0; armed = 0 } /* of a wait left from an earlier parking */
    :: mem[POS] == taken && taken < SLOTS ->
        /* tkr_doorbell_park() */
#ifndef LATE_BELL
        value = mem[BELL];
#endif
#ifndef NEED_AFTER_RECHECK
        STORE(daemon_stores, NEED, 1);
#endif
#ifndef NO_FENCE_DAEMON
        FENCE(daemon_stores);
#endif
#ifndef NO_RECHECK
        if
        :: mem[POS] > taken -> STORE(daemon_stores, NEED, 0); goto hot
        :: else
        fi;
#endif
#ifdef LATE_BELL
        value = mem[BELL];
#endif
#ifdef NEED_AFTER_RECHECK
        STORE(daemon_stores, NEED, 1);
#endif
        break
    od;

    if /* loop_bell() and loop_submit() */
    :: armed
    :: !armed ->
        armed = 1;
        SYSCALL(daemon_stores);
        d_step {
            if
            :: mem[BELL] == value -> waiting = 1
            :: else -> complete = 1
            fi
        }
    fi;
    value = 0;

parked:
    if
    :: passes > 0 -> /* awake for other clients: parked_peek() */
        passes--;
        if
        :: mem[POS] > taken -> goto heat
        :: else -> goto parked
        fi
    :: SYSCALL(daemon_stores) -> /* loop_wait(); blocked here for ever: a lost wake */
        d_step { complete -> complete = 0; armed = 0 };
#ifdef STALE_WAKE_IGNORED
        if
        :: mem[POS] == taken -> goto parked
        :: else
        fi
#endif
    fi;
heat: /* queue_heat() */
    STORE(daemon_stores, NEED, 0);
    goto hot;
over:
    skip
}

init
{
    atomic { run flush(client_stores); run flush(daemon_stores); run client(); run daemon() }
}
