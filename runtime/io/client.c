/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - one attached client: its slots checked, its completions published, its tags and bulk
 * memory, its end.
 *
 * Rules that hold for every byte string in R: a slot is copied once and only the copy is checked
 * and used; an SQE is taken only when the CQ has a free slot for its answer; an accepted tag keeps
 * one CQ slot reserved for its terminal, so io_done() never fails and each accepted tag ends
 * exactly once.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"

/* ---- life ----------------------------------------------------------------------------------- */

struct io_client *client_new(struct io *io, int socket)
{
    struct io_client *client = calloc(1, sizeof *client);
    uint32_t slot = 0;

    if (!client)
        return NULL;
    while (io->table[slot]) /* the caller saw that one is free */
        slot++;
    client->io = io;
    client->slot = slot;
    client->id = ++io->next_id;
    client->socket = socket;
    client->pidfd = -1;
    client->refs = 1;
    client->r.fd = client->t.fd = -1;
    for (int i = 0; i < IO_SETS; i++)
        client->set_at[i] = IO_NONE;
    io->table[slot] = client;
    io->n_table++;
    io->n_half_open++;
    return client;
}

static void queue_bind(struct io_queue *queue, const struct tkr_r_header *r,
                       const struct tkr_t_header *t)
{
    const uint8_t *from = queue->client->r.base;
    uint8_t *to = queue->client->t.base;
    uint32_t q = queue->index;

    tkr_ring_in_init(&queue->sq, from + r->sq_off + (size_t)r->sq_stride * q, r->sq_log2);
    queue->bell = (const void *)(from + r->ctl_off + TKR_R_BELL(q));
    queue->sq_wait = (const void *)(from + r->ctl_off + TKR_R_SQ_WAIT(q));
    queue->sq_head = (void *)(to + t->ctl_off + TKR_T_SQ_HEAD(q));
    queue->need_wakeup = (void *)(to + t->ctl_off + TKR_T_NEED_WAKEUP(q));
}

int client_bind(struct io_client *client, const struct tkr_r_header *r,
                const struct tkr_t_header *t)
{
    const uint8_t *from = client->r.base;
    uint8_t *to = client->t.base;
    uint32_t n = client->grant.max_inflight;

    client->active = calloc(n, sizeof *client->active);
    client->tags = calloc(n, sizeof *client->tags);
    client->bulk = calloc(n, sizeof *client->bulk);
    if (!client->active || !client->tags || !client->bulk)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        client->tags[i].active_at = IO_NONE;
    client->max_inflight = n;

    client->n_queues = r->nsq;
    for (uint32_t q = 0; q < r->nsq; q++) {
        client->queue[q] = (struct io_queue){.client = client, .index = q};
        queue_bind(&client->queue[q], r, t);
    }
    client->cq_head = (const void *)(from + r->ctl_off + TKR_R_CQ_HEAD);
    client->wait = (const void *)(from + r->ctl_off + TKR_R_WAIT);
    client->cancel = (const void *)(from + r->cancel_off);
    client->release = (const void *)(from + r->release_off);
    client->arena = from + r->arena_off;
    client->arena_len = r->arena_len;

    tkr_ring_out_init(&client->cq, to + t->cq_off, t->cq_log2);
    client->t_state = (void *)(to + t->ctl_off + TKR_T_STATE);
    client->daemon_cpu = (void *)(to + t->ctl_off + TKR_T_DAEMON_CPU);
    client->cq_bell = (void *)(to + t->ctl_off + TKR_T_CQ_BELL);
    client->results = (void *)(to + t->res_off);
    client->bulk_base = to + t->bulk_off;
    return 0;
}

static void client_free(struct io_client *client)
{
    struct io *io = client->io;

    user_leave(client);
    io->table[client->slot] = NULL;
    io->n_table--;
    io->n_dead--;
    tkr_region_close(&client->r);
    tkr_region_close(&client->t);
    close(client->socket);
    if (client->pidfd >= 0)
        close(client->pidfd);
    free(client->active);
    free(client->tags);
    free(client->bulk);
    free(client);
}

