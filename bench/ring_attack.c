/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_attack.c - what a hostile client on a core of its own adds to the daemon's passes.
 *
 * Three spinning processes do not fit two cores, so the honest client's loss is put together from
 * two measurements: its calm round trip, and how much longer the daemon's pass takes at its 99th
 * percentile while the attacker has the other core. The honest client is attached and hot
 * meanwhile, with a request now and then. Each attack is compared with the calm passes of its own
 * round. Malformed slots get their sender detached: it attaches again, and only the passes between
 * are timed.
 */
#include "bench/median.h"
#include "bench/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <tokenring/tokenring.h>
#include "tests/unit/raw_client.h"

#define SLICE_NS  60000000u /* of one attack in one round */
#define HONEST_NS 30000u    /* between requests that keep a queue hot, below the default's 50 us */
#define AWAKE_NS  2000000u  /* the same where queues park later: far below 1 % of the passes */
#define SQ_LOG2   6u
#define TAGS      256u
#define LIVE      STREAMS /* requests that never end */
#define COLLAPSE  25      /* MADV_COLLAPSE, which older headers lack */
#define BAD_OP    200u

struct attacker {
    struct raw_client raw;
    uint64_t dice;
    uint64_t lied_at;
    int lazy; /* does not keep its queues hot, and takes no lines */
};

/* xorshift64* of Vigna. */
static uint64_t dice(struct attacker *a)
{
    a->dice ^= a->dice >> 12;
    a->dice ^= a->dice << 25;
    a->dice ^= a->dice >> 27;
    return a->dice * 0x2545f4914f6cdd1du;
}

