/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_ring.c - clients, daemon and futex words in one thread, interleaved by a seeded generator at
 * each access to shared memory, and killed at any of them.
 *
 * The daemon is the real runtime/io; clients use the real shm/ring.h and shm/doorbell.h. Memory is
 * x86-TSO: each side's stores pass through a buffer that is emptied entry by entry at random or by
 * a fence (weaker machines are the business of tests/model-check). What is checked:
 *
 *   I1, I2  somebody can always run: with work in flight, all asleep is a lost wake; and gets on
 *   I3      what a slot says belongs to the request that it names
 *   I4      one terminal line for each request, none of its lines after that
 *   I5      positions of a request are without a gap, also over the death of a daemon
 *   I6      no more is published than was generated; the daemon takes from one client while
 *           another does not read
 *
 * Each planted mistake has to be caught, else the checks are worth nothing.
 */
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "runtime/io/state.h"

#define CLIENTS     2u
#define QUEUES      2u
#define TAGS        4u
#define ARENA       4096u
#define LENGTH_MAX  40u /* longer than the completion queue */
#define PAUSE_MAX   400u /* turns that a lonely client waits before it asks again */
#define NAP_MAX     4000u /* and that a busy one does not read for, now and then: the queue fills */
#define KERNEL_MAX  32u /* that a system call takes until it compares a futex word */
#define BUFFER      12u
#define STACK_BYTES (64u << 10)
#define DAEMON      CLIENTS /* the last actor */
#define ACTORS      (CLIENTS + 1)
#define STEPS       2000000u
#define STEPS_LONG  200000000u
#define STEPS_CATCH 4000000u /* within which each planted mistake has to show */
#define KILL_EVERY  3000u
#define STUCK       200000u /* steps without a line read by a client, which always has requests in work */
#define SKIP        1000u /* a sleeping timer is let wait so often */

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
    int asleep, timer;
};

struct ask {
    uint64_t user; /* 0: free */
    uint32_t length, received;
    int cancelled;
};

struct sim_client {
    struct tkr_region r, t;
    struct tkr_r_header rh;
    struct tkr_t_header th;
    struct tkr_ring_out sq[QUEUES];
    struct tkr_ring_in cq;
    struct ask asks[TAGS];
    uint64_t last_user;
    int gone; /* its daemon died: attach to the next one */
    struct io_client *at_daemon;
    uint64_t line_step; /* when it read its last line */
};

struct bell_wait {
    const uint32_t *word;
    uint64_t data;
    int armed, fired;
};

static struct actor actors[ACTORS];
static struct sim_client clients[CLIENTS];
static struct bell_wait waits[(CLIENTS * 2 + IO_CONNS_SPARE) * TKR_NSQ_MAX];
static int pidfd_fired[CLIENTS * 2 + IO_CONNS_SPARE];
static ucontext_t scheduler;
static uint32_t now_running;
static struct io io;
static struct io_user user;
static uint64_t generator;
static enum mistake mistake;
static int lonely; /* one client, one request, much sleep: else the others' wakes hide a lost one */
static const char *violation;
static uint64_t steps, kills_client, kills_daemon, lines, asked_total, done_total;
static int attached_event; /* the control socket has told the daemon of a client */
static int last_look_lies; /* DAEMON_PARKS_WITHOUT_LAST_LOOK: of the next load of a slot */

static uint64_t dice(void)
{
    generator ^= generator >> 12;
    generator ^= generator << 25;
    generator ^= generator >> 27;
    return (generator * 0x2545f4914f6cdd1du) >> 20;
}

static void broken(const char *what)
{
    if (!violation)
        violation = what;
}

/* ---- memory --------------------------------------------------------------------------------------- */

static void yield(void)
{
    struct actor *a = &actors[now_running];

    swapcontext(&a->context, &scheduler);
}

static void turns_pass(uint64_t max)
{
    for (uint64_t n = 1 + dice() % max; n > 0; n--)
        yield();
}

static void store_now(const struct buffered *b)
{
    memcpy(b->ptr, &b->value, b->bytes);
}

