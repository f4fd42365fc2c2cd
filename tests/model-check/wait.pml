/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.pml - a client sleeps until its completion queue has reached a position.
 *
 * client()  tkr_wait(), doze(), events_take()                        clients/lib/events.c
 * ring()    io_put(), notify_touched(), notify_due(), io_gone()      runtime/io/{io,notify}.c
 * waker()   waker_put(), waker_ring(), waker_run(), waker_free()     runtime/io/notify.c
 *
 * A pass publishes one or two lines, makes one fence and looks at the wait word. Whoever is due gets
 * its bell bumped, then its wake: by the ring thread when it is idle, through the waker's queue when
 * a step runs. That queue has one place here, so that it is full as often as can be. The client asks
 * for a wake at the next line or the one after (event index). The library's 200 ms timeout is left
 * out: it would hide a lost wake, which is the client standing in FUTEX_WAIT for ever. -DGONE
 * ends the daemon in order after the last line, which wakes everybody, so it has a run of its own.
 * -DSTRAY adds the wake by a waker that still holds the word of an earlier client whose T was mapped
 * at the same address.
 *
 * Mistakes: NO_FENCE_CLIENT NO_FENCE_DAEMON NO_RECHECK LATE_BELL BELL_AFTER_WAKE NO_BUMP WAKE_EQUAL
 *           WAKE_DROPPED WAKER_NO_FENCE WAKER_PUT_NO_FENCE WAKER_NO_RECHECK WAKER_LATE_BELL
 *           SERVED_EARLY
 * with GONE: GONE_SILENT GONE_FIRST_LOOK; with STRAY: TRUSTS_WAKE
 */
#ifndef LINES
#define LINES 3
#endif
#define POS          0 /* lines published; the ring thread's, as are all but the next two */
#define WAIT         1 /* 0 awake, else the position to be woken at; the client's */
#define WAKER_ASLEEP 2 /* the waker's */
#define CQ_BELL      3
#define STATE        4 /* 1: GONE */
#define WAKER_TAIL   5
#define WAKER_BELL   6
#define WAKER_STOP   7
#define WORDS        8
#include "tso.pml"

chan client_stores = [3] of { byte, byte };
chan ring_stores = [4] of { byte, byte };
chan waker_stores = [2] of { byte, byte };

bit client_sleeps, waker_sleeps; /* the kernel's */
byte waker_head;                 /* what the waker has done; its release is the last thing it does */

#define WAKE_CLIENT d_step { client_sleeps = 0 }

inline doze(pos)
{
    ahead = pos + 1;
    if
    :: pos + 2 <= LINES -> ahead = pos + 2
    :: skip
    fi;
#ifndef LATE_BELL
    bell = mem[CQ_BELL];
#endif
#ifdef NO_FENCE_CLIENT
    STORE(client_stores, WAIT, ahead);
#else
    STORE_FENCE(client_stores, WAIT, ahead);
#endif
#ifndef NO_RECHECK
    if
    :: mem[POS] > pos || mem[STATE] -> goto awake /* awaited(): any line */
    :: else
    fi;
#endif
#ifdef LATE_BELL
    bell = mem[CQ_BELL];
#endif
    SYSCALL(client_stores);
    d_step {
        if
        :: mem[CQ_BELL] == bell -> client_sleeps = 1
        :: else
        fi
    }
    !client_sleeps; /* blocked here for ever: a lost wake */
awake:
    STORE(client_stores, WAIT, 0);
    ahead = 0;
    bell = 0
}

proctype client()
{
    byte taken = 0, bell, ahead;

    do
    :: mem[POS] > taken -> taken++
    :: mem[POS] == taken ->
#ifdef GONE
        if
        :: mem[STATE] -> /* events_take(): the last lines come before GONE */
#ifndef GONE_FIRST_LOOK
            if
            :: mem[POS] > taken -> taken = mem[POS]
            :: else
            fi;
#endif
            break
        :: else
        fi;
#else
        if
        :: taken == LINES -> break
        :: else
        fi;
#endif
        doze(taken);
#ifdef TRUSTS_WAKE
        assert(mem[POS] > taken || mem[STATE]);
        taken++
#endif
    od;
    assert(taken == LINES)
}

