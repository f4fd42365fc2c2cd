/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/publish.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The scheduler knows no wire; its numbers are the wire's. */
_Static_assert((int)END_OK == (int)TKR_OK && (int)END_INVALID == (int)TKR_E_INVALID, "status");
_Static_assert((int)END_UNSUPPORTED == (int)TKR_E_UNSUPPORTED &&
                   (int)END_CONTEXT == (int)TKR_E_CONTEXT,
               "status");
_Static_assert((int)END_DEADLINE == (int)TKR_E_DEADLINE &&
                   (int)END_OVERLOADED == (int)TKR_E_OVERLOADED,
               "status");
_Static_assert((int)END_CANCELLED == (int)TKR_E_CANCELLED && (int)END_ABORTED == (int)TKR_E_ABORTED,
               "status");
_Static_assert((int)END_NUMERIC == (int)TKR_E_NUMERIC && (int)END_SLOW == (int)TKR_E_SLOW,
               "status");
_Static_assert((int)END_INTERNAL == (int)TKR_E_INTERNAL, "status");
_Static_assert((int)FINISH_STOP == (int)TKR_FINISH_STOP &&
                   (int)FINISH_LENGTH == (int)TKR_FINISH_LENGTH,
               "finish");
_Static_assert((int)STAMP_SEEN == (int)TKR_STAMP_SEEN &&
                   (int)STAMP_ADMITTED == (int)TKR_STAMP_ADMITTED,
               "stamp");
_Static_assert((int)STAMP_PREFILL == (int)TKR_STAMP_PREFILL &&
                   (int)STAMP_FIRST == (int)TKR_STAMP_FIRST,
               "stamp");
_Static_assert((int)STAMP_LAST == (int)TKR_STAMP_LAST && (int)STAMPS == (int)TKR_STAMPS, "stamp");
_Static_assert(sizeof((struct request *)0)->message == sizeof((struct tkr_result *)0)->message,
               "message");

/* How many bytes of text[n] fit in a line without cutting a character. */
static uint32_t whole_bytes(const uint8_t *text, uint32_t n, int raw)
{
    uint32_t cut = TKR_LINE_TEXT;

    if (n <= cut)
        return n;
    if (!raw)
        while (cut > 0 && (text[cut] & 0xc0) == 0x80)
            cut--;
    return cut ? cut : TKR_LINE_TEXT;
}

/* Pieces from job->mark on that fit one line together; 0 when the first one alone does not, or
 * is begun. */
static uint32_t pieces_that_fit(const struct job *job)
{
    const struct request *req = job->req;
    uint32_t n = 0;

    if (job->mark && (job->ids_out != req->marks[job->mark - 1].id_end ||
                      job->bytes_out != req->marks[job->mark - 1].byte_end))
        return 0;
    if (!job->mark && (job->ids_out || job->bytes_out))
        return 0;
    while (job->mark + n < req->n_marks) {
        const struct piece_mark *m = &req->marks[job->mark + n];

        if (m->id_end - job->ids_out > TKR_LINE_TOKENS ||
            m->byte_end - job->bytes_out > TKR_LINE_TEXT || m->raw != req->marks[job->mark].raw)
            break;
        n++;
    }
    return n;
}

/* What the client had before this request: pieces that lie before its position whole. */
static void skip_received(struct job *job)
{
    const struct request *req = job->req;

    while (job->mark < req->n_marks && req->marks[job->mark].id_end <= job->ids_out &&
           req->marks[job->mark].byte_end <= job->bytes_out)
        job->mark++;
}

static uint32_t minus(uint32_t end, uint32_t begin)
{
    return end > begin ? end - begin : 0;
}

/* The next line: whole pieces, or a part of one that is too long for a line. A client that resumes
 * may have said more than it had: then a difference here is none, and nobody but it is the worse
 * for that. */