static void buffer_pop(struct actor *a)
{
    store_now(&a->buffer[0]);
    memmove(a->buffer, a->buffer + 1, --a->n_buffer * sizeof *a->buffer);
}

static void buffer_drain(struct actor *a)
{
    while (a->n_buffer)
        buffer_pop(a);
}

uint64_t sim_load(const void *ptr, size_t bytes)
{
    struct actor *a = &actors[now_running];
    uint64_t value = 0;

    yield();
    if (last_look_lies && now_running == DAEMON) {
        last_look_lies = 0;
        return 0;
    }
    memcpy(&value, ptr, bytes);
    for (uint32_t i = 0; i < a->n_buffer; i++) /* the newest of its own stores counts */
        if (a->buffer[i].ptr == ptr)
            value = a->buffer[i].value;
    return value;
}

void sim_store(void *ptr, uint64_t value, size_t bytes)
{
    struct actor *a = &actors[now_running];

    yield();
    if (a->n_buffer == BUFFER)
        buffer_pop(a);
    a->buffer[a->n_buffer++] = (struct buffered){ptr, value, bytes};
}

void sim_fence(void)
{
    yield();
    if (mistake == DAEMON_PARKS_WITHOUT_FENCE && now_running == DAEMON)
        return;
    if (mistake == CLIENT_RINGS_WITHOUT_FENCE && now_running != DAEMON)
        return;
    buffer_drain(&actors[now_running]);
    if (mistake == DAEMON_PARKS_WITHOUT_LAST_LOOK && now_running == DAEMON)
        last_look_lies = 1;
}

void sim_region_close(struct tkr_region *region)
{
    buffer_drain(&actors[DAEMON]);
    if (region->base)
        munmap(region->base, (size_t)region->bytes);
    region->base = NULL;
}

/* Else the host's scheduler would have a say in the run. */
int sched_getcpu(void)
{
    return 0;
}

/* ---- futexes and the daemon's loop ------------------------------------------------------------------ */

static void daemon_event(void)
{
    actors[DAEMON].asleep = 0;
}

/* System calls empty the buffer, as the locks in the kernel do. */
int tkr_futex_wait(const uint32_t *word, uint32_t value, int64_t timeout_ns)
{
    struct actor *a = &actors[now_running];

    (void)timeout_ns;
    yield();
    buffer_drain(a);
    if (*word != value || clients[now_running].gone)
        return -EAGAIN;
    a->sleeps_on = word;
    a->asleep = 1;
    yield();
    a->sleeps_on = NULL;
    return 0;
}

int tkr_futex_wake(const uint32_t *word, int n)
{
    yield();
    buffer_drain(&actors[now_running]);
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (actors[i].asleep && actors[i].sleeps_on == word)
            actors[i].asleep = 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].armed && waits[i].word == word) {
            waits[i].fired = 1;
            daemon_event();
        }
    return n;
}

int tkr_doorbell_send(int socket)
{
    (void)socket;
    return 0;
}

static int sim_poll(struct io *of, int fd, uint32_t events, uint64_t data)
{
    (void)of;
    (void)fd;
    (void)events;
    (void)data;
    return 0;
}

static int sim_cancel(struct io *of, int fd, uint64_t data)
{
    (void)of;
    (void)fd;
    if (data >> 56 != IO_EVENT_BELL)
        return 1;
    waits[(uint32_t)data].fired = 1; /* it is told that it was cancelled */
    return 0;
}

static void sim_submit(struct io *of)
{
    (void)of;
}

static int events_there(void)
{
    if (attached_event)
        return 1;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].fired)
            return 1;
    for (size_t i = 0; i < sizeof pidfd_fired / sizeof *pidfd_fired; i++)
        if (pidfd_fired[i])
            return 1;
    return 0;
}

static int sim_flagged(const struct io *of)
{
    (void)of;
    return events_there();
}

static void events_deliver(void)
{
    attached_event = 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].fired) {
            uint64_t data = waits[i].data;

            waits[i] = (struct bell_wait){NULL, 0, 0, 0};
            loop_handle(&io, data);
        }
    for (uint32_t i = 0; i < sizeof pidfd_fired / sizeof *pidfd_fired; i++)
        if (pidfd_fired[i]) {
            pidfd_fired[i] = 0;
            loop_handle(&io, (uint64_t)IO_EVENT_PIDFD << 56 | i);
        }
}

