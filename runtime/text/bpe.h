/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe.h - bytes to token ids: pre-tokenizer split (PCRE2), then byte-level BPE merges by rank.
 *
 * O(n log n) in the length of one word (a heap of candidate merges), so a 1 MB word cannot stall it.
 * Control-token text is ordinary text here. Invalid UTF-8 is tokenised byte by byte, losslessly.
 */
#ifndef RUNTIME_TEXT_BPE_H
#define RUNTIME_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>
#include "runtime/text/vocab.h"

struct bpe; /* working memory of one thread */

/* bytes_max: longest text that bpe_encode takes. All memory is taken here. */
int bpe_new(struct bpe **ret_bpe, const struct vocab *vocab, size_t bytes_max, struct diag *diag);
void bpe_free(struct bpe *bpe);

/* Appends the ids of text[n] to ids[*n_ids], at most max in all: 0, -E2BIG (more than max ids; *n_ids is then the count
 * needed at least), -EMSGSIZE (n > bytes_max). */
int bpe_encode(struct bpe *bpe, const uint8_t *text, size_t n, uint32_t *ids, uint32_t *n_ids, uint32_t max);

#endif