void client_detach(struct io_client *client)
{
    struct io *io = client->io;

    if (client->state == IO_CLIENT_DEAD)
        return;
    if (client->state == IO_CLIENT_LIVE) {
        io->n_live--;
        io->counts.detached++;
    } else {
        io->n_half_open--;
    }
    if (client->admitted)
        client->user->n_clients--;
    for (int i = 0; i < IO_SETS; i++)
        set_remove(io, (enum io_set)i, client);
    for (uint32_t q = 0; q < client->n_queues; q++)
        queue_move(&client->queue[q], IO_QUEUE_NONE);
    /* The file stays open while a wait on it is armed; the peer learns now. */
    shutdown(client->socket, SHUT_RDWR);
    /* The kernel must not look at R's bell or at our descriptors when they are gone: freed when all
     * came back. */
    loop_cancel(client);
    io->n_dead++;
    if (client->state == IO_CLIENT_LIVE) {
        client->state = IO_CLIENT_DEAD;
        io->ops.detach(io->ops.ctx, client);
    }
    client->state = IO_CLIENT_DEAD;
    io_client_unref(client);
}

void client_sweep(struct io *io)
{
    if (!io->n_dead)
        return;
    for (uint32_t i = 0; i < io->table_max; i++) {
        struct io_client *client = io->table[i];

        if (!client || client->state != IO_CLIENT_DEAD)
            continue;
        if (!loop_idle(client))
            continue;
        /* Acquire pairs with the release in io_client_unref(): the holder is done with the
         * regions. */
        if (!__atomic_load_n(&client->refs, __ATOMIC_ACQUIRE))
            client_free(client);
    }
}

void io_client_ref(struct io_client *client)
{
    __atomic_fetch_add(&client->refs, 1, __ATOMIC_RELAXED);
}

void io_client_unref(struct io_client *client)
{
    uint32_t before = __atomic_fetch_sub(&client->refs, 1, __ATOMIC_ACQ_REL);

    assert(before > 0);
    (void)before;
}

void *io_client_get(const struct io_client *client)
{
    return client->ptr;
}

void io_client_set(struct io_client *client, void *ptr)
{
    client->ptr = ptr;
}

uid_t io_client_uid(const struct io_client *client)
{
    return client->uid;
}

pid_t io_client_pid(const struct io_client *client)
{
    return client->pid;
}

int io_client_dead(const struct io_client *client)
{
    return client->state == IO_CLIENT_DEAD;
}

/* ---- checking slots ------------------------------------------------------------------------- */

/* 1: [off, off + len) lies inside the arena. */
static int arena_has(uint64_t arena_len, uint32_t off, uint32_t len)
{
    return len <= arena_len && off <= arena_len - len;
}

static int op_works(const struct io_opt *opt, uint8_t op)
{
    return (opt->op_bitmap[op / 64] >> (op % 64)) & 1;
}

/* A slot's fault: its status, and what was wrong in words. */
static uint16_t fault(uint16_t status, const char *what, const char **ret_what)
{
    *ret_what = what;
    return status;
}

static uint16_t data_check(const struct tkr_sqe *sqe, uint64_t arena_len, const char **ret_what)
{
    switch (sqe->data_kind) {
    case TKR_DATA_NONE:
    case TKR_DATA_MESSAGES:
        if (sqe->data_off || sqe->data_len)
            return fault(TKR_E_INVALID, "data_off, data_len: must be zero with this data_kind",
                         ret_what);
        return TKR_OK;
    case TKR_DATA_TOKENS:
        if (sqe->data_off % 4 || sqe->data_len % 4)
            return fault(TKR_E_INVALID, "data: token ids are 4 bytes each and aligned", ret_what);
        break;
    case TKR_DATA_TEXT:
        break;
    default:
        return fault(TKR_E_INVALID, "data_kind: not TEXT, TOKENS or MESSAGES", ret_what);
    }
    if (!arena_has(arena_len, sqe->data_off, sqe->data_len))
        return fault(TKR_E_INVALID, "data_off, data_len: outside the arena", ret_what);
    return TKR_OK;
}

static uint16_t param_check(const struct tkr_sqe *sqe, uint64_t arena_len, const char **ret_what)
{
    uint32_t head = sizeof(struct tkr_param);

    if (!sqe->param_len)
        return TKR_OK;
    if (sqe->param_len < head || (sqe->param_len - head) % sizeof(struct tkr_tail) ||
        (sqe->param_len - head) / sizeof(struct tkr_tail) > TKR_TAIL_MAX)
        return fault(TKR_E_INVALID, "param_len: must be 128 + 16 * n_tail, n_tail at most 64",
                     ret_what);
    if (sqe->param_off % 8)
        return fault(TKR_E_INVALID, "param_off: must be a multiple of 8", ret_what);
    if (!arena_has(arena_len, sqe->param_off, sqe->param_len))
        return fault(TKR_E_INVALID, "param_off, param_len: outside the arena", ret_what);
    return TKR_OK;
}

/* 1: the tag, or the low half of user (which cancel and release words go by), belongs to a live
 * request. */
