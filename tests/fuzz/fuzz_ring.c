/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ring.c - the daemon's reading of region R, against every byte string and a writer that
 * changes it meanwhile.
 *
 * Built with TKR_LOAD_HOOK: before each load of a byte of R the hook may overwrite any byte of R,
 * as a hostile client on another core would, and it traps when one pass reads a byte of the queues
 * twice, or anything outside of R. The real io_pass() and io_sleep() run over a client with one to
 * eight queues and beside an honest one, whose region must not change; only waiting and futex calls
 * are replaced. The input says what lies in R, what the daemon publishes, and what the writer does
 * between the loads.
 */
#include <string.h>
#include "runtime/io/state.h"
#include "tests/fuzz/steps.h"

#define ARENA      4096u
#define BULK       8192u
#define INFLIGHT   12u
#define SQ_LOG2    4u
#define R_BYTES    65536u
#define T_BYTES    32768u
#define CLIENTS    2u
#define PUMPS_MAX  32 /* of output lines in a turn */
#define HONEST_SEQ 1u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static _Alignas(4096) uint8_t r_bytes[R_BYTES], t_bytes[T_BYTES];
static _Alignas(4096) uint8_t honest_r[R_BYTES], honest_t[T_BYTES];
static uint32_t loaded[R_BYTES / 4]; /* the pass in which that word was loaded last */
static uint32_t pass;
static int watch; /* 1: a second load of a word of the queues is a double fetch */
static struct tkr_r_header layout, honest_layout;
static struct io io;
static struct io_client clients[CLIENTS];
static struct io_user users[CLIENTS];
static uint32_t submits, ends;

/* ---- what is replaced: system calls ---------------------------------------------------------- */

int tkr_futex_wait(const uint32_t *word, uint32_t value, int64_t timeout_ns)
{
    (void)word;
    (void)value;
    (void)timeout_ns;
    return -EAGAIN;
}

int tkr_futex_wake(const uint32_t *word, int n)
{
    const uint8_t *at = (const uint8_t *)word;

    /* The daemon wakes sleepers on its own words only. */
    TRAP_UNLESS((at >= t_bytes && at < t_bytes + T_BYTES) ||
                (at >= honest_t && at < honest_t + T_BYTES));
    return n;
}

int tkr_doorbell_send(int socket)
{
    TRAP_UNLESS(socket == -1);
    return 0;
}

static int fake_poll(struct io *of, int fd, uint32_t events, uint64_t data)
{
    (void)of;
    (void)fd;
    (void)events;
    (void)data;
    return 0;
}

static int fake_cancel(struct io *of, int fd, uint64_t data)
{
    (void)of;
    (void)fd;
    (void)data;
    return 1;
}

static void fake_submit(struct io *of)
{
    (void)of;
}

static int fake_flagged(const struct io *of)
{
    (void)of;
    return 0;
}

static void fake_wait(struct io *of, uint64_t timeout_ns)
{
    (void)of;
    (void)timeout_ns;
}

const struct loop_ops loop_uring = {.name = "fake",
                                    .poll = fake_poll,
                                    .cancel = fake_cancel,
                                    .submit = fake_submit,
                                    .flagged = fake_flagged,
                                    .wait = fake_wait};

int uring_has_futex(struct io *of)
{
    (void)of;
    return 1;
}

void uring_futex(struct io *of, const uint32_t *word, uint32_t value, uint64_t data)
{
    (void)of;
    (void)word;
    (void)value;
    (void)data;
}

/* ---- the writer ------------------------------------------------------------------------------ */

void tkr_load_hook(const void *ptr, size_t bytes)
{
    uintptr_t off = (uintptr_t)ptr - (uintptr_t)r_bytes;

    if (off >= R_BYTES) { /* of the honest client */
        off = (uintptr_t)ptr - (uintptr_t)honest_r;
        TRAP_UNLESS(off < honest_layout.region_len && bytes <= honest_layout.region_len - off);
        return;
    }
    steps++;
    TRAP_UNLESS(off < layout.region_len && bytes <= layout.region_len - off);
    if (watch && off >= layout.sq_off && off < layout.arena_off)
        for (size_t i = off / 4; i <= (off + bytes - 1) / 4; i++) {
            TRAP_UNLESS(loaded[i] != pass);
            /* The sequence word may be looked at again until it says that the slot is there. */
            if (i * 4 % TKR_LINE != layout.sq_off % TKR_LINE)
                loaded[i] = pass;
        }
    if (next_byte() < 64)
        r_bytes[next_word() % layout.region_len] = next_byte();
}

