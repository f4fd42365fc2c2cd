/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/detok.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include "runtime/text/utf8.h"

_Static_assert(DETOK_HOLD >= DETOK_STOP_BYTES + UTF8_CHAR_MAX + VOCAB_TOKEN_BYTES_MAX,
               "what can be held fits");
_Static_assert(DETOK_IDS > DETOK_STOP_BYTES + UTF8_CHAR_MAX,
               "ids of held text fit, at least a byte each");

void detok_init(struct detok *d, const struct vocab *vocab)
{
    d->vocab = vocab;
    d->n_stops = 0;
    d->n_hold = d->n_out = d->n_final = 0;
    d->n_ids = d->n_ids_out = 0;
    d->state = DETOK_RUNS;
}

/* ---- stop strings: Knuth, Morris and Pratt's matcher, one for each -------------------- */

/* How many bytes of the stop the text ends with after one more byte, when it was `at` before. */
static uint16_t stop_step(const uint8_t *stop, const uint16_t *back, uint16_t at, uint8_t byte)
{
    while (at > 0 && stop[at] != byte)
        at = back[at - 1];
    return stop[at] == byte ? (uint16_t)(at + 1) : 0;
}

int detok_add_stop(struct detok *d, const uint8_t *text, uint32_t n)
{
    uint32_t i = d->n_stops;

    if (n == 0 || n > DETOK_STOP_BYTES)
        return -EINVAL;
    if (i == DETOK_STOPS)
        return -ENOSPC;
    memcpy(d->stop[i], text, n);
    d->stop_back[i][0] = 0;
    for (uint32_t k = 1; k < n; k++)
        d->stop_back[i][k] =
            stop_step(d->stop[i], d->stop_back[i], d->stop_back[i][k - 1], d->stop[i][k]);
    d->stop_bytes[i] = (uint16_t)n;
    d->stop_at[i] = 0;
    d->n_stops++;
    return 0;
}

/* Moves all matchers on by a byte; returns the bytes of the longest stop that ends with it, 0 when
 * none does. */
static uint32_t stops_step(struct detok *d, uint8_t byte)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < d->n_stops; i++) {
        d->stop_at[i] = stop_step(d->stop[i], d->stop_back[i], d->stop_at[i], byte);
        if (d->stop_at[i] == d->stop_bytes[i] && d->stop_bytes[i] > longest)
            longest = d->stop_bytes[i];
    }
    return longest;
}

/* Bytes at the end of the text that a stop string begins with. */
static uint32_t stops_begun(const struct detok *d)
{
    uint32_t begun = 0;

    for (uint32_t i = 0; i < d->n_stops; i++)
        if (d->stop_at[i] > begun)
            begun = d->stop_at[i];
    return begun;
}

/* ---- ids ------------------------------------------------------------------------------ */

/* The text ends at `end`: what ids say of the rest is taken back. */
static void hold_cut(struct detok *d, uint32_t end)
{
    d->n_hold = d->n_final = end;
    for (uint32_t i = d->n_ids; i > d->n_ids_out && d->id_end[i - 1] > end; i--)
        d->id_end[i - 1] = end;
}

/* A stop match begins at `start`: drops the ids whose text starts there or later. Control tokens
 * that came before stay. */
static void ids_drop(struct detok *d, uint32_t start)
{
    while (d->n_ids > d->n_ids_out) {
        int32_t from = d->id_from[d->n_ids - 1];

        if (from < (int32_t)start || (from == (int32_t)start && d->id_end[d->n_ids - 1] == start))
            break;
        d->n_ids--;
    }
}

/* Forgets what was delivered. */
static void hold_compact(struct detok *d)
{
    uint32_t n_ids = d->n_ids - d->n_ids_out;

    if (d->n_out == 0 && d->n_ids_out == 0)
        return;
    memmove(d->hold, d->hold + d->n_out, d->n_hold - d->n_out);
    for (uint32_t i = 0; i < n_ids; i++) {
        d->ids[i] = d->ids[i + d->n_ids_out];
        d->id_from[i] = d->id_from[i + d->n_ids_out] - (int32_t)d->n_out;
        d->id_end[i] = d->id_end[i + d->n_ids_out] - d->n_out;
    }
    d->n_hold -= d->n_out;
    d->n_final -= d->n_out;
    d->n_ids = n_ids;
    d->n_out = d->n_ids_out = 0;
}

