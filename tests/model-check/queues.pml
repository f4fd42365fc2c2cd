/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.pml - two submission queues of one client: each HOT or PARKED on its own, rung each by its
 * own bell, or (-DSOCKET) both by bytes on the one socket.
 *
 * client()  tkr_ring_put() of a submitting thread, then queue_ring()  clients/lib/submit.c
 * daemon()  queue_take(), hot_park(), queue_rest(), parked_peek(), queue_heat(), client_rung(),
 *           loop_bell(), loop_rearm(), bell_rang(), socket_rang()     runtime/io/{io,client,loop}.c
 *
 * A queue is idle long enough whenever it is empty. Nobody hot, nothing to reap: the daemon stands
 * in loop_wait(), for ever when a wake was lost, and that is an invalid end state. The socket holds
 * CAP bytes, one more is EAGAIN, and one event takes TAKE of them; in the code 8 of some hundred.
 *
 * Asserted besides: a ring completes its bell's waits twice at most (an arming that finds the bell
 * moved, and FUTEX_WAKE), a socket that fires has a byte, and no second wait is armed for what has
 * one already.
 *
 * Mistakes: NO_FENCE_CLIENT NO_FENCE_DAEMON NEED_SHARED LOOKS_AT_ONE SLEEPS_BESIDE_HOT
 * by futex: RINGS_FIRST_BELL HEATS_FIRST_QUEUE ARMED_SHARED VALUE_OF_FIRST
 * with SOCKET: RUNG_ONE RUNG_UNLESS_HOT TAKE_AFTER_LOOK ARM_SEES_NEW_ONLY ARMED_KEPT RUNG_KEPT
 */
#ifndef SLOTS
#define SLOTS 2 /* of each queue */
#endif
#ifndef PEEKS
#define PEEKS 1 /* that find something */
#endif
#ifndef CAP
#define CAP 2
#endif
#ifndef TAKE
#define TAKE 1
#endif
#define POS(q)  (q)       /* slots published; the submitting thread's */
#define BELL(q) (2 + (q)) /* the submitting thread's */
#ifdef NEED_SHARED
#define NEED(q) 4
#else
#define NEED(q) (4 + (q)) /* need_wakeup; the daemon's */
#endif
#define WORDS 6
#include "tso.pml"

chan client0_stores = [2] of { byte, byte };
chan client1_stores = [2] of { byte, byte };
chan daemon_stores = [4] of { byte, byte };

#ifdef SOCKET
byte bytes;     /* in the daemon's end of the socket */
bit waiting;    /* the kernel holds the poll */
bit complete;   /* it has completed; the daemon has not reaped it yet */
#define COMES complete
#else
bit waiting[2]; /* the kernel holds a FUTEX_WAIT on the bell */
bit complete[2];
byte rings[2], reaped[2];
#define COMES (complete[0] || complete[1])
#endif

#ifdef SOCKET
/* A byte that finds no room is not missed: the daemon has some that it must take. */
inline ring(stores, q)
{
    SYSCALL(stores);
    d_step {
        if
        :: bytes < CAP ->
            bytes++;
            if
            :: waiting -> waiting = 0; complete = 1
            :: else
            fi
        :: else
        fi
    }
}
#else
#ifdef RINGS_FIRST_BELL
#define RUNG(q) 0
#else
#define RUNG(q) q
#endif
inline ring(stores, q)
{
    rings[q]++;
    bell++;
    STORE_FENCE(stores, BELL(RUNG(q)), bell);
    d_step { /* FUTEX_WAKE */
        if
        :: waiting[RUNG(q)] -> waiting[RUNG(q)] = 0; complete[RUNG(q)] = 1
        :: else
        fi
    }
}
#endif

proctype client(byte q; chan stores)
{
    byte put = 0;
#ifndef SOCKET
    byte bell = 0;
#endif

    do
    :: put == SLOTS -> break
    :: put < SLOTS ->
        put++;
#ifdef NO_FENCE_CLIENT
        STORE(stores, POS(q), put);
#else
        STORE_FENCE(stores, POS(q), put);
#endif
        if
        :: mem[NEED(q)] -> ring(stores, q)
        :: else
        fi
    od
}

inline heat(q)
{
    if
    :: !hot[q] -> hot[q] = 1; STORE(daemon_stores, NEED(q), 0)
    :: else
    fi
}

#ifdef SOCKET
inline take()
{
    SYSCALL(daemon_stores);
    d_step {
        if
        :: bytes >= TAKE -> bytes = bytes - TAKE
        :: else -> bytes = 0
        fi
    }
}

