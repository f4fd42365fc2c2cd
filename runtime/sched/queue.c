/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - who waits, who enters the batch, who leaves it, and whose time is over. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "runtime/sched/state.h"

#define RETRY_MIN_NS 1000000ull
#define RETRY_MAX_NS 60000000000ull

/* ---- lists in order of arrival --------------------------------------------------------------- */

static void list_add(struct request **list, uint32_t *n, struct request *req)
{
    uint32_t i = *n;

    while (i > 0 && list[i - 1]->order > req->order)
        i--;
    memmove(list + i + 1, list + i, (*n - i) * sizeof(struct request *));
    list[i] = req;
    (*n)++;
}

static void list_remove(struct request **list, uint32_t *n, const struct request *req)
{
    uint32_t i = 0;

    while (list[i] != req)
        i++;
    (*n)--;
    memmove(list + i, list + i + 1, (*n - i) * sizeof(struct request *));
}

void queue_add(struct sched *s, struct request *req)
{
    req->state = REQUEST_QUEUED;
    s->queued_rows += req->n_known;
    client_of(s, req)->n_queued++;
    owner_of(s, req)->n_queued++;
    list_add(s->queue, &s->n_queued, req);
}

static void running_add(struct sched *s, struct request *req)
{
    req->state = REQUEST_RUNNING;
    client_of(s, req)->n_running++;
    owner_of(s, req)->n_running++;
    list_add(s->running, &s->n_running, req);
}

void queue_remove(struct sched *s, struct request *req)
{
    switch (req->state) {
    case REQUEST_QUEUED:
        s->queued_rows -= req->n_known;
        client_of(s, req)->n_queued--;
        owner_of(s, req)->n_queued--;
        list_remove(s->queue, &s->n_queued, req);
        break;
    case REQUEST_RUNNING:
        assert(!s->stepping);
        client_of(s, req)->n_running--;
        owner_of(s, req)->n_running--;
        list_remove(s->running, &s->n_running, req);
        break;
    default:
        assert(req->state == REQUEST_PAUSED);
        list_remove(s->paused, &s->n_paused, req);
    }
}

/* ---- admission ------------------------------------------------------------------------------- */

uint32_t pages_to_reserve(const struct sched *s, const struct request *req)
{
    if (req->op == REQUEST_LOGPROBS)
        return pages_for(request_prompt_rows(req));
    if (req->max_tokens == REQUEST_MAX_TOKENS_NONE)
        return pages_for(req->n_known ? req->n_known : request_prompt_rows(req));
    return pages_for(req->n_prompt + request_room(s, req));
}

static uint32_t lag(const struct request *req)
{
    return req->n_out > req->n_published ? req->n_out - req->n_published : 0;
}

static int has_caught_up(const struct sched *s, const struct request *req)
{
    return lag(req) <= s->opt.lag_tokens_max / 2;
}

/* Whether a's party x had less than b's party y; among equals, who has less in the batch, then who
 * came first. */
static int goes_before(const struct request *a, const struct party *x, const struct request *b,
                       const struct party *y)
{
    if (x->served != y->served)
        return x->served < y->served;
    if (x->n_running != y->n_running)
        return x->n_running < y->n_running;
    return a->order < b->order;
}

/* Counts for finds_place(), at the beginning of a round. */
static void count_places(struct sched *s)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct party *party = client_of(s, s->running[i]);

        for (struct party *parent = party->parent; parent; party = parent, parent = party->parent) {
            if (parent->counted != s->round)
                parent->most_running = 0;
            parent->counted = s->round;
            if (party->n_running > parent->most_running)
                parent->most_running = party->n_running;
        }
    }
}

/* Whether a place is free, or share_find_place() would find one. */
static int finds_place(const struct sched *s, const struct request *req)
{
    if (s->n_running < s->opt.running_max)
        return 1;
    for (const struct party *party = client_of(s, req); party->parent; party = party->parent) {
        if (party->parent->counted == s->round && /* or none of its own runs */
            party->parent->most_running > party->n_running + 1)
            return 1;
    }
    return 0;
}

