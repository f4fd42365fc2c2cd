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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "tests/sim/sim_world.h"

#define QUEUES      2u
#define TAGS        4u
#define ARENA       4096u
#define LENGTH_MAX  40u   /* longer than the completion queue */
#define PAUSE_MAX   400u  /* turns that a lonely client waits before it asks again */
#define NAP_MAX     4000u /* and that a busy one does not read for, now and then: the queue fills */
#define STACK_BYTES (64u << 10)
#define STEPS       2000000u
#define STEPS_LONG  200000000u
#define STEPS_CATCH 4000000u /* within which each planted mistake has to show */
#define KILL_EVERY  3000u
#define STUCK       200000u /* steps without a line read by a client: it has always asked */
#define SKIP        1000u   /* a sleeping timer is let wait so often */

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

static struct sim_client clients[CLIENTS];
static struct io_user user;
static int lonely; /* one client, one request, much sleep: else the others' wakes hide a lost one */
static const char *violation;
static uint64_t steps, kills_client, kills_daemon, lines, asked_total, done_total;

static void broken(const char *what)
{
    if (!violation)
        violation = what;
}

/* ---- the daemon ------------------------------------------------------------------------------ */

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

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    (void)ctx;
    (void)seen_ns;
    if (sqe->data_off != (uint32_t)(sqe->user % 64) * 64)
        broken("I3: a slot is of two requests");
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        if (!works[i].client) {
            works[i] =
                (struct work){client, sqe->user, sqe->tag, sqe->max_tokens, sqe->resume_pos, 0};
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
        struct tkr_cqe cqe = {
            .kind = TKR_CQE_TOKEN, .ntok = 1, .user = w->user, .tag = (uint16_t)w->tag};

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
    static struct io_client *table[PLACES];
    static struct io_client *members[IO_SETS][PLACES];
    static struct io_queue *queues[IO_QUEUE_STATES][PLACES * TKR_NSQ_MAX];

    memset(&io, 0, sizeof io);
    memset(table, 0, sizeof table);
    world_reset();
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

/* ---- clients --------------------------------------------------------------------------------- */

static void *memory(uint64_t bytes)
{
    void *base =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED)
        abort();
    return base;
}

static void attach(struct sim_client *c)
{
    struct tkr_grant grant = {
        .arena_len = ARENA, .nsq = QUEUES, .sq_log2 = 4, .cq_log2 = 5, .max_inflight = TAGS};
    struct io_client *at = client_new(&io, -1);

    tkr_r_layout(&c->rh, &grant);
    tkr_t_layout(&c->th, &grant);
    c->r = (struct tkr_region){memory(c->rh.region_len), c->rh.region_len, -1};
    c->t = (struct tkr_region){memory(c->th.region_len), c->th.region_len, -1};
    for (uint32_t q = 0; q < QUEUES; q++)
        tkr_ring_out_init(&c->sq[q],
                          (uint8_t *)c->r.base + c->rh.sq_off + (size_t)c->rh.sq_stride * q, 4);
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
    c->gone = actors[c - clients].gone = 0;
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
                          .resume_pos =
                              mistake == CLIENT_FORGETS_WHAT_IT_RECEIVED ? 0 : ask->received};

    tkr_ring_credit(&c->sq[q],
                    TKR_LOAD_ACQUIRE(t_word(c, TKR_T_SQ_HEAD(q)))); /* never full: 4 tags */
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
    c->asks[tag] =
        (struct ask){.user = ++c->last_user, .length = 1 + (uint32_t)dice() % LENGTH_MAX};
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

/* ---- the scheduler --------------------------------------------------------------------------- */

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

    if (c->gone || !c->at_daemon || c->at_daemon->state != IO_CLIENT_LIVE ||
        io.n_table == io.table_max)
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
        clients[i].gone = actors[i].gone = 1;
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

/* ---- tests ----------------------------------------------------------------------------------- */

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
    printf("# %llu steps, %llu lines, %llu clients and %llu daemons killed\n",
           (unsigned long long)steps, (unsigned long long)lines, (unsigned long long)kills_client,
           (unsigned long long)kills_daemon);
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
