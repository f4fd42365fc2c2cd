/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ring.c - the daemon's reading of region R, against every byte string and a writer that
 * changes it meanwhile.
 *
 * Built with TKR_LOAD_HOOK: before each load of a byte of R the hook may overwrite any byte of R,
 * as a hostile client on another core would, and it traps when one take reads a byte twice or
 * outside of R. The input is a list of records: what lies in R, and what the writer does between
 * the loads.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/io/state.h"

#define ARENA    4096u
#define INFLIGHT 4u
#define R_BYTES  32768u
#define T_BYTES  32768u

#define TRAP_UNLESS(cond)                                                                          \
    do {                                                                                           \
        if (!(cond))                                                                               \
            __builtin_trap();                                                                      \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static _Alignas(4096) uint8_t r_bytes[R_BYTES], t_bytes[T_BYTES];
static uint8_t loaded[R_BYTES]; /* by the take that runs now */
static int watch;               /* 1: a second load of a byte of the slots is a double fetch */
static struct tkr_r_header layout;
static const uint8_t *input;
static size_t n_input;
static uint32_t submits, cancels;

static uint8_t next_byte(void)
{
    if (!n_input)
        return 0;
    n_input--;
    return *input++;
}

static uint32_t next_word(void)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++)
        word = word << 8 | next_byte();
    return word;
}

void tkr_load_hook(const void *ptr, size_t bytes)
{
    uintptr_t off = (uintptr_t)ptr - (uintptr_t)r_bytes;

    TRAP_UNLESS(off < layout.region_len && bytes <= layout.region_len - off);
    for (size_t i = 0; i < bytes; i++) {
        if (watch && off + i >= layout.sq_off && off + i < layout.arena_off)
            TRAP_UNLESS(!loaded[off + i]);
        loaded[off + i] = 1;
    }
    if (next_byte() < 64)
        r_bytes[next_word() % layout.region_len] = next_byte();
}

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    uint64_t data_end = (uint64_t)sqe->data_off + sqe->data_len;
    uint64_t param_end = (uint64_t)sqe->param_off + sqe->param_len;
    uint8_t copy[ARENA];

    (void)ctx;
    (void)seen_ns;
    submits++;
    TRAP_UNLESS(sqe->op == TKR_OP_GENERATE && sqe->tag < INFLIGHT && (uint32_t)sqe->user);
    TRAP_UNLESS(!sqe->flags && !sqe->reserved && !sqe->resume_pos && !sqe->class_ && !sqe->session);
    if (sqe->data_kind == TKR_DATA_TEXT || sqe->data_kind == TKR_DATA_TOKENS)
        TRAP_UNLESS(data_end <= ARENA);
    else
        TRAP_UNLESS(!sqe->data_len && !sqe->data_off);
    TRAP_UNLESS(!sqe->param_len || (param_end <= ARENA && sqe->param_off % 8 == 0));
    TRAP_UNLESS(io_arena_copy(client, copy, sqe->data_off, sqe->data_len) == 0);
    if (next_byte() & 1)
        io_done(client, sqe->tag, sqe->user, TKR_OK, NULL);
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    (void)ctx;
    TRAP_UNLESS(tag < INFLIGHT && client->tags[tag].user == user &&
                client->tags[tag].active_at != IO_NONE);
    cancels++;
    if (next_byte() & 1)
        io_done(client, tag, user, TKR_E_CANCELLED, NULL);
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    (void)client;
}

/* A header that passes the check keeps every range inside the region. */
static void header_run(const struct tkr_grant *grant)
{
    struct tkr_r_header header;
    const char *field;
    uint64_t sq_end;

    memcpy(r_bytes, &layout, sizeof layout);
    for (int n = next_byte() % 8; n > 0; n--) {
        uint32_t at = next_byte();

        r_bytes[at] = next_byte();
    }
    tkr_copy_once(&header, r_bytes, sizeof header);
    if (tkr_r_check(&header, grant, &field) < 0)
        return;
    sq_end = (uint64_t)header.sq_off + (uint64_t)header.sq_stride * (header.nsq - 1) +
             (64ull << header.sq_log2);
    TRAP_UNLESS(sq_end <= layout.region_len);
    TRAP_UNLESS((uint64_t)header.ctl_off + TKR_R_CTL_BYTES <= layout.region_len);
    TRAP_UNLESS((uint64_t)header.cancel_off + 4 * INFLIGHT <= layout.region_len);
    TRAP_UNLESS((uint64_t)header.release_off + 4 * INFLIGHT <= layout.region_len);
    TRAP_UNLESS(header.arena_off <= layout.region_len - ARENA);
}