/* There are no pages for it in this round. */
static void wait_for_pages(struct sched *s, const struct request *req)
{
    const struct party *client = client_of(s, req);
    struct party *owner = owner_of(s, req);

    if (owner->waits == s->round) {
        if (client->n_pages < owner->waits_pages)
            owner->waits_pages = client->n_pages;
        return;
    }
    owner->waits = s->round;
    owner->waits_pages = client->n_pages;
    if (!s->waits_least || owner->n_pages < s->waits_pages[0]) {
        s->waits_pages[1] = s->waits_pages[0];
        s->waits_pages[0] = owner->n_pages;
        s->waits_least = owner;
    } else if (owner->n_pages < s->waits_pages[1]) {
        s->waits_pages[1] = owner->n_pages;
    }
}

/* Whether one that waits for pages is of a party that has less than req's would with n more. */
static int overtakes(const struct sched *s, const struct request *req, uint32_t n)
{
    const struct party *owner = owner_of(s, req);

    if ((uint64_t)owner->n_pages + n > s->waits_pages[owner == s->waits_least])
        return 1;
    return owner->waits == s->round &&
           (uint64_t)client_of(s, req)->n_pages + n > owner->waits_pages;
}

static int may_enter(const struct sched *s, const struct request *req)
{
    if (req->state == REQUEST_QUEUED) {
        uint32_t n = pages_to_reserve(s, req);

        if (party_over_pages(s, req, n) || overtakes(s, req, n))
            return 0;
    }
    return finds_place(s, req);
}

/* Of the first of each client below `parent` that may enter, the one whose party had least so far;
 * NULL: nobody. Clients that were passed over in this round are marked. */
static struct request *first_below(struct sched *s, const struct party *parent)
{
    const struct party *best_party = NULL;
    struct request *best = NULL;
    uint64_t scan = ++s->scan;

    for (uint32_t i = 0; i < s->n_paused + s->n_queued; i++) {
        struct request *req = i < s->n_paused ? s->paused[i] : s->queue[i - s->n_paused];
        struct party *client = client_of(s, req);
        const struct party *party = party_below(s, req, parent);

        if (!party || client->seen == scan || client->passed == s->round)
            continue;
        if (req->state == REQUEST_PAUSED && !has_caught_up(s, req))
            continue;
        client->seen = scan;
        if (may_enter(s, req) && (!best || goes_before(req, party, best, best_party))) {
            best = req;
            best_party = party;
        }
    }
    return best;
}

/* Owner first, then its client. */
static struct request *next_to_enter(struct sched *s)
{
    struct request *req = first_below(s, s->parties);

    return req ? first_below(s, owner_of(s, req)) : NULL;
}

void queue_overload(struct sched *s, struct request *req, uint64_t now_ns)
{
    req->retry_after_ns = sched_retry_after_ns(s);
    snprintf(req->message, sizeof req->message,
             "no KV page left after %u tokens; max_tokens would reserve them",
             req->n_tokens - req->n_prompt);
    request_end(s, req, END_OVERLOADED, FINISH_NONE, now_ns);
}

/* Back to the queue, without its pages: what it has made so far is computed again when it comes
 * back. */
static void displace(struct sched *s, struct request *req, uint64_t now_ns)
{
    for (struct party *party = client_of(s, req); party->parent; party = party->parent) {
        if (party->limits->pages && pages_for(req->n_tokens) > party->limits->pages) {
            queue_overload(s, req, now_ns); /* its next token would have been one too many */
            return;
        }
    }
    queue_remove(s, req);
    pages_return(s, req);
    req->n_computed = 0;
    req->n_logprobs = 0;
    if (req->op == REQUEST_GENERATE)
        req->n_known = req->n_tokens;
    queue_add(s, req);
    s->displaced++;
}

static void enter(struct sched *s, struct request *req, uint64_t now_ns)
{
    uint32_t n = pages_to_reserve(s, req);

    if (req->state == REQUEST_QUEUED) {
        while (page_reserve(s->pool, n) < 0) {
            struct request *victim = share_find_pages(s, req, n);

            if (!victim) /* not after one was displaced, unless that changed an order */
                return;
            displace(s, victim, now_ns);
        }
        req->n_reserved = n;
        party_pages_add(s, req, n);
    }
    queue_remove(s, req);
    running_add(s, req);
}

/*
 * Who may enter next, or NULL. Who waits for pages is overtaken only by parties that will have no
 * more than its own has, so it waits for itself. *ret_victim: who gives its place up for that, or
 * NULL.
 */
static struct request *choose(struct sched *s, struct request **ret_victim)
{
    uint32_t free =
        page_pool_total(s->pool) - page_pool_used(s->pool) - page_pool_reserved(s->pool);
    struct request *req;