static int is_duplicate(const struct tkr_sqe *sqe, const struct io_client *client)
{
    if (client->tags[sqe->tag].active_at != IO_NONE)
        return 1;
    for (uint32_t i = 0; i < client->n_active; i++)
        if (client->active[i].user == (uint32_t)sqe->user)
            return 1;
    return 0;
}

static const char *unsupported(const struct tkr_sqe *sqe, const struct io_client *client)
{
    if (!op_works(&client->io->opt, sqe->op))
        return "op: this daemon does not implement it, see the op bitmap";
    if (sqe->flags || sqe->reserved)
        return "flags, reserved: must be zero";
    if (sqe->resume_pos && sqe->op != TKR_OP_GENERATE)
        return "resume_pos: must be zero but for GENERATE";
    if (sqe->class_)
        return "class: not supported by this daemon, must be zero";
    if (sqe->session && sqe->op != TKR_OP_CANCEL)
        return "session: not supported by this daemon, must be zero";
    return NULL;
}

uint16_t sqe_check(const struct tkr_sqe *sqe, const struct io_client *client, const char **ret_what)
{
    uint16_t status;

    if (sqe->tag >= client->max_inflight)
        return fault(TKR_E_INVALID, "tag: not below max_inflight", ret_what);
    if (!(uint32_t)sqe->user)
        return fault(TKR_E_INVALID, "user: its low half must not be zero", ret_what);
    *ret_what = unsupported(sqe, client);
    if (*ret_what)
        return TKR_E_UNSUPPORTED;
    if (is_duplicate(sqe, client))
        return fault(TKR_E_DUPLICATE, "tag or user of a request that is still alive", ret_what);
    status = data_check(sqe, client->arena_len, ret_what);
    if (status == TKR_OK)
        status = param_check(sqe, client->arena_len, ret_what);
    return status;
}

/* ---- taking slots --------------------------------------------------------------------------- */

uint32_t client_room(struct io_client *client)
{
    uint32_t room = tkr_ring_room(&client->cq);

    /* Acquire pairs with the client's release of cq_head: it has read what it gives back. Only
     * looked at when short, since that line moves between the cores. */
    if (room <= client->reserved)
        room = tkr_ring_credit(&client->cq, TKR_LOAD_ACQUIRE(client->cq_head));
    return room - client->reserved; /* reserved <= room always: see client_accept() and io_done() */
}

static void client_publish(struct io_client *client, const struct tkr_cqe *cqe)
{
    tkr_ring_put(&client->cq, cqe);
    set_add(client->io, IO_SET_TOUCHED, client);
}

/* Answers a slot that never becomes a request. The words go into the result record, but for a tag
 * that another request holds, whose record it is. */
static void client_answer(struct io_client *client, const struct tkr_sqe *sqe, uint16_t status,
                          const char *what, uint64_t have, uint64_t want)
{
    int record =
        what && sqe->tag < client->max_inflight && client->tags[sqe->tag].active_at == IO_NONE;
    struct tkr_cqe cqe = {
        .kind = TKR_CQE_DONE,
        .flags = record ? 0 : TKR_CQE_NO_RESULT,
        .user = sqe->user,
        .tag = sqe->tag,
        .status = status,
    };

    if (record) {
        struct tkr_result *result = &client->results[sqe->tag];

        *result =
            (struct tkr_result){.user = sqe->user, .status = status, .have = have, .want = want};
        strncpy(result->message, what, sizeof result->message - 1);
    }
    client_publish(client, &cqe);
}

/* An answer in place of the work: the operator counts them. */
static void client_reject(struct io_client *client, const struct tkr_sqe *sqe, uint16_t status,
                          const char *what, uint64_t have, uint64_t want)
{
    client->io->counts.rejected++;
    client->n_rejected++;
    client_answer(client, sqe, status, what, have, want);
}

static void bulk_give(struct io_client *client, uint32_t tag);

static void client_accept(struct io_client *client, const struct tkr_sqe *sqe)
{
    struct io_tag *tag = &client->tags[sqe->tag];

    bulk_give(client, sqe->tag);
    tag->user = sqe->user;
    tag->active_at = client->n_active;
    client->active[client->n_active++] =
        (struct io_active){.user = (uint32_t)sqe->user, .tag = sqe->tag};
    client->reserved++;
    client->user->inflight++;
    set_add(client->io, IO_SET_BUSY, client);
    client->io->ops.submit(client->io->ops.ctx, client, sqe, clock_ns());
}

/* A CANCEL slot: its target may have ended already, which is no error. */
static void client_cancel_user(struct io_client *client, uint64_t user)
{
    for (uint32_t i = 0; i < client->n_active; i++) {
        uint32_t tag = client->active[i].tag;

        if (client->tags[tag].user != user)
            continue;
        client->io->ops.cancel(client->io->ops.ctx, client, tag, user);
        return;
    }
}

