/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pretokenize.h - splits text into the words that byte-pair merges never cross.
 *
 * One regular expression a family, run by PCRE2 (JIT where the host allows writable code, else
 * interpreted: 3-4 times slower, same words). Each pattern matches at every position and its
 * matches are linear in what they consume, so a text takes linear time whatever it holds.
 *
 * Differences to expect from a reference with newer Unicode tables: PCRE2 10.42 knows Unicode 14; a
 * letter that came later counts as a symbol.
 */
#ifndef RUNTIME_TEXT_PRETOKENIZE_H
#define RUNTIME_TEXT_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>
#include "runtime/base/diag.h"

enum pretok_kind {
    PRETOK_SMOLLM, /* every digit alone, then as GPT-2 */
    PRETOK_GPT2,
    PRETOK_LLAMA3 /* digits by three, contractions in any case, a letter run takes one symbol before
                     it */
};

struct pretok; /* compiled pattern and match memory of one thread */

/* The kind by the name in tokenizer.ggml.pre (not NUL-terminated): 0, -ENOENT. */
int pretok_find(const char *name, size_t n, enum pretok_kind *ret_kind);

int pretok_new(struct pretok **ret_pretok, enum pretok_kind kind, struct diag *diag);
void pretok_free(struct pretok *p);

/* Whether the pattern runs as machine code. */
int pretok_is_jit(const struct pretok *p);

/*
 * Where the word that starts at text[at] ends; at < n. text[0..n) must be private to the caller and
 * whole UTF-8 characters (utf8_span() == n): PCRE2 does not look again. -EIO: PCRE2 failed (a
 * limit, which these patterns do not reach).
 */
int pretok_next(struct pretok *p, const uint8_t *text, size_t n, size_t at, size_t *ret_end);

#endif