    s->round++;
    s->waits_least = NULL;
    s->waits_pages[0] = s->waits_pages[1] = UINT32_MAX;
    count_places(s);
    while ((req = next_to_enter(s)) != NULL) {
        uint32_t n = req->state == REQUEST_QUEUED ? pages_to_reserve(s, req) : 0, room = free;

        *ret_victim = NULL;
        if (s->n_running == s->opt.running_max) {
            *ret_victim = share_find_place(s, req);
            room += (*ret_victim)->n_pages + (*ret_victim)->n_reserved;
        }
        if (n <= room || share_find_pages(s, req, n))
            return req;
        wait_for_pages(s, req);
        client_of(s, req)->passed = s->round;
    }
    return NULL;
}

void queue_admit(struct sched *s, uint64_t now_ns)
{
    struct request *req, *victim;

    while ((req = choose(s, &victim)) != NULL) {
        if (victim)
            displace(s, victim, now_ns);
        enter(s, req, now_ns);
        if (req->state != REQUEST_RUNNING)
            return;
    }
}

int sched_has_work(struct sched *s)
{
    struct request *victim;

    return s->n_running > 0 || choose(s, &victim) != NULL;
}

/* ---- a reader that does not keep up ---------------------------------------------------------- */

void queue_pause(struct sched *s, uint64_t now_ns)
{
    if (s->opt.lag_tokens_max == 0)
        return;
    for (uint32_t i = 0; i < s->n_running;) {
        struct request *req = s->running[i];

        if (lag(req) <= s->opt.lag_tokens_max) {
            i++;
            continue;
        }
        queue_remove(s, req);
        req->state = REQUEST_PAUSED;
        req->paused_ns = now_ns;
        list_add(s->paused, &s->n_paused, req);
        s->pauses++;
    }
}

static void end_slow(struct sched *s, struct request *req, uint64_t now_ns)
{
    req->have = s->opt.lag_tokens_max;
    req->want = lag(req);
    snprintf(req->message, sizeof req->message, "%u tokens were not read for %llu ms", lag(req),
             (unsigned long long)(s->opt.lag_timeout_ns / 1000000));
    request_end(s, req, END_SLOW, FINISH_NONE, now_ns);
    s->slow++;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void earlier(uint64_t *earliest, uint64_t ns)
{
    if (ns != 0 && (*earliest == 0 || ns < *earliest))
        *earliest = ns;
}

/* Ends what must end of list[0 .. *n - 1] (ending shortens it) and keeps the earliest deadline
 * of the rest. */
static void expire(struct sched *s, struct request *const *list, const uint32_t *n, uint64_t now_ns,
                   uint64_t *earliest)
{
    for (uint32_t i = 0; i < *n;) {
        struct request *req = list[i];
        uint64_t slow_ns = req->state == REQUEST_PAUSED && !has_caught_up(s, req)
                               ? req->paused_ns + s->opt.lag_timeout_ns
                               : 0;

        if (req->end_asked != END_OK) {
            request_end(s, req, req->end_asked, FINISH_NONE, now_ns);
        } else if (req->cancel) {
            request_end(s, req, END_CANCELLED, FINISH_NONE, now_ns);
        } else if (req->deadline_ns != 0 && now_ns >= req->deadline_ns) {
            request_end(s, req, END_DEADLINE, FINISH_NONE, now_ns);
        } else if (slow_ns != 0 && now_ns >= slow_ns) {
            end_slow(s, req, now_ns);
        } else {
            earlier(earliest, req->deadline_ns);
            earlier(earliest, slow_ns);
            i++;
        }
    }
}

uint64_t sched_expire(struct sched *s, uint64_t now_ns)
{
    uint64_t earliest = 0;

    expire(s, s->queue, &s->n_queued, now_ns, &earliest);
    expire(s, s->paused, &s->n_paused, now_ns, &earliest);
    if (!s->stepping)
        expire(s, s->running, &s->n_running, now_ns, &earliest);
    return earliest;
}

uint64_t sched_retry_after_ns(const struct sched *s)
{
    uint64_t steps = 1 + s->queued_rows / s->opt.chunk_rows;
    uint64_t ns;

    if (__builtin_mul_overflow(steps, s->step_ns, &ns) || ns > RETRY_MAX_NS)
        return RETRY_MAX_NS;
    return ns < RETRY_MIN_NS ? RETRY_MIN_NS : ns;
}