/* What no library sends: a rule of form is broken, not a wish that this daemon cannot fulfil. */
static int is_malformed(const struct tkr_sqe *sqe, uint16_t status)
{
    return status == TKR_E_INVALID || status == TKR_E_DUPLICATE || sqe->op >= TKR_OP_COUNT ||
           sqe->flags || sqe->reserved;
}

/* Its queues are looked at no more; the refusal is sent between steps. */
static void client_strike(struct io_client *client)
{
    if (client->struck || rate_take(&client->strike_at_ns, clock_ns(), IO_STRIKES, IO_STRIKES) == 0)
        return;
    client->struck = 1;
    for (uint32_t q = 0; q < client->n_queues; q++)
        queue_move(&client->queue[q], IO_QUEUE_NONE);
    control_defer(client->io, client);
}

static void client_slot(struct io_client *client, const struct tkr_sqe *sqe)
{
    const struct io_limits *limits;
    const char *what = NULL;
    uint16_t status;

    if (sqe->op == TKR_OP_PAD)
        return;
    status = sqe_check(sqe, client, &what);
    if (status == TKR_OK && client->io->draining && sqe->op != TKR_OP_NOOP &&
        sqe->op != TKR_OP_CANCEL)
        status = fault(TKR_E_ABORTED, "the daemon stops, submit again to the next one", &what);
    if (status != TKR_OK) {
        client_reject(client, sqe, status, what, 0, 0);
        if (is_malformed(sqe, status))
            client_strike(client);
    } else if (sqe->op == TKR_OP_NOOP) {
        client_answer(client, sqe, TKR_OK, NULL, 0, 0);
    } else if (sqe->op == TKR_OP_CANCEL) {
        client_answer(client, sqe, TKR_OK, NULL, 0, 0);
        client_cancel_user(client, sqe->session);
    } else {
        limits = user_limits(client);
        if (limits->inflight && !client->trusted && client->user->inflight >= limits->inflight)
            client_reject(client, sqe, TKR_E_OVERLOADED, "requests in flight of this user",
                          limits->inflight, (uint64_t)client->user->inflight + 1);
        else
            client_accept(client, sqe);
    }
}

uint32_t queue_take(struct io_queue *queue)
{
    struct io_client *client = queue->client;
    struct tkr_sqe sqe;
    uint64_t rejected;
    uint32_t n = 0;

    while (n < IO_SLOTS_PER_PASS) {
        if (!client_room(client)) {
            if (tkr_ring_ready(&queue->sq))
                set_add(client->io, IO_SET_STARVED, client);
            break;
        }
        if (tkr_ring_take(&queue->sq, &sqe) < 0)
            break;
        rejected = client->n_rejected;
        client_slot(client, &sqe);
        n++;
        /* One that is rejected costs as much as several: it is the last of this pass. */
        if (client->struck || client->n_rejected != rejected)
            break;
    }
    if (n) {
        /* Release pairs with the acquire of sq_head in the client's submit: the slots were read. */
        TKR_STORE_RELEASE(queue->sq_head, queue->sq.pos);
        queue->traffic = 1;
        /* Who found the queue full may sleep on sq_head: notify_touched() looks after its fence. */
        client->took |= (uint8_t)(1u << queue->index);
        set_add(client->io, IO_SET_TOUCHED, client);
        client->io->counts.slots += n;
    }
    return n;
}

#define CANCELS_PER_PASS 16u /* words of one client: about a line, whoever hammers on them */

void client_cancels(struct io_client *client)
{
    /* Downwards: the callback may end the request, which moves the last one to its place. */
    uint32_t turns = (client->n_active + CANCELS_PER_PASS - 1) / CANCELS_PER_PASS;
    uint32_t begin = turns ? client->io->turn % turns * CANCELS_PER_PASS : 0;
    uint32_t left = client->n_active - begin;
    uint32_t end = begin + (left < CANCELS_PER_PASS ? left : CANCELS_PER_PASS);

    for (uint32_t i = end; i-- > begin;) {
        struct io_active *active = &client->active[i];
        uint32_t tag = active->tag;

        if (i >= client->n_active) /* it ended others as well */
            continue;
        /* One store by the client is the whole request; nothing else is published with it. */
        if (TKR_LOAD_RELAXED(client->cancel + tag) != active->user || active->cancelled)
            continue;
        active->cancelled = 1;
        client->io->ops.cancel(client->io->ops.ctx, client, tag, client->tags[tag].user);
    }
}

