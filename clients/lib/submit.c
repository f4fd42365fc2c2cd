/* SPDX-License-Identifier: Apache-2.0 */
/*
 * submit.c - requests on their way out: arena, parameter block, slot, bell; cancel and release.
 *
 * A request takes one arena block of its own:
 *
 *   parameter head | tail entries | token ids of the prompt | stop ids | texts
 *
 * What already lies in memory from tkr_arena() is not copied; its block then counts one user more.
 * Nothing here allocates, and only ringing a sleeping daemon is a system call.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include "clients/lib/conn.h"
#include "shm/doorbell.h"

/* ---- where bytes lie ------------------------------------------------------------------------- */

/* 1: ptr is inside the arena, and *ret_off is its offset. */
static int in_arena(const tkr_conn *conn, const void *ptr, uint64_t *ret_off)
{
    uintptr_t at = (uintptr_t)ptr, base = (uintptr_t)conn->arena_base;

    if (at < base || at - base >= conn->arena_len)
        return 0;
    *ret_off = at - base;
    return 1;
}

/* Adds what `bytes` at ptr need in the request's own block. -EINVAL: no memory, or not a whole part
 * of a taken block. */
static int need_add(const tkr_conn *conn, uint64_t *need, const void *ptr, uint64_t bytes)
{
    uint64_t off;

    if (!bytes)
        return 0;
    if (!ptr)
        return -EINVAL;
    if (in_arena(conn, ptr, &off))
        return arena_find(&conn->arena, off, bytes) == ARENA_NONE ? -EINVAL : 0;
    if (bytes > UINT32_MAX)
        return -EMSGSIZE;
    *need += bytes;
    return 0;
}

/* A block that is being filled: next byte to write, relative to the arena. */
struct filler {
    tkr_conn *conn;
    struct request *request;
    uint32_t at;
};

/* Copies bytes to the block, or takes one more share of the block that they lie in. Returns their
 * offset. */