/* ---- pieces --------------------------------------------------------------------------- */

/* Where the run of one sort (UTF-8, or not) that begins at n_out ends, as far as it is final. */
static uint32_t run_end(const struct detok *d, int *ret_raw)
{
    uint32_t at = d->n_out;
    int raw = 0;

    while (at < d->n_final) {
        int bytes = utf8_char(d->hold + at, d->n_hold - at);

        if (bytes == UTF8_CUT) {
            if (d->state == DETOK_RUNS || d->state == DETOK_CUTS)
                break;
            bytes = 0; /* no byte comes that would complete it */
        }
        if (at == d->n_out)
            raw = bytes == 0;
        else if (raw != (bytes == 0))
            break;
        if (bytes > (int)(d->n_final - at))
            break; /* a stop string begins inside the character */
        at += raw ? 1 : (uint32_t)bytes;
    }
    *ret_raw = raw;
    return at;
}

int detok_more(struct detok *d, struct detok_piece *ret_piece)
{
    struct detok_piece piece = {.text = d->hold + d->n_out, .ids = d->ids + d->n_ids_out};
    uint32_t end;

    if (d->state == DETOK_ENDED) {
        *ret_piece = piece;
        return 0;
    }
    end = run_end(d, &piece.raw);
    if (d->state == DETOK_CUTS && end < d->n_hold &&
        utf8_char(d->hold + end, d->n_hold - end) == UTF8_CUT)
        hold_cut(d, end);
    piece.n_bytes = end - d->n_out;
    while (d->n_ids_out < d->n_ids && d->id_end[d->n_ids_out] <= end) {
        piece.n_ids++;
        d->n_ids_out++;
    }
    d->n_out = end;
    *ret_piece = piece;
    if (d->state == DETOK_MATCHED && end == d->n_hold) {
        d->state = DETOK_ENDED;
        return DETOK_STOPPED;
    }
    return piece.n_bytes > 0 || piece.n_ids > 0;
}

int detok_feed(struct detok *d, uint32_t id, struct detok_piece *ret_piece)
{
    size_t n;
    const uint8_t *text = vocab_bytes(d->vocab, id, &n);
    uint32_t match = 0;

    if (d->state != DETOK_RUNS && d->state != DETOK_SPILLS) {
        *ret_piece = (struct detok_piece){.text = d->hold, .ids = d->ids};
        return DETOK_STOPPED;
    }
    d->state = DETOK_RUNS;
    hold_compact(d);
    assert(n <= DETOK_HOLD - d->n_hold &&
           d->n_ids < DETOK_IDS); /* the caller took all pieces before */
    d->ids[d->n_ids] = id;
    d->id_from[d->n_ids] = (int32_t)d->n_hold;
    d->id_end[d->n_ids] = d->n_hold + (uint32_t)n;
    d->n_ids++;
    for (size_t i = 0; i < n && match == 0; i++) {
        d->hold[d->n_hold++] = text[i];
        match = stops_step(d, text[i]);
    }
    if (match > 0) {
        d->state = DETOK_MATCHED;
        ids_drop(d, d->n_hold - match);
        hold_cut(d, d->n_hold - match);
    } else if (d->n_ids == DETOK_IDS) {
        d->state = DETOK_SPILLS;
        memset(d->stop_at, 0, sizeof d->stop_at);
        d->n_final = d->n_hold;
    } else {
        d->n_final = d->n_hold - stops_begun(d);
    }
    return detok_more(d, ret_piece);
}

int detok_flush(struct detok *d, int cut, struct detok_piece *ret_piece)
{
    if (d->state == DETOK_RUNS || d->state == DETOK_SPILLS) {
        d->state = cut ? DETOK_CUTS : DETOK_DRAINS;
        d->n_final = d->n_hold;
    }
    return detok_more(d, ret_piece);
}
