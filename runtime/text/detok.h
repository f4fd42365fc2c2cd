/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detok.h - token ids to text pieces: whole UTF-8 characters, and nothing that a stop string may still swallow.
 *
 * Feed ids one by one; pieces come out when they are final. A piece holds the ids whose text is complete
 * in it (an id is delivered together with the last byte of its text, never before). After a stop match the text ends before the
 * match, and ids whose text starts inside or after the match are dropped and not counted.
 * Fixed memory: no allocation. Bytes that are not UTF-8 come out flagged raw, as they are.
 */
#ifndef RUNTIME_TEXT_DETOK_H
#define RUNTIME_TEXT_DETOK_H

#include <stdint.h>
#include "runtime/text/vocab.h"

#define DETOK_STOPS 16
#define DETOK_STOP_BYTES 256
#define DETOK_HOLD 4096 /* bytes that can be held back: longest stop + longest token */

struct detok_piece {
    const uint8_t *text; /* inside struct detok; until the next call */
    uint32_t n_bytes;
    const uint32_t *ids; /* inside struct detok; until the next call */
    uint32_t n_ids;
    int raw;             /* text is not UTF-8 */
};

struct detok {
    const struct vocab *vocab;
    uint8_t stop[DETOK_STOPS][DETOK_STOP_BYTES];
    uint32_t stop_bytes[DETOK_STOPS];
    uint32_t n_stops;
    uint8_t hold[DETOK_HOLD]; /* text not yet delivered */
    uint32_t n_hold;
    uint32_t ids[DETOK_HOLD]; /* ids not yet delivered, and where in hold their text ends */
    uint32_t id_end[DETOK_HOLD];
    uint32_t n_ids;
    uint8_t out[DETOK_HOLD];
    uint32_t out_ids[DETOK_HOLD];
    int stopped;
};

void detok_init(struct detok *d, const struct vocab *vocab);
int detok_add_stop(struct detok *d, const uint8_t *text, uint32_t n); /* -EINVAL: 0 or > 256 bytes; -ENOSPC */

/* One more id. 0 or 1: whether *ret_piece has anything; DETOK_STOPPED: a stop string matched, the piece (maybe empty) is the
 * last. The caller loops while 1 comes back with detok_more() (raw and UTF-8 bytes never share a piece). */
#define DETOK_STOPPED 2
int detok_feed(struct detok *d, uint32_t id, struct detok_piece *ret_piece);
int detok_more(struct detok *d, struct detok_piece *ret_piece);

/* The end without a stop match: everything held that is whole characters (at the token limit an incomplete last
 * character is dropped: cut = 1; at EOS incomplete bytes come raw: cut = 0). Loop as with detok_feed. */
int detok_flush(struct detok *d, int cut, struct detok_piece *ret_piece);

#endif
