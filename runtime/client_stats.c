/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/client_stats.h"

#include <errno.h>
#include <stdlib.h>

#define CLIENTS_PER_STORE 256u /* some 100 ns each */
#define STORE_NS          50000000u

struct sums { /* of whoever has this place */
    uint64_t id;
    uint64_t generated, published; /* of ended requests */
    uint64_t cancelled, ended;
    uint64_t lag_max;
    uint64_t alive_generated, alive_published; /* of living requests, while a store runs */
    int paused;                                /* one of these is */
};

struct client_stats {
    struct io *io;
    struct tkr_stats_file *file;
    uint32_t places;
    struct sums *sums;          /* [places] */
    uint32_t at;                /* the next place to store; 0: a round is complete */
    uint64_t stored_ns, now_ns; /* of the last store; of the one that runs */
    struct io_counts seen;      /* when the round began */
    int asked;                  /* for a store, sooner than STORE_NS after the last one */
};

int client_stats_new(struct client_stats **ret_cs, struct io *io, struct tkr_stats_file *file)
{
    struct client_stats *cs = calloc(1, sizeof *cs);
    int err = -ENOMEM;

    if (!cs)
        return err;
    cs->io = io;
    cs->file = file;
    cs->places = io_client_places(io);
    cs->sums = calloc(cs->places, sizeof *cs->sums);
    if (cs->sums)
        err = tkr_stats_add_clients(file, cs->places);
    if (err < 0) {
        client_stats_free(cs);
        return err;
    }
    *ret_cs = cs;
    return 0;
}

void client_stats_free(struct client_stats *cs)
{
    if (!cs)
        return;
    free(cs->sums);
    free(cs);
}

/* The sums of this client; another one's, who had the place before, are forgotten. */
static struct sums *sums_of(struct client_stats *cs, uint32_t place, uint64_t id)
{
    struct sums *sums = &cs->sums[place];

    if (sums->id != id)
        *sums = (struct sums){.id = id};
    return sums;
}

static struct sums *job_sums(struct client_stats *cs, const struct job *job)
{
    return sums_of(cs, io_client_place(job->client), io_client_id(job->client));
}

void client_stats_end(struct client_stats *cs, const struct job *job)
{
    struct sums *sums = job_sums(cs, job);

    sums->generated += job->req->n_out;
    sums->published += job->ids_out;
    sums->cancelled += job->req->status == END_CANCELLED;
    sums->ended++;
}

static void record_store(void *ctx, uint32_t place, struct tkr_stats_client *client)
{
    struct client_stats *cs = ctx;

    if (client) {
        struct sums *sums = sums_of(cs, place, client->id);

        client->generated = sums->generated + sums->alive_generated;
        client->published = sums->published + sums->alive_published;
        if (client->generated - client->published > sums->lag_max)
            sums->lag_max = client->generated - client->published;
        client->lag_max = sums->lag_max;
        client->cancelled = sums->cancelled;
        client->ended = sums->ended;
        if (sums->paused)
            client->flags |= TKR_STATS_CLIENT_PAUSED;
    } else if (!cs->sums[place].id) {
        return; /* nobody before, nobody now */
    } else {
        cs->sums[place].id = 0;
    }
    tkr_stats_put_client(cs->file, place, client, cs->now_ns);
}

void client_stats_store(struct client_stats *cs, const struct job *jobs, const uint32_t *alive,
                        uint32_t n_alive, uint64_t now_ns)
{
    cs->asked = now_ns - cs->stored_ns < STORE_NS;
    if (cs->asked)
        return;
    for (uint32_t i = 0; i < n_alive; i++) {
        const struct job *job = &jobs[alive[i]];
        struct sums *sums = job_sums(cs, job);

        sums->alive_generated += job->req->n_out;
        sums->alive_published += job->ids_out;
        sums->paused |= job->req->state == REQUEST_PAUSED;
    }
    if (!cs->at)
        io_counts(cs->io, &cs->seen);
    cs->now_ns = now_ns;
    cs->at = io_clients_report(cs->io, cs->at, CLIENTS_PER_STORE, record_store, cs);
    if (cs->at == cs->places)
        cs->at = 0;
    cs->stored_ns = now_ns;
    for (uint32_t i = 0; i < n_alive; i++) {
        struct sums *sums = job_sums(cs, &jobs[alive[i]]);

        sums->alive_generated = sums->alive_published = 0;
        sums->paused = 0;
    }
}

uint64_t client_stats_due(const struct client_stats *cs)
{
    struct io_counts now;

    io_counts(cs->io, &now);
    if (!cs->asked && !cs->at && now.slots == cs->seen.slots && now.attached == cs->seen.attached &&
        now.detached == cs->seen.detached && now.hot == cs->seen.hot &&
        now.parked == cs->seen.parked)
        return 0;
    return cs->stored_ns + STORE_NS;
}
