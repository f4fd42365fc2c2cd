/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/vocab.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES  "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"

enum kind { /* tokenizer.ggml.token_type, GGUF specification */
            KIND_NORMAL = 1,
            KIND_UNKNOWN = 2,
            KIND_CONTROL = 3,
            KIND_USER = 4,
            KIND_UNUSED = 5
};

struct word {     /* slot of the table of normal tokens by their bytes */
    uint32_t id;  /* VOCAB_NONE: empty */
    uint32_t tag; /* high half of the hash: spares most comparisons */
};

struct vocab {
    uint32_t n;
    uint32_t *at;   /* [n + 1] where each token's bytes begin */
    uint8_t *bytes; /* of normal tokens decoded, of all others their text */
    uint8_t *kind;  /* [n] enum kind */
    uint8_t *eog;   /* [n] */
    struct word *words;
    uint32_t words_mask;
    uint64_t seed;
    struct merges merges;
    uint32_t byte_ids[256];
    uint32_t *user; /* ids of user-defined tokens, longest first */
    uint32_t n_user;
    uint8_t user_first[256]; /* whether one begins with this byte */
    uint32_t bos, bos_named;
    enum pretok_kind pretok;
};

/* ---- GPT-2's byte alphabet ------------------------------------------------------------ */

#define ALPHABET_CHARS 324 /* 256 + the 68 bytes that do not print as themselves */

/*
 * Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up.
 * Source: bytes_to_unicode() of GPT-2's encoder.py, as described in the paper's repository.
 */
struct alphabet {
    int16_t byte[ALPHABET_CHARS]; /* -1: no byte */
};

static void alphabet_init(struct alphabet *alphabet)
{
    int16_t moved = 256;

    memset(alphabet->byte, 0xff, sizeof alphabet->byte);
    for (int16_t b = 0; b < 256; b++) {
        int prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

        alphabet->byte[prints ? b : moved++] = b;
    }
}

/*
 * Decodes text[n] into out, which has room for n bytes. *ret_split: where in out the (only) space
 * stood, when split is wanted (a merge), else NULL and a space is an error. Bytes written, or
 * -EINVAL. Reads each byte of text once.
 */
static int alphabet_decode(const struct alphabet *alphabet, const char *text, size_t n,
                           uint8_t *out, int *ret_split)
{
    int n_out = 0, split = -1;

    for (size_t i = 0; i < n; i++) {
        unsigned c = (uint8_t)text[i];

        if (c == ' ' && ret_split && split < 0) {
            split = n_out;
            continue;
        }
        if ((c & 0xe0) == 0xc0 &&
            i + 1 < n) { /* the alphabet ends below U+0800: two bytes at most */
            unsigned next = (uint8_t)text[++i];

            c = (next & 0xc0) == 0x80 && c >= 0xc2 ? (c & 0x1f) << 6 | (next & 0x3f)
                                                   : ALPHABET_CHARS;
        } else if (c >= 0x80) {
            c = ALPHABET_CHARS;
        }
        if (c >= ALPHABET_CHARS || alphabet->byte[c] < 0)
            return -EINVAL;
        out[n_out++] = (uint8_t)alphabet->byte[c];
    }
    if (ret_split)
        *ret_split = split;
    return n_out;
}

/* ---- tokens by their bytes ------------------------------------------------------------ */

/* Words are looked up so many after their hash is known and their slot asked for: the table is larger
 * than what a core has near by. */
#define AHEAD 8u

static uint64_t word_hash(const struct vocab *v, const uint8_t *bytes, size_t n)
{
    uint64_t hash = XXH3_64bits_withSeed(bytes, n, v->seed);

    __builtin_prefetch(&v->words[(uint32_t)hash & v->words_mask]);
    return hash;
}

/* The slot of these bytes, or the empty one where they belong. */
static struct word *word_slot(const struct vocab *v, const uint8_t *bytes, size_t n, uint64_t hash,
                              uint32_t *ret_tag)
{
    uint32_t tag = (uint32_t)(hash >> 32);
    uint32_t at = (uint32_t)hash & v->words_mask;

    for (;; at = (at + 1) & v->words_mask) {
        struct word *word = &v->words[at];

        if (word->id == VOCAB_NONE)
            break;
        if (word->tag == tag && v->at[word->id + 1] - v->at[word->id] == n &&
            !memcmp(v->bytes + v->at[word->id], bytes, n))
            break;
    }
    *ret_tag = tag;
    return &v->words[at];
}

