/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submit.c - requests on their way out: arena, parameter block, slot, bell; cancel.
 *
 * A request takes one arena block of its own:
 *
 *   parameter head | tail entries | room to resume | token ids of the prompt | stop ids | texts
 *
 * What already lies in memory from tkr_arena() is not copied; its block then counts one user more.
 * The room to resume is there only on a connection that reconnects: one tail entry, and the token
 * ids that were received. Nothing here allocates, and only ringing a sleeping daemon and
 * tkr_submit_wait() make system calls.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include "clients/lib/conn.h"
#include "shm/doorbell.h"

/* Whoever releases may miss that we sleep: no fence there. So the sleep is short. */
#define RETURNED_SLEEP_NS TKR_MS(5)

/* ---- where bytes lie ------------------------------------------------------------------------- */

/* Bounds of the room for received ids: what the daemon may send at most. */
static uint32_t resume_room(const tkr_conn *conn, const tkr_req *req)
{
    uint32_t most = conn->t_header.output_tokens_max;

    if (!conn->reconnect.on || req->op != TKR_OP_GENERATE)
        return 0;
    return req->max_tokens < most ? req->max_tokens : most;
}

/* 1: ptr is inside the arena, and *ret_off is its offset in the queue's part; UINT64_MAX in
 * another's. */
static int in_arena(const tkr_conn *conn, const struct queue *queue, const void *ptr,
                    uint64_t *ret_off)
{
    uintptr_t at = (uintptr_t)ptr, base = (uintptr_t)conn->arena_base;

    if (at < base || at - base >= conn->arena_len)
        return 0;
    *ret_off = at - base < queue->arena_off ? UINT64_MAX : at - base - queue->arena_off;
    return 1;
}

/* A request that is being looked at or written. */
struct filler {
    tkr_conn *conn;
    struct queue *queue;
    struct request *request;
    uint32_t at; /* next byte to write, relative to R's arena */
};

/* Adds what `bytes` at ptr need in the request's own block. -EINVAL: no memory, or not a whole part
 * of a taken block of this queue. */
static int need_add(const struct filler *filler, uint64_t *need, const void *ptr, uint64_t bytes)
{
    uint64_t off;

    if (!bytes)
        return 0;
    if (!ptr)
        return -EINVAL;
    if (in_arena(filler->conn, filler->queue, ptr, &off))
        return arena_find(&filler->queue->arena, off, bytes) == ARENA_NONE ? -EINVAL : 0;
    if (bytes > UINT32_MAX)
        return -EMSGSIZE;
    *need += bytes;
    return 0;
}

/* Copies bytes to the block, or takes one more share of the block that they lie in. Returns their
 * offset. */