static void sim_wait(struct io *of, uint64_t timeout_ns)
{
    (void)of;
    yield();
    buffer_drain(&actors[DAEMON]);
    if (timeout_ns && !events_there()) {
        actors[DAEMON].asleep = 1;
        actors[DAEMON].timer = timeout_ns != UINT64_MAX;
        yield();
    }
    events_deliver();
}

const struct loop_ops loop_uring = {.name = "sim",
                                    .poll = sim_poll,
                                    .cancel = sim_cancel,
                                    .submit = sim_submit,
                                    .flagged = sim_flagged,
                                    .wait = sim_wait};

int uring_has_futex(struct io *of)
{
    (void)of;
    return 1;
}

void uring_futex(struct io *of, const uint32_t *word, uint32_t value, uint64_t data)
{
    struct bell_wait *wait = &waits[(uint32_t)data];

    (void)of;
    turns_pass(KERNEL_MAX);
    buffer_drain(&actors[DAEMON]);
    *wait = (struct bell_wait){.word = word, .data = data, .armed = 1};
    /* The kernel compares before it sleeps; with the mistake it is told the newest value. */
    wait->fired = mistake != DAEMON_READS_THE_BELL_TOO_LATE && *word != value;
}

/* ---- the daemon ------------------------------------------------------------------------------------------ */

struct work {
    struct io_client *client;
    uint64_t user;
    uint32_t tag, length, generated;
    int cancelled;
};

static struct work works[CLIENTS * 2 * TAGS];

static uint32_t token_of(uint64_t of, uint32_t pos)
{
    return (uint32_t)(of * 2654435761u) ^ (pos * 40503u + 7);
}

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe, uint64_t seen_ns)
{
    (void)ctx;
    (void)seen_ns;
    if (sqe->data_off != (uint32_t)(sqe->user % 64) * 64)
        broken("I3: a slot is of two requests");
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        if (!works[i].client) {
            works[i] = (struct work){client, sqe->user, sqe->tag, sqe->max_tokens, sqe->resume_pos, 0};
            return;
        }
    broken("the daemon holds more requests than there are tags");
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t of)
{
    (void)ctx;
    (void)tag;
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        if (works[i].client == client && works[i].user == of)
            works[i].cancelled = 1;
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        if (works[i].client == client) {
            io_done(client, works[i].tag, works[i].user, TKR_E_ABORTED, NULL);
            works[i].client = NULL;
        }
}

/* One token of each request, as far as there is room. 1: something can go on at once. */
static int step(void)
{
    int more = 0;

    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        struct work *w = &works[i];
        struct tkr_cqe cqe = {.kind = TKR_CQE_TOKEN, .ntok = 1, .user = w->user, .tag = (uint16_t)w->tag};

        if (!w->client)
            continue;
        if (w->generated < w->length && !w->cancelled) {
            cqe.pos = w->generated;
            cqe.u.token.tok[0] = token_of(w->user, w->generated);
            if (io_put(w->client, &cqe) < 0)
                continue; /* I6: nobody waits for its reader */
            w->generated++;
            more = 1;
        } else {
            io_done(w->client, w->tag, w->user, w->cancelled ? TKR_E_CANCELLED : TKR_OK, NULL);
            w->client = NULL;
        }
    }
    return more;
}

static void daemon_main(void)
{
    for (;;) {
        io_pass(&io);
        if (step())
            io_control(&io);
        else
            io_sleep(&io, 0);
    }
}