static uint32_t place(struct filler *filler, const void *ptr, uint64_t bytes)
{
    struct arena *arena = &filler->conn->arena;
    uint32_t at = filler->at;
    uint64_t off;

    if (!bytes)
        return 0;
    if (in_arena(filler->conn, ptr, &off)) {
        arena->blocks[arena_find(arena, off, bytes)].users++;
        filler->request->borrows = 1;
        return (uint32_t)off;
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
static int req_measure(const tkr_conn *conn, const tkr_req *req, uint64_t *ret_bytes,
                       uint32_t *ret_tail)
{
    uint64_t n_tail = (uint64_t)n_messages(req) + req->n_stops + (req->n_stop_ids ? 1 : 0);
    uint64_t need = sizeof(struct tkr_param) + n_tail * sizeof(struct tkr_tail);
    int err = 0;

    if (req->size != sizeof *req || req->reserved || req->op == TKR_OP_PAD ||
        req->op == TKR_OP_CANCEL || req->data_kind > TKR_DATA_MESSAGES || n_tail > TKR_TAIL_MAX)
        return -EINVAL;
    if ((req->n_stops && !req->stops) || (req->n_msgs && !req->msgs) ||
        (req->n_msgs && req->data_kind != TKR_DATA_MESSAGES))
        return -EINVAL;

    if (req->data_kind == TKR_DATA_TOKENS) {
        if ((uintptr_t)req->tokens % sizeof *req->tokens)
            return -EINVAL;
        err = need_add(conn, &need, req->tokens, (uint64_t)req->n_tokens * 4);
    } else if (req->data_kind != TKR_DATA_NONE && !req->n_msgs) {
        err = need_add(conn, &need, req->text, req->len);
    }
    for (uint32_t i = 0; !err && i < req->n_msgs; i++)
        err = req->msgs[i].role > UINT16_MAX || req->msgs[i].reserved
                  ? -EINVAL
                  : need_add(conn, &need, req->msgs[i].text, req->msgs[i].len);
    for (uint32_t i = 0; !err && i < req->n_stops; i++)
        err = need_add(conn, &need, req->stops[i].text, req->stops[i].len);
    if (!err && (uintptr_t)req->stop_ids % sizeof *req->stop_ids)
        err = -EINVAL;
    if (!err)
        err = need_add(conn, &need, req->stop_ids, (uint64_t)req->n_stop_ids * 4);
    if (err)
        return err;
    if (need > conn->arena_len)
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

/* Writes parameters and prompt into the request's block; fills in the slot's part about them. */
static void req_write(struct filler *filler, const tkr_req *req, uint32_t n_tail, uint64_t now,
                      struct tkr_sqe *sqe)
{
    uint8_t *block = filler->conn->arena_base + filler->at;
    struct tkr_tail *entry = (struct tkr_tail *)(void *)(block + sizeof(struct tkr_param));

    sqe->param_off = filler->at;
    sqe->param_len = (uint32_t)(sizeof(struct tkr_param) + n_tail * sizeof *entry);
    filler->at += sqe->param_len;
    *(struct tkr_param *)(void *)block = (struct tkr_param){
        .head_len = sizeof(struct tkr_param),
        .n_tail = (uint16_t)n_tail,
        .flags = req->flags,
        .seed = req->seed,
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

/* Takes the tag on top of the stack. */
static struct request *request_new(tkr_conn *conn)
{
    uint16_t tag = conn->free_tags[--conn->n_free];
    struct request *request = &conn->requests[tag];

    if (!++conn->counter) {
        conn->counter = 1;
        conn->rounds++;
    }
    *request = (struct request){
        .user = (uint64_t)(conn->rounds << CONN_TAG_BITS | tag) << 32 | conn->counter,
        .block = ARENA_NONE,
        .state = REQUEST_LIVE,
    };
    return request;
}

/* A slot and a tag are free. */
static int room(tkr_conn *conn)
{
    if (!conn->n_free)
        return 0;
    if (tkr_ring_room(&conn->sq))
        return 1;
    /* Acquire pairs with the daemon's release of sq_head: it has copied the slots before it gives
     * them back. */
    return tkr_ring_credit(&conn->sq, TKR_LOAD_ACQUIRE(conn->sq_head)) > 0;
}

/* *now is read when the first request wants it: 0 before. A NOOP goes out without. */
static int submit_one(tkr_conn *conn, tkr_req *req, uint64_t *now)
{
    struct filler filler = {.conn = conn};
    struct tkr_sqe sqe = {0};
    uint32_t block = ARENA_NONE, n_tail = 0;
    uint64_t bytes = 0;
    int err;

    err = req_measure(conn, req, &bytes, &n_tail);
    if (err < 0)
        return err;
    if (!room(conn))
        return -EAGAIN;
    /* A NOOP has nothing to say but that it is there. */
    if (req->op != TKR_OP_NOOP || req->data_kind || n_tail) {
        block = arena_take(&conn->arena, bytes);
        if (block == ARENA_NONE)
            return -EAGAIN;
    }

    filler.request = request_new(conn);
    if (block != ARENA_NONE) {
        conn->arena.blocks[block].users = 1;
        filler.at = conn->arena.blocks[block].off;
        if (!*now)
            *now = clock_ns();
        req_write(&filler, req, n_tail, *now, &sqe);
    }
    sqe.op = req->op;
    sqe.tag = conn_tag(filler.request->user);
    sqe.user = filler.request->user;
    sqe.max_tokens = req->max_tokens;
    sqe.model = req->model;
    sqe.data_kind = req->data_kind;
    sqe.class_ = req->class_;
    sqe.deadline_ns = req->deadline_ns;

    filler.request->user_data = req->user_data;
    filler.request->block = block;
    filler.request->param_off = sqe.param_off;
    filler.request->n_tail = (uint16_t)n_tail;
    filler.request->data_kind = req->data_kind;
    filler.request->data_off = sqe.data_off;
    filler.request->data_len = sqe.data_len;
    req->id = filler.request->user;
    conn->n_live++;
    tkr_ring_put(&conn->sq, &sqe);
    return 0;
}

/* Once per batch: one fence, and a system call only when the daemon sleeps on this queue. */
static void daemon_ring(tkr_conn *conn)
{
    if (conn->doorbell == TKR_DOORBELL_FUTEX) {
        tkr_doorbell_ring(conn->bell, conn->need_wakeup);
        return;
    }
    /* Store-load; partner: the daemon's fence between need_wakeup = 1 and its last look at the
     * queue. */
    tkr_fence();
    if (TKR_LOAD_RELAXED(conn->need_wakeup)) {
        const char byte = 0;

        send(conn->fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

/* 0, or why nothing can be sent any more. */
static int sendable(tkr_conn *conn)
{
    if (conn_stale(conn))
        return -ESTALE;
    if (conn->gone || TKR_LOAD_RELAXED(conn->state) == TKR_STATE_GONE)
        return -ESHUTDOWN;
    return 0;
}

int tkr_submit(tkr_conn *conn, tkr_req *reqs, unsigned n)
{
    uint64_t now = 0;
    unsigned i;
    int err = sendable(conn);

    if (err < 0)
        return err;
    for (i = 0; i < n; i++) {
        err = submit_one(conn, &reqs[i], &now);
        if (err < 0)
            break;
    }
    if (i) {
        daemon_ring(conn);
        return (int)(i < INT32_MAX ? i : INT32_MAX);
    }
    return err == -EAGAIN ? 0 : err;
}

/* ---- arena for prompts ----------------------------------------------------------------------- */

void *tkr_arena(tkr_conn *conn, size_t bytes)
{
    uint32_t block;

    if (conn_stale(conn))
        return NULL;
    block = arena_take(&conn->arena, bytes);
    return block == ARENA_NONE ? NULL : conn->arena_base + conn->arena.blocks[block].off;
}

void tkr_arena_free(tkr_conn *conn, void *ptr)
{
    uint64_t off;
    uint32_t block;

    if (!ptr || conn_stale(conn) || !in_arena(conn, ptr, &off))
        return;
    block = arena_find(&conn->arena, off, 1);
    /* In use by a request: its release frees it. */
    if (block != ARENA_NONE && conn->arena.blocks[block].off == off &&
        !conn->arena.blocks[block].users)
        arena_give(&conn->arena, block);
}

/* ---- the end of a request -------------------------------------------------------------------- */

/* Gives back the share of the block of tkr_arena() that bytes at off lie in. */
static void share_give(tkr_conn *conn, const struct request *request, uint32_t off, uint32_t bytes)
{
    uint32_t block = bytes ? arena_find(&conn->arena, off, bytes) : ARENA_NONE;

    if (block == ARENA_NONE || block == request->block || !conn->arena.blocks[block].users)
        return;
    if (!--conn->arena.blocks[block].users)
        arena_give(&conn->arena, block);
}

void request_free(tkr_conn *conn, struct request *request)
{
    if (request->borrows) {
        const uint8_t *param = conn->arena_base + request->param_off;
        const struct tkr_tail *tail =
            (const struct tkr_tail *)(const void *)(param + sizeof(struct tkr_param));

        for (uint32_t i = 0; i < request->n_tail; i++)
            share_give(conn, request, tail[i].off, tail[i].bytes);
        share_give(conn, request, request->data_off, request->data_len);
    }
    if (request->block != ARENA_NONE)
        arena_give(&conn->arena, request->block);
    conn->free_tags[conn->n_free++] = conn_tag(request->user);
    request->state = REQUEST_FREE;
    request->user = 0;
}

int tkr_release(tkr_conn *conn, tkr_id id)
{
    struct request *request;

    if (conn_stale(conn))
        return -ESTALE;
    request = conn_request(conn, id);
    if (!request || request->internal)
        return -ENOENT;
    if (request->state == REQUEST_LIVE)
        return -EBUSY;
    /* Release pairs with the daemon's acquire: our reads of the bulk memory come before it takes it
     * back. */
    TKR_STORE_RELEASE(&conn->release[conn_tag(id)], (uint32_t)id);
    request_free(conn, request);
    return 0;
}

int tkr_cancel(tkr_conn *conn, tkr_id id)
{
    struct request *request;

    if (conn_stale(conn))
        return -ESTALE;
    request = conn_request(conn, id);
    if (!request || request->internal || request->state != REQUEST_LIVE)
        return -ENOENT;
    /* Names the request, so a word that an earlier holder of the tag left means nothing. */
    TKR_STORE_RELAXED(&conn->cancel[conn_tag(id)], (uint32_t)id);
    return 0;
}

int tkr_cancel_ordered(tkr_conn *conn, tkr_id id)
{
    struct tkr_sqe sqe = {.op = TKR_OP_CANCEL, .session = id};
    struct request *request;
    int err = sendable(conn);

    if (err < 0)
        return err;
    request = conn_request(conn, id);
    if (!request || request->internal || request->state != REQUEST_LIVE)
        return -ENOENT;
    if (!room(conn))
        return -EAGAIN;
    request = request_new(conn);
    request->internal = 1;
    sqe.tag = conn_tag(request->user);
    sqe.user = request->user;
    tkr_ring_put(&conn->sq, &sqe);
    daemon_ring(conn);
    return 0;
}