static int words_init(struct vocab *v)
{
    uint32_t n_slots = 16;

    while (n_slots / 2 < v->n)
        n_slots *= 2;
    v->words = malloc(n_slots * sizeof *v->words);
    if (!v->words)
        return -ENOMEM;
    memset(v->words, 0xff, n_slots * sizeof *v->words);
    v->words_mask = n_slots - 1;
    return 0;
}

static int word_add(struct vocab *v, uint32_t id, struct diag *diag)
{
    const uint8_t *bytes = v->bytes + v->at[id];
    size_t n = v->at[id + 1] - v->at[id];
    uint32_t tag;
    struct word *word = word_slot(v, bytes, n, word_hash(v, bytes, n), &tag);

    if (word->id != VOCAB_NONE) {
        diag_set(diag, TOKENS ": tokens %" PRIu32 " and %" PRIu32 " have the same text", word->id,
                 id);
        return -EINVAL;
    }
    *word = (struct word){id, tag};
    if (n == 1)
        v->byte_ids[bytes[0]] = id;
    return 0;
}

/* ---- reading the file ----------------------------------------------------------------- */

/* A string of metadata that has to be there. */
static int string_get(const struct gguf *gguf, const char *key, struct gguf_str *ret,
                      struct diag *diag)
{
    int err = gguf_get_str(gguf, key, ret, diag);

    if (err != -ENOENT)
        return err;
    diag_set(
        diag,
        "key '%s' is missing; it says how text becomes tokens, and guessing gives other tokens",
        key);
    return -EINVAL;
}

static int array_get(const struct gguf *gguf, const char *key, uint32_t type, uint64_t n_max,
                     struct gguf_iter *ret, struct diag *diag)
{
    int err = gguf_array(gguf, key, type, ret, diag);

    if (err == -ENOENT) {
        diag_set(diag, "key '%s' is missing", key);
        return -EINVAL;
    }
    if (err < 0)
        return err;
    if (ret->left > n_max) {
        diag_set(diag, "key '%s' has %" PRIu64 " elements, at most %" PRIu64 " are read", key,
                 ret->left, n_max);
        return -EINVAL;
    }
    return 0;
}

static int family_read(struct vocab *v, const struct gguf *gguf, struct diag *diag)
{
    struct gguf_str name;
    int err = string_get(gguf, "tokenizer.ggml.model", &name, diag);

    if (err < 0)
        return err;
    if (name.n != 4 || memcmp(name.s, "gpt2", 4) != 0) {
        diag_set(diag, "key 'tokenizer.ggml.model' is '%.*s', expected 'gpt2' (byte-level BPE)",
                 (int)(name.n < 64 ? name.n : 64), name.s);
        return -EINVAL;
    }
    err = string_get(gguf, "tokenizer.ggml.pre", &name, diag);
    if (err < 0)
        return err;
    if (pretok_find(name.s, name.n, &v->pretok) < 0) {
        diag_set(diag, "key 'tokenizer.ggml.pre' is '%.*s', expected smollm, gpt-2 or llama-bpe",
                 (int)(name.n < 64 ? name.n : 64), name.s);
        return -EINVAL;
    }
    return 0;
}

/* Reads the kinds and takes the memory that follows from the number of tokens. */
static int kinds_read(struct vocab *v, const struct gguf *gguf, const struct gguf_iter *tokens,
                      struct diag *diag)
{
    struct gguf_iter types, scores;
    uint32_t n_user = 0;
    int err = array_get(gguf, TYPES, GGUF_I32, VOCAB_TOKENS_MAX, &types, diag);

