/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/intake.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/text/vocab.h"

#define MAX_TOKENS_LIMIT (1u << 20)
#define TOP_K_LIMIT      (1u << 20)

__attribute__((format(printf, 3, 4))) static int refuse(struct request *req, enum end_status status,
                                                        const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(req->message, sizeof req->message, format, args);
    va_end(args);
    req->status = status;
    return -EINVAL;
}

static int refuse_range(struct request *req, const char *field, uint64_t have, uint64_t max)
{
    req->have = max;
    req->want = have;
    return refuse(req, END_INVALID, "%s: %llu is outside 0 .. %llu", field,
                  (unsigned long long)have, (unsigned long long)max);
}

/* ---- the parameter head ---------------------------------------------------------------------- */

const struct tkr_param *intake_head(struct io_client *client, const struct tkr_sqe *sqe,
                                    struct tkr_param *ret_head)
{
    if (sqe->param_len < sizeof *ret_head || sqe->param_off % 8 ||
        io_arena_copy(client, ret_head, sqe->param_off, sizeof *ret_head) < 0)
        return NULL;
    return ret_head;
}

static const char *unsupported_field(const struct tkr_param *p)
{
    const struct {
        const char *name;
        int set;
    } fields[] = {
        {"session2", p->session2 != 0},
        {"prefix", p->prefix != 0},
        {"grammar", p->grammar != 0},
        {"labels", p->labels != 0},
        {"adapter", p->adapter != 0},
        {"on_late", p->on_late != 0},
        {"pooling", p->pooling != 0},
        {"pos", p->pos != 0},
        {"n_logprobs", p->n_logprobs != 0},
        {"emit", p->emit != 0},
        {"repeat", p->repeat != 0},
        {"presence", p->presence != 0},
        {"frequency", p->frequency != 0},
        {"flags", (p->flags & ~(TKR_PARAM_SEED | TKR_PARAM_IGNORE_EOS)) != 0},
    };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].set)
            return fields[i].name;
    return NULL;
}

static int reserved_is_zero(const struct tkr_param *p)
{
    for (size_t i = 0; i < sizeof p->reserved; i++)
        if (p->reserved[i])
            return 0;
    return p->reserved0 == 0;
}

