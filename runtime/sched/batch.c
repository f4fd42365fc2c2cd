/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - one step: pages, rows, the forward pass, and what its logits mean for each request. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "runtime/sched/state.h"

static int is_prefill(const struct request *req)
{
    return req->n_computed < req->n_known;
}

static int is_lazy(const struct request *req)
{
    return req->op == REQUEST_GENERATE && req->max_tokens == REQUEST_MAX_TOKENS_NONE;
}

/* Who has no max_tokens and ends when there is no page: of this party, or with NULL of them all, the
 * youngest of the owner with most pages, of its client with most. */
static uint32_t find_lazy(const struct sched *s, const struct party *party)
{
    uint32_t found = UINT32_MAX, most = 0, most_client = 0;

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct request *req = s->running[i];
        uint32_t n = owner_of(s, req)->n_pages, n_client = client_of(s, req)->n_pages;

        if (!is_lazy(req) || (party && !party_has(s, party, req)) || n < most ||
            (n == most && n_client < most_client))
            continue;
        found = i;
        most = n;
        most_client = n_client;
    }
    return found;
}

/* 0 or -ENOSPC: the pool, or the limit of a party. */
static int grow(struct sched *s, struct request *req)
{
    int reserved = req->n_reserved > 0;

    if (!reserved && party_over_pages(s, req, 1))
        return -ENOSPC;
    if (page_take(s->pool, reserved, &req->pages[req->n_pages]) < 0)
        return -ENOSPC;
    req->n_pages++;
    req->n_reserved -= (uint32_t)reserved;
    party_pages_add(s, req, !reserved);
    return 0;
}

/* A page for the next position of every request that decodes. Only one without max_tokens can find
 * none; then one of its kind ends, and this one is looked at again if it was not that. */
static void grow_pages(struct sched *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->n_running;) {
        struct request *req = s->running[i];
        uint32_t victim;

        if (is_prefill(req) || req->n_computed < req->n_pages * KV_PAGE || grow(s, req) == 0) {
            i++;
            continue;
        }
        victim = find_lazy(s, party_over_pages(s, req, 1));
        assert(victim < s->n_running);
        queue_overload(s, s->running[victim], now_ns);
        i -= victim < i;
    }
}

/* Up to n more prompt rows for running[i]. Scored prompts want logits of every row: *logits of
 * them are left. */
static void grant(struct sched *s, uint32_t i, uint32_t n, uint32_t *budget, uint32_t *logits)
{
    const struct request *req = s->running[i];
    uint32_t left = req->n_known - req->n_computed - s->granted[i];

    n = left < n ? left : n;
    if (req->op == REQUEST_LOGPROBS) {
        n = *logits < n ? *logits : n;
        *logits -= n;
    }
    s->granted[i] += n;
    *budget -= n;
}

/* The client's prompt after its oldest that is nearest to its end and can be granted rows; 0: none. */
static uint32_t shortest_prompt(const struct sched *s, uint32_t oldest, const uint32_t *logits)
{
    uint32_t best = 0, best_left = UINT32_MAX;

    for (uint32_t i = oldest + 1; i < s->n_running; i++) {
        const struct request *req = s->running[i];
        uint32_t left = req->n_known - req->n_computed - s->granted[i];

        if (!is_prefill(req) || left == 0 || req->client != s->running[oldest]->client ||
            (req->op == REQUEST_LOGPROBS && *logits == 0))
            continue;
        if (left < best_left) {
            best = i;
            best_left = left;
        }
    }
    return best;
}

/* Shares a client's part of the budget out over its prompts; oldest is the first of them. */
static void deal_prompts(struct sched *s, uint32_t oldest, uint32_t part, uint32_t *budget,
                         uint32_t *logits)
{
    uint32_t left = part, i;

    grant(s, oldest, left - left / 2, &left, logits);
    while (left > 0 && (i = shortest_prompt(s, oldest, logits)) != 0)
        grant(s, i, left, &left, logits);
    grant(s, oldest, left, &left, logits);
    *budget -= part - left;
}

/* The oldest prompt of the party below parent that had least so far, of those that had no part in
 * this turn; UINT32_MAX: none. */
static uint32_t next_oldest(struct sched *s, const struct party *parent, uint64_t turn)
{
    struct party *best_party = NULL;
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < s->n_running; i++) {
        struct party *party = party_below(s, s->running[i], parent);

        if (!party || !is_prefill(s->running[i]) || party->dealt == turn)
            continue;
        if (!best_party || party->served < best_party->served) {
            best = i;
            best_party = party;
        }
    }
    if (best_party)
        best_party->dealt = turn;
    return best;
}

