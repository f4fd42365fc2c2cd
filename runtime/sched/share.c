/* SPDX-License-Identifier: Apache-2.0 */
/* share.c - who gives way when another has less: owners to owners first, then, inside one owner, its
 * clients to each other. */
#include <assert.h>
#include <stdio.h>
#include "runtime/sched/state.h"

/* ---- places ---------------------------------------------------------------------------------- */

/* The youngest running request of a party, of its client that has most places. */
static struct request *youngest_running(const struct sched *s, const struct party *party)
{
    struct request *best = NULL;

    for (uint32_t i = s->n_running; i-- > 0;) {
        struct request *req = s->running[i];

        if (party_has(s, party, req) &&
            (!best || client_of(s, req)->n_running > client_of(s, best)->n_running))
            best = req;
    }
    return best;
}

static struct request *find_place(const struct sched *s, const struct request *req,
                                  const struct party *parent)
{
    const struct party *mine = party_below(s, req, parent), *most = mine;

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct party *party = party_below(s, s->running[i], parent);

        if (party && party->n_running > most->n_running)
            most = party;
    }
    return most->n_running <= mine->n_running + 1 ? NULL : youngest_running(s, most);
}

struct request *share_find_place(const struct sched *s, const struct request *req)
{
    struct request *victim = find_place(s, req, s->parties);

    return victim ? victim : find_place(s, req, owner_of(s, req));
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The running request of a party that would give its pages next: the youngest, of its client that
 * would keep most. What clients have given in this scan is noted there. */
static struct request *next_to_give(const struct sched *s, const struct party *party, uint64_t scan)
{
    struct party *most = NULL;
    uint32_t at = 0;

    for (uint32_t i = s->n_running; i-- > 0;) {
        struct party *client = client_of(s, s->running[i]);

        if (!party_has(s, party, s->running[i]))
            continue;
        if (client->seen != scan) {
            client->seen = scan;
            client->gives = 0;
            client->gives_before = s->n_running;
        }
        if (i >= client->gives_before)
            continue;
        if (!most || client->n_pages - client->gives > most->n_pages - most->gives) {
            most = client;
            at = i;
        }
    }
    if (!most)
        return NULL;
    most->gives += s->running[at]->n_pages + s->running[at]->n_reserved;
    most->gives_before = at;
    return s->running[at];
}

static struct request *find_pages(struct sched *s, const struct request *req, uint32_t want,
                                  const struct party *parent)
{
    const struct party *mine = party_below(s, req, parent), *most = mine;
    struct request *first = NULL, *victim;
    uint64_t scan = ++s->scan;
    uint32_t has, needs, room;

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct party *party = party_below(s, s->running[i], parent);

        if (party && party->n_pages > most->n_pages)
            most = party;
    }
    if (most == mine)
        return NULL;
    has = most->n_pages;
    needs = mine->n_pages + want;
    room = page_pool_total(s->pool) - page_pool_used(s->pool) - page_pool_reserved(s->pool);
    /* Nobody is displaced for nothing: there must be enough among those whose party keeps as
     * much as req's gets. */
    while (room < want && (victim = next_to_give(s, most, scan)) != NULL) {
        uint32_t gives = victim->n_pages + victim->n_reserved;

        if (has - gives < needs)
            return NULL;
        has -= gives;
        room += gives;
        first = first ? first : victim;
    }
    return room >= want ? first : NULL;
}

struct request *share_find_pages(struct sched *s, const struct request *req, uint32_t want)
{
    struct request *victim = find_pages(s, req, want, s->parties);

    return victim ? victim : find_pages(s, req, want, owner_of(s, req));
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* Who has begun keeps what was computed for it. */
static struct request *youngest_queued(const struct sched *s, const struct party *party)
{
    struct request *best = NULL;

    for (uint32_t i = s->n_queued; i-- > 0;) {
        struct request *req = s->queue[i];

        if (party_has(s, party, req) && req->stamp[STAMP_PREFILL] == 0 &&
            (!best || client_of(s, req)->n_queued > client_of(s, best)->n_queued))
            best = req;
    }
    return best;
}

static int push_out(struct sched *s, const struct request *req, const struct party *parent,
                    uint64_t now_ns)
{
    const struct party *mine = party_below(s, req, parent), *most = mine;
    struct request *victim;

    for (uint32_t i = 0; i < s->n_queued; i++) {
        const struct party *party = party_below(s, s->queue[i], parent);

        if (party && party->n_queued > most->n_queued)
            most = party;
    }
    if (most->n_queued <= mine->n_queued + 1)
        return 0;
    victim = youngest_queued(s, most);
    if (!victim)
        return 0;
    victim->retry_after_ns = sched_retry_after_ns(s);
    victim->have = s->opt.queued_max;
    victim->want = s->opt.queued_max + 1ull;
    snprintf(victim->message, sizeof victim->message,
             "the queue is full, and %u of it were this %s's", most->n_queued, party_word(s, most));
    request_end(s, victim, END_OVERLOADED, FINISH_NONE, now_ns);
    return 1;
}

int share_push_out(struct sched *s, const struct request *req, uint64_t now_ns)
{
    return push_out(s, req, s->parties, now_ns) || push_out(s, req, owner_of(s, req), now_ns);
}