static int put_line(struct job *job)
{
    const struct request *req = job->req;
    uint32_t pieces = pieces_that_fit(job);
    const struct piece_mark *last = &req->marks[job->mark + (pieces ? pieces - 1 : 0)];
    uint32_t n_ids = minus(last->id_end, job->ids_out);
    uint32_t n_bytes = minus(last->byte_end, job->bytes_out);
    struct tkr_cqe cqe = {
        .kind = TKR_CQE_TOKEN, .user = req->user, .tag = (uint16_t)job->tag, .pos = job->ids_out};
    int whole, err;

    if (n_ids > TKR_LINE_TOKENS)
        n_ids = TKR_LINE_TOKENS;
    n_bytes = whole_bytes(req->out_text + job->bytes_out, n_bytes, (int)last->raw);
    whole = job->ids_out + n_ids >= last->id_end && job->bytes_out + n_bytes >= last->byte_end;
    cqe.ntok = (uint8_t)n_ids;
    cqe.nbytes = (uint8_t)n_bytes;
    cqe.flags = (uint8_t)((whole ? 0 : TKR_CQE_MORE) | (last->raw ? TKR_CQE_RAW : 0));
    memcpy(cqe.u.token.tok, req->out_ids + job->ids_out, n_ids * 4);
    memcpy(cqe.u.token.utf8, req->out_text + job->bytes_out, n_bytes);
    err = io_put(job->client, &cqe);
    if (err < 0)
        return err;
    job->ids_out += n_ids;
    job->bytes_out += n_bytes;
    if (whole)
        job->mark += pieces ? pieces : 1;
    return 0;
}

int publish_reserve(struct job *job, uint32_t count)
{
    struct request *req = job->req;
    void *dst = NULL;

    if (!count)
        return 0;
    if (count > UINT32_MAX / 4 ||
        io_bulk_take(job->client, job->tag, count * 4, &job->bulk_off, &dst) < 0) {
        req->want = (uint64_t)count * 4;
        snprintf(req->message, sizeof req->message,
                 "bulk memory is full: release requests or open with more of it");
        return -ENOSPC;
    }
    job->bulk = dst;
    job->bulk_bytes = count * 4;
    return 0;
}

/* TOKENIZE's ids or LOGPROBS' values, into the memory reserved for them. */
static int put_bulk(struct job *job)
{
    const struct request *req = job->req;
    int ids = req->op == REQUEST_TOKENIZE;
    struct tkr_cqe cqe = {.kind = TKR_CQE_BULK, .user = req->user, .tag = (uint16_t)job->tag};

    cqe.u.bulk.off = job->bulk_off;
    cqe.u.bulk.bytes = job->bulk_bytes;
    cqe.u.bulk.count = job->bulk_bytes / 4;
    cqe.u.bulk.type = ids ? TKR_BULK_U32 : TKR_BULK_F32;
    cqe.u.bulk.dim = 1;
    if (job->bulk_bytes)
        memcpy(job->bulk, ids ? (const void *)job->ids : (const void *)req->logprobs,
               job->bulk_bytes);
    return io_put(job->client, &cqe);
}

static void put_done(struct job *job, const uint8_t *model_hash)
{
    const struct request *req = job->req;
    uint32_t lost = req->status == END_SLOW ? minus(req->n_out, job->ids_out) : 0;
    struct tkr_result result = {
        .user = req->user,
        .status = (uint16_t)req->status,
        .finish = (uint8_t)req->finish,
        .model = job->model,
        .prompt = req->n_prompt,
        .output = req->n_out - lost,
        .discarded = req->n_discarded + lost,
        .retry_after_ns = req->retry_after_ns,
        .seed = req->sampling.seed,
        .have = req->have,
        .want = req->want,
        .bulk_off = job->bulk_off,
        .bulk_len = job->bulk_bytes,
    };

    memcpy(result.model_hash, model_hash, sizeof result.model_hash);
    memcpy(result.stamp, req->stamp, sizeof result.stamp);
    memcpy(result.message, req->message, sizeof result.message);
    io_done(job->client, job->tag, req->user, (uint16_t)req->status, &result);
}

void publish_soon(const struct job *job)
{
    if (job->mark < job->req->n_marks || job->req->state == REQUEST_ENDED)
        io_put_soon(job->client);
}

enum publish_state publish_job(struct job *job, const uint8_t *model_hash)
{
    struct request *req = job->req;

    int full = 0;

    skip_received(job);
    while (job->mark < req->n_marks && !full)
        full = put_line(job) < 0;
    req->n_published = job->ids_out;
    /* Who ended SLOW does not read: its terminal line has its own place, the rest is lost. */
    if (full && !(req->state == REQUEST_ENDED && req->status == END_SLOW))
        return PUBLISH_LAGGING;
    if (req->state != REQUEST_ENDED)
        return PUBLISH_IDLE;
    if (req->op != REQUEST_GENERATE && req->status == END_OK && !job->bulk_out) {
        if (put_bulk(job) < 0)
            return PUBLISH_LAGGING;
        job->bulk_out = 1;
    }
    put_done(job, model_hash);
    return PUBLISH_DONE;
}
