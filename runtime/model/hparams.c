/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "runtime/model/load.h"

/* Every `llama.` key whose meaning is either used or known to change nothing. */
static const char *const known_keys[] = {
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.vocab_size",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length", /* said once more by rope_freqs.weight */
    "llama.rope.scaling.finetuned",
    "llama.tensor_data_layout", /* how the converter read the original file */
    "llama.expert_count",       /* must be 0, as the next two */
    "llama.expert_used_count",
    "llama.attention.sliding_window",
};

static int missing(const struct gguf *g, const char *key, struct diag *diag)
{
    diag_set(diag, "%s: key '%s' is missing", gguf_path(g), key);
    return -EINVAL;
}

static int get_range(const struct gguf *g, const char *key, uint32_t min, uint32_t max,
                     uint32_t *ret, struct diag *diag)
{
    uint32_t value;
    int err = gguf_get_u32(g, key, &value, diag);

    if (err < 0)
        return err;
    if (value < min || value > max) {
        diag_set(diag, "%s: key '%s' is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32,
                 gguf_path(g), key, value, min, max);
        return -EINVAL;
    }
    *ret = value;
    return 0;
}

static int want_range(const struct gguf *g, const char *key, uint32_t min, uint32_t max,
                      uint32_t *ret, struct diag *diag)
{
    int err = get_range(g, key, min, max, ret, diag);

    return err == -ENOENT ? missing(g, key, diag) : err;
}

static int opt_range(const struct gguf *g, const char *key, uint32_t min, uint32_t max,
                     uint32_t absent, uint32_t *ret, struct diag *diag)
{
    int err = get_range(g, key, min, max, ret, diag);

    if (err == -ENOENT) {
        *ret = absent;
        err = 0;
    }
    return err;
}

static int get_float(const struct gguf *g, const char *key, float min, float max, float *ret,
                     struct diag *diag)
{
    float value;
    int err = gguf_get_f32(g, key, &value, diag);

    if (err < 0)
        return err;
    if (!(value >= min && value <= max)) { /* also false for NaN */
        diag_set(diag, "%s: key '%s' is %g, expected %g to %g", gguf_path(g), key, (double)value,
                 (double)min, (double)max);
        return -EINVAL;
    }
    *ret = value;
    return 0;
}

static int check_arch(const struct gguf *g, struct diag *diag)
{
    struct gguf_str arch;
    int err = gguf_get_str(g, "general.architecture", &arch, diag);

    if (err == -ENOENT)
        return missing(g, "general.architecture", diag);
    if (err < 0)
        return err;
    if (arch.n == 5 && memcmp(arch.s, "llama", 5) == 0)
        return 0;
    diag_set(diag, "%s: key 'general.architecture' is '%.*s'; only 'llama' is run", gguf_path(g),
             (int)(arch.n < 64 ? arch.n : 64), arch.s);
    return -EINVAL;
}

/* A key of the architecture that we have never heard of may change the arithmetic: it is refused,
 * not ignored. */
static int check_keys(const struct gguf *g, struct diag *diag)
{
    uint32_t zero;
    int err = 0;

    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        struct gguf_str key = gguf_key_at(g, i);
        size_t k = 0;

        if (key.n < 6 || memcmp(key.s, "llama.", 6) != 0)
            continue;
        while (k < sizeof known_keys / sizeof known_keys[0] &&
               (strlen(known_keys[k]) != key.n || memcmp(known_keys[k], key.s, key.n) != 0))
            k++;
        if (k == sizeof known_keys / sizeof known_keys[0]) {
            diag_set(diag, "%s: key '%.*s' is not known, so the model may not be run rightly",
                     gguf_path(g), (int)(key.n < 100 ? key.n : 100), key.s);
            return -EINVAL;
        }
    }
    for (size_t k = 0; k < 3 && err == 0; k++)
        err = opt_range(g, known_keys[sizeof known_keys / sizeof known_keys[0] - 1 - k], 0, 0, 0,
                        &zero, diag);
    return err;
}

static int read_heads(struct hparams *hp, const struct gguf *g, struct diag *diag)
{
    static const char heads[] = "llama.attention.head_count",
                      heads_kv[] = "llama.attention.head_count_kv",
                      key_length[] = "llama.attention.key_length",
                      value_length[] = "llama.attention.value_length",
                      rope_dim[] = "llama.rope.dimension_count";
    uint32_t value_dim;
    int err = want_range(g, heads, 1, MODEL_HEADS_MAX, &hp->n_head, diag);

    if (err == 0)
        err = opt_range(g, heads_kv, 1, hp->n_head, hp->n_head, &hp->n_head_kv, diag);
    if (err < 0)
        return err;
    if (hp->n_head % hp->n_head_kv) {
        diag_set(diag,
                 "%s: key '%s' is %" PRIu32 ", which does not divide the %" PRIu32 " heads of '%s'",
                 gguf_path(g), heads_kv, hp->n_head_kv, hp->n_head, heads);
        return -EINVAL;
    }
    err = get_range(g, key_length, 16, MODEL_HEAD_DIM_MAX, &hp->head_dim, diag);
    if (err == -ENOENT) {
        if (hp->n_embd % hp->n_head) {
            diag_set(diag,
                     "%s: key '%s' is %" PRIu32
                     ", which does not divide llama.embedding_length %" PRIu32,
                     gguf_path(g), heads, hp->n_head, hp->n_embd);
            return -EINVAL;
        }
        hp->head_dim = hp->n_embd / hp->n_head;
        err = 0;
    }
    if (err < 0)
        return err;
    if (hp->head_dim % 16 || hp->head_dim == 0 || hp->head_dim > MODEL_HEAD_DIM_MAX ||
        hp->head_dim * hp->n_head % 32) {
        diag_set(diag,
                 "%s: key '%s' gives %" PRIu32 " heads of %" PRIu32
                 ", expected a multiple of 16 up to %u, and of 32 for all heads",
                 gguf_path(g), heads, hp->n_head, hp->head_dim, MODEL_HEAD_DIM_MAX);
        return -EINVAL;
    }
    err = opt_range(g, value_length, hp->head_dim, hp->head_dim, hp->head_dim, &value_dim, diag);
    if (err == 0)
        err = opt_range(g, rope_dim, hp->head_dim, hp->head_dim, hp->head_dim, &hp->rope_dim, diag);
    return err;
}