/* Parties below parent with prompts in the batch. */
static uint32_t count_parties(struct sched *s, const struct party *parent)
{
    uint64_t turn = ++s->scan;
    uint32_t n = 0;

    while (next_oldest(s, parent, turn) != UINT32_MAX)
        n++;
    return n;
}

/* Shares a part of the budget out over the parties below parent: equal parts, then what is left. */
static void deal(struct sched *s, const struct party *parent, uint32_t part, uint32_t *budget,
                 uint32_t *logits)
{
    uint32_t left = part, n = count_parties(s, parent), oldest;

    for (int round = 0; round < 2; round++) {
        for (uint64_t turn = ++s->scan;
             left > 0 && (oldest = next_oldest(s, parent, turn)) != UINT32_MAX;) {
            uint32_t its = n > 0 ? left / n + (left % n != 0) : left;

            n = n > 0 ? n - 1 : 0; /* of those that still get their equal part */
            if (parent == s->parties)
                deal(s, owner_of(s, s->running[oldest]), its, &left, logits);
            else
                deal_prompts(s, oldest, its, &left, logits);
        }
    }
    *budget -= part - left;
}

/* Shares this step's prompt rows out, as the header says: equal parts, then what is left. */
static void share_rows(struct sched *s)
{
    uint32_t budget, n_decode = 0, logits;

    logits = s->backend->logits_max;
    for (uint32_t i = 0; i < s->n_running; i++) {
        s->granted[i] = 0;
        n_decode += !is_prefill(s->running[i]);
        /* One for each that generates, whether its prompt ends in this step or not. */
        logits -= s->running[i]->op == REQUEST_GENERATE;
    }
    budget = s->backend->rows_max - n_decode;
    if (budget > s->opt.chunk_rows)
        budget = s->opt.chunk_rows;
    deal(s, s->parties, budget, &budget, &logits);
}

/* Appends n rows of req to the step. */
static void pack(struct sched *s, struct step *step, struct request *req, uint32_t n)
{
    uint32_t row0 = step->n_rows, end = req->n_computed + n, first_logit = row0 + n;
    uint32_t i = step->n_seqs++;

    while (req->n_pages < pages_for(end)) { /* prompts have all their pages reserved */
        int err = page_take(s->pool, 1, &req->pages[req->n_pages]);

        assert(err == 0);
        (void)err;
        req->n_pages++;
        req->n_reserved--;
    }
    client_of(s, req)->served += n;
    owner_of(s, req)->served += n;
    memcpy(s->tokens + row0, req->tokens + req->n_computed, n * sizeof *s->tokens);
    s->seqs[i] =
        (struct step_seq){.row0 = row0, .n_rows = n, .pos0 = req->n_computed, .pages = req->pages};
    s->seq_prompt[i] = req->n_prompt;
    s->seq_req[i] = req;
    if (req->op == REQUEST_LOGPROBS)
        first_logit = row0;
    else if (end == req->n_tokens && request_goes_on(s, req))
        first_logit = row0 + n - 1;
    s->seq_logits[i] = row0 + n - first_logit;
    for (uint32_t row = first_logit; row < row0 + n; row++)
        s->logit_rows[step->n_logits++] = row;
    step->n_rows += n;
}

/* Rows up to end are computed: counts those of the prompt that were not before. */
static void count_prompt(struct sched *s, struct request *req, uint32_t end)
{
    uint32_t rows = request_prompt_rows(req);

    end = end < rows ? end : rows;
    if (end <= req->n_counted)
        return;
    s->prompt_tokens += end - req->n_counted;
    req->n_counted = end;
}

static void pack_all(struct sched *s, struct step *step, uint64_t now_ns)
{
    *step = (struct step){.tokens = s->tokens,
                          .seqs = s->seqs,
                          .logit_rows = s->logit_rows,
                          .n_prompt = s->seq_prompt};
    share_rows(s);
    for (uint32_t i = 0; i < s->n_running; i++) {
        if (!is_prefill(s->running[i]))
            pack(s, step, s->running[i], 1);
    }
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct request *req = s->running[i];

        if (s->granted[i] == 0)
            continue;
        if (req->stamp[STAMP_PREFILL] == 0)
            req->stamp[STAMP_PREFILL] = now_ns;
        count_prompt(s, req, req->n_computed + s->granted[i]);
        pack(s, step, req, s->granted[i]);
    }
}

/* Says for each row of logits which token it is asked for: the next one, or how likely a known one
 * is. */
static void ask_draws(struct sched *s, const struct step *step)
{
    struct draw *draw = s->draws;

    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct request *req = s->seq_req[i];
        const uint32_t *next = req->tokens + req->n_logprobs + 1;

        for (uint32_t r = 0; r < s->seq_logits[i]; r++)
            *draw++ = req->op == REQUEST_LOGPROBS
                          ? (struct draw){.id = next[r]}
                          : (struct draw){.how = &req->sampling, .pos = req->n_tokens};
    }
}