static uint32_t place(struct filler *filler, const void *ptr, uint64_t bytes)
{
    struct arena *arena = &filler->queue->arena;
    uint32_t at = filler->at;
    uint64_t off;

    if (!bytes)
        return 0;
    if (in_arena(filler->conn, filler->queue, ptr, &off)) {
        arena->blocks[arena_find(arena, off, bytes)].users++;
        filler->request->borrows = 1;
        return filler->queue->arena_off + (uint32_t)off;
    }
    memcpy(filler->conn->arena_base + at, ptr, bytes);
    filler->at += (uint32_t)bytes;
    return at;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Messages of a chat; without msgs the text is the one message of the user. */
static uint32_t n_messages(const tkr_req *req)
{
    return req->data_kind != TKR_DATA_MESSAGES ? 0 : req->n_msgs ? req->n_msgs : 1;
}

/*
 * What the wire cannot carry is refused here; what the daemon may judge is the daemon's to judge.
 * *ret_bytes: size of the block, *ret_tail: tail entries.
 */
static int req_measure(const struct filler *filler, const tkr_req *req, uint32_t room,
                       uint64_t *ret_bytes, uint32_t *ret_tail)
{
    uint64_t n_tail = (uint64_t)n_messages(req) + req->n_stops + (req->n_stop_ids ? 1 : 0);
    uint64_t n_entries = n_tail + (room ? 1 : 0);
    uint64_t need = sizeof(struct tkr_param) + n_entries * sizeof(struct tkr_tail) + 4ull * room;
    int err = 0;

    if (req->size != sizeof *req || req->reserved || req->op == TKR_OP_PAD ||
        req->op == TKR_OP_CANCEL || req->data_kind > TKR_DATA_MESSAGES || n_entries > TKR_TAIL_MAX)
        return -EINVAL;
    if ((req->n_stops && !req->stops) || (req->n_msgs && !req->msgs) ||
        (req->n_msgs && req->data_kind != TKR_DATA_MESSAGES))
        return -EINVAL;

    if (req->data_kind == TKR_DATA_TOKENS) {
        if ((uintptr_t)req->tokens % sizeof *req->tokens)
            return -EINVAL;
        err = need_add(filler, &need, req->tokens, (uint64_t)req->n_tokens * 4);
    } else if (req->data_kind != TKR_DATA_NONE && !req->n_msgs) {
        err = need_add(filler, &need, req->text, req->len);
    }
    for (uint32_t i = 0; !err && i < req->n_msgs; i++)
        err = req->msgs[i].role > UINT16_MAX || req->msgs[i].reserved
                  ? -EINVAL
                  : need_add(filler, &need, req->msgs[i].text, req->msgs[i].len);
    for (uint32_t i = 0; !err && i < req->n_stops; i++)
        err = need_add(filler, &need, req->stops[i].text, req->stops[i].len);
    if (!err && (uintptr_t)req->stop_ids % sizeof *req->stop_ids)
        err = -EINVAL;
    if (!err)
        err = need_add(filler, &need, req->stop_ids, (uint64_t)req->n_stop_ids * 4);
    if (err)
        return err;
    if (need > filler->queue->arena.bytes)
        return -EMSGSIZE;
    *ret_bytes = need;
    *ret_tail = (uint32_t)n_tail;
    return 0;
}

/* ---- one request ----------------------------------------------------------------------------- */

static void tail_put(struct filler *filler, struct tkr_tail *entry, enum tkr_tail_kind kind,
                     uint32_t flags, const void *ptr, uint64_t bytes)
{
    *entry = (struct tkr_tail){
        .kind = (uint16_t)kind,
        .flags = (uint16_t)flags,
        .off = place(filler, ptr, bytes),
        .bytes = (uint32_t)bytes,
        .count = kind == TKR_TAIL_STOP_IDS ? (uint32_t)(bytes / 4) : 0,
    };
}

/* SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). */
static uint64_t seed_draw(struct queue *queue)
{
    uint64_t z = queue->seed_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Writes parameters and prompt into the request's block; fills in the slot's part about them. */
static void req_write(struct filler *filler, const tkr_req *req, uint32_t n_tail, uint64_t now,
                      struct tkr_sqe *sqe)
{
    uint8_t *block = filler->conn->arena_base + filler->at;
    struct tkr_tail *entry = (struct tkr_tail *)(void *)(block + sizeof(struct tkr_param));
    /* A sampled stream can be gone on with only when its seed is known from the start. */
    int draw = filler->conn->reconnect.on && req->temperature > 0 && !(req->flags & TKR_PARAM_SEED);

    sqe->param_off = filler->at;
    sqe->param_len = (uint32_t)(sizeof(struct tkr_param) + n_tail * sizeof *entry);
    filler->at += sqe->param_len;
    if (filler->request->resume_room) {
        filler->at += (uint32_t)sizeof *entry;
        filler->request->resume_off = filler->at;
        filler->at += 4 * filler->request->resume_room;
    }
    *(struct tkr_param *)(void *)block = (struct tkr_param){
        .head_len = sizeof(struct tkr_param),
        .n_tail = (uint16_t)n_tail,
        .flags = req->flags | (draw ? TKR_PARAM_SEED : 0),
        .tenant = req->tenant,
        .seed = draw ? seed_draw(filler->queue) : req->seed,
        .submit_ns = now,
        .model_gen = req->model_gen,
        .on_late = req->on_late,
        .top_k = req->top_k,
        .temperature = req->temperature,
        .top_p = req->top_p,
        .min_p = req->min_p,
    };

    /* Ids first: they must lie on multiples of 4. */
    if (req->data_kind == TKR_DATA_TOKENS) {
        sqe->data_len = req->n_tokens * 4;
        sqe->data_off = place(filler, req->tokens, sqe->data_len);
    }
    if (req->n_stop_ids)
        tail_put(filler, entry++, TKR_TAIL_STOP_IDS, 0, req->stop_ids,
                 (uint64_t)req->n_stop_ids * 4);
    if (req->data_kind == TKR_DATA_TEXT) {
        sqe->data_len = (uint32_t)req->len;
        sqe->data_off = place(filler, req->text, req->len);
    }
    if (req->data_kind == TKR_DATA_MESSAGES && !req->n_msgs)
        tail_put(filler, entry++, TKR_TAIL_MESSAGE, TKR_ROLE_USER, req->text, req->len);
    for (uint32_t i = 0; i < req->n_msgs; i++)
        tail_put(filler, entry++, TKR_TAIL_MESSAGE, req->msgs[i].role, req->msgs[i].text,
                 req->msgs[i].len);
    for (uint32_t i = 0; i < req->n_stops; i++)
        tail_put(filler, entry++, TKR_TAIL_STOP_TEXT, 0, req->stops[i].text, req->stops[i].len);
}

/* Takes the tag on top of the stack. *ret_user becomes the entry's `user` when it is filled in. */
static struct request *request_new(tkr_conn *conn, struct queue *queue, uint64_t *ret_user)
{
    uint16_t tag = queue->free_tags[--queue->n_free];
    struct request *request = &conn->requests[tag];

    queue->counter += 1u << CONN_QUEUE_BITS;
    if (!queue->counter) {
        queue->counter = 1u << CONN_QUEUE_BITS;
        queue->rounds++;
    }
    *ret_user =
        (uint64_t)(queue->rounds << CONN_TAG_BITS | tag) << 32 | queue->counter | queue->index;
    request->block = ARENA_NONE;
    request->max_tokens = request->received = request->text_bytes = 0;
    request->resume_room = 0;
    request->queue = queue->index;
    request->internal = request->borrows = request->cancelled = request->has_bulk = 0;
    request->resumed = request->odd = request->aborted = request->restarted = 0;
    request->message[0] = '\0';
    return request;
}

/* The entry is filled in: consuming thread and daemon may see it. */
static void request_send(struct queue *queue, struct request *request, const struct tkr_sqe *sqe)
{
    TKR_STORE_RELAXED(&request->state, REQUEST_LIVE);
    /* Only this thread writes it. Release, and before user: who sees the request end has counted
     * it. */
    if (!request->internal)
        TKR_STORE_RELEASE(&queue->n_submitted, queue->n_submitted + 1);
    /* Release pairs with the acquire in conn_request(). */
    TKR_STORE_RELEASE(&request->user, sqe->user);
    tkr_ring_put(&queue->sq, sqe);
}

/* A slot is free. */
static int slot_free(struct queue *queue)
{
    if (tkr_ring_room(&queue->sq))
        return 1;
    /* Acquire pairs with the daemon's release of sq_head: it has copied the slots before it gives
     * them back. */
    return tkr_ring_credit(&queue->sq, TKR_LOAD_ACQUIRE(queue->sq_head)) > 0;
}

/* A tag is free. */
static int tag_free(tkr_conn *conn, struct queue *queue)
{
    queue_reclaim(conn, queue);
    return queue->n_free > 0;
}

/* *now is read when the first request wants it: 0 before. A NOOP goes out without. -ENOBUFS: the
 * queue has no slot; -EAGAIN: no tag or no arena. */
static int submit_one(tkr_conn *conn, struct queue *queue, tkr_req *req, uint64_t *now)
{
    struct filler filler = {.conn = conn, .queue = queue};
    struct tkr_sqe sqe = {0};
    struct request *request;
    uint32_t block = ARENA_NONE, n_tail = 0, room = resume_room(conn, req);
    uint64_t bytes = 0;
    int err;

    err = req_measure(&filler, req, room, &bytes, &n_tail);
    if (err < 0)
        return err;
    if (!tag_free(conn, queue))
        return -EAGAIN;
    if (!slot_free(queue))
        return -ENOBUFS;
    /* A NOOP has nothing to say but that it is there. */
    if (req->op != TKR_OP_NOOP || req->data_kind || n_tail) {
        block = arena_take(&queue->arena, bytes);
        if (block == ARENA_NONE)
            return -EAGAIN;
    }

    request = request_new(conn, queue, &sqe.user);
    request->user_data = req->user_data;
    request->block = block;
    if (req->op == TKR_OP_GENERATE)
        request->max_tokens = req->max_tokens;
    if (block != ARENA_NONE) {
        queue->arena.blocks[block].users = 1;
        filler.request = request;
        filler.at = queue->arena_off + queue->arena.blocks[block].off;
        request->resume_room = room;
        if (!*now)
            *now = clock_ns();
        req_write(&filler, req, n_tail, *now, &sqe);
    }
    sqe.op = req->op;
    sqe.tag = conn_tag(sqe.user);
    sqe.max_tokens = req->max_tokens;
    sqe.model = req->model;
    sqe.data_kind = req->data_kind;
    sqe.class_ = req->class_;
    sqe.deadline_ns = req->deadline_ns;
    if (block != ARENA_NONE || conn->reconnect.on)
        request->sqe = sqe;
    req->id = sqe.user;
    request_send(queue, request, &sqe);
    return 0;
}

void queue_ring(tkr_conn *conn, struct queue *queue)
{
    if (conn->doorbell == TKR_DOORBELL_FUTEX) {
        tkr_doorbell_ring(queue->bell, queue->need_wakeup);
        return;
    }
    /* Store-load; partner: the daemon's fence between need_wakeup = 1 and its last look at the
     * queue. */
    tkr_fence();
    if (TKR_LOAD_RELAXED(queue->need_wakeup))
        tkr_doorbell_send(conn->fd);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * The queue for its submitting thread, or why nothing can be sent: -EINVAL, -ESHUTDOWN, -ESTALE, or
 * -EAGAIN while the connection is coming back. Whoever entered leaves.
 */
static int queue_enter(tkr_conn *conn, unsigned index, struct queue **ret_queue)
{
    struct queue *queue;
    int err = 0;

    if (conn_stale(conn))
        return -ESTALE;
    if (index >= conn->n_queues)
        return -EINVAL;
    queue = &conn->queues[index];
    /* Acquire pairs with the releases in queue_leave() and reconnect.c. Held only while the library
     * comes back, so there is nothing to wait for here. */
    if (conn->reconnect.on && __atomic_exchange_n(&queue->busy, 1, __ATOMIC_ACQUIRE))
        return TKR_LOAD_RELAXED(&conn->reconnect.gave_up) ? -ESHUTDOWN : -EAGAIN;
    if (TKR_LOAD_RELAXED(&conn->gone) || TKR_LOAD_RELAXED(conn->state) == TKR_STATE_GONE)
        err = conn->reconnect.on && !TKR_LOAD_RELAXED(&conn->reconnect.gave_up) ? -EAGAIN
                                                                                : -ESHUTDOWN;
    if (err < 0 && conn->reconnect.on)
        TKR_STORE_RELEASE(&queue->busy, 0);
    if (!err)
        *ret_queue = queue;
    return err;
}

static void queue_leave(tkr_conn *conn, struct queue *queue)
{
    if (conn->reconnect.on)
        TKR_STORE_RELEASE(&queue->busy, 0);
}

/* How many were taken, if any, else why the first was not. */
static int submit_some(tkr_conn *conn, struct queue *queue, tkr_req *reqs, unsigned n)
{
    uint64_t now = 0;
    unsigned i;
    int err = 0;

    if (n > INT32_MAX)
        n = INT32_MAX;
    for (i = 0; i < n; i++) {
        err = submit_one(conn, queue, &reqs[i], &now);
        if (err < 0)
            break;
    }
    if (!i)
        return err;
    queue_ring(conn, queue);
    return (int)i;
}

int tkr_submit_on(tkr_conn *conn, unsigned queue_index, tkr_req *reqs, unsigned n)
{
    struct queue *queue;
    int got = queue_enter(conn, queue_index, &queue);

    if (!got) {
        got = submit_some(conn, queue, reqs, n);
        queue_leave(conn, queue);
    }
    return got == -EAGAIN || got == -ENOBUFS ? 0 : got;
}

int tkr_submit(tkr_conn *conn, tkr_req *reqs, unsigned n)
{
    return tkr_submit_on(conn, 0, reqs, n);
}

/* Sleeps until the daemon may have taken slots. The queue is entered, and left on return. */
static void slot_sleep(tkr_conn *conn, struct queue *queue, int64_t timeout_ns)
{
    const uint32_t *sq_head = queue->sq_head;
    uint32_t head = TKR_LOAD_ACQUIRE(sq_head);
    int full;

    TKR_STORE_RELAXED(queue->sq_wait, 1);
    /* Store-load; partner: the daemon's fence between its store of sq_head and its look at
     * sq_wait. */
    tkr_fence();
    full = TKR_LOAD_ACQUIRE(sq_head) == head && !slot_free(queue);
    queue_leave(conn, queue);
    /* T may go away meanwhile: the kernel reads the word, and a wrong one ends the sleep. */
    if (full)
        tkr_futex_wait(sq_head, head, timeout_ns < SLEEP_NS_MAX ? timeout_ns : SLEEP_NS_MAX);
}

/* Sleeps until tags or arena may have come back. The queue is not entered. */
static void returned_sleep(struct queue *queue, int64_t timeout_ns)
{
    TKR_STORE_RELAXED(&queue->sleeping, 1);
    tkr_fence();
    /* Acquire pairs with the release in request_return(). */
    if (TKR_LOAD_ACQUIRE(&queue->returned_tail) == queue->returned_head)
        tkr_futex_wait(&queue->returned_tail, queue->returned_head,
                       timeout_ns < RETURNED_SLEEP_NS ? timeout_ns : RETURNED_SLEEP_NS);
    TKR_STORE_RELAXED(&queue->sleeping, 0);
}

int tkr_submit_wait_on(tkr_conn *conn, unsigned queue_index, tkr_req *reqs, unsigned n,
                       int64_t timeout_ns)
{
    uint64_t now = clock_ns();
    uint64_t end = timeout_ns < 0 || (uint64_t)timeout_ns > UINT64_MAX / 2 - now
                       ? UINT64_MAX / 2
                       : now + (uint64_t)timeout_ns;
    struct queue *queue;
    int slept = 0;

    if (timeout_ns < TKR_FOREVER)
        return -EINVAL;
    for (;;) {
        int got = queue_enter(conn, queue_index, &queue);
        int entered = !got;

        if (entered && slept)
            TKR_STORE_RELAXED(queue->sq_wait, 0);
        if (entered)
            got = submit_some(conn, queue, reqs, n);
        now = clock_ns();
        slept = got == -ENOBUFS && now < end;
        if (slept)
            slot_sleep(conn, queue, (int64_t)(end - now));
        else if (entered)
            queue_leave(conn, queue);
        if (got != -EAGAIN && got != -ENOBUFS)
            return got;
        if (now >= end)
            return 0;
        if (!entered)
            nanosleep(&(struct timespec){.tv_nsec = RETURNED_SLEEP_NS}, NULL);
        else if (!slept)
            returned_sleep(queue, (int64_t)(end - now));
        else if (!conn->reconnect.on && conn_hung_up(conn))
            return -ESHUTDOWN;
    }
}

int tkr_submit_wait(tkr_conn *conn, tkr_req *reqs, unsigned n, int64_t timeout_ns)
{
    return tkr_submit_wait_on(conn, 0, reqs, n, timeout_ns);
}

int tkr_cancel(tkr_conn *conn, tkr_id id)
{
    struct request *request;

    if (conn_stale(conn))
        return -ESTALE;
    request = conn_request(conn, id);
    if (!request || request->internal || TKR_LOAD_RELAXED(&request->state) != REQUEST_LIVE)
        return -ENOENT;
    TKR_STORE_RELAXED(&request->cancelled, 1);
    /* Names the request, so a word that an earlier holder of the tag left means nothing. */
    TKR_STORE_RELAXED(&conn->cancel[conn_tag(id)], (uint32_t)id);
    return 0;
}

int tkr_cancel_ordered(tkr_conn *conn, tkr_id id)
{
    struct tkr_sqe sqe = {.op = TKR_OP_CANCEL, .session = id};
    struct request *request = conn_stale(conn) ? NULL : conn_request(conn, id);
    struct queue *queue;
    int err = queue_enter(conn, request ? request->queue : 0, &queue);

    if (err < 0)
        return err;
    if (!request || request->internal || TKR_LOAD_RELAXED(&request->state) != REQUEST_LIVE)
        err = -ENOENT;
    else if (!tag_free(conn, queue) || !slot_free(queue))
        err = -EAGAIN;
    if (!err) {
        request = request_new(conn, queue, &sqe.user);
        request->internal = 1;
        sqe.tag = conn_tag(sqe.user);
        request_send(queue, request, &sqe);
        queue_ring(conn, queue);
    }
    queue_leave(conn, queue);
    return err;
}