int io_arena_copy(struct io_client *client, void *dst, uint32_t off, uint32_t len)
{
    if (!arena_has(client->arena_len, off, len))
        return -EFAULT;
    tkr_copy_once(dst, client->arena + off, len);
    return 0;
}

/* ---- publishing ----------------------------------------------------------------------------- */

uint32_t io_cq_room(struct io_client *client)
{
    return client->state == IO_CLIENT_LIVE ? client_room(client) : 0;
}

void io_put_soon(const struct io_client *client)
{
    const struct tkr_ring_out *cq = &client->cq;

    tkr_prefetch_write(cq->slots + (size_t)(cq->pos & cq->mask) * TKR_SLOT_WORDS);
}

int io_put(struct io_client *client, const struct tkr_cqe *cqe)
{
    if (!io_cq_room(client)) {
        if (client->state == IO_CLIENT_LIVE)
            set_add(client->io, IO_SET_STARVED, client);
        return -EAGAIN;
    }
    client_publish(client, cqe);
    return 0;
}

static void tag_free(struct io_client *client, uint32_t tag)
{
    uint32_t at = client->tags[tag].active_at, last = --client->n_active;

    client->active[at] = client->active[last];
    client->tags[client->active[at].tag].active_at = at;
    client->tags[tag].active_at = IO_NONE;
    client->reserved--;
    client->user->inflight--;
    if (!client->n_active)
        set_remove(client->io, IO_SET_BUSY, client);
}

void io_done(struct io_client *client, uint32_t tag, uint64_t user, uint16_t status,
             const struct tkr_result *result)
{
    struct tkr_cqe cqe = {
        .kind = TKR_CQE_DONE,
        .flags = result ? 0 : TKR_CQE_NO_RESULT,
        .user = user,
        .tag = (uint16_t)tag,
        .status = status,
    };

    assert(tag < client->max_inflight && client->tags[tag].active_at != IO_NONE);
    assert(client->tags[tag].user == user);
    tag_free(client, tag);
    if (client->state != IO_CLIENT_LIVE)
        return;
    if (result) {
        struct tkr_result *record = &client->results[tag];

        *record = *result;
        record->user = user;
        record->status = status;
    }
    client_publish(client, &cqe);
}

/* ---- bulk memory ---------------------------------------------------------------------------- */

static void bulk_give(struct io_client *client, uint32_t tag)
{
    uint32_t at = 0;

    if (!client->tags[tag].bulk_user)
        return;
    client->tags[tag].bulk_user = 0;
    while (client->bulk[at] != tag)
        at++;
    client->n_bulk--;
    memmove(client->bulk + at, client->bulk + at + 1, (client->n_bulk - at) * sizeof *client->bulk);
}

/* Takes back what the client released. A live request's word cannot match by right; if it does, it
 * lied. */
static void bulk_collect(struct io_client *client)
{
    for (uint32_t i = client->n_bulk; i-- > 0;) {
        uint32_t tag = client->bulk[i];

        /* Acquire pairs with the client's release of the word: it has read the memory. */
        if (client->tags[tag].active_at == IO_NONE &&
            TKR_LOAD_ACQUIRE(client->release + tag) == client->tags[tag].bulk_user)
            bulk_give(client, tag);
    }
}

int io_bulk_take(struct io_client *client, uint32_t tag, uint32_t bytes, uint32_t *ret_off,
                 void **ret_ptr)
{
    uint64_t off = 0, need = ((uint64_t)bytes + TKR_LINE - 1) / TKR_LINE * TKR_LINE;
    uint32_t at;

    assert(tag < client->max_inflight && client->tags[tag].active_at != IO_NONE);
    if (client->tags[tag].bulk_user)
        return -EBUSY;
    bulk_collect(client);
    for (at = 0; at < client->n_bulk; at++) {
        const struct io_tag *next = &client->tags[client->bulk[at]];

        if (next->bulk_off - off >= need)
            break;
        off = next->bulk_off + (uint64_t)next->bulk_bytes;
    }
    if (need > client->grant.bulk_len || off > client->grant.bulk_len - need)
        return -ENOSPC;
    memmove(client->bulk + at + 1, client->bulk + at, (client->n_bulk - at) * sizeof *client->bulk);
    client->bulk[at] = (uint16_t)tag;
    client->n_bulk++;
    client->tags[tag].bulk_user = (uint32_t)client->tags[tag].user;
    client->tags[tag].bulk_off = (uint32_t)off;
    client->tags[tag].bulk_bytes = (uint32_t)need;
    *ret_off = (uint32_t)off;
    *ret_ptr = client->bulk_base + off;
    return 0;
}