static void io_start(void)
{
    static struct io_client *table[sizeof pidfd_fired / sizeof *pidfd_fired];
    static struct io_client *members[IO_SETS][sizeof pidfd_fired / sizeof *pidfd_fired];
    static struct io_queue *queues[IO_QUEUE_STATES][sizeof waits / sizeof *waits];

    memset(&io, 0, sizeof io);
    memset(table, 0, sizeof table);
    memset(waits, 0, sizeof waits);
    memset(pidfd_fired, 0, sizeof pidfd_fired);
    memset(works, 0, sizeof works);
    user = (struct io_user){.uid = 1};
    io.ops = (struct io_ops){.submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    io.opt.op_bitmap[0] = 1u << TKR_OP_GENERATE | 1u << TKR_OP_NOOP;
    io.loop = &loop_uring;
    io.doorbell = TKR_DOORBELL_FUTEX;
    io.listen_fd = io.kick_fd = -1;
    io.table = table;
    io.table_max = io.opt.clients_max = sizeof table / sizeof *table;
    for (int i = 0; i < IO_SETS; i++)
        io.set[i] = members[i];
    for (int i = 0; i < IO_QUEUE_STATES; i++)
        io.queues[i] = queues[i];
}

/* ---- clients ---------------------------------------------------------------------------------------------- */

static void *memory(uint64_t bytes)
{
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED)
        abort();
    return base;
}

static void attach(struct sim_client *c)
{
    struct tkr_grant grant = {.arena_len = ARENA, .nsq = QUEUES, .sq_log2 = 4, .cq_log2 = 5, .max_inflight = TAGS};
    struct io_client *at = client_new(&io, -1);

    tkr_r_layout(&c->rh, &grant);
    tkr_t_layout(&c->th, &grant);
    c->r = (struct tkr_region){memory(c->rh.region_len), c->rh.region_len, -1};
    c->t = (struct tkr_region){memory(c->th.region_len), c->th.region_len, -1};
    for (uint32_t q = 0; q < QUEUES; q++)
        tkr_ring_out_init(&c->sq[q], (uint8_t *)c->r.base + c->rh.sq_off + (size_t)c->rh.sq_stride * q, 4);
    tkr_ring_in_init(&c->cq, (uint8_t *)c->t.base + c->th.cq_off, 5);
    at->grant = grant;
    at->r = c->r;
    at->t = c->t;
    at->user = &user;
    user.n_conns++;
    if (client_bind(at, &c->rh, &c->th) < 0)
        abort();
    at->state = IO_CLIENT_LIVE;
    io.n_half_open--;
    io.n_live++;
    /* The first state of a queue is HOT, with T still zero. */
    for (uint32_t q = 0; q < QUEUES; q++)
        queue_move(&at->queue[q], IO_QUEUE_HOT);
    c->at_daemon = at;
    c->gone = 0;
    c->line_step = steps;
    attached_event = 1;
    daemon_event();
}

static uint32_t *r_word(const struct sim_client *c, uint32_t off)
{
    return (uint32_t *)(void *)((uint8_t *)c->r.base + off);
}

static const uint32_t *t_word(const struct sim_client *c, uint32_t off)
{
    return (const uint32_t *)(const void *)((const uint8_t *)c->t.base + c->th.ctl_off + off);
}

static void slot_put(struct sim_client *c, uint32_t q, const struct tkr_sqe *sqe)
{
    if (mistake == CLIENT_STORES_SEQ_FIRST) {
        uint64_t *slot = c->sq[q].slots + (size_t)(c->sq[q].pos & c->sq[q].mask) * TKR_SLOT_WORDS;

        TKR_STORE_RELEASE((uint32_t *)(void *)slot, c->sq[q].pos + 1);
    }
    tkr_ring_put(&c->sq[q], sqe);
}

static void submit(struct sim_client *c, uint32_t tag)
{
    const struct ask *ask = &c->asks[tag];
    uint32_t q = (uint32_t)dice() % QUEUES;
    struct tkr_sqe sqe = {.op = TKR_OP_GENERATE,
                          .tag = (uint16_t)tag,
                          .user = ask->user,
                          .data_kind = TKR_DATA_TEXT,
                          .data_off = (uint32_t)(ask->user % 64) * 64,
                          .max_tokens = ask->length,
                          .resume_pos = mistake == CLIENT_FORGETS_WHAT_IT_RECEIVED ? 0 : ask->received};

    tkr_ring_credit(&c->sq[q], TKR_LOAD_ACQUIRE(t_word(c, TKR_T_SQ_HEAD(q)))); /* never full: 4 tags */
    slot_put(c, q, &sqe);
    tkr_doorbell_ring(r_word(c, c->rh.ctl_off + TKR_R_BELL(q)), t_word(c, TKR_T_NEED_WAKEUP(q)));
}