/* ---- the daemon that the transport calls ----------------------------------------------------- */

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    uint64_t data_end = (uint64_t)sqe->data_off + sqe->data_len;
    uint64_t param_end = (uint64_t)sqe->param_off + sqe->param_len;
    int was = watch;
    uint8_t copy[ARENA];

    (void)ctx;
    (void)seen_ns;
    submits++;
    TRAP_UNLESS(client == &clients[0]);
    TRAP_UNLESS(sqe->op == TKR_OP_GENERATE || sqe->op == TKR_OP_TOKENIZE);
    TRAP_UNLESS(sqe->tag < INFLIGHT && (uint32_t)sqe->user && !sqe->flags && !sqe->reserved);
    TRAP_UNLESS(!sqe->resume_pos || sqe->op == TKR_OP_GENERATE);
    if (sqe->data_kind == TKR_DATA_TEXT || sqe->data_kind == TKR_DATA_TOKENS)
        TRAP_UNLESS(data_end <= ARENA);
    else
        TRAP_UNLESS(!sqe->data_len && !sqe->data_off);
    TRAP_UNLESS(!sqe->param_len || (param_end <= ARENA && sqe->param_off % 8 == 0));
    watch = 0; /* a range of the arena may be named twice */
    TRAP_UNLESS(io_arena_copy(client, copy, sqe->data_off, sqe->data_len % 256) == 0);
    TRAP_UNLESS(io_arena_copy(client, copy, ARENA - 8, 9) == -EFAULT);
    TRAP_UNLESS(io_arena_copy(client, copy, UINT32_MAX, 2) == -EFAULT);
    watch = was;
    if (next_byte() & 1) {
        ends++;
        io_done(client, sqe->tag, sqe->user, TKR_OK, NULL);
    }
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    (void)ctx;
    TRAP_UNLESS(tag < INFLIGHT && client->tags[tag].user == user &&
                client->tags[tag].active_at != IO_NONE);
    if (next_byte() & 1) {
        ends++;
        io_done(client, tag, user, TKR_E_CANCELLED, NULL);
    }
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    while (client->n_active)
        io_done(client, client->active[0].tag, client->tags[client->active[0].tag].user,
                TKR_E_ABORTED, NULL);
}

/* ---- the hostile client ---------------------------------------------------------------------- */

/* Fills the next slots of a queue: raw bytes, or a good request with some fields spoilt. */
static void slots_fill(const struct io_queue *queue)
{
    for (uint32_t n = next_byte() % 12, pos = queue->sq.pos; n > 0; n--, pos++) {
        uint8_t *slot = r_bytes + layout.sq_off + (size_t)layout.sq_stride * queue->index +
                        (size_t)(pos & queue->sq.mask) * TKR_LINE;
        uint8_t how = next_byte(), kind = next_byte();
        struct tkr_sqe sqe = {.op = kind < 40   ? TKR_OP_CANCEL
                                    : kind < 60 ? TKR_OP_NOOP
                                    : kind < 70 ? TKR_OP_PAD
                                                : TKR_OP_GENERATE,
                              .tag = (uint16_t)(next_byte() % (INFLIGHT + 1)),
                              .user = pos * 8 + queue->index + 1u};

        if (sqe.op == TKR_OP_CANCEL)
            sqe.session = clients[0].n_active ? clients[0].tags[clients[0].active[0].tag].user : 1;
        if (sqe.op == TKR_OP_GENERATE)
            sqe.data_kind = TKR_DATA_TEXT, sqe.data_len = kind, sqe.data_off = next_byte() * 16u;
        if (how & 1)
            for (size_t i = 0; i < sizeof sqe; i++)
                ((uint8_t *)&sqe)[i] = next_byte();
        for (int k = (how >> 1) % 4; k > 0; k--) {
            size_t at = next_byte() % sizeof sqe;

            ((uint8_t *)&sqe)[at] = next_byte();
        }
        if (how < 240)
            sqe.seq = pos + 1;
        memcpy(slot, &sqe, sizeof sqe);
    }
}

/* Control words: the truth now and then, else whatever the input says. */
static void words_set(const struct io_client *client)
{
    uint8_t *ctl = r_bytes + layout.ctl_off;
    uint8_t how = next_byte();
    uint32_t tag = next_word() % INFLIGHT, word = next_word();

    if (how & 3)
        memcpy(ctl + TKR_R_CQ_HEAD, &client->cq.pos, 4);
    else
        memcpy(ctl + TKR_R_CQ_HEAD, &word, 4);
    if (how & 4) {
        uint64_t wait = TKR_WAIT_ASLEEP | (how & 8 ? TKR_WAIT_BY_SOCKET : 0) |
                        (uint32_t)(client->cq.pos + next_byte() % 4 - 1);

        memcpy(ctl + TKR_R_WAIT, &wait, 8);
    }
    if (how & 16)
        memcpy(ctl + TKR_R_SQ_WAIT(next_byte() % TKR_NSQ_MAX), &word, 4);
    if (how & 32)
        word = (uint32_t)client->tags[tag].user;
    if (how & 64)
        memcpy(r_bytes + layout.cancel_off + 4 * tag, &word, 4);
    if (how & 128) {
        word = client->tags[tag].bulk_user;
        memcpy(r_bytes + layout.release_off + 4 * tag, &word, 4);
    }
}

