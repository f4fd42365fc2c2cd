/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - what the parts of bench_ring share: two spinning processes on a core each, and their
 * clock.
 *
 *   ring.c         the client process, the rounds, the figures
 *   ring_daemon.c  the daemon process: the real transport (runtime/io), answering at once
 *   ring_rivals.c  other ways to send 64 bytes there and back, between the same two processes
 *   ring_attack.c  hostile clients beside an honest one
 *   ring_clock.c   cores, ticks, percentiles
 */
#ifndef BENCH_RING_H
#define BENCH_RING_H

#include <stdint.h>
#include <sys/types.h>
#include "shm/atomic.h"

#define ROUNDS 17 /* each with other lines: what they cost differs by a fifth */
#define SAMPLES                                                                                    \
    60000u /* a round trip each; a round stays far below the kernel's 0.95 s of FIFO a second */
#define PARKED   1023u  /* others, while one is active */
#define ATTACHED 4096u  /* for the daemon's idle time; as many as it can have */
#define PUBLISH  64u    /* clients that get a token each */
#define STREAMS  256u   /* requests that the daemon process can have under way */
#define TOKENS   20000u /* while system calls are counted */
#define STREAMED 2000000u
#define PARK_NS  20000000u /* of the connections that are to stay hot */

#define ATTACKS       18
#define ATTACK_ROUNDS 5

/* The daemon process's. */
enum transport {
    HOT,
    CROWD,
    PARK,  /* parks at once */
    PARKS, /* parks as the daemon does by default */
    TRANSPORTS
};

/* What is measured in turns. The order is that of the table. */
enum contest {
    CONTEST_PING, /* two cache lines, one per direction: what an answer costs at least */
    CONTEST_RING, /* a no-op through the daemon */
    CONTEST_RING_PARKED,
    CONTEST_UNIX,
    CONTEST_CK,
    CONTEST_SQPOLL,
    CONTEST_FUTEX, /* both sides sleep */
    CONTEST_PARK,  /* both sides sleep, through the daemon */
    CONTEST_PUBLISH,
    CONTESTS
};

/* What the daemon process does; written by the client process. */
enum mode {
    MODE_REST = 0, /* sleeps: its core is free */
    MODE_PING,
    MODE_UNIX,
    MODE_CK,
    MODE_FUTEX,
    MODE_HOT,     /* the transport with one client */
    MODE_CROWD,   /* the transport with many, all but one of them parked */
    MODE_PARK,    /* the transport that parks at once */
    MODE_PUBLISH, /* a token to each of PUBLISH clients of the crowd, when asked to */
    MODE_STREAM,  /* tokens as fast as they find room */
    MODE_ATTACK,  /* a transport whose passes are timed */
    MODE_IDLE,    /* the crowd's transport sleeps */
    MODE_END
};

struct passes { /* of one slice: ns */
    double p50, p99;
    double look_p99; /* of looks around between passes */
    uint32_t n, detached;
};

struct shared { /* between the processes */
    struct {
        _Alignas(64) uint64_t ping;
        char pad0[192];
        _Alignas(64) uint64_t pong;
        char pad1[192 + 4096];
    } lines[ROUNDS]; /* a pair a round: how far a line travels depends on its address */
    _Alignas(64) uint32_t futex_ping;
    _Alignas(64) uint32_t futex_pong;
    _Alignas(64) uint32_t round;
    _Alignas(64) uint32_t mode;
    _Alignas(64) uint32_t serving;   /* the mode that the daemon process has reached */
    _Alignas(64) uint32_t publish;   /* client: publish number n */
    _Alignas(64) uint32_t published; /* daemon: done, it took publish_ns */
    uint32_t publish_ns;
    _Alignas(64) uint32_t daemon_ready;
    uint32_t count;        /* 1: system calls are counted */
    uint32_t client_ready; /* waits for the tracer */
    uint32_t traced;
    uint32_t sqpoll_error;
    uint32_t attached;
    _Alignas(64) uint32_t attack_on; /* client: passes are timed now; daemon: 0 at a detach */
    uint32_t attack, attack_round;   /* which slice */
    uint32_t attack_attached, attack_struck, attack_memory_errors;
    struct passes passes[ATTACKS][ATTACK_ROUNDS];
    uint64_t idle_ns, idle_cpu_ns;
    uint32_t attach_ns[SAMPLES], first_ns[SAMPLES];
    uint32_t n_attach, n_first;
    uint64_t stream_up_ns, stream_down_ns;
    uint32_t n[CONTESTS]; /* samples a round */
    _Alignas(64) uint32_t ns[CONTESTS][ROUNDS][SAMPLES];
};

struct row {
    double p50, p99, p999;
};

extern struct shared *shared;
extern char ring_paths[TRANSPORTS][128]; /* sockets of the transports */
extern int cpu_daemon, cpu_client;

/* ring_clock.c */
uint64_t ticks(void);
void ticks_calibrate(void);
uint32_t to_ns(uint64_t ticks);
void rest(void);        /* 30 ms off the core */
void peer_sleeps(void); /* spins for as long as the other side may need to fall asleep */
_Noreturn void die(const char *what);
void cores_choose(void);
void descriptors_raise(void);
/* Pins the process; 0 when SCHED_FIFO was allowed too. */
int own_core(int cpu);
/* Each round's percentiles, averaged over the rounds but for the two lowest and highest. */
struct row summary(uint32_t (*ns)[SAMPLES], uint32_t n);
struct row one_summary(uint32_t *ns, uint32_t n);
/* 1: an AMD processor; prints which one. */
int cpu_print(void);

static inline uint32_t mode_now(void)
{
    return TKR_LOAD_RELAXED(&shared->mode);
}

/* ring_rivals.c: before the fork; then one side each. A round fills ns[n]. */
void rivals_init(void);
void rival_serve(enum mode mode);
void rival_round(enum contest contest, uint32_t *ret_ns, uint32_t n, uint32_t warm);
/* NULL, or why it cannot be measured here. */
const char *rival_missing(enum contest contest);

/* ring_attack.c */
struct tkr_conn; /* the client library's */
enum transport attack_transport(uint32_t attack);
void attack_slice(struct tkr_conn *honest, uint32_t number);
/* The table, and by how much an honest client's p99 round trip grows at worst; floods apart. */
void attacks_print(double rtt_p99, double *ret_quiet, double *ret_flood);

/* ring_daemon.c */
_Noreturn void daemon_process(void);

#endif
