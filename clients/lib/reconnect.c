/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reconnect.c - coming back after the daemon died: what was published is not lost, and every live
 * request goes on behind it.
 *
 * R is the log of what is in flight: prompts, parameters and the ids received so far lie in its
 * arena. So the same file is offered to the new daemon, with empty queues, and each live request is
 * put again, with `resume_pos`. The daemon computes prompt and received ids, and goes on; sampling
 * is a function of (seed, position), so the stream stays the same.
 *
 * Steps run inside tkr_wait(). Meanwhile this thread holds all queues, and tkr_submit() takes
 * nothing.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "clients/lib/conn.h"

#define PAUSE_NS_MIN TKR_MS(1) /* between two tries, doubled each time */
#define PAUSE_NS_MAX TKR_MS(200)
#define TRY_NS       TKR_S(1) /* for one handshake, and for room in a queue */

static void queues_lock(tkr_conn *conn)
{
    for (uint32_t i = 0; i < conn->n_queues; i++) {
        /* Acquire pairs with the release in queue_leave(). A submitting thread holds it for a
         * moment. */
        while (__atomic_exchange_n(&conn->queues[i].busy, 1, __ATOMIC_ACQUIRE))
            sched_yield();
    }
    conn->reconnect.locked = 1;
}

static void queues_unlock(tkr_conn *conn)
{
    /* Release pairs with the acquire in queue_enter(): both regions are in place before. */
    for (uint32_t i = 0; i < conn->n_queues; i++)
        TKR_STORE_RELEASE(&conn->queues[i].busy, 0);
    conn->reconnect.locked = 0;
}

static void give_up(tkr_conn *conn, uint16_t status, const char *why)
{
    conn->gone_status = status;
    conn->gone_why = why;
    TKR_STORE_RELAXED(&conn->reconnect.gave_up, 1);
    queues_unlock(conn);
}

/* 1: the daemon serves the same model under this index as the earlier one did. */
static int model_same(const tkr_conn *conn, uint16_t index, const struct tkr_region *t,
                      const struct tkr_t_header *t_header)
{
    struct tkr_model_entry before, after;

    return index < t_header->n_models && index < conn->t_header.n_models &&
           !model_read(t, t_header, index, &before) &&
           !model_read(&conn->t, &conn->t_header, index, &after) &&
           !memcmp(before.hash, after.hash, sizeof before.hash);
}

/* The tail entry with the received ids stands in the room that was left for it. */
static void resume_write(tkr_conn *conn, const struct request *request, struct tkr_sqe *sqe)
{
    uint8_t *block = conn->arena_base + sqe->param_off;
    struct tkr_param *param = (struct tkr_param *)(void *)block;

    *(struct tkr_tail *)(void *)(block + sqe->param_len) = (struct tkr_tail){
        .kind = TKR_TAIL_RESUME_IDS,
        .off = request->resume_off,
        .bytes = 4 * request->received,
        .count = request->received,
    };
    param->n_tail = (uint16_t)((sqe->param_len - sizeof *param) / sizeof(struct tkr_tail) + 1);
    param->resume_bytes = request->text_bytes;
    sqe->param_len += (uint32_t)sizeof(struct tkr_tail);
    sqe->resume_pos = request->received;
}

/* A slot of the queue, which the daemon may have to take others from first. */
static int slot_wait(tkr_conn *conn, struct queue *queue, uint64_t deadline_ns)
{
    while (!tkr_ring_room(&queue->sq)) {
        /* Acquire pairs with the daemon's release of sq_head. */
        if (tkr_ring_credit(&queue->sq, TKR_LOAD_ACQUIRE(queue->sq_head)))
            break;
        if (clock_ns() > deadline_ns)
            return -ETIMEDOUT;
        queue_ring(conn, queue);
        sched_yield();
    }
    return 0;
}

