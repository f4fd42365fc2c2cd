/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arm.pml - a client waits for a position of its completion queue now in the futex and now in its
 * own poll loop, and each wait is answered once.
 *
 * client()  tkr_wait(): doze(); tkr_arm(), the program's poll(), tkr_peek(): disarm()
 *           clients/lib/events.c
 * ring()    io_put(), notify_touched(), notify_client(), notify_due()  runtime/io/{client,notify}.c
 * waker()   wake_now(); its own sleep is in wait.pml                   runtime/io/notify.c
 *
 * A futex wait is for the next line or the one after it (event index), a wait by socket for the
 * next. The socket holds CAP bytes, one more is EAGAIN, and disarm() takes TAKE of them away; in the
 * code 64 of some hundred, so that some may be left. A poll() may end for something of the program's
 * own, STRAYS times. A lost wake is the client standing in FUTEX_WAIT or poll() for ever.
 *
 * Asserted besides: the daemon sends no more bytes than the client armed waits, and wakes no more
 * often by futex than it dozed.
 *
 * Mistakes: NO_FENCE_CLIENT NO_FENCE_DAEMON ARMS_WITHOUT_LOOK TAKE_AFTER_LOOK TRUSTS_BYTE
 *           SERVED_FLAG SERVED_EARLY NOT_SERVED KIND_KEPT DUE_DROPPED
 */
#ifndef LINES
#define LINES 3
#endif
#ifndef STRAYS
#define STRAYS 1
#endif
#ifndef CAP
#define CAP 1
#endif
#ifndef TAKE
#define TAKE 1
#endif
#define POS     0 /* lines published; the ring thread's */
#define CQ_BELL 1 /* the ring thread's */
#define WAIT    2 /* 0 awake, else the position to be woken at, perhaps BY_SOCKET; the client's */
#define WORDS   3
#include "tso.pml"

#define BY_SOCKET 16 /* TKR_WAIT_BY_SOCKET */

chan client_stores = [3] of { byte, byte };
chan ring_stores = [4] of { byte, byte };
chan wakes = [1] of { bit }; /* the waker's queue: 1: by socket */

bit client_sleeps; /* the kernel's */
byte bytes;        /* in the client's end of the socket */
byte armed, dozed; /* waits so far */
byte sent, woken;  /* and how often they were answered */

inline wake_bell()
{
    woken++;
    assert(woken <= dozed);
    client_sleeps = 0
}

/* A full socket: the client has bytes enough to be awake. */
inline send_byte()
{
    sent++;
    assert(sent <= armed);
    if
    :: bytes < CAP -> bytes++
    :: else
    fi
}

inline wake_now(by_socket)
{
    d_step {
        if
        :: by_socket -> send_byte()
        :: else -> wake_bell()
        fi
    }
}

inline take()
{
    SYSCALL(client_stores);
    d_step {
        if
        :: bytes >= TAKE -> bytes = bytes - TAKE
        :: else -> bytes = 0
        fi
    }
}

inline doze()
{
    ahead = taken + 1;
    if
    :: taken + 2 <= LINES -> ahead = taken + 2
    :: skip
    fi;
    bell = mem[CQ_BELL];
    dozed++;
#ifdef NO_FENCE_CLIENT
    STORE(client_stores, WAIT, ahead);
#else
    STORE_FENCE(client_stores, WAIT, ahead);
#endif
    if
    :: mem[POS] > taken /* awaited(): any line */
    :: else ->
        SYSCALL(client_stores);
        d_step {
            if
            :: mem[CQ_BELL] == bell -> client_sleeps = 1
            :: else
            fi
        }
        !client_sleeps /* blocked here for ever: a lost wake */
    fi;
    STORE(client_stores, WAIT, 0);
    ahead = 0;
    bell = 0
}

inline arm_and_poll()
{
    armed++;
#ifdef NO_FENCE_CLIENT
    STORE(client_stores, WAIT, BY_SOCKET + taken + 1);
#else
    STORE_FENCE(client_stores, WAIT, BY_SOCKET + taken + 1);
#endif
    if
#ifndef ARMS_WITHOUT_LOOK
    :: mem[POS] > taken /* tkr_arm() says so: no poll() */
#endif
    :: else ->
#ifdef TAKE_AFTER_LOOK
        take();
#endif
        if
        :: strays -> strays--
        :: SYSCALL(client_stores) ->
            bytes > 0; /* poll(); blocked here for ever: a lost wake */
#ifdef TRUSTS_BYTE
            assert(mem[POS] > taken)
#endif
        fi
    fi;
    /* disarm() of the peek that follows */
    STORE(client_stores, WAIT, 0);
#ifndef TAKE_AFTER_LOOK
    take()
#endif
}

proctype client()
{
    byte taken = 0, bell, ahead, strays = STRAYS;

    do
    :: taken == LINES -> break
    :: mem[POS] > taken -> taken++
    :: taken < LINES && mem[POS] == taken -> doze()
    :: taken < LINES && mem[POS] == taken -> arm_and_poll()
    od
}

/* notify_client(), after the fence. */
inline notify_client()
{
    wanted = mem[WAIT];
    if
    :: !wanted || published < (wanted & (BY_SOCKET - 1)) ->
#ifdef SERVED_EARLY
        served = wanted
#else
        served = 0
#endif
#ifdef SERVED_FLAG
    :: else -> if
        :: !served ->
            served = 1;
#else
    :: else -> if
        :: wanted != served ->
#ifndef NOT_SERVED
            served = wanted;
#endif
#endif
            bell++;
            STORE(ring_stores, CQ_BELL, bell);
            if
            :: wanted & BY_SOCKET -> due_socket = 1
#ifdef KIND_KEPT
            :: !(wanted & BY_SOCKET) && !due_socket -> due_bell = 1
            :: else
#else
            :: else -> due_bell = 1
#endif
            fi
        :: else
        fi
    fi;
    wanted = 0
}

/* One of the waker's queue's one place; what finds none stays due. */
inline hand_on(due, by_socket)
{
    if
    :: due && idle -> due = 0; SYSCALL(ring_stores); wake_now(by_socket)
    :: due && !idle ->
        FENCE(ring_stores);
        if
        :: nfull(wakes) -> due = 0; wakes ! by_socket
        :: full(wakes) ->
#ifdef DUE_DROPPED
            due = 0
#endif
        fi
    :: else
    fi
}

proctype ring()
{
    byte published = 0, bell = 0, served = 0, wanted;
    bit due_bell = 0, due_socket = 0, idle;

    do
    :: published < LINES ->
        published++;
        STORE(ring_stores, POS, published);
        if
        :: published < LINES -> published++; STORE(ring_stores, POS, published)
        :: skip
        fi;
#ifndef NO_FENCE_DAEMON
        FENCE(ring_stores);
#endif
        notify_client();
        if
        :: idle = 0 /* io_busy(1) */
        :: idle = 1
        fi;
        hand_on(due_bell, 0);
        hand_on(due_socket, 1);
        idle = 0
    :: (due_bell || due_socket) && nfull(wakes) -> /* a later pass */
        hand_on(due_bell, 0);
        hand_on(due_socket, 1)
    :: published == LINES && !due_bell && !due_socket -> break
    od
}

proctype waker()
{
    bit by_socket;

end:
    do
    :: wakes ? <by_socket> ->
        wake_now(by_socket);
        wakes ? by_socket;
        by_socket = 0
    od
}

init
{
    atomic {
        run flush(client_stores);
        run flush(ring_stores);
        run client();
        run ring();
        run waker()
    }
}