static int read_rope(struct hparams *hp, float *ret_linear, const struct gguf *g, struct diag *diag)
{
    static const char type_key[] = "llama.rope.scaling.type",
                      factor[] = "llama.rope.scaling.factor";
    struct gguf_str type = {"none", 4};
    int err = get_float(g, "llama.rope.freq_base", 1, 1e12f, &hp->rope_base, diag);

    *ret_linear = 1;
    if (err == -ENOENT) {
        hp->rope_base = 10000; /* the format's default */
        err = 0;
    }
    if (err < 0)
        return err;
    err = gguf_get_str(g, type_key, &type, diag);
    if (err < 0 && err != -ENOENT)
        return err;
    if (type.n == 4 && memcmp(type.s, "none", 4) == 0)
        return 0;
    if (type.n != 6 || memcmp(type.s, "linear", 6) != 0) {
        diag_set(diag,
                 "%s: key '%s' is '%.*s'; only 'none' and 'linear' are run (Llama 3 has "
                 "rope_freqs.weight)",
                 gguf_path(g), type_key, (int)(type.n < 64 ? type.n : 64), type.s);
        return -EINVAL;
    }
    err = get_float(g, factor, 1, 1e6f, ret_linear, diag);
    return err == -ENOENT ? missing(g, factor, diag) : err;
}

/* The vocabulary's size is that of the token list; everything else has to agree with it. */
static int read_vocab_size(struct hparams *hp, const struct gguf *g, struct diag *diag)
{
    static const char tokens[] = "tokenizer.ggml.tokens";
    struct gguf_iter it;
    uint32_t said;
    int err = gguf_array(g, tokens, GGUF_STRING, &it, diag);

    if (err < 0)
        return err == -ENOENT ? missing(g, tokens, diag) : err;
    if (it.left == 0 || it.left > MODEL_VOCAB_MAX) {
        diag_set(diag, "%s: key '%s' has %" PRIu64 " tokens, expected 1 to %u", gguf_path(g),
                 tokens, it.left, MODEL_VOCAB_MAX);
        return -EINVAL;
    }
    hp->n_vocab = (uint32_t)it.left;
    return opt_range(g, "llama.vocab_size", hp->n_vocab, hp->n_vocab, hp->n_vocab, &said, diag);
}

static int check_32(const struct gguf *g, const char *key, uint32_t value, struct diag *diag)
{
    if (value % 32 == 0)
        return 0;
    diag_set(diag, "%s: key '%s' is %" PRIu32 ", expected a multiple of 32", gguf_path(g), key,
             value);
    return -EINVAL;
}

int hparams_read(struct hparams *ret_hp, float *ret_linear, const struct gguf *g, struct diag *diag)
{
    static const char embd[] = "llama.embedding_length", ff[] = "llama.feed_forward_length",
                      eps[] = "llama.attention.layer_norm_rms_epsilon";
    struct hparams hp = {0};
    float linear = 1;
    int err = check_arch(g, diag);

    if (err == 0)
        err = check_keys(g, diag);
    if (err == 0)
        err = want_range(g, "llama.block_count", 1, MODEL_LAYERS_MAX, &hp.n_layer, diag);
    if (err == 0)
        err = want_range(g, "llama.context_length", 1, UINT32_MAX, &hp.n_ctx_train, diag);
    if (err == 0)
        err = want_range(g, embd, 32, MODEL_EMBD_MAX, &hp.n_embd, diag);
    if (err == 0)
        err = check_32(g, embd, hp.n_embd, diag);
    if (err == 0)
        err = want_range(g, ff, 32, MODEL_FF_MAX, &hp.n_ff, diag);
    if (err == 0)
        err = check_32(g, ff, hp.n_ff, diag);
    if (err == 0)
        err = read_heads(&hp, g, diag);
    if (err == 0)
        err = get_float(g, eps, 1e-12f, 1, &hp.rms_eps, diag);
    if (err == -ENOENT)
        err = missing(g, eps, diag);
    if (err == 0)
        err = read_rope(&hp, &linear, g, diag);
    if (err == 0)
        err = read_vocab_size(&hp, g, diag);
    if (err < 0)
        return err;
    *ret_hp = hp;
    *ret_linear = linear;
    return 0;
}
