/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab.h - token ids, their bytes and the merges of a byte-level BPE; read from a GGUF file.
 *
 * Immutable and shared by threads. Refuses (diag, -EINVAL): tokenizer models other than `gpt2`, pre-tokenizers
 * other than smollm, gpt-2 (also "gpt2") and llama-bpe (also "llama3", "llama-v3"), a missing pre-tokenizer, token arrays of
 * different lengths, tokens with characters outside the byte alphabet, malformed merges, absurd lengths.
 */
#ifndef RUNTIME_TEXT_VOCAB_H
#define RUNTIME_TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include "runtime/base/diag.h"
#include "runtime/model/gguf.h"

struct vocab;

#define VOCAB_NONE UINT32_MAX

int vocab_new(struct vocab **ret_vocab, const struct gguf *gguf, struct diag *diag);
void vocab_free(struct vocab *vocab);

uint32_t vocab_size(const struct vocab *v);
const uint8_t *vocab_bytes(const struct vocab *v, uint32_t id, size_t *ret_n); /* decoded bytes; control tokens: 0 bytes */
int vocab_is_control(const struct vocab *v, uint32_t id);
int vocab_is_eog(const struct vocab *v, uint32_t id); /* ends a generation: eos, eot, <|im_end|>, <|endoftext|> by kind */
uint32_t vocab_control_id(const struct vocab *v, const char *text); /* id of a control token by its text; VOCAB_NONE */
uint32_t vocab_bos(const struct vocab *v); /* id to put before a prompt, VOCAB_NONE when the model adds none */

#endif