/* Fills the next slots: raw bytes, or a good request with some fields spoilt. */
static void slots_fill(struct io_client *client)
{
    for (uint32_t n = next_byte() % 12, pos = client->queue[0].sq.pos; n > 0; n--, pos++) {
        uint8_t *slot = r_bytes + layout.sq_off + (size_t)(pos & client->queue[0].sq.mask) * TKR_LINE;
        struct tkr_sqe sqe = {.op = TKR_OP_GENERATE,
                              .tag = (uint16_t)(pos % INFLIGHT),
                              .user = pos + 1u,
                              .data_kind = TKR_DATA_TEXT,
                              .data_len = 16};
        uint8_t how = next_byte();

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

static void client_run(struct io_client *client)
{
    for (int turn = 0; n_input && turn < 64; turn++) {
        uint32_t before = client->queue[0].sq.pos, taken;

        slots_fill(client);
        memset(loaded, 0, sizeof loaded);
        watch = 1;
        taken = queue_take(&client->queue[0]);
        watch = 0;
        TRAP_UNLESS(taken <= IO_SLOTS_PER_PASS && client->queue[0].sq.pos - before == taken);
        TRAP_UNLESS(client->n_active <= INFLIGHT && client->reserved == client->n_active);
        TRAP_UNLESS(tkr_ring_room(&client->cq) >= client->reserved);
        client_cancels(client);
        /* Sometimes the truth about what was read, else whatever lies there. */
        if (next_byte() & 3)
            memcpy(r_bytes + layout.ctl_off + TKR_R_CQ_HEAD, &client->cq.pos, 4);
        if (next_byte() < 32 && client->n_active) {
            uint32_t tag = client->active[next_byte() % client->n_active], off;
            void *ptr;

            if (io_bulk_take(client, tag, next_word() % 9000, &off, &ptr) == 0)
                TRAP_UNLESS(off <= client->grant.bulk_len);
        }
        while (next_byte() & 1 && client->n_active)
            io_done(client, client->active[0], client->tags[client->active[0]].user, TKR_OK, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tkr_grant grant = {.arena_len = ARENA,
                              .bulk_len = 8192,
                              .nsq = 1,
                              .sq_log2 = 4,
                              .cq_log2 = 5,
                              .max_inflight = INFLIGHT};
    struct io io = {.ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach},
                    .opt = {.op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_PAD |
                                          1u << TKR_OP_CANCEL | 1u << TKR_OP_GENERATE}}};
    struct io_client client = {.io = &io,
                               .state = IO_CLIENT_LIVE,
                               .grant = grant,
                               .r = {.base = r_bytes, .fd = -1},
                               .t = {.base = t_bytes, .fd = -1}};
    struct io_client *members[IO_SETS];
    struct tkr_t_header t;

    input = data;
    n_input = size;
    submits = cancels = 0;
    memset(r_bytes, 0, sizeof r_bytes);
    for (int i = 0; i < IO_SETS; i++) {
        client.set_at[i] = IO_NONE;
        io.set[i] = &members[i];
    }
    tkr_r_layout(&layout, &grant);
    tkr_t_layout(&t, &grant);
    TRAP_UNLESS(layout.region_len <= R_BYTES && t.region_len <= T_BYTES);
    header_run(&grant);
    if (client_bind(&client, &layout, &t) == 0)
        client_run(&client);
    free(client.active);
    free(client.active_user);
    free(client.tags);
    free(client.bulk);
    return 0;
}
