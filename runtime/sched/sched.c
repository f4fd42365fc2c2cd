/* SPDX-License-Identifier: Apache-2.0 */
/* sched.c - the fixed set of requests, how each ends, and the counts. */
#include "runtime/sched/sched.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/mem.h"
#include "runtime/sched/state.h"

#define N_CTX_MAX    (1u << 24) /* keeps the sizes below in 64 bits */
#define REQUESTS_MAX (1u << 20)

/* Bytes of one request's arrays, each on a cache line; with req not NULL also points it at them.
 * Sized for the context that was asked for, since the caller fills tokens before any limit is
 * checked here. */
static size_t slot_layout(const struct sched *s, struct request *req, uint8_t *base)
{
    size_t ids = (size_t)s->n_ctx_asked + 1;
    const size_t bytes[] = {
        ids * sizeof *req->tokens,    pages_for(s->n_ctx_asked) * sizeof *req->pages,
        ids * sizeof *req->out_ids,   s->opt.out_bytes_max,
        2 * ids * sizeof *req->marks, ids * sizeof *req->logprobs,
    };
    size_t at[sizeof bytes / sizeof bytes[0]], end = 0;

    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        at[i] = end;
        end = (end + bytes[i] + 63) & ~(size_t)63;
    }
    if (req) {
        req->tokens = (uint32_t *)(void *)(base + at[0]);
        req->pages = (uint32_t *)(void *)(base + at[1]);
        req->out_ids = (uint32_t *)(void *)(base + at[2]);
        req->out_text = base + at[3];
        req->marks = (struct piece_mark *)(void *)(base + at[4]);
        req->logprobs = (float *)(void *)(base + at[5]);
    }
    return end;
}

/* The arrays are mapped, not allocated: memory comes with first touch, so unused slots cost
 * nothing. A request touches the beginning of each array: with huge pages that would be
 * megabytes. */
static int slots_new(struct sched *s)
{
    size_t each = slot_layout(s, NULL, NULL);

    s->n_slots = s->opt.queued_max + 4 * s->opt.running_max;
    s->slots_bytes = s->n_slots * sizeof *s->slots;
    s->slot_memory_bytes = s->n_slots * each;
    s->slots = mem_map_small(s->slots_bytes);
    s->slot_memory = mem_map_small(s->slot_memory_bytes);
    s->free = calloc(s->n_slots, sizeof *s->free);
    if (!s->slots || !s->slot_memory || !s->free)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        s->slots[i].slot = i;
        s->free[i] = s->n_slots - 1 - i;
    }
    s->n_free = s->n_slots;
    return 0;
}

static int step_memory_new(struct sched *s)
{
    size_t n = s->opt.running_max;

    s->queue = calloc(s->n_slots, sizeof(struct request *));
    s->running = calloc(n, sizeof(struct request *));
    s->paused = calloc(s->n_slots, sizeof(struct request *));
    s->tokens = calloc(s->backend->rows_max, sizeof *s->tokens);
    s->logit_rows = calloc(s->backend->logits_max, sizeof *s->logit_rows);
    s->seqs = calloc(n, sizeof *s->seqs);
    s->seq_prompt = calloc(n, sizeof *s->seq_prompt);
    s->seq_req = calloc(n, sizeof(struct request *));
    s->seq_logits = calloc(n, sizeof *s->seq_logits);
    s->draws = calloc(s->backend->logits_max, sizeof *s->draws);
    s->granted = calloc(n, sizeof *s->granted);
    if (!s->queue || !s->running || !s->paused || !s->tokens || !s->logit_rows || !s->seqs ||
        !s->seq_prompt || !s->seq_req || !s->seq_logits || !s->draws || !s->granted)
        return -ENOMEM;
    return 0;
}

static int opt_is_good(const struct sched_opt *opt, const struct backend *backend)
{
    return opt->running_max > 0 && opt->running_max <= backend->logits_max &&
           opt->running_max < backend->rows_max && opt->running_max <= REQUESTS_MAX &&
           opt->queued_max <= REQUESTS_MAX && opt->n_pages > 0 && opt->n_ctx > 0 &&
           opt->n_ctx <= N_CTX_MAX && opt->chunk_rows > 0 && opt->vocab &&
           vocab_size(opt->vocab) == backend->n_vocab;
}

int sched_new(struct sched **ret_sched, const struct sched_opt *opt, struct backend *backend,
              struct sampler *sampler)
{
    struct sched *s;
    int err;

    if (!opt_is_good(opt, backend))
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->opt = *opt;
    s->n_ctx_asked = opt->n_ctx;
    if (opt->n_pages < pages_for(opt->n_ctx))
        s->opt.n_ctx = opt->n_pages * KV_PAGE;
    if (opt->out_bytes_max == 0)
        s->opt.out_bytes_max = 16 * s->opt.n_ctx;
    s->backend = backend;
    s->sampler = sampler;
    s->n_vocab = backend->n_vocab;

    err = page_pool_new(&s->pool, opt->n_pages);
    if (err < 0)
        goto fail;
    err = slots_new(s);
    if (err < 0)
        goto fail;
    err = parties_new(s);
    if (err < 0)
        goto fail;
    err = step_memory_new(s);
    if (err < 0)
        goto fail;
    *ret_sched = s;
    return 0;

fail:
    sched_free(s);
    return err;
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    if (s->slots)
        mem_unmap(s->slots, s->slots_bytes);
    if (s->slot_memory)
        mem_unmap(s->slot_memory, s->slot_memory_bytes);
    free(s->free);
    parties_free(s);
    free(s->queue);
    free(s->running);
    free(s->paused);
    free(s->tokens);
    free(s->logit_rows);
    free(s->seqs);
    free(s->seq_prompt);
    free(s->seq_req);
    free(s->seq_logits);
    free(s->draws);
    free(s->granted);
    page_pool_free(s->pool);
    free(s);
}

