/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - what a client's rings look like now, for the operator. Looks, changes nothing.
 */
#include <string.h>
#include "runtime/io/state.h"

/* The library's own words: whatever is not plain text becomes '?', for they end on a terminal. */
static void library_copy(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes - 1 && from[i]; i++)
        to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
}

static uint16_t flags_of(const struct io_client *client)
{
    uint32_t flags = 0;

    if (client->n_active)
        flags |= TKR_STATS_CLIENT_BUSY;
    if (client->set_at[IO_SET_STARVED] != IO_NONE)
        flags |= TKR_STATS_CLIENT_STARVED;
    if (client->set_at[IO_SET_DUE] != IO_NONE)
        flags |= TKR_STATS_CLIENT_DUE;
    if (client->unlocked)
        flags |= TKR_STATS_CLIENT_UNLOCKED;
    if (client->armed_socket)
        flags |= TKR_STATS_CLIENT_SOCKET;
    if (client->armed_pidfd)
        flags |= TKR_STATS_CLIENT_PIDFD;
    return (uint16_t)flags;
}

static void client_report(const struct io_client *client, struct tkr_stats_client *ret)
{
    uint8_t in[IO_QUEUE_STATES] = {0};

    for (uint32_t q = 0; q < client->n_queues; q++)
        in[client->queue[q].state] |= (uint8_t)(1u << q);
    *ret = (struct tkr_stats_client){
        .id = client->id,
        .pid = (uint32_t)client->pid,
        .uid = client->uid,
        .attached_ns = client->attached_ns,
        .n_queues = (uint8_t)client->n_queues,
        .hot = in[IO_QUEUE_HOT],
        .parked = in[IO_QUEUE_PARKED],
        .blocked = in[IO_QUEUE_BLOCKED],
        .need_wakeup = in[IO_QUEUE_PARKED],
        .bells = client->armed_bells,
        .flags = flags_of(client),
        .inflight = client->n_active,
        .inflight_max = client->max_inflight,
        .rejected = client->n_rejected,
        .wait = TKR_LOAD_RELAXED(client->wait),
        .cq_pos = client->cq.pos,
        .cq_head = client->cq.head,
        .reserved = client->reserved,
        .cq_slots = client->cq.mask + 1,
    };
    for (uint32_t q = 0; q < client->n_queues; q++)
        ret->slots += ret->sq_pos[q] = ret->sq_head[q] = client->queue[q].sq.pos;
    library_copy(ret->library, client->library, sizeof ret->library);
    for (uint32_t i = 0; i < client->n_active && i < TKR_STATS_TAGS; i++)
        ret->tags[i] = client->active[i].tag;
}

uint32_t io_client_places(const struct io *io)
{
    return io->table_max;
}

uint32_t io_client_place(const struct io_client *client)
{
    return client->slot;
}

uint64_t io_client_id(const struct io_client *client)
{
    return client->id;
}

uint32_t io_clients_report(const struct io *io, uint32_t from, uint32_t clients_max,
                           io_report_fn *fn, void *ctx)
{
    for (uint32_t n = 0; from < io->table_max && n < clients_max; from++) {
        const struct io_client *client = io->table[from];
        struct tkr_stats_client record;

        if (!client || client->state != IO_CLIENT_LIVE) {
            fn(ctx, from, NULL);
            continue;
        }
        client_report(client, &record);
        fn(ctx, from, &record);
        n++;
    }
    return from;
}
