/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_world.h - the world that sim_ring.c plays in: actors that take turns at each access to shared
 * memory, store buffers, futexes, and what the daemon's loop waits for.
 */
#ifndef TESTS_SIM_SIM_WORLD_H
#define TESTS_SIM_SIM_WORLD_H

#include <ucontext.h>
#include "runtime/io/state.h"

#define CLIENTS    2u
#define PLACES     (CLIENTS * 2 + IO_CONNS_SPARE) /* in the daemon's table: the dead take some */
#define DAEMON     CLIENTS                        /* the last actor */
#define ACTORS     (CLIENTS + 1)
#define BUFFER     12u
#define KERNEL_MAX 32u /* turns that a system call takes until it compares a futex word */

enum mistake {
    MISTAKE_NONE,
    CLIENT_RINGS_WITHOUT_FENCE,
    DAEMON_PARKS_WITHOUT_FENCE,
    DAEMON_READS_THE_BELL_TOO_LATE,
    DAEMON_PARKS_WITHOUT_LAST_LOOK,
    CLIENT_SLEEPS_WITHOUT_FENCE,
    CLIENT_SLEEPS_WITHOUT_LAST_LOOK,
    CLIENT_READS_ITS_BELL_TOO_LATE,
    CLIENT_STORES_SEQ_FIRST,
    CLIENT_GIVES_LINES_BACK_EARLY,
    CLIENT_FORGETS_WHAT_IT_RECEIVED,
    MISTAKES
};

struct buffered {
    void *ptr;
    uint64_t value;
    size_t bytes;
};

struct actor {
    ucontext_t context;
    char *stack;
    struct buffered buffer[BUFFER];
    uint32_t n_buffer;
    const uint32_t *sleeps_on; /* a client's futex */
    int gone;                  /* a client's daemon died: it sleeps no more */
    int asleep, timer;
};

extern struct actor actors[ACTORS];
extern uint32_t now_running;
extern ucontext_t scheduler;
extern struct io io;
extern uint64_t generator;
extern enum mistake mistake;
extern int pidfd_fired[PLACES]; /* the client in that place died */
extern int attached_event;      /* the control socket has told the daemon of a client */

/* Forgets what the daemon waited for. */
void world_reset(void);
uint64_t dice(void);
void yield(void); /* to the scheduler, until this actor's next turn */
void turns_pass(uint64_t max);
void buffer_pop(struct actor *a);
void buffer_drain(struct actor *a);
void daemon_event(void); /* something came: it sleeps no more */

#endif
