/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - what each submission queue owns: its tags, its part of the arena, and how both come
 * back from the thread that consumes events.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "clients/lib/conn.h"
#include "shm/doorbell.h"

/* Of the arena: a request's own, one of tkr_arena(), and the holes after both. */
#define BLOCKS_PER_REQUEST 4u
#define BLOCKS_EXTRA       64u

static int queue_init(tkr_conn *conn, uint32_t index)
{
    struct queue *queue = &conn->queues[index];
    uint32_t n = conn->max_inflight, n_queues = conn->n_queues;
    uint32_t part = conn->arena_len / n_queues & ~(ARENA_ALIGN - 1);
    uint32_t first = n * index / n_queues, end = n * (index + 1) / n_queues;
    uint32_t n_blocks = BLOCKS_PER_REQUEST * (end - first) + BLOCKS_EXTRA;
    uint32_t room = 1;

    while (room < end - first)
        room *= 2;
    queue->index = (uint16_t)index;
    queue->tag_first = (uint16_t)first;
    queue->n_tags = (uint16_t)(end - first);
    queue->arena_off = index * part;
    queue->arena.blocks = calloc(n_blocks, sizeof *queue->arena.blocks);
    queue->free_tags = calloc(queue->n_tags, sizeof *queue->free_tags);
    queue->returned = calloc(room, sizeof *queue->returned);
    if (!queue->arena.blocks || !queue->free_tags || !queue->returned)
        return -ENOMEM;
    queue->returned_mask = room - 1;
    arena_init(&queue->arena, part, queue->arena.blocks, n_blocks);
    for (uint32_t i = 0; i < queue->n_tags; i++)
        queue->free_tags[i] = (uint16_t)(end - 1 - i);
    queue->n_free = queue->n_tags;
    if (getrandom(&queue->seed_state, sizeof queue->seed_state, GRND_NONBLOCK) < 0)
        queue->seed_state = clock_ns();
    return 0;
}

int queues_init(tkr_conn *conn)
{
    conn->requests = calloc(conn->max_inflight, sizeof *conn->requests);
    if (!conn->requests)
        return -ENOMEM;
    for (uint32_t i = 0; i < conn->n_queues; i++) {
        int err = queue_init(conn, i);

        if (err < 0)
            return err;
    }
    return 0;
}

void queues_fini(tkr_conn *conn)
{
    for (uint32_t i = 0; i < conn->n_queues; i++) {
        free(conn->queues[i].arena.blocks);
        free(conn->queues[i].free_tags);
        free(conn->queues[i].returned);
    }
}

/* ---- what was released comes back ------------------------------------------------------------ */

/* Gives back the share of the block of tkr_arena() that bytes at off lie in. */
static void share_give(struct queue *queue, const struct request *request, uint32_t off,
                       uint32_t bytes)
{
    uint32_t block =
        bytes ? arena_find(&queue->arena, (uint64_t)off - queue->arena_off, bytes) : ARENA_NONE;

    if (block == ARENA_NONE || block == request->block || !queue->arena.blocks[block].users)
        return;
    if (!--queue->arena.blocks[block].users)
        arena_give(&queue->arena, block);
}

static void blocks_give(tkr_conn *conn, struct queue *queue, const struct request *request)
{
    if (request->borrows) {
        const struct tkr_sqe *sqe = &request->sqe;
        const uint8_t *param = conn->arena_base + sqe->param_off;
        const struct tkr_tail *tail =
            (const struct tkr_tail *)(const void *)(param + sizeof(struct tkr_param));
        uint32_t n_tail = (sqe->param_len - (uint32_t)sizeof(struct tkr_param)) / sizeof *tail;

        for (uint32_t i = 0; i < n_tail; i++)
            share_give(queue, request, tail[i].off, tail[i].bytes);
        share_give(queue, request, sqe->data_off, sqe->data_len);
    }
    if (request->block != ARENA_NONE)
        arena_give(&queue->arena, request->block);
}

void queue_reclaim(tkr_conn *conn, struct queue *queue)
{
    /* Acquire pairs with the release in request_return(): the consumer is done with the entries. */
    uint32_t tail = TKR_LOAD_ACQUIRE(&queue->returned_tail);

    while (queue->returned_head != tail) {
        uint16_t tag = queue->returned[queue->returned_head++ & queue->returned_mask];

        blocks_give(conn, queue, &conn->requests[tag]);
        queue->free_tags[queue->n_free++] = tag;
    }
}

void request_return(tkr_conn *conn, struct request *request)
{
    struct queue *queue = &conn->queues[request->queue];
    uint16_t tag = conn_tag(request->user);
    uint32_t tail = queue->returned_tail;

    TKR_STORE_RELAXED(&request->state, REQUEST_FREE);
    TKR_STORE_RELAXED(&request->user, 0);
    queue->returned[tail & queue->returned_mask] = tag;
    /* Release pairs with the acquire in queue_reclaim(). */
    TKR_STORE_RELEASE(&queue->returned_tail, tail + 1);
    /* No fence: it would cost every release, and who sleeps here looks by itself soon enough. */
    if (TKR_LOAD_RELAXED(&queue->sleeping))
        tkr_futex_wake(&queue->returned_tail, 1);
}

int tkr_release(tkr_conn *conn, tkr_id id)
{
    struct request *request;

    if (conn_stale(conn))
        return -ESTALE;
    request = conn_request(conn, id);
    if (!request || request->internal)
        return -ENOENT;
    if (TKR_LOAD_RELAXED(&request->state) == REQUEST_LIVE)
        return -EBUSY;
    /* Release pairs with the daemon's acquire: our reads of the bulk memory come before it takes it
     * back. */
    TKR_STORE_RELEASE(&conn->release[conn_tag(id)], (uint32_t)id);
    conn->n_bulk -= request->has_bulk;
    request_return(conn, request);
    return 0;
}

/* ---- arena for prompts ----------------------------------------------------------------------- */

void *tkr_arena_on(tkr_conn *conn, unsigned queue_index, size_t bytes)
{
    struct queue *queue;
    uint32_t block;

    if (conn_stale(conn) || queue_index >= conn->n_queues)
        return NULL;
    queue = &conn->queues[queue_index];
    queue_reclaim(conn, queue);
    block = arena_take(&queue->arena, bytes);
    if (block == ARENA_NONE)
        return NULL;
    return conn->arena_base + queue->arena_off + queue->arena.blocks[block].off;
}

void *tkr_arena(tkr_conn *conn, size_t bytes)
{
    return tkr_arena_on(conn, 0, bytes);
}

void tkr_arena_free(tkr_conn *conn, void *ptr)
{
    uintptr_t at = (uintptr_t)ptr, base;
    struct queue *queue;
    uint64_t off;
    uint32_t block;

    if (!ptr || conn_stale(conn))
        return;
    base = (uintptr_t)conn->arena_base;
    if (at < base || (at - base) / conn->queues[0].arena.bytes >= conn->n_queues)
        return;
    queue = &conn->queues[(at - base) / conn->queues[0].arena.bytes];
    off = at - base - queue->arena_off;
    block = arena_find(&queue->arena, off, 1);
    /* In use by a request: its release frees it. */
    if (block != ARENA_NONE && queue->arena.blocks[block].off == off &&
        !queue->arena.blocks[block].users)
        arena_give(&queue->arena, block);
}