static void attach(struct attacker *a, enum transport transport, uint32_t n_queues)
{
    const struct timeval wait = {.tv_sec = 5};
    struct raw_client *c = &a->raw;
    int err;

    memset(c, 0, sizeof *c);
    c->socket = raw_connect(ring_paths[transport]);
    if (c->socket < 0)
        die("the attacker's socket");
    setsockopt(c->socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    c->hello.arena_len = c->hello.bulk_len = 65536;
    c->hello.nsq = n_queues;
    c->hello.sq_log2 = SQ_LOG2;
    c->hello.cq_log2 = 12;
    c->hello.max_inflight = TAGS;
    err = raw_attach(c);
    if (err < 0) {
        fprintf(stderr, "bench_ring: the attacker was not attached: %s\n", strerror(-err));
        exit(1);
    }
    shared->attack_attached++;
}

/* 1: it was put. */
static int put(struct attacker *a, uint32_t q, const struct tkr_sqe *sqe)
{
    struct raw_queue *queue = &a->raw.queue[q];

    if (!tkr_ring_credit(&queue->sq, TKR_LOAD_ACQUIRE(queue->sq_head)))
        return 0;
    raw_queue_put(&a->raw, queue, sqe);
    return 1;
}

static void lines_take(struct attacker *a)
{
    struct tkr_cqe cqe;

    while (raw_take(&a->raw, &cqe, 0) == 0)
        continue;
}

static void noop_put(struct attacker *a, uint32_t q)
{
    struct tkr_sqe sqe = raw_noop(&a->raw, 0);

    put(a, q, &sqe);
}

/* ---- the attacks: a few microseconds of each ------------------------------------------------- */

static uint32_t *polled(struct attacker *a, uint32_t q)
{
    struct tkr_ring_out *sq = &a->raw.queue[q].sq;

    return (uint32_t *)(void *)(sq->slots + (size_t)(sq->pos & sq->mask) * TKR_SLOT_WORDS);
}

static void stores(struct attacker *a)
{
    for (uint32_t i = 0; i < 200; i++)
        for (uint32_t q = 0; q < a->raw.rh.nsq; q++)
            TKR_STORE_RELAXED(polled(a, q), a->raw.queue[q].sq.pos - i); /* never the one due */
}

static void locked_adds(struct attacker *a)
{
    for (uint32_t i = 0; i < 100; i++)
        for (uint32_t q = 0; q < a->raw.rh.nsq; q++)
            __atomic_fetch_add(polled(a, q) + 2, 1, __ATOMIC_SEQ_CST);
}

static void garbage(struct attacker *a)
{
    for (uint32_t q = 0; q < a->raw.rh.nsq; q++)
        for (uint32_t i = 0; i < 1u << SQ_LOG2; i++)
            TKR_STORE_RELAXED(
                (uint32_t *)(void *)(a->raw.queue[q].sq.slots + (size_t)i * TKR_SLOT_WORDS),
                (uint32_t)(dice(a) >> 32));
}

/* Positions and wait words that make no sense, and a no-op now and then so that they are looked
 * at. */
static void lies_every(struct attacker *a, uint32_t ns)
{
    for (int i = 0; i < 50; i++) {
        TKR_STORE_RELEASE(a->raw.cq_head, (uint32_t)(dice(a) >> 32));
        TKR_STORE_RELEASE(a->raw.wait, dice(a));
        if (to_ns(ticks() - a->lied_at) > ns) {
            a->lied_at = ticks();
            noop_put(a, 0);
        }
    }
}

static void lies(struct attacker *a)
{
    lies_every(a, HONEST_NS);
}

static void busy_lies(struct attacker *a)
{
    lies_every(a, 2000);
}

/* Words of requests that live, each naming another one than does. */
static void cancel_words(struct attacker *a)
{
    for (int i = 0; i < 4; i++)
        for (uint32_t tag = 0; tag < LIVE; tag++)
            TKR_STORE_RELAXED(a->raw.cancel + tag, 0x80000000u | (uint32_t)i);
}

static void evictions(struct attacker *a)
{
    size_t bytes = (size_t)a->raw.r.bytes;

    madvise(a->raw.r.base, bytes, COLLAPSE);
    madvise(a->raw.r.base, bytes, MADV_PAGEOUT);
    madvise(a->raw.r.base, bytes, MADV_DONTNEED);
}

static void sq_flood(struct attacker *a)
{
    for (int i = 0; i < 8; i++)
        for (uint32_t q = 0; q < a->raw.rh.nsq; q++)
            noop_put(a, q);
    lines_take(a);
}

/* The same, each answer wakes somebody who is not there. */
static void wake_flood(struct attacker *a)
{
    TKR_STORE_RELEASE(a->raw.wait, TKR_WAIT_ASLEEP | a->raw.cq.pos);
    sq_flood(a);
}

static void malformed(struct attacker *a)
{
    for (int i = 0; i < 8; i++)
        for (uint32_t q = 0; q < a->raw.rh.nsq; q++)
            put(a, q, &(struct tkr_sqe){.op = BAD_OP, .user = ++a->raw.user});
    lines_take(a);
}

static void bells(struct attacker *a)
{
    for (uint32_t q = 0; q < a->raw.rh.nsq; q++) {
        uint32_t *bell = a->raw.queue[q].bell;

        TKR_STORE_RELEASE(bell, TKR_LOAD_RELAXED(bell) + 1);
        tkr_futex_wake(bell, 1);
    }
}

static const struct attack {
    const char *name;
    void (*step)(struct attacker *a); /* NULL: nobody attacks */
    enum transport transport;         /* PARKS: with the real idle time */
    uint32_t n_queues;
    int flood;
    int lazy;
    int live; /* LIVE requests first */
} attacks[ATTACKS] = {
    {.name = "calm", .transport = HOT},
    {.name = "calm, queues park after 50 us", .transport = PARKS},
    {.name = "stores to the polled line", .step = stores, .transport = HOT, .n_queues = 1},
    {.name = "... of 8 queues", .step = stores, .transport = HOT, .n_queues = 8},
    {.name = "locked adds to the polled line",
     .step = locked_adds,
     .transport = HOT,
     .n_queues = 1},
    {.name = "... of 8 queues", .step = locked_adds, .transport = HOT, .n_queues = 8},
    {.name = "garbage sequence numbers", .step = garbage, .transport = HOT, .n_queues = 1},
    {.name = "lying cq_head and wait", .step = lies, .transport = HOT, .n_queues = 1},
    {.name = "... with a no-op every 2 us",
     .step = busy_lies,
     .transport = HOT,
     .n_queues = 1,
     .flood = 1},
    {.name = "cancel words of 256 live requests",
     .step = cancel_words,
     .transport = HOT,
     .n_queues = 1,
     .lazy = 1,
     .live = 1},
    {.name = "evictions of R", .step = evictions, .transport = HOT, .n_queues = 1},
    {.name = "flood of no-ops", .step = sq_flood, .transport = HOT, .n_queues = 1, .flood = 1},
    {.name = "... in 8 queues", .step = sq_flood, .transport = HOT, .n_queues = 8, .flood = 1},
    {.name = "flood with wakes", .step = wake_flood, .transport = HOT, .n_queues = 1, .flood = 1},
    {.name = "malformed slots until detached",
     .step = malformed,
     .transport = HOT,
     .n_queues = 1,
     .flood = 1},
    {.name = "... in 8 queues", .step = malformed, .transport = HOT, .n_queues = 8, .flood = 1},
    {.name = "flood of bells",
     .step = bells,
     .transport = PARKS,
     .n_queues = 1,
     .flood = 1,
     .lazy = 1},
    {.name = "... of 8 queues",
     .step = bells,
     .transport = PARKS,
     .n_queues = 8,
     .flood = 1,
     .lazy = 1},
};

enum transport attack_transport(uint32_t attack)
{
    return attacks[attack].transport;
}

/* ---- the client process ---------------------------------------------------------------------- */

/* The honest client: one request under way, and the next one every_ns after it began. */
static void honest_step(tkr_conn *conn, tkr_req *req, uint32_t every_ns, uint64_t *began)
{
    tkr_event event;

    if (req->id) {
        int n = tkr_peek(conn, &event, 1);

        if (n < 0 || (n && event.status != TKR_OK)) {
            fprintf(stderr, "bench_ring: the honest client lost a request under attack\n");
            exit(1);
        }
        if (!n)
            return;
        tkr_release(conn, req->id);
        req->id = 0;
    }
    if (to_ns(ticks() - *began) < every_ns)
        return;
    *began = ticks();
    if (tkr_submit(conn, req, 1) != 1)
        die("tkr_submit");
}

static void attack_begin(struct attacker *a, const struct attack *attack)
{
    *a = (struct attacker){.dice = 88172645463325252u, .lazy = attack->lazy};
    attach(a, attack->transport, attack->n_queues);
    for (uint16_t tag = 0; attack->live && tag < LIVE; tag++) {
        struct tkr_sqe sqe = raw_noop(&a->raw, tag);

        sqe.op = TKR_OP_GENERATE;
        sqe.data_kind = TKR_DATA_TEXT;
        sqe.data_len = 4;
        sqe.max_tokens = TKR_MAX_TOKENS_NONE;
        while (!put(a, 0, &sqe))
            continue;
    }
}

static void attacker_step(struct attacker *a, const struct attack *attack, uint64_t *awake)
{
    if (!TKR_LOAD_ACQUIRE(&shared->attack_on)) { /* it was detached */
        raw_close(&a->raw);
        attack_begin(a, attack);
        TKR_STORE_RELEASE(&shared->attack_on, 1u);
    }
    if (!a->lazy && to_ns(ticks() - *awake) > AWAKE_NS) {
        *awake = ticks();
        lines_take(a);
        for (uint32_t q = 0; q < a->raw.rh.nsq; q++)
            noop_put(a, q);
    }
    attack->step(a);
}

/* The daemon process is in MODE_ATTACK. */
void attack_slice(tkr_conn *honest, uint32_t number)
{
    const struct attack *attack = &attacks[number];
    uint32_t every_ns = attack->transport == PARKS ? HONEST_NS : AWAKE_NS;
    uint64_t begin, honest_began = 0, awake = 0;
    struct attacker a;
    tkr_req req;

    tkr_req_init(&req, TKR_OP_NOOP);
    if (attack->step)
        attack_begin(&a, attack);
    TKR_STORE_RELEASE(&shared->attack_on, 1u);
    begin = ticks();
    while (to_ns(ticks() - begin) < SLICE_NS) {
        honest_step(honest, &req, every_ns, &honest_began);
        if (attack->step)
            attacker_step(&a, attack, &awake);
    }
    TKR_STORE_RELEASE(&shared->attack_on, 0u);
    while (req.id) {
        honest_began = ticks(); /* so that none follows */
        honest_step(honest, &req, every_ns, &honest_began);
    }
    if (attack->step)
        raw_close(&a.raw);
    rest(); /* the daemon process sees the hang-up */
}

/* ---- the figures ----------------------------------------------------------------------------- */

/* How much longer passes take, at their 99th percentile; prints the row. */
static double attack_row(uint32_t number, double rtt_p99)
{
    const struct attack *attack = &attacks[number];
    double p50[ATTACK_ROUNDS], p99[ATTACK_ROUNDS], look[ATTACK_ROUNDS], rise[ATTACK_ROUNDS];
    uint32_t detached = 0;
    double passes = 0;

    for (int i = 0; i < ATTACK_ROUNDS; i++) {
        const struct passes *calm = &shared->passes[attack->transport == PARKS][i];
        const struct passes *here = &shared->passes[number][i];

        p50[i] = here->p50;
        p99[i] = here->p99;
        look[i] = here->look_p99;
        rise[i] = here->p99 - calm->p99;
        detached += here->detached;
        passes += here->n;
    }
    printf("%-34s %9.0f %9.0f %9.0f %9.0f %9.2f %9u %9.0f\n", attack->name,
           median(p50, ATTACK_ROUNDS), median(p99, ATTACK_ROUNDS), median(rise, ATTACK_ROUNDS),
           median(look, ATTACK_ROUNDS), (rtt_p99 + median(rise, ATTACK_ROUNDS)) / rtt_p99, detached,
           passes);
    return median(rise, ATTACK_ROUNDS);
}

void attacks_print(double rtt_p99, double *ret_quiet, double *ret_flood)
{
    double worst[2] = {0, 0};

    printf("\n%d rounds of %u ms each; calm round trip p99 %.0f ns\n", ATTACK_ROUNDS,
           SLICE_NS / 1000000, rtt_p99);
    printf("%-34s %9s %9s %9s %9s %9s %9s %9s\n", "the daemon's pass under attack, ns", "p50",
           "p99", "p99 rise", "look p99", "ratio", "detached", "passes");
    for (uint32_t i = 0; i < ATTACKS; i++) {
        double rise = attack_row(i, rtt_p99);

        if (attacks[i].step && rise > worst[attacks[i].flood])
            worst[attacks[i].flood] = rise;
    }
    printf("the daemon lives; attackers attached %u, detached by force %u, memory errors %u\n",
           shared->attack_attached, shared->attack_struck, shared->attack_memory_errors);
    *ret_quiet = (rtt_p99 + worst[0]) / rtt_p99;
    *ret_flood = (rtt_p99 + worst[1]) / rtt_p99;
}