static int stops(const struct sched *s, const struct request *req, uint32_t id)
{
    for (uint32_t i = 0; i < req->n_stop_ids; i++) {
        if (req->stop_ids[i] == id)
            return 1;
    }
    return !req->ignore_eos && vocab_is_eog(s->opt.vocab, id);
}

/* Takes an output id in; 1 when that was the end of the request. */
static int feed(struct sched *s, struct request *req, uint32_t id, uint64_t now_ns)
{
    int err = output_feed(s, req, id);

    if (err < 0)
        request_end(s, req, END_CONTEXT, FINISH_NONE, now_ns);
    else if (err == 1)
        request_end(s, req, END_OK, FINISH_STOP, now_ns);
    return err != 0;
}

/* Received ids go through the detokeniser as their rows are computed, so that no pass does all of
 * them at once. 1: a stop string that they hold ended the request. */
static int feed_received(struct sched *s, struct request *req, uint64_t now_ns)
{
    while (req->n_fed < req->n_resume && req->n_prompt + req->n_fed < req->n_computed) {
        if (feed(s, req, req->tokens[req->n_prompt + req->n_fed++], now_ns))
            return 1;
    }
    return 0;
}

/* The next token of a generation, and whether it is the last. */
static void generate(struct sched *s, struct request *req, const struct draw *draw, uint64_t now_ns)
{
    int err;

    if (draw->err < 0) {
        request_end(s, req, END_NUMERIC, FINISH_NONE, now_ns);
        return;
    }
    if (req->stamp[STAMP_FIRST] == 0)
        req->stamp[STAMP_FIRST] = now_ns;
    req->stamp[STAMP_LAST] = now_ns;
    if (stops(s, req, draw->id)) {
        err = output_flush(s, req, 0);
        request_end(s, req, err < 0 ? END_CONTEXT : END_OK, err < 0 ? FINISH_NONE : FINISH_STOP,
                    now_ns);
        return;
    }
    req->tokens[req->n_tokens++] = draw->id;
    if (!feed(s, req, draw->id, now_ns) && !request_goes_on(s, req))
        request_end(s, req, END_OK, FINISH_LENGTH, now_ns);
}

static void score(struct sched *s, struct request *req, const struct draw *draws, uint32_t n,
                  uint64_t now_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        if (draws[i].err < 0) {
            request_end(s, req, END_NUMERIC, FINISH_NONE, now_ns);
            return;
        }
        req->logprobs[req->n_logprobs++] = draws[i].logprob;
    }
    if (!is_prefill(req))
        request_end(s, req, END_OK, FINISH_NONE, now_ns);
}

static void absorb(struct sched *s, const struct step *step, uint64_t now_ns)
{
    const struct draw *draw = s->draws;

    for (uint32_t i = 0; i < step->n_seqs; i++) {
        struct request *req = s->seq_req[i];
        uint32_t n = s->seq_logits[i];

        req->n_computed += s->seqs[i].n_rows;
        if (req->cancel || req->end_asked != END_OK)
            ; /* it ends at the boundary that follows, and this token is never seen */
        else if (req->op == REQUEST_LOGPROBS)
            score(s, req, draw, n, now_ns);
        else if (feed_received(s, req, now_ns))
            ; /* a stop string among them */
        else if (n > 0)
            generate(s, req, draw, now_ns);
        else if (!is_prefill(req))
            request_end(s, req, END_OK, FINISH_LENGTH, now_ns); /* no room for output */
        draw += n;
    }
}

uint32_t sched_step(struct sched *s, uint64_t (*now)(void))
{
    uint64_t begin_ns = now(), end_ns;
    const float *logits = NULL;
    struct step step;

    sched_expire(s, begin_ns);
    queue_pause(s, begin_ns);
    queue_admit(s, begin_ns);
    grow_pages(s, begin_ns);
    if (s->n_running == 0)
        return 0;
    pack_all(s, &step, begin_ns);
    ask_draws(s, &step);

    s->stepping = 1;
    s->backend->forward(s->backend->self, &step, &logits);
    sampler_draw(s->sampler, logits, s->backend->block_max, s->draws, step.n_logits);
    s->stepping = 0;

    end_ns = now();
    s->steps++;
    s->step_ns =
        s->steps == 1 ? end_ns - begin_ns : s->step_ns - s->step_ns / 8 + (end_ns - begin_ns) / 8;
    absorb(s, &step, end_ns);
    sched_expire(s, end_ns);
    return step.n_rows;
}