/* The kernel's answer to the waits that are armed: all of them, or as the input says. */
static void bells_fire(const struct io_client *client, int all)
{
    for (uint32_t q = 0; q < client->n_queues; q++)
        if (client->armed_bells >> q & 1 && (all || next_byte() < 64))
            loop_handle(&io, (uint64_t)IO_EVENT_BELL << 56 | queue_number(&client->queue[q]));
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void states_check(const struct io_client *client)
{
    uint32_t n = 0;

    for (int i = IO_QUEUE_HOT; i < IO_QUEUE_STATES; i++)
        n += io.n_queues[i];
    TRAP_UNLESS(n == clients[0].n_queues + clients[1].n_queues);
    TRAP_UNLESS(client->n_active <= INFLIGHT && client->reserved == client->n_active);
    TRAP_UNLESS(tkr_ring_room(&client->cq) >= client->reserved);
    TRAP_UNLESS(submits - ends == client->n_active);
}

static void publish(struct io_client *client)
{
    for (int n = next_byte() % PUMPS_MAX; n > 0 && client->n_active; n--) {
        uint32_t tag = client->active[next_byte() % client->n_active].tag, off;
        struct tkr_cqe cqe = {
            .kind = TKR_CQE_TOKEN, .tag = (uint16_t)tag, .user = client->tags[tag].user};
        uint32_t pos = client->cq.pos;
        int err = io_put(client, &cqe);
        void *ptr;

        TRAP_UNLESS(client->cq.pos == pos + (err == 0));
        if (next_byte() < 32 &&
            io_bulk_take(client, tag, next_word() % (BULK + 999), &off, &ptr) == 0)
            TRAP_UNLESS(off < BULK + 1 && ptr == client->bulk_base + off);
        if (next_byte() < 64) {
            ends++;
            io_done(client, tag, client->tags[tag].user, TKR_OK,
                    next_byte() & 1 ? &(struct tkr_result){.output = 1} : NULL);
        }
    }
}

/* One no-op of the honest client in each turn is answered in that turn, whatever the other does. */
static void honest_put(void)
{
    struct io_client *c = &clients[1];
    struct tkr_ring_out sq = {.slots = (uint64_t *)(void *)(honest_r + honest_layout.sq_off),
                              .mask = c->queue[0].sq.mask,
                              .pos = c->queue[0].sq.pos};
    struct tkr_sqe noop = {.op = TKR_OP_NOOP, .user = sq.pos + HONEST_SEQ};

    memcpy(honest_r + honest_layout.ctl_off + TKR_R_CQ_HEAD, &c->cq.pos, 4);
    tkr_ring_put(&sq, &noop);
    queue_heat(&c->queue[0]);
}

static void client_turns(int exact_layout)
{
    struct io_client *client = &clients[0];

    while (!input_is_over()) {
        uint32_t before[TKR_NSQ_MAX], answers = clients[1].cq.pos;

        for (uint32_t q = 0; q < client->n_queues; q++) {
            slots_fill(&client->queue[q]);
            before[q] = client->queue[q].sq.pos;
            if (next_byte() < 128)
                queue_heat(&client->queue[q]);
        }
        words_set(client);
        honest_put();
        pass++;
        client->strike_at_ns = 0; /* it is never detached for what it does */
        watch = exact_layout;
        io_pass(&io);
        watch = 0;
        for (uint32_t q = 0; q < client->n_queues; q++)
            TRAP_UNLESS(client->queue[q].sq.pos - before[q] <= IO_SLOTS_PER_PASS);
        TRAP_UNLESS(clients[1].cq.pos == answers + 1);
        states_check(client);
        publish(client);
        if (next_byte() < 64)
            io_sleep(&io, 1);
        bells_fire(client, 0);
        states_check(client);
    }
}

/* ---- set-up ---------------------------------------------------------------------------------- */

/* A header that passes the check keeps every range inside the region, and is used. */
static int header_spoil(const struct tkr_grant *grant, struct tkr_r_header *header)
{
    const char *field;
    uint64_t sq_end;

    for (int n = next_byte() % 8; n > 0; n--) {
        size_t at = next_byte();

        ((uint8_t *)header)[at] = next_byte();
    }
    if (tkr_r_check(header, grant, &field) < 0)
        return -1;
    sq_end = (uint64_t)header->sq_off + (uint64_t)header->sq_stride * (header->nsq - 1) +
             (64ull << header->sq_log2);
    TRAP_UNLESS(sq_end <= layout.region_len);
    TRAP_UNLESS((uint64_t)header->ctl_off + TKR_R_CTL_BYTES <= layout.region_len);
    TRAP_UNLESS((uint64_t)header->cancel_off + 4 * INFLIGHT <= layout.region_len);
    TRAP_UNLESS((uint64_t)header->release_off + 4 * INFLIGHT <= layout.region_len);
    TRAP_UNLESS(header->arena_off <= layout.region_len - ARENA);
    return 0;
}

static void io_start(void)
{
    static struct io_client *table[CLIENTS], *members[IO_SETS][CLIENTS];
    static struct io_queue *queues[IO_QUEUE_STATES][CLIENTS * TKR_NSQ_MAX];

    memset(&io, 0, sizeof io);
    io.ops = (struct io_ops){.submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    io.opt.op_bitmap[0] = 1u << TKR_OP_NOOP | 1u << TKR_OP_PAD | 1u << TKR_OP_CANCEL |
                          1u << TKR_OP_GENERATE | 1u << TKR_OP_TOKENIZE;
    io.loop = &loop_uring;
    io.doorbell = next_byte() & 1 ? TKR_DOORBELL_FUTEX : TKR_DOORBELL_SOCKET;
    io.listen_fd = io.kick_fd = -1;
    io.table = table;
    io.table_max = io.opt.clients_max = CLIENTS;
    for (int i = 0; i < IO_SETS; i++)
        io.set[i] = members[i];
    for (int i = 0; i < IO_QUEUE_STATES; i++)
        io.queues[i] = queues[i];
}

static void client_start(uint32_t at, uint8_t *r, uint8_t *t, const struct tkr_grant *grant,
                         const struct tkr_r_header *header)
{
    struct io_client *client = &clients[at];
    struct tkr_t_header t_header;

    *client = (struct io_client){.io = &io,
                                 .state = IO_CLIENT_LIVE,
                                 .grant = *grant,
                                 .slot = at,
                                 .user = &users[at],
                                 .refs = 1,
                                 .socket = -1,
                                 .pidfd = -1,
                                 .r = {.base = r, .fd = -1},
                                 .t = {.base = t, .fd = -1}};
    users[at] = (struct io_user){.n_conns = 1};
    for (int i = 0; i < IO_SETS; i++)
        client->set_at[i] = IO_NONE;
    io.table[at] = client;
    io.n_table++;
    io.n_live++;
    tkr_t_layout(&t_header, grant);
    TRAP_UNLESS(header->region_len <= R_BYTES && t_header.region_len <= T_BYTES);
    TRAP_UNLESS(client_bind(client, header, &t_header) == 0);
    for (uint32_t q = 0; q < client->n_queues; q++)
        queue_heat(&client->queue[q]);
}

static void client_end(struct io_client *client)
{
    client_detach(client);
    bells_fire(client, 1);
    TRAP_UNLESS(!client->n_active && loop_idle(client));
    for (int i = 0; i < IO_SETS; i++)
        TRAP_UNLESS(client->set_at[i] == IO_NONE);
    free(client->active);
    free(client->tags);
    free(client->bulk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tkr_grant grant = {.arena_len = ARENA,
                              .bulk_len = BULK,
                              .sq_log2 = SQ_LOG2,
                              .cq_log2 = 5,
                              .max_inflight = INFLIGHT};
    struct tkr_r_header header;
    int exact;

    input_begin(data, size);
    submits = ends = 0;
    io_start();
    grant.nsq = 1 + next_byte() % TKR_NSQ_MAX;
    memset(r_bytes, 0, sizeof r_bytes);
    tkr_r_layout(&layout, &grant);
    header = layout;
    exact = header_spoil(&grant, &header) < 0 || !memcmp(&header, &layout, sizeof layout);
    client_start(0, r_bytes, t_bytes, &grant, exact ? &layout : &header);
    grant.nsq = 1;
    tkr_r_layout(&honest_layout, &grant);
    memset(honest_r, 0, sizeof honest_r);
    client_start(1, honest_r, honest_t, &grant, &honest_layout);

    client_turns(exact);

    client_end(&clients[0]);
    client_end(&clients[1]);
    TRAP_UNLESS(!io.n_live && !io.n_queues[IO_QUEUE_HOT] && !io.n_queues[IO_QUEUE_PARKED] &&
                !io.n_queues[IO_QUEUE_BLOCKED]);
    input_end();
    return 0;
}
