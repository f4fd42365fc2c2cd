/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe.h - bytes to token ids: pre-tokenizer split (PCRE2), then byte-level BPE merges by rank.
 *
 * O(n log n) in the length of one word (a heap of candidate merges), so a 1 MB word cannot stall
 * it. Control-token text is ordinary text here; the text of user-defined tokens is found first, as
 * the reference does. Invalid UTF-8 is tokenised byte by byte, losslessly. Text is copied once and
 * only the copy is looked at, so it may lie in memory that another process writes.
 *
 * Source of the algorithm: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with
 * Subword Units" (2016): the pair of lowest rank merges first, among equal pairs the leftmost.
 */
#ifndef RUNTIME_TEXT_BPE_H
#define RUNTIME_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>
#include "runtime/text/vocab.h"

struct bpe; /* working memory of one thread */

#define BPE_BYTES_MAX (64u << 20) /* positions are 32 bits, and memory is 33 bytes a byte */
#define BPE_HEAD_MAX  64u

/* bytes_max: longest text that bpe_encode takes, up to BPE_BYTES_MAX (else -EINVAL). All memory is
 * taken here and touched as far as it is used. The vocabulary must outlive it. */
int bpe_new(struct bpe **ret_bpe, const struct vocab *vocab, size_t bytes_max, struct diag *diag);
void bpe_free(struct bpe *bpe);

/* Appends the ids of text[n] to ids[*n_ids], at most max in all: 0; -E2BIG (more than max ids;
 * *n_ids is then the number needed, and the call may be continued with the next text to count on);
 * -EMSGSIZE (n > bytes_max); -EILSEQ (the vocabulary has no token for a byte: bpe_unknown_byte()
 * has it). *n_ids stays as it was on the last two. */
int bpe_encode(struct bpe *bpe, const uint8_t *text, size_t n, uint32_t *ids, uint32_t *n_ids,
               uint32_t max);

/* The same of head followed by text, as one text; head has at most BPE_HEAD_MAX bytes and does not
 * count for bytes_max. */
int bpe_encode_after(struct bpe *bpe, const char *head, const uint8_t *text, size_t n,
                     uint32_t *ids, uint32_t *n_ids, uint32_t max);

/* The byte that the last -EILSEQ was about. Vocabularies drop bytes that no text of theirs had,
 * such as 0xff. */
uint8_t bpe_unknown_byte(const struct bpe *bpe);

#endif
