/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detach.pml - clients come, die at any moment and are freed, while others look at their memory.
 *
 * ring()    client_new(), hot_park(), loop_handle(), loop_rearm(), client_detach(), client_sweep(),
 *           notify_touched(), notify_due()                           runtime/io
 * kernel()  holds the bell's FUTEX_WAIT (reads the client's R) and the poll of its pidfd and socket
 * worker()  has a job of the client: a reference                     runtime/textwork.c
 * waker()   holds the address of a futex word in the client's T, or for a byte on its socket the
 *           client                                                   runtime/io/notify.c
 *
 * Two clients follow each other on one slot of the table and at one address, the worst there is.
 * What a completion says is the slot only; `whose` is kept to check it. Memory ordering is no part
 * of this: the kernel's queues and the counted references have their own.
 * Nothing is touched after it was unmapped, nothing is freed twice, no completion reaches another
 * client, no byte of another client's T changes, and at the end everything is free again.
 *
 * Mistakes: UNMAP_BEFORE_REAP NO_CANCEL REFS_IGNORED SLOT_FREE_AT_DETACH DETACH_TWICE DUE_KEPT
 *           PARKS_THE_DEAD ARMED_CLEARED_AT_CANCEL WAKER_STORES WAKER_NO_REF RUNG_KEPT
 */
#ifndef CLIENTS
#define CLIENTS 2
#endif
#define NONE 0

mtype = { BELL, PIDFD, SOCKET };

chan completions = [6] of { mtype, byte }; /* event, whose */
byte bell_wait, pidfd_wait, socket_wait;   /* whose wait the kernel holds */
bit mapped[CLIENTS + 1];                   /* by client: 1 .. CLIENTS */
bit alive[CLIENTS + 1];
byte refs[CLIENTS + 1];
byte job;         /* whose job the worker has */
byte waker_word;  /* whose word the waker was given */
byte waker_byte;  /* whose socket it was given; a reference */
byte word_at;     /* who is mapped at the one address now */
byte to_come = CLIENTS;

/* A client's own moves: it rings, it hangs up, it dies. */
proctype kernel()
{
end:
    do
    :: atomic { bell_wait && alive[bell_wait] -> /* FUTEX_WAKE by the client */
        assert(mapped[bell_wait]);
        completions ! BELL, bell_wait;
        bell_wait = NONE }
    :: atomic { pidfd_wait && !alive[pidfd_wait] -> completions ! PIDFD, pidfd_wait; pidfd_wait = NONE }
    :: atomic { socket_wait -> /* a doorbell's byte, or the hang-up */
        completions ! SOCKET, socket_wait;
        socket_wait = NONE }
    od
}

proctype death()
{
    byte who;

    for (who : 1 .. CLIENTS) {
        alive[who] -> alive[who] = 0
    }
}

proctype worker()
{
end:
    do
    :: job -> assert(mapped[job]); /* the client's record is still there */
        atomic { refs[job]--; job = NONE }
    od
}

proctype waker()
{
end:
    do
    :: waker_word ->
        /* futex_wake() of an address: EFAULT, or a stray wake of whoever is there (wait.pml) */
#ifdef WAKER_STORES
        assert(word_at == waker_word);
#endif
        waker_word = NONE
    :: waker_byte ->
        assert(mapped[waker_byte]); /* its record and its descriptor are still its own */
        atomic {
#ifndef WAKER_NO_REF
            refs[waker_byte]--;
#endif
            waker_byte = NONE
        }
    od
}

