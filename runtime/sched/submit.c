/* SPDX-License-Identifier: Apache-2.0 */
/* submit.c - what a request must fulfil before it waits for its turn. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "runtime/sched/state.h"

__attribute__((format(printf, 5, 6))) static enum end_status refuse(struct request *req,
                                                                    enum end_status status,
                                                                    uint64_t have, uint64_t want,
                                                                    const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(req->message, sizeof req->message, format, args);
    va_end(args);
    req->have = have;
    req->want = want;
    return status;
}

static enum end_status check_id(const struct sched *s, struct request *req, uint32_t id,
                                const char *what, uint32_t i)
{
    if (id < s->n_vocab)
        return END_OK;
    return refuse(req, END_INVALID, s->n_vocab, id, "%s id %u at %u is not below %u", what, id, i,
                  s->n_vocab);
}

/* What holds for every operation. */
static enum end_status check_any(const struct sched *s, struct request *req, uint64_t now_ns)
{
    if (req->n_stop_ids > REQUEST_STOP_IDS)
        return refuse(req, END_INVALID, REQUEST_STOP_IDS, req->n_stop_ids, "at most %d stop ids",
                      REQUEST_STOP_IDS);
    for (uint32_t i = 0; i < req->n_stop_ids; i++) {
        if (check_id(s, req, req->stop_ids[i], "stop", i) != END_OK)
            return END_INVALID;
    }
    if (req->cancel)
        return END_CANCELLED;
    if (req->deadline_ns != 0 && now_ns >= req->deadline_ns)
        return END_DEADLINE;
    return END_OK;
}

/* Text may have come before the id that it belongs to, by as much as the detokeniser holds. */
static enum end_status check_resume(const struct sched *s, struct request *req)
{
    uint64_t text = DETOK_HOLD;

    if (req->n_resume > req->max_tokens)
        return refuse(req, END_INVALID, req->max_tokens, req->n_resume,
                      "resume_pos: %u, max_tokens is %u", req->n_resume, req->max_tokens);
    for (uint32_t i = 0; i < req->n_resume; i++) {
        size_t n;

        if (check_id(s, req, req->out_ids[i], "resume", i) != END_OK)
            return END_INVALID;
        vocab_bytes(s->opt.vocab, req->out_ids[i], &n);
        text += n;
    }
    if (text > s->opt.out_bytes_max)
        text = s->opt.out_bytes_max;
    if (req->resume_bytes > text)
        return refuse(req, END_INVALID, text, req->resume_bytes,
                      "resume_bytes: %u, these ids have less text", req->resume_bytes);
    return END_OK;
}

static enum end_status check_prompt(const struct sched *s, struct request *req)
{
    uint32_t bos = vocab_bos(s->opt.vocab);

    if (req->n_prompt == 0) {
        if (bos == VOCAB_NONE)
            return refuse(req, END_INVALID, 0, 0, "the prompt is empty and the model adds no BOS");
        req->tokens[0] = bos;
        req->n_prompt = 1;
    }
    if (req->n_prompt > s->opt.n_ctx)
        return refuse(req, END_CONTEXT, s->opt.n_ctx, req->n_prompt,
                      "the prompt has %u tokens, the context holds %u", req->n_prompt,
                      s->opt.n_ctx);
    if (req->n_resume > s->opt.n_ctx - req->n_prompt)
        return refuse(req, END_CONTEXT, s->opt.n_ctx, (uint64_t)req->n_prompt + req->n_resume,
                      "prompt and received output have %u tokens, the context holds %u",
                      req->n_prompt + req->n_resume, s->opt.n_ctx);
    for (uint32_t i = 0; i < req->n_prompt; i++) {
        if (check_id(s, req, req->tokens[i], "prompt", i) != END_OK)
            return END_INVALID;
    }
    return check_resume(s, req);
}

/* What its client, or its owner, may have. */
static enum end_status check_party(const struct sched *s, struct request *req,
                                   const struct party *party, uint32_t places)
{
    const struct sched_limits *limit = party->limits;
    uint64_t tokens = party->prompt_tokens + req->n_prompt;
    uint32_t pages = pages_to_reserve(s, req);
    const char *one = party_word(s, party);

    if (limit->requests && party->n_held > limit->requests)
        return refuse(req, END_OVERLOADED, limit->requests, party->n_held,
                      "one %s may have %u requests", one, limit->requests);
    if (limit->prompt_tokens && tokens > limit->prompt_tokens)
        return refuse(req, END_OVERLOADED, limit->prompt_tokens, tokens,
                      "one %s may have %u prompt tokens in its requests", one,
                      limit->prompt_tokens);
    if (limit->pages && pages > limit->pages)
        return refuse(req, END_OVERLOADED, limit->pages, pages,
                      "one %s may have %u KV pages of %d positions", one, limit->pages, KV_PAGE);
    if (limit->queued && party->n_queued >= (uint64_t)limit->queued + places)
        return refuse(req, END_OVERLOADED, limit->queued, party->n_queued + 1ull,
                      "one %s may have %u requests that wait", one, limit->queued);
    return END_OK;
}

static enum end_status check_limits(struct sched *s, struct request *req, uint64_t now_ns)
{
    /* Free running places count, for the queue empties into them at the next step. */
    uint32_t places = s->opt.running_max - s->n_running;

    req->retry_after_ns = sched_retry_after_ns(s);
    for (struct party *party = client_of(s, req); party->parent; party = party->parent) {
        enum end_status status = check_party(s, req, party, places);

        if (status != END_OK)
            return status;
    }
    if (s->n_queued >= s->opt.queued_max + places && !share_push_out(s, req, now_ns))
        return refuse(req, END_OVERLOADED, s->opt.queued_max, s->n_queued + 1,
                      "the queue is full (%u wait)", s->n_queued);
    req->retry_after_ns = 0;
    return END_OK;
}

static enum end_status check(struct sched *s, struct request *req, uint64_t now_ns)
{
    enum end_status status = check_any(s, req, now_ns);

    if (status != END_OK || req->op == REQUEST_TOKENIZE)
        return status;
    status = check_prompt(s, req);
    return status == END_OK ? check_limits(s, req, now_ns) : status;
}

void sched_submit(struct sched *s, struct request *req, uint64_t now_ns)
{
    enum end_status status;

    assert(req->state == REQUEST_TEXT);
    status = check(s, req, now_ns);
    if (status != END_OK || req->op == REQUEST_TOKENIZE) {
        request_end(s, req, status, FINISH_NONE, now_ns);
        return;
    }
    req->stamp[STAMP_ADMITTED] = now_ns;
    memcpy(req->tokens + req->n_prompt, req->out_ids, req->n_resume * sizeof *req->tokens);
    req->n_tokens = req->n_prompt + req->n_resume;
    req->n_known = request_prompt_rows(req);
    if (req->n_known == 0) { /* one token to score: nothing predicts it */
        request_end(s, req, END_OK, FINISH_NONE, now_ns);
        return;
    }
    req->order = s->n_arrived++;
    s->n_text--;
    party_begin(s, req);
    queue_add(s, req);
}
