/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/bpe.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/mem.h"
#include "runtime/text/pretokenize.h"
#include "runtime/text/utf8.h"

/*
 * Up to here looking at every pair for each merge is faster than keeping a heap; both merge the
 * same pairs in the same order. Words of natural text have 5 bytes.
 */
#define SHORT_WORD 32u

#define END UINT32_MAX /* no neighbour on this side */

/*
 * A long word is a list of symbols, each the token of some of its bytes, at the position of its
 * first byte. The heap holds a candidate for each pair of neighbours whose merge is known: rank in
 * the high half and the left one's position in the low half, so that the smallest is the next
 * merge. A candidate whose rank is not `rank` of its position any more is stale. Between two merges
 * of one pair only its two neighbours get new candidates: never over 2n in the heap.
 */
struct bpe {
    const struct vocab *vocab;
    const struct merges *merges;
    const uint32_t *byte_ids;
    struct pretok *pretok;
    size_t bytes_max;
    size_t map_bytes;
    uint64_t *heap; /* [2 * room]; the arrays below follow in the same mapping */
    uint32_t n_heap;
    uint32_t *id;   /* [room] token of the symbol at this position */
    uint32_t *rank; /* [room] of its merge with the next one; MERGE_NONE: none, or no symbol is here
                       any more */
    uint32_t *next; /* [room] position of the next symbol, END */
    uint32_t *prev; /* [room] */
    uint8_t *text;  /* [room] private copy of the text */
    uint8_t unknown_byte;
};

struct out {
    uint32_t *ids;
    uint32_t n, max; /* n counts on past max */
};

static void out_put(struct out *out, uint32_t id)
{
    if (out->n < out->max)
        out->ids[out->n] = id;
    if (out->n < UINT32_MAX)
        out->n++;
}

int bpe_new(struct bpe **ret_bpe, const struct vocab *vocab, size_t bytes_max, struct diag *diag)
{
    struct bpe *bpe;
    size_t room = bytes_max + BPE_HEAD_MAX;
    int err = -ENOMEM;

    if (bytes_max == 0 || bytes_max > BPE_BYTES_MAX) {
        diag_set(diag, "texts of up to %zu bytes were asked for, 1 to %u are possible", bytes_max,
                 BPE_BYTES_MAX);
        return -EINVAL;
    }
    bpe = calloc(1, sizeof *bpe);
    if (!bpe)
        goto fail;
    bpe->vocab = vocab;
    bpe->merges = vocab_merges(vocab);
    bpe->byte_ids = vocab_byte_ids(vocab);
    bpe->bytes_max = bytes_max;
    bpe->map_bytes = room * (2 * sizeof *bpe->heap + 4 * sizeof *bpe->id + 1);
    bpe->heap = mem_map(bpe->map_bytes);
    if (!bpe->heap)
        goto fail;
    bpe->id = (uint32_t *)(bpe->heap + 2 * room);
    bpe->rank = bpe->id + room;
    bpe->next = bpe->rank + room;
    bpe->prev = bpe->next + room;
    bpe->text = (uint8_t *)(bpe->prev + room);
    err = pretok_new(&bpe->pretok, vocab_pretok(vocab), diag);
    if (err < 0)
        goto fail;
    *ret_bpe = bpe;
    return 0;

fail:
    if (err == -ENOMEM)
        diag_set(diag, "no memory to tokenise texts of %zu bytes", bytes_max);
    bpe_free(bpe);
    return err;
}

void bpe_free(struct bpe *bpe)
{
    if (!bpe)
        return;
    pretok_free(bpe->pretok);
    if (bpe->heap)
        mem_unmap(bpe->heap, bpe->map_bytes);
    free(bpe);
}

/* ---- one word ------------------------------------------------------------------------- */

/* Merges ids[n] in place, the lowest rank first, looking at all pairs each time; returns how many
 * are left. */
static uint32_t merge_short(const struct merges *merges, uint32_t *ids, uint32_t n)
{
    struct merge pair[SHORT_WORD]; /* what is known of (ids[i], ids[i + 1]) */

    for (uint32_t i = 0; i + 1 < n; i++)
        pair[i] = *merges_slot(merges, ids[i], ids[i + 1]);
    while (n > 1) {
        uint32_t best = 0;

        for (uint32_t i = 1; i + 1 < n; i++)
            if (pair[i].rank < pair[best].rank)
                best = i;
        if (pair[best].rank == MERGE_NONE)
            break;
        ids[best] = pair[best].result;
        n--;
        for (uint32_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            pair[i - 1] = pair[i]; /* pair[best] is set below */
        }
        if (best + 1 < n)
            pair[best] = *merges_slot(merges, ids[best], ids[best + 1]);
        if (best > 0)
            pair[best - 1] = *merges_slot(merges, ids[best - 1], ids[best]);
    }
    return n;
}

static void heap_push(struct bpe *bpe, uint64_t item)
{
    uint64_t *heap = bpe->heap;
    uint32_t at = bpe->n_heap++;

    while (at > 0 && heap[(at - 1) / 2] > item) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = item;
}