/* Puts a live request again. -errno: it cannot go on. */
static int request_resume(tkr_conn *conn, struct request *request, int same, uint64_t deadline_ns)
{
    struct queue *queue = &conn->queues[request->queue];
    struct tkr_sqe sqe = request->sqe;

    if (!same || request->odd || request->has_bulk || (request->text_bytes && !request->received))
        return -ENOTSUP;
    if (request->received)
        resume_write(conn, request, &sqe);
    if (slot_wait(conn, queue, deadline_ns) < 0)
        return -ETIMEDOUT;
    request->resumed = 1;
    request->aborted = 0;
    if (request->cancelled)
        TKR_STORE_RELAXED(&conn->cancel[sqe.tag], (uint32_t)sqe.user);
    tkr_ring_put(&queue->sq, &sqe);
    return 0;
}

static void requests_resume(tkr_conn *conn, const struct tkr_region *t,
                            const struct tkr_t_header *t_header)
{
    uint64_t deadline_ns = clock_ns() + (uint64_t)TRY_NS;

    conn->n_aborted = 0;
    for (uint32_t tag = 0; tag < conn->max_inflight; tag++) {
        struct request *request = &conn->requests[tag];

        if (!request->user || request->state != REQUEST_LIVE || request->restarted)
            continue;
        if (request->internal) {
            request_return(conn, request);
            continue;
        }
        if (request_resume(conn, request, model_same(conn, request->sqe.model, t, t_header),
                           deadline_ns) < 0) {
            request->restarted = 1;
            conn->n_restarted++;
        }
    }
    for (uint32_t i = 0; i < conn->n_queues; i++)
        queue_ring(conn, &conn->queues[i]);
}

static void old_close(tkr_conn *conn)
{
    while (conn->reconnect.old) {
        struct old_region *old = conn->reconnect.old;

        conn->reconnect.old = old->next;
        tkr_region_close(&old->t);
        free(old);
    }
}

/* BULK events may still point into T; the next time that none does, all earlier ones go. */
static void t_retire(tkr_conn *conn, struct tkr_region *t)
{
    struct old_region *old = conn->n_bulk ? malloc(sizeof *old) : NULL;

    if (!conn->n_bulk) {
        old_close(conn);
        tkr_region_close(t);
    } else if (old) { /* without memory T stays mapped until the process ends */
        *old = (struct old_region){.t = *t, .next = conn->reconnect.old};
        conn->reconnect.old = old;
    }
}

static int try_again(tkr_conn *conn, uint64_t now)
{
    struct tkr_t_header t_header;
    struct tkr_region t;
    int err = conn_reattach(conn, now + (uint64_t)TRY_NS, &t, &t_header);

    if (err < 0)
        return err;
    requests_resume(conn, &t, &t_header);
    t_retire(conn, &t);
    conn->looked_ns = clock_ns();
    conn->armed = 0;
    TKR_STORE_RELAXED(&conn->gone, 0);
    queues_unlock(conn);
    return 0;
}

void reconnect_step(tkr_conn *conn, uint64_t now, uint64_t end_ns)
{
    struct reconnect *r = &conn->reconnect;
    int err;

    if (!r->locked) {
        queues_lock(conn);
        r->lost_ns = r->next_ns = now;
        r->pause_ns = PAUSE_NS_MIN;
    }
    if (now < r->next_ns) {
        uint64_t until = r->next_ns < end_ns ? r->next_ns : end_ns;
        uint64_t left = until > now ? until - now : 0;

        nanosleep(&(struct timespec){.tv_nsec = (long)left}, NULL);
        return;
    }
    err = try_again(conn, now);
    if (!err)
        return;
    now = clock_ns();
    if (err == -ENOTSUP)
        give_up(conn, TKR_E_RESTARTED, "the restarted daemon grants other sizes");
    else if (now - r->lost_ns >= (uint64_t)r->timeout_ns)
        give_up(conn, TKR_E_GONE, "the daemon is gone and did not come back in time");
    r->next_ns = now + (uint64_t)r->pause_ns;
    r->pause_ns = 2 * r->pause_ns < PAUSE_NS_MAX ? 2 * r->pause_ns : PAUSE_NS_MAX;
}

void reconnect_fini(tkr_conn *conn)
{
    /* In the child of a fork no region is mapped. */
    if (conn->canary && !conn_stale(conn))
        old_close(conn);
    free(conn->reconnect.path);
}