inline arm()
{
    assert(!waiting && !complete);
    armed = 1;
    SYSCALL(daemon_stores);
    d_step {
        if
#ifndef ARM_SEES_NEW_ONLY
        :: bytes -> complete = 1
#endif
        :: else -> waiting = 1
        fi
    }
}

inline loop_bell(q)
{
#ifndef RUNG_KEPT
    rung = 0;
#endif
    if
    :: !armed ->
#ifdef TAKE_AFTER_LOOK
        take();
#endif
        arm()
    :: else
    fi
}

inline socket_rang()
{
    assert(bytes);
    complete = 0;
#ifndef ARMED_KEPT
    armed = 0;
#endif
    take();
    rung = 1;
#if defined(RUNG_ONE)
    if
    :: !hot[0] -> heat(0)
    :: else -> heat(1)
    fi
#elif defined(RUNG_UNLESS_HOT)
    if
    :: !hot[0] && !hot[1] -> heat(0); heat(1)
    :: else
    fi
#else
    heat(0);
    heat(1)
#endif
}
#else
#ifdef ARMED_SHARED
#define ARMED(q) armed[0]
#else
#define ARMED(q) armed[q]
#endif
#ifdef VALUE_OF_FIRST
#define VALUE(q) mem[BELL(0)]
#else
#define VALUE(q) mem[BELL(q)]
#endif
inline loop_bell(q)
{
    if
    :: !ARMED(q) ->
        ARMED(q) = 1;
        SYSCALL(daemon_stores);
        d_step {
            if
            :: mem[BELL(q)] == value -> waiting[q] = 1
            :: else -> complete[q] = 1
            fi
        }
    :: else
    fi
}

inline bell_rang(q)
{
    complete[q] = 0;
    ARMED(q) = 0;
    reaped[q]++;
    assert(reaped[q] <= 2 * rings[q]);
#ifdef HEATS_FIRST_QUEUE
    heat(0)
#else
    heat(q)
#endif
}
#endif

inline park(q, other)
{
#ifndef SOCKET
    value = VALUE(q);
#endif
#ifdef NO_FENCE_DAEMON
    STORE(daemon_stores, NEED(q), 1);
#else
    STORE_FENCE(daemon_stores, NEED(q), 1);
#endif
    if
    :: mem[POS(q)] > taken[q] -> STORE(daemon_stores, NEED(q), 0)
    :: else ->
        hot[q] = 0;
        loop_bell(q);
#ifdef LOOKS_AT_ONE
        if
        :: hot[other] ->
            STORE_FENCE(daemon_stores, NEED(other), 1);
            hot[other] = 0;
#ifndef SOCKET
            value = mem[BELL(other)];
#endif
            loop_bell(other)
        :: else
        fi;
#endif
#ifdef SLEEPS_BESIDE_HOT
        COMES;
#endif
        skip
    fi;
#ifndef SOCKET
    value = 0
#endif
}

proctype daemon()
{
    byte taken[2], peeks = PEEKS;
    bit hot[2];
#ifdef SOCKET
    bit armed, rung; /* as the daemon believes; has rung and is armed again some time */
#else
    byte value;
    bit armed[2];
#endif

    hot[0] = 1;
    hot[1] = 1;
    do
    :: taken[0] == SLOTS && taken[1] == SLOTS -> break
    :: hot[0] && mem[POS(0)] > taken[0] -> taken[0]++
    :: hot[1] && mem[POS(1)] > taken[1] -> taken[1]++
    :: hot[0] && mem[POS(0)] == taken[0] -> park(0, 1)
    :: hot[1] && mem[POS(1)] == taken[1] -> park(1, 0)
    :: peeks && !hot[0] && mem[POS(0)] > taken[0] -> peeks--; heat(0)
    :: peeks && !hot[1] && mem[POS(1)] > taken[1] -> peeks--; heat(1)
#ifdef SOCKET
    :: complete -> socket_rang()
    :: rung -> rung = 0; arm() /* loop_rearm() */
#else
    :: complete[0] -> bell_rang(0)
    :: complete[1] -> bell_rang(1)
#endif
    od
}

init
{
    atomic {
#ifdef NO_FENCE_CLIENT
        run flush(client0_stores);
        run flush(client1_stores);
#endif
        run flush(daemon_stores);
        run client(0, client0_stores);
        run client(1, client1_stores);
        run daemon()
    }
}
