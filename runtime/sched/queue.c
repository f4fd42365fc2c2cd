/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - arrival: limits, the bounded queue, deadlines and cancels, admission in order of arrival. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "runtime/sched/state.h"

#define RETRY_MIN_NS 1000000ull
#define RETRY_MAX_NS 60000000000ull

__attribute__((format(printf, 5, 6))) static enum end_status
refuse(struct request *req, enum end_status status, uint64_t have, uint64_t want, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(req->message, sizeof req->message, format, args);
    va_end(args);
    req->have = have;
    req->want = want;
    return status;
}

static enum end_status check_id(const struct sched *s, struct request *req, uint32_t id, const char *what,
                                uint32_t i)
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
        return refuse(req, END_INVALID, REQUEST_STOP_IDS, req->n_stop_ids,
                      "at most %d stop ids", REQUEST_STOP_IDS);
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
                      "the prompt has %u tokens, the context holds %u", req->n_prompt, s->opt.n_ctx);
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

static enum end_status check(struct sched *s, struct request *req, uint64_t now_ns)
{
    uint32_t places = s->opt.queued_max + s->opt.running_max - s->n_running;
    enum end_status status = check_any(s, req, now_ns);

    if (status == END_OK && req->op != REQUEST_TOKENIZE)
        status = check_prompt(s, req);
    if (status != END_OK || req->op == REQUEST_TOKENIZE)
        return status;
    /* Free running slots count, for the queue empties into them at the next step. */
    if (s->n_queued >= places) {
        req->retry_after_ns = sched_retry_after_ns(s);
        return refuse(req, END_OVERLOADED, s->opt.queued_max, s->n_queued + 1,
                      "the queue is full (%u wait)", s->n_queued);
    }
    return END_OK;
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
    if (request_prompt_rows(req) == 0) { /* one token to score: nothing predicts it */
        request_end(s, req, END_OK, FINISH_NONE, now_ns);
        return;
    }
    req->order = s->n_arrived++;
    req->state = REQUEST_QUEUED;
    s->n_text--;
    s->queue[s->n_queued++] = req;
    s->queued_rows += request_prompt_rows(req);
}

void queue_remove(struct sched *s, struct request *req)
{
    uint32_t i = 0;

    while (s->queue[i] != req)
        i++;
    s->n_queued--;
    s->queued_rows -= request_prompt_rows(req);
    memmove(s->queue + i, s->queue + i + 1, (s->n_queued - i) * sizeof(struct request *));
}

static uint32_t pages_to_reserve(const struct sched *s, const struct request *req)
{
    if (req->op == REQUEST_LOGPROBS || req->max_tokens == REQUEST_MAX_TOKENS_NONE)
        return pages_for(request_prompt_rows(req));
    return pages_for(req->n_prompt + request_room(s, req));
}

void queue_admit(struct sched *s)
{
    while (s->n_queued > 0 && s->n_running < s->opt.running_max) {
        struct request *req = s->queue[0];
        uint32_t n = pages_to_reserve(s, req);

        if (page_reserve(s->pool, n) < 0)
            return;
        queue_remove(s, req);
        req->n_reserved = n;
        req->state = REQUEST_RUNNING;
        s->running[s->n_running++] = req;
    }
}

/* Ends what must end of list[0 .. *n - 1] (ending shortens it) and keeps the earliest deadline of the rest. */
static void expire(struct sched *s, struct request *const *list, const uint32_t *n, uint64_t now_ns,
                   uint64_t *earliest)
{
    for (uint32_t i = 0; i < *n;) {
        struct request *req = list[i];

        if (req->end_asked != END_OK) {
            request_end(s, req, req->end_asked, FINISH_NONE, now_ns);
        } else if (req->cancel) {
            request_end(s, req, END_CANCELLED, FINISH_NONE, now_ns);
        } else if (req->deadline_ns != 0 && now_ns >= req->deadline_ns) {
            request_end(s, req, END_DEADLINE, FINISH_NONE, now_ns);
        } else {
            if (req->deadline_ns != 0 && (*earliest == 0 || req->deadline_ns < *earliest))
                *earliest = req->deadline_ns;
            i++;
        }
    }
}

uint64_t sched_expire(struct sched *s, uint64_t now_ns)
{
    uint64_t earliest = 0;

    expire(s, s->queue, &s->n_queued, now_ns, &earliest);
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
