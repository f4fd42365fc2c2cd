/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.pml - a submitting thread that found its queue full sleeps until the daemon has taken slots,
 * and the daemon parks the queue as ever.
 *
 * client()  tkr_submit_wait_on(): submit_some(), slot_sleep()         clients/lib/submit.c
 * daemon()  queue_take(), notify_touched(), notify_client(), notify_due(), hot_park()
 *           runtime/io/{client,notify,io}.c
 * waker()   wake_now(); its own sleep is in wait.pml                  runtime/io/notify.c
 *
 * The bell of this direction is sq_head itself, which moves with each slot taken. What the daemon
 * takes may answer at once or later: taking alone makes it look at sq_wait. A full CQ, which stops
 * the taking and has no bell but a timer, is left out. A lost wake is the client standing in
 * FUTEX_WAIT on sq_head, or the daemon in loop_wait(), for ever.
 *
 * Asserted besides: no more wakes than passes that took slots, and a slot is written in free room.
 * NO_FENCE_CLIENT is no mistake here: the word slept on is the one that the daemon moves, and
 * FUTEX_WAIT, which has a fence of its own, looks at it once more.
 *
 * Mistakes: NO_FENCE_DAEMON NO_RECHECK LATE_HEAD OLD_CREDIT HEAD_AFTER_LOOK
 *           LINES_ONLY DUE_DROPPED SLEEPS_UNRUNG
 */
#ifndef SLOTS
#define SLOTS 4
#endif
#ifndef ROOM
#define ROOM 2
#endif
#ifndef PEEKS
#define PEEKS 1 /* that find something */
#endif
#define POS     0 /* slots published; the client's, as are the next two */
#define BELL    1
#define SQ_WAIT 2
#define NEED    3 /* need_wakeup; the daemon's, as is the next */
#define SQ_HEAD 4
#define WORDS   5
#include "tso.pml"

chan client_stores = [4] of { byte, byte };
chan daemon_stores = [4] of { byte, byte };
chan wakes = [1] of { bit }; /* the waker's queue */

bit waiting, complete; /* the FUTEX_WAIT on the bell, as in doorbell.pml */
bit client_sleeps;     /* in FUTEX_WAIT on sq_head */
byte took_passes, woken;

inline wake_client()
{
    d_step {
        woken++;
        assert(woken <= took_passes);
        client_sleeps = 0
    }
}

inline put_one()
{
    put++;
    assert(put - mem[SQ_HEAD] <= ROOM);
    STORE(client_stores, POS, put)
}

inline ring()
{
    FENCE(client_stores);
    if
    :: mem[NEED] ->
        bell++;
        STORE_FENCE(client_stores, BELL, bell);
        d_step { /* FUTEX_WAKE */
            if
            :: waiting -> waiting = 0; complete = 1
            :: else
            fi
        }
    :: else
    fi
}

inline slot_sleep()
{
#ifndef LATE_HEAD
    value = mem[SQ_HEAD];
#endif
#ifdef NO_FENCE_CLIENT
    STORE(client_stores, SQ_WAIT, 1);
#else
    STORE_FENCE(client_stores, SQ_WAIT, 1);
#endif
#ifdef LATE_HEAD
    if
    :: mem[SQ_HEAD] == head -> value = mem[SQ_HEAD]
    :: else -> goto awake
    fi;
#elif !defined(NO_RECHECK)
    if
    :: mem[SQ_HEAD] == value
    :: else -> goto awake
    fi;
#ifndef OLD_CREDIT
    head = mem[SQ_HEAD]; /* slot_free() */
    if
    :: put - head == ROOM
    :: else -> goto awake
    fi;
#endif
#endif
    SYSCALL(client_stores);
    d_step {
        if
        :: mem[SQ_HEAD] == value -> client_sleeps = 1
        :: else
        fi
    }
    !client_sleeps; /* blocked here for ever: a lost wake */
awake:
    STORE(client_stores, SQ_WAIT, 0);
    value = 0
}

proctype client()
{
    byte put = 0, head = 0, bell = 0, value;

    do
    :: put == SLOTS -> break
    :: put < SLOTS && put - head < ROOM ->
        put_one();
        if /* a batch of two has one fence */
        :: put < SLOTS && put - head < ROOM -> put_one()
        :: skip
        fi;
#ifdef SLEEPS_UNRUNG
        if
        :: put - head == ROOM
        :: else -> ring()
        fi
#else
        ring()
#endif
    :: put < SLOTS && put - head == ROOM ->
        head = mem[SQ_HEAD];
        if
        :: put - head == ROOM -> slot_sleep()
        :: else
        fi
    od
}

/* notify_touched() and notify_due() of the pass. */
inline notify()
{
#ifndef NO_FENCE_DAEMON
    FENCE(daemon_stores);
#endif
    if
    :: mem[SQ_WAIT] -> due = 1
    :: else
    fi;
#ifdef HEAD_AFTER_LOOK
    STORE(daemon_stores, SQ_HEAD, taken);
#endif
    if
    :: due -> SYSCALL(daemon_stores); due = 0; wake_client() /* idle */
    :: due -> /* io_busy(1) */
        FENCE(daemon_stores);
        if
        :: nfull(wakes) -> due = 0; wakes ! 1
        :: full(wakes) ->
#ifdef DUE_DROPPED
            due = 0
#endif
        fi
    :: !due
    fi
}

inline pass()
{
    taken++;
    if
    :: mem[POS] > taken -> taken++
    :: skip
    fi;
    took_passes++;
#ifndef HEAD_AFTER_LOOK
    STORE(daemon_stores, SQ_HEAD, taken);
#endif
#ifdef LINES_ONLY
    if
    :: skip /* none answered at once */
    :: notify()
    fi
#else
    notify()
#endif
}

proctype daemon()
{
    byte taken = 0, value = 0, peeks = PEEKS;
    bit hot = 1, armed = 0, due = 0;

    do
    :: taken == SLOTS && !due -> break
    :: hot && mem[POS] > taken -> pass()
    :: due && nfull(wakes) -> due = 0; wakes ! 1 /* a later pass */
    :: hot && mem[POS] == taken && taken < SLOTS ->
        value = mem[BELL];
        STORE_FENCE(daemon_stores, NEED, 1);
        if
        :: mem[POS] > taken -> STORE(daemon_stores, NEED, 0)
        :: else ->
            hot = 0;
            if
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
            fi
        fi;
        value = 0
    :: peeks && !hot && mem[POS] > taken -> peeks--; hot = 1; STORE(daemon_stores, NEED, 0)
    :: complete ->
        complete = 0;
        armed = 0;
        if
        :: !hot -> hot = 1; STORE(daemon_stores, NEED, 0)
        :: else
        fi
    od
}

proctype waker()
{
end:
    do
    :: wakes ? <_> -> wake_client(); wakes ? _
    od
}

init
{
    atomic {
        run flush(client_stores);
        run flush(daemon_stores);
        run client();
        run daemon();
        run waker()
    }
}