/* io_pass()'s or io_sleep()'s part: who is due, and the wakes. */
inline notify()
{
    if
    :: touched ->
        touched = 0;
#ifndef NO_FENCE_DAEMON
        FENCE(ring_stores);
#endif
        wanted = mem[WAIT];
        if
#ifdef WAKE_EQUAL
        :: wanted && published == wanted && wanted != served ->
#else
        :: wanted && published >= wanted && wanted != served ->
#endif
            served = wanted;
#if !defined(BELL_AFTER_WAKE) && !defined(NO_BUMP)
            bell++;
            STORE(ring_stores, CQ_BELL, bell);
#endif
            due = 1
#ifdef SERVED_EARLY
        :: wanted == 0 || published < wanted -> served = wanted
#else
        :: wanted == 0 || published < wanted -> served = 0
#endif
        :: else
        fi;
        wanted = 0
    :: else
    fi;
    if
    :: due && idle -> SYSCALL(ring_stores); WAKE_CLIENT; due = 0
    :: due && !idle ->
        if
        :: tail == waker_head -> /* waker_put() */
            due = 0;
            tail++;
#ifdef WAKER_PUT_NO_FENCE
            STORE(ring_stores, WAKER_TAIL, tail)
#else
            STORE_FENCE(ring_stores, WAKER_TAIL, tail)
#endif
        :: else -> /* -EAGAIN: stays due */
#ifdef WAKE_DROPPED
            due = 0
#endif
        fi;
        /* waker_ring() */
        if
        :: mem[WAKER_ASLEEP] ->
            waker_bell++;
            STORE_FENCE(ring_stores, WAKER_BELL, waker_bell);
            waker_sleeps = 0 /* FUTEX_WAKE */
        :: else
        fi
    :: !due
    fi;
#ifdef BELL_AFTER_WAKE
    if
    :: bell < published -> bell = published; STORE(ring_stores, CQ_BELL, bell)
    :: else
    fi
#endif
}

proctype ring()
{
    byte published = 0, bell = 0, waker_bell = 0, tail = 0, served = 0, wanted;
    bit touched = 0, due = 0, idle;

    do
    :: published < LINES ->
        published++;
        STORE(ring_stores, POS, published);
        if
        :: published < LINES -> published++; STORE(ring_stores, POS, published)
        :: skip
        fi;
        touched = 1;
        if
        :: idle = 0 /* io_busy(1) */
        :: idle = 1
        fi;
        notify()
    :: due && tail == waker_head -> idle = 0; notify() /* a later pass */
    :: published == LINES -> break
    od;
    idle = 1;
    notify();
#ifdef GONE
    /* io_gone(): who sleeps learns it by the bell, whatever it waits for. */
    STORE_FENCE(ring_stores, STATE, 1);
#ifndef GONE_SILENT
    bell++;
    STORE_FENCE(ring_stores, CQ_BELL, bell);
    WAKE_CLIENT;
#endif
    /* waker_free() */
    STORE_FENCE(ring_stores, WAKER_STOP, 1);
    waker_bell++;
    STORE_FENCE(ring_stores, WAKER_BELL, waker_bell);
    waker_sleeps = 0
#endif
}

proctype waker()
{
    byte head = 0, bell;

    do
    ::
#ifndef WAKER_LATE_BELL
        bell = mem[WAKER_BELL];
#endif
        do
        :: mem[WAKER_TAIL] != head ->
            WAKE_CLIENT;
            head++;
            waker_head = head
        :: mem[WAKER_TAIL] == head -> break
        od;
        if
        :: mem[WAKER_STOP] -> break
        :: else
        fi;
#ifdef WAKER_NO_FENCE
        STORE(waker_stores, WAKER_ASLEEP, 1);
#else
        STORE_FENCE(waker_stores, WAKER_ASLEEP, 1);
#endif
        if
#ifdef WAKER_NO_RECHECK
        :: true ->
#else
        :: mem[WAKER_TAIL] == head ->
#endif
#ifdef WAKER_LATE_BELL
            bell = mem[WAKER_BELL];
#endif
            SYSCALL(waker_stores);
            d_step {
                if
                :: mem[WAKER_BELL] == bell -> waker_sleeps = 1
                :: else
                fi
            }
end_asleep: /* a wake that was lost here leaves the client asleep */
            !waker_sleeps
#ifndef WAKER_NO_RECHECK
        :: mem[WAKER_TAIL] != head
#endif
        fi;
        STORE_FENCE(waker_stores, WAKER_ASLEEP, 0);
        bell = 0
    od
}

proctype stray()
{
    WAKE_CLIENT
}

init
{
    atomic {
        run flush(client_stores);
        run flush(ring_stores);
#ifdef WAKER_NO_FENCE
        run flush(waker_stores);
#endif
        run client();
        run ring();
        run waker();
#ifdef STRAY
        run stray()
#endif
    }
}
