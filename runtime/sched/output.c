/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - tokens to final ids and text in the request's own memory. */
#include <errno.h>
#include <string.h>
#include "runtime/sched/state.h"

static int output_append(struct sched *s, struct request *req, const struct detok_piece *piece)
{
    struct piece_mark *mark;

    if (piece->n_bytes == 0 && piece->n_ids == 0)
        return 0;
    if (piece->n_bytes > s->opt.out_bytes_max - req->n_text ||
        piece->n_ids > s->opt.n_ctx + 1 - req->n_final || req->n_marks == 2 * (s->opt.n_ctx + 1))
        req->out_full = 1;
    if (req->out_full)
        return -ENOSPC;

    memcpy(req->out_text + req->n_text, piece->text, piece->n_bytes);
    memcpy(req->out_ids + req->n_final, piece->ids, piece->n_ids * sizeof *piece->ids);
    req->n_text += piece->n_bytes;
    req->n_final += piece->n_ids;
    if (req->n_final > req->n_out) {
        s->output_tokens += req->n_final - req->n_out;
        req->n_out = req->n_final;
    }
    mark = &req->marks[req->n_marks++];
    mark->id_end = req->n_final;
    mark->byte_end = req->n_text;
    mark->raw = piece->raw != 0;
    return 0;
}

/* Takes pieces until there are no more; found and piece are what detok_feed or detok_flush gave. */
static int output_drain(struct sched *s, struct request *req, int found, struct detok_piece *piece)
{
    while (found != 0) {
        int err = output_append(s, req, piece);

        if (err < 0)
            return err;
        if (found == DETOK_STOPPED)
            return 1;
        found = detok_more(&req->detok, piece);
    }
    return 0;
}

int output_feed(struct sched *s, struct request *req, uint32_t id)
{
    struct detok_piece piece = {0};
    int found = detok_feed(&req->detok, id, &piece);

    return output_drain(s, req, found, &piece);
}

int output_flush(struct sched *s, struct request *req, int cut)
{
    struct detok_piece piece = {0};
    int found = detok_flush(&req->detok, cut, &piece);

    return output_drain(s, req, found, &piece);
}
