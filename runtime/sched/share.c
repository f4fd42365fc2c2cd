/* SPDX-License-Identifier: Apache-2.0 */
/* share.c - owners: what each has, what each had, and who gives way when another has less. */
#include <assert.h>
#include <stdio.h>
#include "runtime/sched/state.h"

/* The least that anybody has had who has requests now. */
static uint64_t served_least(const struct sched *s)
{
    const uint32_t n[] = {s->n_queued, s->n_running, s->n_paused};
    struct request *const *const lists[] = {s->queue, s->running, s->paused};
    uint64_t least = UINT64_MAX;

    for (int k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < n[k]; i++) {
            uint64_t served = s->shares[lists[k][i]->share].served;

            least = served < least ? served : least;
        }
    }
    return least;
}

/* Who comes back after a while has saved nothing up: it begins level with who had least. */
void share_begin(struct sched *s, struct request *req)
{
    struct share *share = &s->shares[req->share];

    if (share->n_active++ == 0) {
        uint64_t least = served_least(s);

        if (least != UINT64_MAX)
            s->served_floor = least;
        if (share->served < s->served_floor)
            share->served = s->served_floor;
    }
    share->prompt_tokens += req->n_prompt;
}

void share_end(struct sched *s, const struct request *req)
{
    struct share *share = &s->shares[req->share];

    share->n_active--;
    share->prompt_tokens -= req->n_prompt;
}

/* The youngest running request of an owner, among the first n of the list. */
static struct request *youngest(const struct sched *s, uint32_t share, uint32_t n, uint32_t *ret_at)
{
    while (n-- > 0) {
        if (s->running[n]->share == share) {
            *ret_at = n;
            return s->running[n];
        }
    }
    return NULL;
}

struct request *share_find_place(const struct sched *s, const struct request *req)
{
    uint32_t most = req->share, at;

    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->shares[s->running[i]->share].n_running > s->shares[most].n_running)
            most = s->running[i]->share;
    }
    if (s->shares[most].n_running <= s->shares[req->share].n_running + 1)
        return NULL;
    return youngest(s, most, s->n_running, &at);
}

struct request *share_find_pages(const struct sched *s, const struct request *req, uint32_t want)
{
    uint32_t most = req->share, at = s->n_running, has, needs, room;
    struct request *first = NULL, *victim;

    for (uint32_t i = 0; i < s->n_running; i++) {
        if (s->shares[s->running[i]->share].n_pages > s->shares[most].n_pages)
            most = s->running[i]->share;
    }
    if (most == req->share)
        return NULL;
    has = s->shares[most].n_pages;
    needs = s->shares[req->share].n_pages + want;
    room = page_pool_total(s->pool) - page_pool_used(s->pool) - page_pool_reserved(s->pool);
    /* Nobody is displaced for nothing: there must be enough among those whose owner keeps as
     * much as req's gets. */
    while (room < want && (victim = youngest(s, most, at, &at)) != NULL) {
        uint32_t gives = victim->n_pages + victim->n_reserved;

        if (has - gives < needs)
            return NULL;
        has -= gives;
        room += gives;
        first = first ? first : victim;
    }
    return room >= want ? first : NULL;
}

int queue_push_out(struct sched *s, uint32_t share, uint64_t now_ns)
{
    struct request *victim = NULL;
    uint32_t most = share;

    for (uint32_t i = 0; i < s->n_queued; i++) {
        if (s->shares[s->queue[i]->share].n_queued > s->shares[most].n_queued)
            most = s->queue[i]->share;
    }
    if (s->shares[most].n_queued <= s->shares[share].n_queued + 1)
        return 0;
    for (uint32_t i = s->n_queued; i-- > 0 && !victim;) {
        if (s->queue[i]->share == most && s->queue[i]->stamp[STAMP_PREFILL] == 0)
            victim = s->queue[i];
    }
    if (!victim) /* all of them have begun */
        return 0;
    victim->retry_after_ns = sched_retry_after_ns(s);
    victim->have = s->opt.queued_max;
    victim->want = s->opt.queued_max + 1ull;
    snprintf(victim->message, sizeof victim->message,
             "the queue is full, and %u of it were this client's", s->shares[most].n_queued);
    request_end(s, victim, END_OVERLOADED, FINISH_NONE, now_ns);
    return 1;
}
