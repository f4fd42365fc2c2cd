/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab_fixture.h - tiny vocabularies for the tests of text/: the metadata part of a GGUF file,
 * written into a memfd.
 *
 * Layout: GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#ifndef TESTS_UNIT_VOCAB_FIXTURE_H
#define TESTS_UNIT_VOCAB_FIXTURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "runtime/text/vocab.h"

struct fixture {
    uint8_t *bytes;
    size_t n, room;
    uint64_t n_keys;
};

static inline void fixture_put(struct fixture *f, const void *bytes, size_t n)
{
    if (n > f->room - f->n) {
        f->room = 2 * (f->n + n);
        f->bytes = realloc(f->bytes, f->room);
        if (!f->bytes)
            abort();
    }
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

static inline void fixture_u32(struct fixture *f, uint32_t value)
{
    fixture_put(f, &value, sizeof value);
}

static inline void fixture_u64(struct fixture *f, uint64_t value)
{
    fixture_put(f, &value, sizeof value);
}

static inline void fixture_text(struct fixture *f, const char *text, size_t n)
{
    fixture_u64(f, n);
    fixture_put(f, text, n);
}

static inline void fixture_key(struct fixture *f, const char *key, uint32_t type)
{
    if (f->n == 0)
        fixture_put(f, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    f->n_keys++;
    fixture_text(f, key, strlen(key));
    fixture_u32(f, type);
}

static inline void fixture_add_u32(struct fixture *f, const char *key, uint32_t value)
{
    fixture_key(f, key, GGUF_U32);
    fixture_u32(f, value);
}

static inline void fixture_add_bool(struct fixture *f, const char *key, uint8_t value)
{
    fixture_key(f, key, GGUF_BOOL);
    fixture_put(f, &value, 1);
}

static inline void fixture_add_str(struct fixture *f, const char *key, const char *text)
{
    fixture_key(f, key, GGUF_STRING);
    fixture_text(f, text, strlen(text));
}

static inline void fixture_add_strs(struct fixture *f, const char *key, const char *const *texts,
                                    size_t n)
{
    fixture_key(f, key, GGUF_ARRAY);
    fixture_u32(f, GGUF_STRING);
    fixture_u64(f, n);
    for (size_t i = 0; i < n; i++)
        fixture_text(f, texts[i], strlen(texts[i]));
}

static inline void fixture_add_i32s(struct fixture *f, const char *key, const int32_t *values,
                                    size_t n)
{
    fixture_key(f, key, GGUF_ARRAY);
    fixture_u32(f, GGUF_I32);
    fixture_u64(f, n);
    fixture_put(f, values, n * sizeof *values);
}

/* Opens what was written and frees the bytes. */
static inline int fixture_open(struct fixture *f, struct gguf **ret_gguf, struct diag *diag)
{
    char path[64];
    int fd = memfd_create("vocab", MFD_CLOEXEC);
    int err;

    memcpy(f->bytes + 16, &f->n_keys, sizeof f->n_keys);
    if (fd < 0 || write(fd, f->bytes, f->n) != (ssize_t)f->n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    err = gguf_open(ret_gguf, path, diag);
    close(fd);
    free(f->bytes);
    memset(f, 0, sizeof *f);
    return err;
}

/* ---- a whole vocabulary --------------------------------------------------------------- */

#define FIXTURE_START  0u /* <|im_start|> */
#define FIXTURE_END    1u /* <|im_end|>, the file's EOS */
#define FIXTURE_BOS    2u /* <s>, a control token */
#define FIXTURE_UNUSED 3u /* token type 5 */
#define FIXTURE_BYTE                                                                               \
    4u /* FIXTURE_BYTE + b is byte b's token; results of merges follow, then user-defined tokens */
#define FIXTURE_MERGED 260u
#define FIXTURE_TOKENS 512u

struct tiny {
    const char *pre;           /* NULL: the key is left out */
    const char *const *merges; /* "a b"; each must make a text that is no token yet */
    size_t n_merges;
    const char *const *user;
    size_t n_user;
    int without_byte; /* 0: all bytes have tokens; else this one has none (its place is taken by an
                         unused token) */
    int add_bos;      /* -1: the key is left out */
};

/* U+0000..U+07FF in UTF-8. */
static inline void fixture_char(char *out, unsigned c)
{
    if (c < 0x80)
        snprintf(out, 4, "%c", (int)c);
    else
        snprintf(out, 4, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
}

/* GPT-2's stand-in for a byte: printable Latin-1 stays, the others are U+0100 and up in their
 * order. */
static inline void fixture_byte(char *out, unsigned byte)
{
    unsigned moved = 256;

    for (unsigned b = 0; b <= byte; b++) {
        int stays = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);

        if (b == byte)
            fixture_char(out, stays ? b : moved);
        moved += !stays;
    }
}

/* Writes the keys of a vocabulary; id numbers as above. */
static inline void fixture_vocab(struct fixture *f, const struct tiny *tiny)
{
    static char texts[FIXTURE_TOKENS][80];
    const char *tokens[FIXTURE_TOKENS];
    int32_t kinds[FIXTURE_TOKENS] = {3, 3, 3, 5};
    size_t n = FIXTURE_BYTE;

    strcpy(texts[FIXTURE_START], "<|im_start|>");
    strcpy(texts[FIXTURE_END], "<|im_end|>");
    strcpy(texts[FIXTURE_BOS], "<s>");
    strcpy(texts[FIXTURE_UNUSED], "<unused>");
    for (unsigned b = 0; b < 256; b++, n++) {
        kinds[n] = tiny->without_byte && (unsigned)tiny->without_byte == b ? 5 : 1;
        fixture_byte(texts[n], b);
    }
    for (size_t i = 0; i < tiny->n_merges; i++, n++) {
        const char *space = strchr(tiny->merges[i], ' ');

        snprintf(texts[n], sizeof texts[n], "%.*s%s", (int)(space - tiny->merges[i]),
                 tiny->merges[i], space + 1);
        kinds[n] = 1;
    }
    for (size_t i = 0; i < tiny->n_user; i++, n++) {
        snprintf(texts[n], sizeof texts[n], "%s", tiny->user[i]);
        kinds[n] = 4;
    }
    for (size_t i = 0; i < n; i++)
        tokens[i] = texts[i];
    fixture_add_str(f, "tokenizer.ggml.model", "gpt2");
    if (tiny->pre)
        fixture_add_str(f, "tokenizer.ggml.pre", tiny->pre);
    fixture_add_strs(f, "tokenizer.ggml.tokens", tokens, n);
    fixture_add_i32s(f, "tokenizer.ggml.token_type", kinds, n);
    fixture_add_strs(f, "tokenizer.ggml.merges", tiny->merges, tiny->n_merges);
    fixture_add_u32(f, "tokenizer.ggml.eos_token_id", FIXTURE_END);
    fixture_add_u32(f, "tokenizer.ggml.bos_token_id", FIXTURE_BOS);
    if (tiny->add_bos >= 0)
        fixture_add_bool(f, "tokenizer.ggml.add_bos_token", (uint8_t)tiny->add_bos);
}

static inline struct vocab *fixture_vocab_new(const struct tiny *tiny)
{
    struct fixture f = {0};
    struct diag diag = {""};
    struct gguf *gguf = NULL;
    struct vocab *vocab = NULL;

    fixture_vocab(&f, tiny);
    if (fixture_open(&f, &gguf, &diag) < 0 || vocab_new(&vocab, gguf, &diag) < 0) {
        fprintf(stderr, "tiny vocabulary: %s\n", diag.text);
        abort();
    }
    gguf_close(gguf);
    return vocab;
}

#endif