    if (err < 0)
        return err;
    if (types.left != tokens->left) {
        diag_set(diag, "key '" TYPES "' has %" PRIu64 " elements, '" TOKENS "' has %" PRIu64,
                 types.left, tokens->left);
        return -EINVAL;
    }
    err = gguf_array(gguf, "tokenizer.ggml.scores", GGUF_F32, &scores, diag);
    if (err == 0 && scores.left != tokens->left) {
        diag_set(diag,
                 "key 'tokenizer.ggml.scores' has %" PRIu64 " elements, '" TOKENS "' has %" PRIu64,
                 scores.left, tokens->left);
        err = -EINVAL;
    }
    if (err < 0 && err != -ENOENT)
        return err;

    v->n = (uint32_t)tokens->left;
    v->at = malloc((v->n + 1u) * sizeof *v->at);
    v->kind = malloc(v->n);
    v->eog = calloc(v->n, 1);
    if (!v->at || !v->kind || !v->eog)
        return -ENOMEM;
    for (uint32_t id = 0; id < v->n; id++) {
        uint32_t kind;

        if (gguf_next_u32(&types, &kind) < 0 || kind < KIND_NORMAL || kind > KIND_UNUSED) {
            diag_set(diag, "key '" TYPES "': the type of token %" PRIu32 " is not one of 1 to 5",
                     id);
            return -EINVAL;
        }
        v->kind[id] = (uint8_t)kind;
        n_user += kind == KIND_USER;
    }
    if (n_user > VOCAB_USER_TOKENS_MAX) {
        diag_set(diag, "key '" TYPES "' has %" PRIu32 " user-defined tokens, at most %u are read",
                 n_user, VOCAB_USER_TOKENS_MAX);
        return -EINVAL;
    }
    v->user = malloc((n_user + 1u) * sizeof *v->user);
    return v->user ? 0 : -ENOMEM;
}

/* Copies or decodes one token's text to bytes + v->at[id]. */
static int token_read(struct vocab *v, uint32_t id, const struct gguf_str *text,
                      const struct alphabet *alphabet, struct diag *diag)
{
    uint8_t *out = v->bytes + v->at[id];
    size_t n_max = v->kind[id] == KIND_NORMAL ? 2 * VOCAB_TOKEN_BYTES_MAX : VOCAB_TOKEN_BYTES_MAX;
    int n = (int)text->n;

    if (text->n > n_max || (text->n == 0 && v->kind[id] != KIND_UNUSED)) {
        diag_set(diag,
                 "key '" TOKENS "': token %" PRIu32 " has %zu bytes of text, 1 to %zu are allowed",
                 id, text->n, n_max);
        return -EINVAL;
    }
    if (v->kind[id] == KIND_NORMAL)
        n = alphabet_decode(alphabet, text->s, text->n, out, NULL);
    else
        memcpy(out, text->s, text->n);
    if (n < 0 || n > (int)VOCAB_TOKEN_BYTES_MAX) {
        diag_set(diag, "key '" TOKENS "': token %" PRIu32 " '%.*s' %s", id,
                 (int)(text->n < 64 ? text->n : 64), text->s,
                 n < 0 ? "has a character outside the byte alphabet" : "is too long");
        return -EINVAL;
    }
    v->at[id + 1] = v->at[id] + (uint32_t)n;
    if (v->kind[id] == KIND_NORMAL)
        word_hash(v, out, (size_t)n); /* asks for its slot */
    if (v->kind[id] == KIND_USER) {
        v->user[v->n_user++] = id;
        v->user_first[out[0]] = 1;
    }
    return 0;
}

static int tokens_read(struct vocab *v, const struct gguf *gguf, const struct alphabet *alphabet,
                       struct diag *diag)
{
    struct gguf_iter tokens;
    struct gguf_str text;
    int err = array_get(gguf, TOKENS, GGUF_STRING, VOCAB_TOKENS_MAX, &tokens, diag);