static void line_read(struct sim_client *c, const struct tkr_cqe *cqe)
{
    struct ask *ask = &c->asks[cqe->tag % TAGS];

    lines++;
    c->line_step = steps;
    if (cqe->tag >= TAGS || ask->user != cqe->user || !cqe->user) {
        broken("I4: a line of a request that does not live");
    } else if (cqe->kind == TKR_CQE_TOKEN) {
        if (cqe->pos != ask->received || cqe->pos >= ask->length)
            broken("I5: a position was lost or came again");
        if (cqe->u.token.tok[0] != token_of(cqe->user, cqe->pos))
            broken("I3: a line is of two requests");
        ask->received++;
    } else if (cqe->kind == TKR_CQE_DONE) {
        if (cqe->status == TKR_OK && ask->received != ask->length)
            broken("I5: the end came before all tokens");
        if (cqe->status != TKR_OK && !(cqe->status == TKR_E_CANCELLED && ask->cancelled))
            broken("a request ended otherwise than it should");
        ask->user = 0;
        done_total++;
    } else {
        broken("a line of no kind");
    }
}

static uint32_t lines_read(struct sim_client *c)
{
    struct tkr_cqe cqe;
    uint32_t n = 0;

    for (; n < 4; n++) {
        struct tkr_ring_in last = c->cq;

        last.pos += 15;
        if (mistake == CLIENT_GIVES_LINES_BACK_EARLY && n == 0 && tkr_ring_ready(&last))
            TKR_STORE_RELEASE(r_word(c, c->rh.ctl_off + TKR_R_CQ_HEAD), last.pos + 1);
        if (tkr_ring_take(&c->cq, &cqe) < 0)
            break;
        line_read(c, &cqe);
    }
    if (n)
        TKR_STORE_RELEASE(r_word(c, c->rh.ctl_off + TKR_R_CQ_HEAD), c->cq.pos);
    return n;
}

/* Sleeps as docs/abi.md says; the steps' order is what is tested. */
static void client_sleep(struct sim_client *c)
{
    const uint32_t *bell = t_word(c, TKR_T_CQ_BELL);
    uint64_t *wait = (uint64_t *)(void *)r_word(c, c->rh.ctl_off + TKR_R_WAIT);
    uint32_t value = TKR_LOAD_ACQUIRE(bell);

    TKR_STORE_RELAXED(wait, TKR_WAIT_ASLEEP | (uint32_t)(c->cq.pos + 1));
    if (mistake != CLIENT_SLEEPS_WITHOUT_FENCE)
        tkr_fence();
    if (mistake == CLIENT_SLEEPS_WITHOUT_LAST_LOOK || !tkr_ring_ready(&c->cq)) {
        if (mistake == CLIENT_READS_ITS_BELL_TOO_LATE)
            value = TKR_LOAD_ACQUIRE(bell);
        tkr_futex_wait(bell, value, -1);
    }
    TKR_STORE_RELAXED(wait, (uint64_t)0);
}

static void client_again(struct sim_client *c)
{
    struct actor *a = &actors[now_running];

    while (lines_read(c)) /* what was published is not lost */
        ;
    buffer_drain(a);
    munmap(c->r.base, (size_t)c->r.bytes);
    munmap(c->t.base, (size_t)c->t.bytes);
    attach(c);
    for (uint32_t tag = 0; tag < TAGS; tag++)
        if (c->asks[tag].user)
            submit(c, tag);
}

static void ask_new(struct sim_client *c, uint32_t tag)
{
    c->asks[tag] = (struct ask){.user = ++c->last_user, .length = 1 + (uint32_t)dice() % LENGTH_MAX};
    asked_total++;
    submit(c, tag);
}

static void lonely_turn(struct sim_client *c)
{
    if (!c->asks[0].user) {
        turns_pass(PAUSE_MAX);
        ask_new(c, 0);
    } else if (!lines_read(c)) {
        client_sleep(c);
    }
}

