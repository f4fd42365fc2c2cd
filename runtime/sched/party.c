/* SPDX-License-Identifier: Apache-2.0 */
/*
 * party.c - owners and their clients: the table of those that have requests or had some, and what
 * each has.
 *
 * Twice as many places as requests, so that there is always one for a request's owner and one for
 * its client: whoever has no request and no client with one is in the ring of the idle, and the one
 * that is idle for longest is forgotten when all places are taken.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/sched/state.h"

int parties_new(struct sched *s)
{
    s->parties_max = 1 + 2 * s->n_slots;
    s->bucket_mask = 1;
    while (s->bucket_mask < s->parties_max)
        s->bucket_mask = 2 * s->bucket_mask + 1;
    s->parties = calloc(s->parties_max, sizeof *s->parties);
    s->buckets = calloc(s->bucket_mask + 1, sizeof *s->buckets);
    s->n_parties = 1; /* the root */
    s->idle.older = s->idle.newer = &s->idle;
    return s->parties && s->buckets ? 0 : -ENOMEM;
}

void parties_free(struct sched *s)
{
    free(s->parties);
    free(s->buckets);
}

/* ---- the idle -------------------------------------------------------------------------------- */

static void idle_add(struct party *party, struct party *older)
{
    party->older = older;
    party->newer = older->newer;
    party->newer->older = party;
    older->newer = party;
}

static void idle_remove(struct party *party)
{
    party->older->newer = party->newer;
    party->newer->older = party->older;
    party->older = party->newer = NULL;
}

static int is_idle(const struct party *party)
{
    return party->parent && party->n_held == 0 && party->n_children == 0;
}

/* ---- by name --------------------------------------------------------------------------------- */

/* Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4) of the three numbers. */
static uint32_t *bucket_of(const struct sched *s, const struct party *parent, uint64_t a,
                           uint64_t b)
{
    uint64_t h = (uint64_t)(parent - s->parties);

    h = (h ^ a) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ b) * 0x9e3779b97f4a7c15u;
    return &s->buckets[(h >> 32) & s->bucket_mask];
}

static struct party *party_find(const struct sched *s, const struct party *parent, uint64_t a,
                                uint64_t b)
{
    for (uint32_t i = *bucket_of(s, parent, a, b); i != 0; i = s->parties[i].bucket_next) {
        struct party *party = &s->parties[i];

        if (party->parent == parent && party->name[0] == a && party->name[1] == b)
            return party;
    }
    return NULL;
}

static struct party *forget_oldest(struct sched *s)
{
    struct party *party = s->idle.newer, *parent = party->parent;
    uint32_t *link = bucket_of(s, parent, party->name[0], party->name[1]);

    assert(party != &s->idle);
    while (&s->parties[*link] != party)
        link = &s->parties[*link].bucket_next;
    *link = party->bucket_next;
    idle_remove(party);
    parent->n_children--;
    if (is_idle(parent)) /* for no shorter time */
        idle_add(parent, &s->idle);
    return party;
}

static struct party *party_make(struct sched *s, struct party *parent, uint64_t a, uint64_t b)
{
    struct party *party =
        s->n_parties < s->parties_max ? &s->parties[s->n_parties++] : forget_oldest(s);
    uint32_t *bucket = bucket_of(s, parent, a, b);

    *party = (struct party){
        .parent = parent,
        .name = {a, b},
        .limits = parent == s->parties ? &s->opt.user_limits : &s->opt.client_limits,
        .bucket_next = *bucket,
    };
    *bucket = (uint32_t)(party - s->parties);
    parent->n_children++;
    return party;
}

/* ---- whose a request is ---------------------------------------------------------------------- */

void party_held(const struct sched *s, const struct sched_who *who, uint32_t *ret_owner,
                uint32_t *ret_client)
{
    const struct party *owner = party_find(s, s->parties, who->uid, who->tenant);
    const struct party *client = owner ? party_find(s, owner, who->client, 0) : NULL;

    *ret_owner = owner ? owner->n_held : 0;
    *ret_client = client ? client->n_held : 0;
}

/* Found or made, and held, so that it is not forgotten for the next one. */
static uint32_t hold(struct sched *s, struct party *parent, uint64_t a, uint64_t b)
{
    struct party *party = party_find(s, parent, a, b);

    if (!party)
        party = party_make(s, parent, a, b);
    if (party->newer)
        idle_remove(party);
    party->n_held++;
    return (uint32_t)(party - s->parties);
}

void party_take(struct sched *s, struct request *req, const struct sched_who *who)
{
    req->owner = hold(s, s->parties, who->uid, who->tenant);
    req->client = hold(s, owner_of(s, req), who->client, 0);
}

void party_give(struct sched *s, const struct request *req)
{
    for (struct party *party = client_of(s, req); party->parent; party = party->parent) {
        party->n_held--;
        if (is_idle(party))
            idle_add(party, s->idle.older);
    }
}

/* ---- what each has --------------------------------------------------------------------------- */

/* The least that anybody below parent has had who has requests now. */
static uint64_t served_least(const struct sched *s, const struct party *parent)
{
    const uint32_t n[] = {s->n_queued, s->n_running, s->n_paused};
    struct request *const *const lists[] = {s->queue, s->running, s->paused};
    uint64_t least = UINT64_MAX;

    for (int k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < n[k]; i++) {
            const struct party *party = party_below(s, lists[k][i], parent);

            if (party && party->served < least)
                least = party->served;
        }
    }
    return least;
}

/* Who comes back after a while has saved nothing up: it begins level with who had least. */
static void level(const struct sched *s, struct party *party)
{
    uint64_t least = served_least(s, party->parent);

    if (least != UINT64_MAX)
        party->parent->served_floor = least;
    if (party->served < party->parent->served_floor)
        party->served = party->parent->served_floor;
}

void party_begin(struct sched *s, const struct request *req)
{
    for (struct party *party = client_of(s, req); party->parent; party = party->parent) {
        if (party->n_active++ == 0)
            level(s, party);
        party->prompt_tokens += req->n_prompt;
    }
}

void party_end(struct sched *s, const struct request *req)
{
    for (struct party *party = client_of(s, req); party->parent; party = party->parent) {
        party->n_active--;
        party->prompt_tokens -= req->n_prompt;
    }
}

void party_pages_add(const struct sched *s, const struct request *req, uint32_t n)
{
    client_of(s, req)->n_pages += n;
    owner_of(s, req)->n_pages += n;
}

void party_pages_sub(const struct sched *s, const struct request *req, uint32_t n)
{
    client_of(s, req)->n_pages -= n;
    owner_of(s, req)->n_pages -= n;
}

const struct party *party_over_pages(const struct sched *s, const struct request *req, uint32_t n)
{
    for (const struct party *party = client_of(s, req); party->parent; party = party->parent) {
        if (party->limits->pages && (uint64_t)party->n_pages + n > party->limits->pages)
            return party;
    }
    return NULL;
}