static uint64_t heap_pop(struct bpe *bpe)
{
    uint64_t *heap = bpe->heap;
    uint64_t top = heap[0], item = heap[--bpe->n_heap];
    uint32_t at = 0, child;

    for (; (child = 2 * at + 1) < bpe->n_heap; at = child) {
        if (child + 1 < bpe->n_heap && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= item)
            break;
        heap[at] = heap[child];
    }
    heap[at] = item;
    return top;
}

/* Notes what is known of the symbol at this position and the next one. */
static void pair_look(struct bpe *bpe, uint32_t at)
{
    uint32_t next = bpe->next[at];

    bpe->rank[at] =
        next == END ? MERGE_NONE : merges_slot(bpe->merges, bpe->id[at], bpe->id[next])->rank;
    if (bpe->rank[at] != MERGE_NONE)
        heap_push(bpe, (uint64_t)bpe->rank[at] << 32 | at);
}

static void merge_long(struct bpe *bpe, uint32_t n, struct out *out)
{
    bpe->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        bpe->next[i] = i + 1 < n ? i + 1 : END;
        bpe->prev[i] = i > 0 ? i - 1 : END;
    }
    for (uint32_t i = 0; i < n; i++)
        pair_look(bpe, i);
    while (bpe->n_heap > 0) {
        uint64_t item = heap_pop(bpe);
        uint32_t at = (uint32_t)item, next;

        if (bpe->rank[at] != (uint32_t)(item >> 32))
            continue;
        next = bpe->next[at];
        bpe->id[at] = merges_slot(bpe->merges, bpe->id[at], bpe->id[next])->result;
        bpe->rank[next] = MERGE_NONE;
        bpe->next[at] = bpe->next[next];
        if (bpe->next[at] != END)
            bpe->prev[bpe->next[at]] = at;
        pair_look(bpe, at);
        if (bpe->prev[at] != END)
            pair_look(bpe, bpe->prev[at]);
    }
    for (uint32_t i = 0; i != END; i = bpe->next[i])
        out_put(out, bpe->id[i]);
}

static int encode_word(struct bpe *bpe, const uint8_t *word, size_t n, struct out *out)
{
    if (vocab_ignores_merges(bpe->vocab)) {
        uint32_t id = vocab_word(bpe->vocab, word, n);

        if (id != VOCAB_NONE) {
            out_put(out, id);
            return 0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        bpe->id[i] = bpe->byte_ids[word[i]];
        if (bpe->id[i] == VOCAB_NONE) {
            bpe->unknown_byte = word[i];
            return -EILSEQ;
        }
    }
    if (n > SHORT_WORD) {
        merge_long(bpe, (uint32_t)n, out);
        return 0;
    }
    n = merge_short(bpe->merges, bpe->id, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        out_put(out, bpe->id[i]);
    return 0;
}

/* ---- one text ------------------------------------------------------------------------- */

/* Text without user-defined tokens: runs of whole characters are split into words, a byte between
 * them is one. */
static int encode_plain(struct bpe *bpe, const uint8_t *text, size_t n, struct out *out)
{
    int err = 0;

    while (n > 0 && err == 0) {
        size_t run = utf8_span(text, n), at = 0, end;

        while (at < run && err == 0) {
            err = pretok_next(bpe->pretok, text, run, at, &end);
            if (err < 0)
                return err;
            err = encode_word(bpe, text + at, end - at, out);
            at = end;
        }
        text += run;
        n -= run;
        if (n > 0 && err == 0) {
            err = encode_word(bpe, text, 1, out);
            text++;
            n--;
        }
    }
    return err;
}

static int encode_text(struct bpe *bpe, const uint8_t *text, size_t n, struct out *out)
{
    size_t plain = 0; /* where the text that has not been encoded yet begins */
    size_t at = 0, bytes;
    int err = 0;

    if (!vocab_has_user(bpe->vocab))
        return encode_plain(bpe, text, n, out);
    while (at < n && err == 0) {
        uint32_t id = vocab_user(bpe->vocab, text + at, n - at, &bytes);

        if (id == VOCAB_NONE) {
            at++;
            continue;
        }
        err = encode_plain(bpe, text + plain, at - plain, out);
        out_put(out, id);
        at += bytes;
        plain = at;
    }
    return err < 0 ? err : encode_plain(bpe, text + plain, n - plain, out);
}

int bpe_encode_after(struct bpe *bpe, const char *head, const uint8_t *text, size_t n,
                     uint32_t *ids, uint32_t *n_ids, uint32_t max)
{
    struct out out = {ids, *n_ids, max};
    size_t n_head = strlen(head);
    int err;

    assert(n_head <= BPE_HEAD_MAX);
    if (n > bpe->bytes_max)
        return -EMSGSIZE;
    memcpy(bpe->text, head, n_head);
    if (n > 0)
        memcpy(bpe->text + n_head, text, n);
    err = encode_text(bpe, bpe->text, n_head + n, &out);
    if (err < 0)
        return err;
    *n_ids = out.n;
    return out.n > max ? -E2BIG : 0;
}

int bpe_encode(struct bpe *bpe, const uint8_t *text, size_t n, uint32_t *ids, uint32_t *n_ids,
               uint32_t max)
{
    return bpe_encode_after(bpe, "", text, n, ids, n_ids, max);
}

uint8_t bpe_unknown_byte(const struct bpe *bpe)
{
    return bpe->unknown_byte;
}