    if (err < 0)
        return err;
    if (tokens.left == 0) {
        diag_set(diag, "key '" TOKENS "' is empty");
        return -EINVAL;
    }
    err = kinds_read(v, gguf, &tokens, diag);
    if (err < 0)
        return err;
    /* No token is longer decoded than written, so the array's own size bounds all of them. */
    if (tokens.end - tokens.at > (ptrdiff_t)UINT32_MAX) {
        diag_set(diag, "key '" TOKENS "' has over 4 GiB of text");
        return -EINVAL;
    }
    v->bytes = malloc((size_t)(tokens.end - tokens.at) + 1u);
    if (!v->bytes)
        return -ENOMEM;
    err = words_init(v);
    v->at[0] = 0;
    for (uint32_t id = 0; id < v->n + AHEAD && err == 0; id++) {
        if (id >= AHEAD && v->kind[id - AHEAD] == KIND_NORMAL)
            err = word_add(v, id - AHEAD, diag);
        if (err < 0 || id >= v->n)
            continue;
        if (gguf_next_str(&tokens, &text) < 0) {
            diag_set(diag, "key '" TOKENS "' ends at token %" PRIu32 " of %" PRIu32, id, v->n);
            return -EINVAL;
        }
        err = token_read(v, id, &text, alphabet, diag);
    }
    return err;
}

static int merge_bad(const struct gguf_str *text, uint32_t rank, const char *what,
                     struct diag *diag)
{
    diag_set(diag, "key '" MERGES "': merge %" PRIu32 " '%.*s' %s", rank,
             (int)(text->n < 64 ? text->n : 64), text->s, what);
    return -EINVAL;
}

/* A merge that is decoded and waits for its words' slots. */
struct merge_text {
    struct gguf_str text;
    uint32_t rank;
    int n, split;                 /* bytes of the result, of the left part */
    uint64_t left, right, result; /* hashes */
    uint8_t bytes[4 * VOCAB_TOKEN_BYTES_MAX + 1];
};

static int merge_decode(const struct vocab *v, struct merge_text *m,
                        const struct alphabet *alphabet, struct diag *diag)
{
    size_t split;

    if (m->text.n > sizeof m->bytes)
        return merge_bad(&m->text, m->rank, "is too long", diag);
    m->n = alphabet_decode(alphabet, m->text.s, m->text.n, m->bytes, &m->split);
    if (m->n < 0)
        return merge_bad(&m->text, m->rank,
                         "has a character outside the byte alphabet, or a second space", diag);
    if (m->split <= 0 || m->split == m->n)
        return merge_bad(&m->text, m->rank, "is not two tokens with a space between them", diag);
    split = (size_t)m->split;
    m->left = word_hash(v, m->bytes, split);
    m->right = word_hash(v, m->bytes + split, (size_t)m->n - split);
    m->result = word_hash(v, m->bytes, (size_t)m->n);
    return 0;
}

static int merge_take(struct vocab *v, const struct merge_text *m, struct diag *diag)
{
    struct merge merge = {.rank = m->rank};
    size_t n = (size_t)m->n, split = (size_t)m->split;
    uint32_t tag;

    merge.left = word_slot(v, m->bytes, split, m->left, &tag)->id;
    merge.right = word_slot(v, m->bytes + split, n - split, m->right, &tag)->id;
    merge.result = word_slot(v, m->bytes, n, m->result, &tag)->id;
    if (merge.left == VOCAB_NONE || merge.right == VOCAB_NONE || merge.result == VOCAB_NONE)
        return merge_bad(&m->text, m->rank, "joins or makes a token that is not in the vocabulary",
                         diag);
    if (merges_add(&v->merges, &merge) < 0)
        return merge_bad(&m->text, m->rank, "appears twice", diag);
    return 0;
}

static int merges_read(struct vocab *v, const struct gguf *gguf, const struct alphabet *alphabet,
                       struct diag *diag)
{
    struct merge_text ahead[AHEAD];
    struct gguf_iter merges;
    uint32_t n;
    int err = array_get(gguf, MERGES, GGUF_STRING, VOCAB_MERGES_MAX, &merges, diag);

    if (err < 0)
        return err;
    n = (uint32_t)merges.left;
    err = merges_init(&v->merges, n, v->seed);
    for (uint32_t rank = 0; rank < n + AHEAD && err == 0; rank++) {
        struct merge_text *m = &ahead[rank % AHEAD];

        if (rank >= AHEAD && rank - AHEAD < n)
            err = merge_take(v, m, diag);
        if (err < 0 || rank >= n)
            continue;
        m->rank = rank;
        if (gguf_next_str(&merges, &m->text) < 0) {
            diag_set(diag, "key '" MERGES "' ends at merge %" PRIu32 " of %" PRIu32, rank, n);
            return -EINVAL;
        }
        err = merge_decode(v, m, alphabet, diag);
    }
    return err;
}

