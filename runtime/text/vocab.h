/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab.h - token ids, their bytes and the merges of a byte-level BPE; read from a GGUF file.
 *
 * Immutable and shared by threads. Refuses (diag, -EINVAL): tokenizer models other than `gpt2`,
 * pre-tokenizers other than smollm, gpt-2 (also "gpt2") and llama-bpe (also "llama3", "llama-v3"),
 * a missing pre-tokenizer, token arrays of different lengths, tokens with characters outside the
 * byte alphabet, two tokens of one text, malformed or unknown merges, absurd lengths.
 *
 * What token_type makes of a token, as Hugging Face's tokenizers do it:
 *
 *   1 normal: written in GPT-2's byte alphabet; made by merges, decodes to its bytes.
 *
 *   2, 3 control: never made from text, decodes to nothing; the chat template's scaffold uses it.
 *
 *   4 user defined: literal text, found before anything is split, the leftmost and then the longest
 *   one first; decodes to its text.
 *
 *   5 unused: never made, decodes to nothing.
 */
#ifndef RUNTIME_TEXT_VOCAB_H
#define RUNTIME_TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include "runtime/base/diag.h"
#include "runtime/model/gguf.h"
#include "runtime/text/merges.h"
#include "runtime/text/pretokenize.h"

struct vocab;

#define VOCAB_NONE            UINT32_MAX
#define VOCAB_TOKENS_MAX      (1u << 20) /* the largest public vocabularies have 262,144 */
#define VOCAB_MERGES_MAX      (1u << 21) /* ... and about twice as many merges */
#define VOCAB_TOKEN_BYTES_MAX 1024u      /* of one token, decoded: detok.h holds at least one */
#define VOCAB_USER_TOKENS_MAX 1024u      /* each costs a look at every byte that begins like it */

int vocab_new(struct vocab **ret_vocab, const struct gguf *gguf, struct diag *diag);
/* Without a file: ids 0..255 are the bytes, then <|endoftext|>, <|im_start|>, <|im_end|>. -ENOMEM. */
int vocab_new_bytes(struct vocab **ret_vocab);
void vocab_free(struct vocab *vocab);

uint32_t vocab_size(const struct vocab *v);

/* Decoded bytes; 0 bytes for control and unused tokens and for ids that are not there. */
const uint8_t *vocab_bytes(const struct vocab *v, uint32_t id, size_t *ret_n);
int vocab_is_control(const struct vocab *v, uint32_t id);

/* Whether it ends a generation: the file's eos, eot and eom, and control tokens that mean it by
 * their text, such as <|im_end|>. */
int vocab_is_eog(const struct vocab *v, uint32_t id);

/* Id of a control token by its text; VOCAB_NONE. */
uint32_t vocab_control_id(const struct vocab *v, const char *text);

uint32_t vocab_bos(const struct vocab *v);       /* to put before a prompt; VOCAB_NONE: add none */
uint32_t vocab_bos_named(const struct vocab *v); /* what the file calls BOS, added or not */

/* ---- for bpe.c ------------------------------------------------------------------------ */

enum pretok_kind vocab_pretok(const struct vocab *v);
int vocab_ignores_merges(
    const struct vocab *v); /* Llama 3: a word that is a token is taken whole */
const struct merges *vocab_merges(const struct vocab *v);

/* [256] token of each single byte; VOCAB_NONE: it has none. */
const uint32_t *vocab_byte_ids(const struct vocab *v);

/* The normal token of these bytes; VOCAB_NONE. */
uint32_t vocab_word(const struct vocab *v, const uint8_t *bytes, size_t n);

/* The longest user-defined token that text[n] begins with, and its bytes; VOCAB_NONE. n > 0. */
uint32_t vocab_user(const struct vocab *v, const uint8_t *text, size_t n, size_t *ret_n);
int vocab_has_user(const struct vocab *v);

#endif