static void busy_turn(struct sim_client *c)
{
    uint32_t tag = (uint32_t)dice() % TAGS;
    struct ask *ask = &c->asks[tag];

    if (!ask->user) {
        ask_new(c, tag);
    } else if (dice() % 64 == 0) {
        ask->cancelled = 1;
        TKR_STORE_RELAXED(r_word(c, c->rh.cancel_off + 4 * tag), (uint32_t)ask->user);
    }
    if (dice() % 64 == 0)
        turns_pass(NAP_MAX);
    /* Some read at once, some late. */
    if (dice() % 4 && !lines_read(c) && dice() % 2)
        client_sleep(c);
}

static void client_main(void)
{
    struct sim_client *c = &clients[now_running];

    for (;;) {
        if (c->gone)
            client_again(c);
        if (lonely)
            lonely_turn(c);
        else
            busy_turn(c);
    }
}

/* ---- the scheduler ------------------------------------------------------------------------------------------- */

static void actor_start(uint32_t at)
{
    struct actor *a = &actors[at];
    char *stack = a->stack ? a->stack : malloc(STACK_BYTES);

    *a = (struct actor){.stack = stack};
    getcontext(&a->context);
    a->context.uc_stack.ss_sp = stack;
    a->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&a->context, at == DAEMON ? daemon_main : client_main, 0);
}

static void client_kill(uint32_t at)
{
    struct sim_client *c = &clients[at];

    if (c->gone || !c->at_daemon || c->at_daemon->state != IO_CLIENT_LIVE || io.n_table == io.table_max)
        return;
    buffer_drain(&actors[at]);
    pidfd_fired[c->at_daemon->slot] = 1; /* the daemon unmaps the regions when it has seen this */
    daemon_event();
    *c = (struct sim_client){.last_user = c->last_user + 100};
    actor_start(at);
    attach(c);
    kills_client++;
}

static void client_memory_free(struct io_client *client, int regions)
{
    if (regions) {
        munmap(client->r.base, (size_t)client->r.bytes);
        munmap(client->t.base, (size_t)client->t.bytes);
    }
    free(client->active);
    free(client->active_user);
    free(client->tags);
    free(client->bulk);
    free(client);
}

static void daemon_kill(void)
{
    buffer_drain(&actors[DAEMON]);
    /* Regions of living clients stay theirs. */
    for (uint32_t i = 0; i < io.table_max; i++) {
        int living = 0;

        for (uint32_t k = 0; io.table[i] && k < CLIENTS; k++)
            living |= !clients[k].gone && clients[k].at_daemon == io.table[i];
        if (io.table[i])
            client_memory_free(io.table[i], !living);
    }
    io_start();
    actor_start(DAEMON);
    for (uint32_t i = 0; i < CLIENTS && (clients[i].at_daemon || clients[i].gone); i++) {
        clients[i].gone = 1;
        clients[i].at_daemon = NULL;
        actors[i].asleep = 0; /* the socket says so */
    }
    kills_daemon++;
}

static int nobody_can_run(void)
{
    for (uint32_t i = 0; i < ACTORS; i++)
        if (!actors[i].asleep || actors[i].n_buffer || actors[i].timer)
            return 0;
    return 1;
}

static void one_step(int kills)
{
    uint32_t at = (uint32_t)dice() % ACTORS;
    struct actor *a = &actors[at];

    steps++;
    if (at < CLIENTS && clients[at].at_daemon && steps - clients[at].line_step > STUCK)
        broken("I1: a client does not get on");
    if (a->n_buffer && dice() % 4 == 0) {
        buffer_pop(a);
        return;
    }
    if (kills && dice() % KILL_EVERY == 0) {
        if (dice() % 4)
            client_kill((uint32_t)dice() % CLIENTS);
        else
            daemon_kill();
        return;
    }
    if (a->asleep && a->timer && dice() % SKIP == 0)
        a->asleep = 0;
    if (a->asleep) {
        if (nobody_can_run())
            broken("I1, I2: a wake was lost: all sleep");
        return;
    }
    a->timer = 0;
    now_running = at;
    swapcontext(&scheduler, &a->context);
}