/* A token id in the metadata; VOCAB_NONE when the key is absent. */
static int id_get(const struct vocab *v, const struct gguf *gguf, const char *key, uint32_t *ret,
                  struct diag *diag)
{
    uint32_t id;
    int err = gguf_get_u32(gguf, key, &id, diag);

    if (err == -ENOENT) {
        *ret = VOCAB_NONE;
        return 0;
    }
    if (err < 0)
        return err;
    if (id >= v->n) {
        diag_set(diag, "key '%s' is %" PRIu32 ", the vocabulary has %" PRIu32 " tokens", key, id,
                 v->n);
        return -EINVAL;
    }
    *ret = id;
    return 0;
}

/* Files name one end; models of these families also end a turn with the others. */
static void ends_by_text(struct vocab *v)
{
    static const char *const texts[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
                                        "<|end_of_text|>"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        uint32_t id = vocab_control_id(v, texts[i]);

        if (id != VOCAB_NONE)
            v->eog[id] = 1;
    }
}

static int ends_read(struct vocab *v, const struct gguf *gguf, struct diag *diag)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint32_t id;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int err = id_get(v, gguf, keys[i], &id, diag);

        if (err < 0)
            return err;
        if (id != VOCAB_NONE)
            v->eog[id] = 1;
    }
    ends_by_text(v);
    return 0;
}

static int bos_read(struct vocab *v, const struct gguf *gguf, struct diag *diag)
{
    int add = v->pretok == PRETOK_LLAMA3; /* what Llama 3's own files mean when they do not say */
    int said = gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &add, diag);
    int err;

    if (said < 0 && said != -ENOENT)
        return said;
    err = id_get(v, gguf, "tokenizer.ggml.bos_token_id", &v->bos_named, diag);
    if (err < 0)
        return err;
    if (said == 0 && add && v->bos_named == VOCAB_NONE) {
        diag_set(diag, "key 'tokenizer.ggml.add_bos_token' is true, but "
                       "'tokenizer.ggml.bos_token_id' is missing");
        return -EINVAL;
    }
    v->bos = add ? v->bos_named : VOCAB_NONE;
    return 0;
}

