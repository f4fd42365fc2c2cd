/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/pretokenize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/*
 * Backtracking steps of one match. The patterns step back at most once a byte (white space looking
 * for its last line end), so this allows words of 100 MB, well over BPE_BYTES_MAX; a pattern that
 * went exponential would end here.
 */
#define PRETOK_STEPS_MAX 100000000u

struct pretok {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    int jit;
};

/*
 * White space is Unicode's White_Space property, written out: the references' \s is that, PCRE2's
 * \s also takes U+180E (a format character since Unicode 6.3).
 */
#define SPACE                                                                                      \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"  \
    "\\x{205f}\\x{3000}"

/* A run that ends its alternative never has to give back: ++ saves the memory of it. */
static const char *const patterns[] = {
    /*
     * Splitting off each digit first and then running GPT-2's pattern over what is between them is
     * one pattern: the text before a digit ends there, so white space before a digit looks no
     * further (its look-ahead treats \p{N} as the end).
     */
    [PRETOK_SMOLLM] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}++|\\p{N}| ?[^" SPACE "\\p{L}\\p{N}]++"
                      "|[" SPACE "]+(?![^" SPACE "\\p{N}])|[" SPACE "]++",
    [PRETOK_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++"
                    "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++",
    [PRETOK_LLAMA3] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|\\p{N}{1,3}+"
                      "| ?[^" SPACE "\\p{L}\\p{N}]++[\\r\\n]*+|[" SPACE "]*[\\r\\n]++"
                      "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++",
};

int pretok_find(const char *name, size_t n, enum pretok_kind *ret_kind)
{
    static const struct {
        const char *name;
        enum pretok_kind kind;
    } known[] = {
        {"smollm", PRETOK_SMOLLM},    {"gpt-2", PRETOK_GPT2},    {"gpt2", PRETOK_GPT2},
        {"llama-bpe", PRETOK_LLAMA3}, {"llama3", PRETOK_LLAMA3}, {"llama-v3", PRETOK_LLAMA3},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && !memcmp(known[i].name, name, n)) {
            *ret_kind = known[i].kind;
            return 0;
        }
    return -ENOENT;
}

int pretok_new(struct pretok **ret_pretok, enum pretok_kind kind, struct diag *diag)
{
    struct pretok *p = calloc(1, sizeof *p);
    PCRE2_SIZE where;
    size_t end;
    int error;
    int err = -ENOMEM;

    if (!p)
        return -ENOMEM;
    p->code =
        pcre2_compile((PCRE2_SPTR)patterns[kind], PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &where, NULL);
    if (!p->code) {
        diag_set(diag, "pre-tokenizer pattern %d: PCRE2 error %d at %zu", (int)kind, error,
                 (size_t)where);
        err = -EINVAL;
        goto fail;
    }
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    p->match = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    if (!p->match || !p->limits)
        goto fail;
    pcre2_set_match_limit(p->limits, PRETOK_STEPS_MAX);
    /* The interpreter takes its memory with the first match: here, and not when a request comes. */
    err = pretok_next(p, (const uint8_t *)" a", 2, 0, &end);
    if (err < 0) {
        diag_set(diag, "pre-tokenizer pattern %d does not run", (int)kind);
        goto fail;
    }
    *ret_pretok = p;
    return 0;

fail:
    pretok_free(p);
    return err;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    pcre2_match_context_free(p->limits);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    free(p);
}

int pretok_is_jit(const struct pretok *p)
{
    return p->jit;
}

int pretok_next(struct pretok *p, const uint8_t *text, size_t n, size_t at, size_t *ret_end)
{
    int rc;

    if (p->jit)
        rc = pcre2_jit_match(p->code, text, n, at, PCRE2_NO_UTF_CHECK, p->match, p->limits);
    else
        rc = pcre2_match(p->code, text, n, at, PCRE2_NO_UTF_CHECK, p->match, p->limits);
    if (rc < 0)
        return -EIO;
    *ret_end = pcre2_get_ovector_pointer(p->match)[1];
    return *ret_end > at ? 0 : -EIO;
}