/* !(a <= b) also catches NaN. */
static int sampling_check(struct request *req, const struct tkr_param *p)
{
    if (!(p->temperature >= 0.0f && p->temperature <= 100.0f))
        return refuse(req, END_INVALID, "temperature: %g is outside 0 .. 100",
                      (double)p->temperature);
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f))
        return refuse(req, END_INVALID, "top_p: %g is outside 0 .. 1", (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return refuse(req, END_INVALID, "min_p: %g is outside 0 .. 1", (double)p->min_p);
    if (p->top_k > TOP_K_LIMIT)
        return refuse_range(req, "top_k", p->top_k, TOP_K_LIMIT);
    return 0;
}

static int head_apply(struct intake *in, struct job *job, const struct tkr_param *p)
{
    struct request *req = job->req;
    const char *field = unsupported_field(p);
    int err;

    if (p->head_len != sizeof *p)
        return refuse(req, END_INVALID, "param.head_len: %u, expected 128", p->head_len);
    if (!reserved_is_zero(p))
        return refuse(req, END_INVALID, "param.reserved: must be zero");
    if (field)
        return refuse(req, END_UNSUPPORTED, "%s: not supported by this daemon, must be zero",
                      field);
    if (p->tenant && !io_client_trusted(job->client))
        return refuse(req, (enum end_status)TKR_E_DENIED,
                      "tenant: this user may not speak for others, must be zero");
    if (p->model_gen && p->model_gen != in->model_gen)
        return refuse(req, (enum end_status)TKR_E_MISMATCH, "model_gen: %u, the model has %u",
                      p->model_gen, in->model_gen);
    err = sampling_check(req, p);
    if (err < 0)
        return err;
    req->sampling = (struct sampling){
        .seed = p->flags & TKR_PARAM_SEED ? p->seed : req->sampling.seed,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
    };
    req->ignore_eos = (p->flags & TKR_PARAM_IGNORE_EOS) != 0;
    req->resume_bytes = p->resume_bytes;
    req->stamp[TKR_STAMP_SUBMIT] = p->submit_ns;
    return 0;
}

/* ---- tail entries ---------------------------------------------------------------------------- */

static int tail_message(struct job *job, const struct tkr_tail *t)
{
    struct request *req = job->req;

    if (t->flags > TKR_ROLE_TOOL)
        return refuse_range(req, "message role", t->flags, TKR_ROLE_TOOL);
    if (job->data_kind != TKR_DATA_MESSAGES)
        return refuse(req, END_INVALID, "message: data_kind is not MESSAGES");
    if (t->bytes > job->text_max - job->n_text)
        return refuse_range(req, "prompt bytes", (uint64_t)job->n_text + t->bytes, job->text_max);
    if (io_arena_copy(job->client, job->text + job->n_text, t->off, t->bytes) < 0)
        return refuse(req, END_INVALID, "message: outside the arena");
    job->messages[job->n_messages++] =
        (struct message){.role = t->flags, .text = job->text + job->n_text, .n = t->bytes};
    job->n_text += t->bytes;
    return 0;
}

static int tail_stop_text(struct job *job, const struct tkr_tail *t)
{
    struct request *req = job->req;
    uint8_t stop[TKR_STOP_BYTES_MAX];
    int err;

    if (!t->bytes || t->bytes > sizeof stop)
        return refuse(req, END_INVALID, "stop: %u bytes, expected 1 .. %zu", t->bytes, sizeof stop);
    if (io_arena_copy(job->client, stop, t->off, t->bytes) < 0)
        return refuse(req, END_INVALID, "stop: outside the arena");
    err = detok_add_stop(&req->detok, stop, t->bytes);
    if (err < 0)
        return refuse(req, END_INVALID, "stop: at most %u stop strings", TKR_STOPS_MAX);
    return 0;
}

static int tail_stop_ids(struct job *job, const struct tkr_tail *t)
{
    struct request *req = job->req;
    uint32_t *ids = req->stop_ids + req->n_stop_ids;

    if (t->count > REQUEST_STOP_IDS - req->n_stop_ids)
        return refuse_range(req, "stop ids", (uint64_t)req->n_stop_ids + t->count,
                            REQUEST_STOP_IDS);
    if (t->bytes != 4 * t->count)
        return refuse(req, END_INVALID, "stop ids: %u bytes for %u ids", t->bytes, t->count);
    if (io_arena_copy(job->client, ids, t->off, t->bytes) < 0)
        return refuse(req, END_INVALID, "stop ids: outside the arena");
    req->n_stop_ids += t->count;
    return 0;
}

/* The ids stand where the output goes: passing through the detokeniser, each is written to its
 * place again. */
static int tail_resume_ids(const struct intake *in, struct job *job, const struct tkr_tail *t)
{
    struct request *req = job->req;

    if (req->op != REQUEST_GENERATE)
        return refuse(req, END_INVALID, "resume ids: only GENERATE can be resumed");
    if (req->n_resume)
        return refuse(req, END_INVALID, "resume ids: given twice");
    if (t->count > in->model->n_ctx) {
        req->have = in->model->n_ctx;
        req->want = t->count;
        return refuse(req, END_CONTEXT, "resume_pos: %u ids, the context has %u", t->count,
                      in->model->n_ctx);
    }
    if (t->bytes != 4 * t->count)
        return refuse(req, END_INVALID, "resume ids: %u bytes for %u ids", t->bytes, t->count);
    if (io_arena_copy(job->client, req->out_ids, t->off, t->bytes) < 0)
        return refuse(req, END_INVALID, "resume ids: outside the arena");
    req->n_resume = req->n_out = req->n_published = t->count;
    return 0;
}

static int tail_apply(const struct intake *in, struct job *job, const struct tkr_tail *t)
{
    if (t->kind != TKR_TAIL_MESSAGE && t->flags)
        return refuse(job->req, END_INVALID, "tail flags: must be zero");
    if (t->kind != TKR_TAIL_STOP_IDS && t->kind != TKR_TAIL_RESUME_IDS && t->count)
        return refuse(job->req, END_INVALID, "tail count: must be zero");
    switch (t->kind) {
    case TKR_TAIL_MESSAGE:
        return tail_message(job, t);
    case TKR_TAIL_STOP_TEXT:
        return tail_stop_text(job, t);
    case TKR_TAIL_STOP_IDS:
        return tail_stop_ids(job, t);
    case TKR_TAIL_RESUME_IDS:
        return tail_resume_ids(in, job, t);
    case TKR_TAIL_BIAS:
    case TKR_TAIL_BANNED:
        return refuse(job->req, END_UNSUPPORTED, "tail kind %u: not supported by this daemon",
                      t->kind);
    default:
        return refuse(job->req, END_INVALID, "tail kind %u: unknown", t->kind);
    }
}

/* A stream goes on as the same stream only with the seed that it began with. */
static int resume_check(struct job *job, const struct tkr_sqe *sqe, int has_seed)
{
    struct request *req = job->req;

    if (sqe->resume_pos != req->n_resume) {
        req->have = req->n_resume;
        req->want = sqe->resume_pos;
        return refuse(req, END_INVALID, "resume_pos: %u, but %u resume ids", sqe->resume_pos,
                      req->n_resume);
    }
    if (!req->n_resume && req->resume_bytes)
        return refuse(req, END_INVALID, "resume_bytes: must be zero without resume_pos");
    if (req->n_resume && req->sampling.temperature != 0.0f && !has_seed)
        return refuse(req, END_INVALID, "resume_pos: a sampled stream goes on only with its seed");
    job->ids_out = req->n_resume;
    job->bytes_out = req->resume_bytes;
    return 0;
}

static int params_read(struct intake *in, struct job *job, const struct tkr_sqe *sqe,
                       const struct tkr_param *head)
{
    struct request *req = job->req;
    struct tkr_tail tail[TKR_TAIL_MAX];
    int err;

    if (!sqe->param_len)
        return resume_check(job, sqe, 0);
    if (sqe->param_off % 8)
        return refuse(req, END_INVALID, "param_off: %u is not a multiple of 8", sqe->param_off);
    if (!head)
        return refuse(req, END_INVALID, "param_len: %u, expected at least 128", sqe->param_len);
    if (head->n_tail > TKR_TAIL_MAX)
        return refuse_range(req, "n_tail", head->n_tail, TKR_TAIL_MAX);
    if (sqe->param_len - sizeof *head != head->n_tail * sizeof tail[0])
        return refuse(req, END_INVALID, "param_len: %u does not fit n_tail %u", sqe->param_len,
                      head->n_tail);
    err = head_apply(in, job, head);
    if (err < 0)
        return err;
    if (io_arena_copy(job->client, tail, sqe->param_off + (uint32_t)sizeof *head,
                      (uint32_t)(head->n_tail * sizeof tail[0])) < 0)
        return refuse(req, END_INVALID, "param: tail outside the arena");
    for (uint32_t i = 0; i < head->n_tail && err == 0; i++)
        err = tail_apply(in, job, &tail[i]);
    return err < 0 ? err : resume_check(job, sqe, (head->flags & TKR_PARAM_SEED) != 0);
}

/* ---- the prompt ------------------------------------------------------------------------------ */

static int tokens_read(struct intake *in, struct job *job, const struct tkr_sqe *sqe)
{
    struct request *req = job->req;
    uint32_t n = sqe->data_len / 4;

    if (sqe->data_len % 4 || sqe->data_off % 4)
        return refuse(req, END_INVALID, "data: token ids are 4 bytes each and aligned");
    if (n > in->model->n_ctx) {
        req->have = in->model->n_ctx;
        req->want = n;
        return refuse(req, END_CONTEXT, "prompt of %u tokens, the context has %u", n,
                      in->model->n_ctx);
    }
    if (io_arena_copy(job->client, req->tokens, sqe->data_off, sqe->data_len) < 0)
        return refuse(req, END_INVALID, "data: outside the arena");
    req->n_prompt = n;
    return 0;
}

static int data_read(struct intake *in, struct job *job, const struct tkr_sqe *sqe)
{
    struct request *req = job->req;

    job->data_kind = sqe->data_kind;
    switch (sqe->data_kind) {
    case TKR_DATA_TEXT:
        if (sqe->data_len > job->text_max)
            return refuse_range(req, "prompt bytes", sqe->data_len, job->text_max);
        if (io_arena_copy(job->client, job->text, sqe->data_off, sqe->data_len) < 0)
            return refuse(req, END_INVALID, "data: outside the arena");
        job->n_text = sqe->data_len;
        return 0;
    case TKR_DATA_TOKENS:
        if (req->op == REQUEST_TOKENIZE)
            return refuse(req, END_INVALID, "data_kind: TOKENIZE takes text or messages");
        return tokens_read(in, job, sqe);
    case TKR_DATA_MESSAGES:
        if (!in->has_template)
            return refuse(req, END_INVALID,
                          "data_kind: the model has no chat template, send text (raw)");
        if (sqe->data_len)
            return refuse(req, END_INVALID, "data_len: must be zero with MESSAGES");
        return 0;
    default:
        return refuse(req, END_INVALID, "data_kind: %u is not TEXT, TOKENS or MESSAGES",
                      sqe->data_kind);
    }
}

int intake_read(struct intake *in, struct job *job, const struct tkr_sqe *sqe,
                const struct tkr_param *head)
{
    struct request *req = job->req;
    int err;

    req->op = sqe->op == TKR_OP_TOKENIZE   ? REQUEST_TOKENIZE
              : sqe->op == TKR_OP_LOGPROBS ? REQUEST_LOGPROBS
                                           : REQUEST_GENERATE;
    req->user = sqe->user;
    req->deadline_ns = sqe->deadline_ns;
    req->max_tokens = sqe->max_tokens;
    /* A fresh seed for who gave none; the result record reports it, so that the answer can be
     * repeated. */
    req->sampling.seed = counter_random(in->seed_base, in->seed_count++);
    detok_init(&req->detok, in->model->vocab);

    if (sqe->model != 0)
        return refuse(req, (enum end_status)TKR_E_NO_MODEL, "model: no model with index %u",
                      sqe->model);
    if (req->max_tokens > MAX_TOKENS_LIMIT && req->max_tokens != TKR_MAX_TOKENS_NONE)
        return refuse_range(req, "max_tokens", req->max_tokens, MAX_TOKENS_LIMIT);
    err = data_read(in, job, sqe);
    if (err < 0)
        return err;
    err = params_read(in, job, sqe, head);
    if (err < 0)
        return err;
    if (job->data_kind == TKR_DATA_MESSAGES && !job->n_messages)
        return refuse(req, END_INVALID, "messages: at least one message is needed");
    return 0;
}