/* client_detach() */
inline detach()
{
#ifndef DETACH_TWICE
    if
    :: dead
    :: !dead ->
#endif
#ifndef DUE_KEPT
        due = NONE;
#endif
#ifndef RUNG_KEPT
        rung = NONE;
#endif
#ifndef NO_CANCEL
        atomic { /* the kernel answers at once, or the wait has completed already */
            if
            :: armed_bell && bell_wait -> completions ! BELL, bell_wait; bell_wait = NONE
            :: else
            fi
        };
#endif
        atomic {
            if
            :: armed_pidfd && pidfd_wait -> completions ! PIDFD, pidfd_wait; pidfd_wait = NONE
            :: else
            fi
        };
        atomic {
            if
            :: armed_socket && socket_wait -> completions ! SOCKET, socket_wait; socket_wait = NONE
            :: else
            fi
        };
#ifdef ARMED_CLEARED_AT_CANCEL
        armed_bell = 0;
        armed_pidfd = 0;
        armed_socket = 0;
#endif
        dead = 1;
        assert(refs[client] > 0);
        refs[client]--
#ifndef DETACH_TWICE
    fi
#endif
}

#if defined(SLOT_FREE_AT_DETACH) || defined(UNMAP_BEFORE_REAP)
#define REAPED true
#else
#define REAPED (!armed_bell && !armed_pidfd && !armed_socket)
#endif
#if defined(SLOT_FREE_AT_DETACH) || defined(REFS_IGNORED)
#define UNREFERENCED true
#else
#define UNREFERENCED (refs[client] == 0)
#endif

proctype ring()
{
    byte client = NONE, due = NONE, rung = NONE, whose, jobs = 0;
    bit dead = 0, parked = 0, armed_bell = 0, armed_pidfd = 0, armed_socket = 0;
    mtype event;

    do
    :: !client && to_come -> /* attach */
        d_step {
            client = CLIENTS + 1 - to_come;
            to_come--;
            mapped[client] = 1;
            word_at = client;
            alive[client] = 1;
            refs[client] = 1;
            pidfd_wait = client;
            socket_wait = client;
            armed_pidfd = 1;
            armed_socket = 1;
            parked = 0;
            dead = 0;
            jobs = 1
        }
    :: client && !dead && jobs && !job -> d_step { jobs = 0; refs[client]++; job = client }
#ifdef PARKS_THE_DEAD
    :: client && !parked ->
#else
    :: client && !dead && !parked -> /* hot_park(), loop_bell() */
#endif
        parked = 1;
        if
        :: !armed_bell -> armed_bell = 1; assert(mapped[client]); bell_wait = client
        :: else
        fi
    :: client && !dead && parked -> parked = 0 /* parked_peek(): the wait stays armed */
    :: client && !dead && !due -> /* notify_touched(): its bell is bumped, a wake is due */
        due = client
    :: due && !waker_word -> /* notify_due() */
        assert(mapped[due]);
        waker_word = due;
        due = NONE
    :: due && !waker_byte -> /* the same for a wait by socket: waker_put() */
        assert(mapped[due]);
#ifdef WAKER_NO_REF
        waker_byte = due;
#else
        atomic { refs[due]++; waker_byte = due };
#endif
        due = NONE
    :: rung -> /* loop_rearm() */
        assert(mapped[rung]);
        armed_socket = 1;
        socket_wait = rung;
        rung = NONE
    :: completions ? event, whose -> /* loop_handle() */
        assert(whose == client);
        if
        :: event == BELL -> armed_bell = 0; parked = 0
        :: event == PIDFD -> armed_pidfd = 0; detach()
        :: event == SOCKET ->
            armed_socket = 0;
            if
            :: !alive[client] -> detach() /* rings_take(): hung up */
            :: alive[client] && !dead -> rung = client
            :: else
            fi
        fi;
        whose = NONE
    :: client && !dead -> detach() /* it broke the rules, or the daemon ends */
    :: client && dead && REAPED && UNREFERENCED -> /* client_sweep() */
        d_step {
            mapped[client] = 0;
            word_at = NONE;
            assert(bell_wait == NONE || mapped[bell_wait]);
            assert(pidfd_wait == NONE && socket_wait == NONE);
            client = NONE
        }
    :: !client && !to_come -> break
    od;
    assert(empty(completions) && !bell_wait && !job && !waker_byte)
}

init
{
    atomic { run kernel(); run death(); run worker(); run waker(); run ring() }
}
