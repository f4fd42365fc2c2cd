/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detok.h - token ids to text pieces: whole UTF-8 characters, and nothing that a stop string may
 * still swallow.
 *
 * Feed ids one by one; pieces come out when they are final. A piece holds the ids whose text is
 * complete in it (an id is delivered together with the last byte of its text, never before). Held
 * back is only an incomplete character, and the longest end of the text that a stop string begins
 * with.
 *
 * The match is the one whose last byte comes first; of those that end there, the longest. So it
 * depends on the text only, not on how tokens cut it. The text ends before the match, and ids whose
 * text starts inside or after the match are dropped and not counted. An id whose text starts before
 * the match and ends inside it counts.
 *
 * Fixed memory: no allocation. Bytes that are not UTF-8 come out flagged raw, as they are.
 */
#ifndef RUNTIME_TEXT_DETOK_H
#define RUNTIME_TEXT_DETOK_H

#include <stdint.h>
#include "runtime/text/vocab.h"

#define DETOK_STOPS      16
#define DETOK_STOP_BYTES 256
#define DETOK_HOLD       2048 /* bytes: begun stop + incomplete character + longest token */

/*
 * Ids held at once. Each has a byte of held text, but for control tokens: a model that emits
 * hundreds of them within a begun stop string gets the text before them delivered.
 */
#define DETOK_IDS 512

struct detok_piece {
    const uint8_t *text; /* inside struct detok; until the next call */
    uint32_t n_bytes;
    const uint32_t *ids; /* inside struct detok; until the next call */
    uint32_t n_ids;
    int raw; /* text is not UTF-8 */
};

enum detok_state {
    DETOK_RUNS,
    DETOK_SPILLS,  /* as DETOK_RUNS, but ids are full: all goes out, until the next feed */
    DETOK_CUTS,    /* the end is known: all goes out but an incomplete character */
    DETOK_DRAINS,  /* the end is known: all goes out, an incomplete character as raw bytes */
    DETOK_MATCHED, /* as DETOK_DRAINS, after a stop match */
    DETOK_ENDED
};

struct detok {
    const struct vocab *vocab;
    uint8_t stop[DETOK_STOPS][DETOK_STOP_BYTES];
    /* [i]: longest proper end of stop[0..i] that the stop begins with */
    uint16_t stop_back[DETOK_STOPS][DETOK_STOP_BYTES];
    uint16_t stop_bytes[DETOK_STOPS];
    uint16_t stop_at[DETOK_STOPS]; /* bytes of the stop that the text so far ends with */
    uint32_t n_stops;
    uint8_t hold[DETOK_HOLD]; /* text not yet delivered */
    uint32_t n_hold;
    uint32_t n_out;          /* of hold, delivered since the last feed */
    uint32_t n_final;        /* hold[0..n_final) can be part of no stop match any more */
    uint32_t ids[DETOK_IDS]; /* not yet delivered */
    /* where in hold the id's text starts (below 0: delivered in part) and ends */
    int32_t id_from[DETOK_IDS];
    uint32_t id_end[DETOK_IDS];
    uint32_t n_ids;
    uint32_t n_ids_out; /* of ids, delivered since the last feed */
    enum detok_state state;
};

void detok_init(struct detok *d, const struct vocab *vocab);

/* -EINVAL: 0 or over DETOK_STOP_BYTES bytes; -ENOSPC: DETOK_STOPS are there. */
int detok_add_stop(struct detok *d, const uint8_t *text, uint32_t n);

/*
 * One more id. 0: nothing to deliver yet; 1: *ret_piece is final, call detok_more() for the next
 * one (raw and UTF-8 bytes never share a piece) until it returns something else; DETOK_STOPPED: a
 * stop string matched, *ret_piece (maybe empty) is the last. *ret_piece is set in each case, on 0
 * to an empty one. Ids fed after the match are dropped: DETOK_STOPPED, empty.
 */
#define DETOK_STOPPED 2
int detok_feed(struct detok *d, uint32_t id, struct detok_piece *ret_piece);
int detok_more(struct detok *d, struct detok_piece *ret_piece);

/*
 * The end without a stop match: everything held that is whole characters. An incomplete last
 * character is dropped at the token limit (cut = 1) and comes raw at EOS (cut = 0); its ids are
 * delivered in either case, they were generated. Loop as with detok_feed. Call it once; after
 * DETOK_STOPPED there is nothing to flush: 0.
 */
int detok_flush(struct detok *d, int cut, struct detok_piece *ret_piece);

#endif