static int longer_first(const void *a, const void *b, void *arg)
{
    const struct vocab *v = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint32_t x_bytes = v->at[x + 1] - v->at[x], y_bytes = v->at[y + 1] - v->at[y];

    if (x_bytes != y_bytes)
        return x_bytes > y_bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

int vocab_new(struct vocab **ret_vocab, const struct gguf *gguf, struct diag *diag)
{
    struct vocab *v = calloc(1, sizeof *v);
    struct alphabet alphabet;
    int err;

    if (!v)
        return -ENOMEM;
    alphabet_init(&alphabet);
    memset(v->byte_ids, 0xff, sizeof v->byte_ids);
    /* A seed that could not be drawn only makes collisions possible, and the counts are bounded. */
    if (getrandom(&v->seed, sizeof v->seed, GRND_NONBLOCK) != (ssize_t)sizeof v->seed)
        v->seed = (uint64_t)(uintptr_t)v;
    err = family_read(v, gguf, diag);
    if (err == 0)
        err = tokens_read(v, gguf, &alphabet, diag);
    if (err == 0)
        err = merges_read(v, gguf, &alphabet, diag);
    if (err == 0)
        err = ends_read(v, gguf, diag);
    if (err == 0)
        err = bos_read(v, gguf, diag);
    if (err < 0)
        goto fail;
    qsort_r(v->user, v->n_user, sizeof *v->user, longer_first, v);
    *ret_vocab = v;
    return 0;

fail:
    if (err == -ENOMEM)
        diag_set(diag, "no memory for the vocabulary");
    vocab_free(v);
    return err;
}

/* Fills in what vocab_new() would read, in memory that has room for it. */
static int bytes_fill(struct vocab *v)
{
    static const char *const control[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    uint32_t end = 0;
    int err = words_init(v);

    for (uint32_t id = 0; id < v->n && err == 0; id++) {
        const char *text = id < 256 ? NULL : control[id - 256];
        uint32_t n = text ? (uint32_t)strlen(text) : 1;

        v->at[id] = end;
        v->kind[id] = text ? KIND_CONTROL : KIND_NORMAL;
        if (text)
            memcpy(v->bytes + end, text, n);
        else
            v->bytes[end] = (uint8_t)id;
        end += n;
        v->at[id + 1] = end;
        if (!text)
            err = word_add(v, id, NULL);
    }
    if (err == 0)
        ends_by_text(v);
    return err;
}

int vocab_new_bytes(struct vocab **ret_vocab)
{
    struct vocab *v = calloc(1, sizeof *v);
    int err = -ENOMEM;

    if (!v)
        return err;
    v->n = 256 + 3;
    v->bos = v->bos_named = VOCAB_NONE;
    v->pretok = PRETOK_GPT2;
    memset(v->byte_ids, 0xff, sizeof v->byte_ids);
    v->at = malloc((v->n + 1u) * sizeof *v->at);
    v->bytes = malloc(512);
    v->kind = malloc(v->n);
    v->eog = calloc(v->n, 1);
    if (v->at && v->bytes && v->kind && v->eog)
        err = bytes_fill(v);
    if (err == 0)
        err = merges_init(&v->merges, 0, v->seed);
    if (err < 0) {
        vocab_free(v);
        return err;
    }
    *ret_vocab = v;
    return 0;
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    merges_fini(&v->merges);
    free(v->words);
    free(v->user);
    free(v->eog);
    free(v->kind);
    free(v->bytes);
    free(v->at);
    free(v);
}

/* ---- asking --------------------------------------------------------------------------- */

uint32_t vocab_size(const struct vocab *v)
{
    return v->n;
}

const uint8_t *vocab_bytes(const struct vocab *v, uint32_t id, size_t *ret_n)
{
    if (id >= v->n || (v->kind[id] != KIND_NORMAL && v->kind[id] != KIND_USER)) {
        *ret_n = 0;
        return v->bytes;
    }
    *ret_n = v->at[id + 1] - v->at[id];
    return v->bytes + v->at[id];
}

int vocab_is_control(const struct vocab *v, uint32_t id)
{
    return id < v->n && (v->kind[id] == KIND_CONTROL || v->kind[id] == KIND_UNKNOWN);
}

int vocab_is_eog(const struct vocab *v, uint32_t id)
{
    return id < v->n && v->eog[id];
}

uint32_t vocab_control_id(const struct vocab *v, const char *text)
{
    size_t n = strlen(text);

    for (uint32_t id = 0; id < v->n; id++)
        if (vocab_is_control(v, id) && v->at[id + 1] - v->at[id] == n &&
            !memcmp(v->bytes + v->at[id], text, n))
            return id;
    return VOCAB_NONE;
}

uint32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}

uint32_t vocab_bos_named(const struct vocab *v)
{
    return v->bos_named;
}

enum pretok_kind vocab_pretok(const struct vocab *v)
{
    return v->pretok;
}

int vocab_ignores_merges(const struct vocab *v)
{
    return v->pretok == PRETOK_LLAMA3;
}

const struct merges *vocab_merges(const struct vocab *v)
{
    return &v->merges;
}

const uint32_t *vocab_byte_ids(const struct vocab *v)
{
    return v->byte_ids;
}

uint32_t vocab_word(const struct vocab *v, const uint8_t *bytes, size_t n)
{
    uint32_t tag;

    return word_slot(v, bytes, n, word_hash(v, bytes, n), &tag)->id;
}

uint32_t vocab_user(const struct vocab *v, const uint8_t *text, size_t n, size_t *ret_n)
{
    if (!v->user_first[text[0]])
        return VOCAB_NONE;
    for (uint32_t i = 0; i < v->n_user; i++) {
        uint32_t id = v->user[i];
        size_t bytes = v->at[id + 1] - v->at[id];

        if (bytes <= n && !memcmp(v->bytes + v->at[id], text, bytes)) {
            *ret_n = bytes;
            return id;
        }
    }
    return VOCAB_NONE;
}

int vocab_has_user(const struct vocab *v)
{
    return v->n_user > 0;
}