/* NULL, or the invariant that was broken. */
static const char *run(uint64_t seed, uint64_t n, enum mistake planted, int kills)
{
    uint32_t n_clients;

    generator = seed * 2 + 1;
    mistake = planted;
    lonely = seed % 2;
    n_clients = lonely ? 1 : CLIENTS;
    violation = NULL;
    last_look_lies = 0;
    memset(clients, 0, sizeof clients);
    io_start();
    for (uint32_t i = 0; i < ACTORS; i++)
        actor_start(i);
    for (uint32_t i = 0; i < n_clients; i++)
        attach(&clients[i]);
    for (uint32_t i = n_clients; i < CLIENTS; i++)
        actors[i].asleep = 1;
    while (n-- && !violation)
        one_step(kills);
    for (uint32_t i = 0; i < ACTORS; i++)
        buffer_drain(&actors[i]);
    for (uint32_t i = 0; i < io.table_max; i++)
        if (io.table[i])
            client_memory_free(io.table[i], 1);
    return violation;
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static uint64_t steps_wanted(void)
{
    const char *is_long = getenv("TOKENRING_LONG");

    return is_long && *is_long && *is_long != '0' ? STEPS_LONG : STEPS;
}

START_TEST(no_wake_is_lost_and_no_line_is_wrong_in_any_interleaving)
{
    uint64_t n = steps_wanted();

    steps = lines = 0;
    for (uint64_t seed = 1; seed <= 10; seed++)
        ck_assert_msg(!run(seed, n / 10, MISTAKE_NONE, 0), "seed %d: %s", (int)seed, violation);
    printf("# %llu steps, %llu lines\n", (unsigned long long)steps, (unsigned long long)lines);
    ck_assert_uint_gt(lines, n / 1000);
}
END_TEST

START_TEST(kills_at_any_access_lose_repeat_and_change_no_token)
{
    uint64_t n = steps_wanted();

    steps = lines = kills_client = kills_daemon = 0;
    for (uint64_t seed = 11; seed <= 20; seed++)
        ck_assert_msg(!run(seed, n / 10, MISTAKE_NONE, 1), "seed %d: %s", (int)seed, violation);
    printf("# %llu steps, %llu lines, %llu clients and %llu daemons killed\n", (unsigned long long)steps,
           (unsigned long long)lines, (unsigned long long)kills_client, (unsigned long long)kills_daemon);
    ck_assert_uint_gt(kills_client, 100);
    ck_assert_uint_gt(kills_daemon, 50);
}
END_TEST

START_TEST(a_run_is_a_function_of_its_seed)
{
    uint64_t first[2], again[2];

    lines = asked_total = 0;
    ck_assert_ptr_null(run(5, 300000, MISTAKE_NONE, 1));
    first[0] = lines, first[1] = asked_total;
    lines = asked_total = 0;
    ck_assert_ptr_null(run(5, 300000, MISTAKE_NONE, 1));
    again[0] = lines, again[1] = asked_total;
    ck_assert_mem_eq(first, again, sizeof first);
}
END_TEST

START_TEST(each_planted_mistake_is_caught)
{
    enum mistake planted = (enum mistake)_i;
    int kills = planted == CLIENT_FORGETS_WHAT_IT_RECEIVED;

    for (uint64_t seed = 1; seed <= 8; seed++)
        if (run(seed, STEPS_CATCH / 8, planted, kills || seed > 6))
            break;
    ck_assert_msg(violation != NULL, "mistake %d shows nowhere", _i);
    printf("# mistake %d: %s\n", _i, violation);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sim_ring");
    TCase *tc = tcase_create("sim_ring");
    SRunner *sr;

    tcase_set_timeout(tc, 3600);
    tcase_add_test(tc, no_wake_is_lost_and_no_line_is_wrong_in_any_interleaving);
    tcase_add_test(tc, kills_at_any_access_lose_repeat_and_change_no_token);
    tcase_add_test(tc, a_run_is_a_function_of_its_seed);
    tcase_add_loop_test(tc, each_planted_mistake_is_caught, MISTAKE_NONE + 1, MISTAKES);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