uint32_t sched_n_ctx(const struct sched *s)
{
    return s->opt.n_ctx;
}

uint32_t sched_shares(const struct sched *s)
{
    return s->parties_max;
}

struct request *sched_request_take(struct sched *s, const struct sched_who *who)
{
    uint32_t few = s->opt.running_max / 8, of_owner, of_client, slot;
    struct request *req;

    party_held(s, who, &of_owner, &of_client);
    if (s->n_free == 0 || (s->n_free <= s->opt.running_max && of_owner > few) ||
        (s->n_free <= 2 * s->opt.running_max && of_client > few))
        return NULL;
    slot = s->free[--s->n_free];
    req = &s->slots[slot];
    assert(req->state == REQUEST_FREE);
    memset(req, 0, offsetof(struct request, detok));
    req->slot = slot;
    slot_layout(s, req, s->slot_memory + slot * (s->slot_memory_bytes / s->n_slots));
    party_take(s, req, who);
    req->state = REQUEST_TEXT;
    s->n_text++;
    return req;
}

void sched_request_give(struct sched *s, struct request *req)
{
    assert(req->state == REQUEST_ENDED);
    req->state = REQUEST_FREE;
    party_give(s, req);
    s->free[s->n_free++] = req->slot;
}

void pages_return(struct sched *s, struct request *req)
{
    for (uint32_t i = 0; i < req->n_pages; i++)
        page_give(s->pool, req->pages[i]);
    page_unreserve(s->pool, req->n_reserved);
    party_pages_sub(s, req, req->n_pages + req->n_reserved);
    req->n_pages = 0;
    req->n_reserved = 0;
}

static const char *end_reason(enum end_status status)
{
    switch (status) {
    case END_DEADLINE:
        return "the deadline has passed";
    case END_CANCELLED:
        return "cancelled by the client";
    case END_ABORTED:
        return "the daemon stops; retry with the next one";
    case END_NUMERIC:
        return "the model computed a value that is not finite";
    default:
        return "";
    }
}

void request_end(struct sched *s, struct request *req, enum end_status status,
                 enum end_finish finish, uint64_t now_ns)
{
    switch (req->state) {
    case REQUEST_TEXT:
        s->n_text--;
        break;
    case REQUEST_QUEUED: /* displaced, it has output too */
    case REQUEST_RUNNING:
    case REQUEST_PAUSED:
        /* After a stop match, stop id or end of sequence nothing is held any more, so this finds
         * nothing. */
        if (req->op == REQUEST_GENERATE && output_flush(s, req, 1) < 0 && status == END_OK) {
            status = END_CONTEXT;
            finish = FINISH_NONE;
        }
        queue_remove(s, req);
        pages_return(s, req);
        party_end(s, req);
        break;
    default:
        assert(req->state != REQUEST_ENDED && req->state != REQUEST_FREE); /* ends once */
    }
    if (status == END_CONTEXT && req->out_full) {
        req->have = s->opt.out_bytes_max;
        snprintf(req->message, sizeof req->message, "the output has more than %u bytes of text",
                 s->opt.out_bytes_max);
    }
    if (req->op == REQUEST_GENERATE && req->n_tokens > req->n_prompt)
        req->n_discarded = req->n_tokens - req->n_prompt - req->n_out;
    if (req->message[0] == 0)
        snprintf(req->message, sizeof req->message, "%s", end_reason(status));
    req->state = REQUEST_ENDED;
    req->status = status;
    req->finish = finish;
    req->stamp[STAMP_DONE] = now_ns;
    if (status == END_OK)
        s->finished++;
    else if (status == END_CANCELLED)
        s->cancelled++;
    else
        s->failed++;
}

void sched_end(struct sched *s, struct request *req, enum end_status status, uint64_t now_ns)
{
    if (req->state == REQUEST_FREE || req->state == REQUEST_ENDED)
        return;
    if (req->state == REQUEST_RUNNING && s->stepping) {
        if (req->end_asked == END_OK)
            req->end_asked = status;
        return;
    }
    request_end(s, req, status, FINISH_NONE, now_ns);
}

uint32_t sched_slots(const struct sched *s)
{
    return s->n_slots;
}

struct request *sched_slot(struct sched *s, uint32_t i)
{
    assert(i < s->n_slots);
    return &s->slots[i];
}

void sched_counts(const struct sched *s, struct sched_counts *ret)
{
    *ret = (struct sched_counts){
        .running = s->n_running,
        .queued = s->n_queued,
        .text = s->n_text,
        .paused = s->n_paused,
        .finished = s->finished,
        .cancelled = s->cancelled,
        .failed = s->failed,
        .prompt_tokens = s->prompt_tokens,
        .output_tokens = s->output_tokens,
        .steps = s->steps,
        .pauses = s->pauses,
        .slow = s->slow,
        .displaced = s->displaced,
        .pages_total = page_pool_total(s->pool),
        .pages_used = page_pool_used(s->pool),
        .pages_reserved = page_pool_reserved(s->pool),
    };
}
