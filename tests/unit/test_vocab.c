/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include "tests/unit/vocab_fixture.h"

static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "Ġ t"};
#define N_MERGES (sizeof merges / sizeof merges[0])

static struct tiny plain(void)
{
    return (struct tiny){.pre = "smollm", .merges = merges, .n_merges = N_MERGES};
}

static void expect_bytes(const struct vocab *v, uint32_t id, const char *text, size_t n)
{
    size_t n_bytes = 12345;
    const uint8_t *bytes = vocab_bytes(v, id, &n_bytes);

    ck_assert_uint_eq(n_bytes, n);
    ck_assert_mem_eq(bytes, text, n);
}

START_TEST(every_byte_has_a_token_that_decodes_to_it)
{
    struct tiny tiny = plain();
    struct vocab *v = fixture_vocab_new(&tiny);

    for (uint32_t b = 0; b < 256; b++) {
        char byte = (char)b;

        expect_bytes(v, FIXTURE_BYTE + b, &byte, 1);
        ck_assert_uint_eq(vocab_byte_ids(v)[b], FIXTURE_BYTE + b);
    }
    vocab_free(v);
}
END_TEST

/* Characters and bytes from the table that GPT-2 publishes: space is Ġ (U+0120), line feed Ċ
 * (U+010A). */
START_TEST(stand_in_characters_decode_as_gpt2_publishes_them)
{
    static const char *const tokens[] = {"Ġ", "Ċ", "ĉ", "č", "Ā", "Ń", "ÿ", "é", "!", "Ãī", "æĹ¥"};
    static const char *const bytes[] = {" ",    "\n",   "\t", "\r", "\0", "\xad",
                                        "\xff", "\xe9", "!",  "É",  "日"};
    int32_t kinds[11];
    struct fixture f = {0};
    struct diag diag = {""};
    struct gguf *gguf;
    struct vocab *v;

    for (size_t i = 0; i < 11; i++)
        kinds[i] = 1;
    fixture_add_str(&f, "tokenizer.ggml.model", "gpt2");
    fixture_add_str(&f, "tokenizer.ggml.pre", "gpt-2");
    fixture_add_strs(&f, "tokenizer.ggml.tokens", tokens, 11);
    fixture_add_i32s(&f, "tokenizer.ggml.token_type", kinds, 11);
    fixture_add_strs(&f, "tokenizer.ggml.merges", NULL, 0);
    ck_assert_int_eq(fixture_open(&f, &gguf, &diag), 0);
    ck_assert_msg(vocab_new(&v, gguf, &diag) == 0, "%s", diag.text);
    for (uint32_t i = 0; i < 11; i++)
        expect_bytes(v, i, bytes[i], i == 4 ? 1 : strlen(bytes[i]));
    ck_assert_uint_eq(vocab_byte_ids(v)[' '], 0);
    ck_assert_uint_eq(vocab_byte_ids(v)['a'], VOCAB_NONE);
    ck_assert_uint_eq(vocab_bos(v), VOCAB_NONE);
    for (uint32_t i = 0; i < 11; i++)
        ck_assert_int_eq(vocab_is_eog(v, i), 0);
    vocab_free(v);
    gguf_close(gguf);
}
END_TEST

START_TEST(control_and_unused_tokens_have_no_bytes_and_user_defined_ones_have_their_text)
{
    static const char *const user[] = {"<tool>", "  "};
    struct tiny tiny = plain();
    struct vocab *v;

    tiny.user = user;
    tiny.n_user = 2;
    v = fixture_vocab_new(&tiny);
    expect_bytes(v, FIXTURE_START, "", 0);
    expect_bytes(v, FIXTURE_END, "", 0);
    expect_bytes(v, FIXTURE_UNUSED, "", 0);
    expect_bytes(v, FIXTURE_MERGED + 3, "hello", 5);
    expect_bytes(v, FIXTURE_MERGED + 4, " t", 2);
    expect_bytes(v, FIXTURE_MERGED + N_MERGES, "<tool>", 6);
    expect_bytes(v, FIXTURE_MERGED + N_MERGES + 1, "  ", 2);
    expect_bytes(v, vocab_size(v), "", 0);
    expect_bytes(v, UINT32_MAX, "", 0);
    ck_assert_uint_eq(vocab_size(v), FIXTURE_MERGED + N_MERGES + 2);
    ck_assert_int_eq(vocab_is_control(v, FIXTURE_START), 1);
    ck_assert_int_eq(vocab_is_control(v, FIXTURE_UNUSED), 0);
    ck_assert_int_eq(vocab_is_control(v, FIXTURE_MERGED), 0);
    ck_assert_int_eq(vocab_is_control(v, UINT32_MAX), 0);
    vocab_free(v);
}
END_TEST

START_TEST(a_control_token_is_found_by_its_whole_text_and_others_are_not)
{
    struct tiny tiny = plain();
    struct vocab *v = fixture_vocab_new(&tiny);

    ck_assert_uint_eq(vocab_control_id(v, "<|im_start|>"), FIXTURE_START);
    ck_assert_uint_eq(vocab_control_id(v, "<|im_end|>"), FIXTURE_END);
    ck_assert_uint_eq(vocab_control_id(v, "<|im_end|"), VOCAB_NONE);
    ck_assert_uint_eq(vocab_control_id(v, ""), VOCAB_NONE);
    ck_assert_uint_eq(vocab_control_id(v, "hello"), VOCAB_NONE);
    ck_assert_uint_eq(vocab_control_id(v, "<unused>"), VOCAB_NONE);
    vocab_free(v);
}
END_TEST

START_TEST(the_end_of_generation_is_what_the_file_names_and_what_control_tokens_say)
{
    static const char *const tokens[] = {"<|endoftext|>", "a",          "b",
                                         "<|im_end|>",    "<|eot_id|>", "<|x|>"};
    static const int32_t kinds[] = {3, 1, 1, 1, 3, 3};
    static const int ends[] = {1, 0, 1,
                               0, 1, 0}; /* token 2 by its key; token 3 is an ordinary token */
    struct fixture f = {0};
    struct diag diag = {""};
    struct gguf *gguf;
    struct vocab *v;

    fixture_add_str(&f, "tokenizer.ggml.model", "gpt2");
    fixture_add_str(&f, "tokenizer.ggml.pre", "gpt-2");
    fixture_add_strs(&f, "tokenizer.ggml.tokens", tokens, 6);
    fixture_add_i32s(&f, "tokenizer.ggml.token_type", kinds, 6);
    fixture_add_strs(&f, "tokenizer.ggml.merges", NULL, 0);
    fixture_add_u32(&f, "tokenizer.ggml.eot_token_id", 2);
    ck_assert_int_eq(fixture_open(&f, &gguf, &diag), 0);
    ck_assert_msg(vocab_new(&v, gguf, &diag) == 0, "%s", diag.text);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_int_eq(vocab_is_eog(v, i), ends[i]);
    ck_assert_int_eq(vocab_is_eog(v, UINT32_MAX), 0);
    vocab_free(v);
    gguf_close(gguf);
}
END_TEST

START_TEST(bos_is_added_when_the_file_says_so_and_by_llama_3_unless_it_says_no)
{
    static const struct {
        const char *pre;
        int add;
        uint32_t bos;
    } cases[] = {
        {"smollm", 0, VOCAB_NONE},   {"smollm", 1, FIXTURE_BOS},     {"smollm", -1, VOCAB_NONE},
        {"gpt2", -1, VOCAB_NONE},    {"llama-bpe", -1, FIXTURE_BOS}, {"llama3", 1, FIXTURE_BOS},
        {"llama-v3", 0, VOCAB_NONE},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tiny tiny = plain();
        struct vocab *v;

        tiny.pre = cases[i].pre;
        tiny.add_bos = cases[i].add;
        v = fixture_vocab_new(&tiny);
        ck_assert_uint_eq(vocab_bos(v), cases[i].bos);
        ck_assert_uint_eq(vocab_bos_named(v), FIXTURE_BOS);
        vocab_free(v);
    }
}
END_TEST

/* ---- refusals: one valid set of keys, one of them changed ----------------------------- */

struct lie {
    const char *model, *pre;
    const char *tokens[8];
    int32_t kinds[8];
    size_t n_tokens, n_kinds;
    const char *merges[4];
    size_t n_merges;
    int eos, bos, add_bos; /* eos, bos: -1 leaves the key out */
    int without;           /* 1 tokens, 2 token_type, 3 merges */
    int scores;            /* elements of tokenizer.ggml.scores; 0: no such key */
};

static const struct lie truth = {
    .model = "gpt2",
    .pre = "smollm",
    .tokens = {"<|im_end|>", "a", "b", "ab", "c", "bc"},
    .kinds = {3, 1, 1, 1, 1, 1},
    .n_tokens = 6,
    .n_kinds = 6,
    .merges = {"a b", "b c"},
    .n_merges = 2,
    .eos = 0,
    .bos = -1,
};

static int lie_open(const struct lie *lie, struct diag *diag)
{
    struct fixture f = {0};
    struct gguf *gguf;
    struct vocab *v = NULL;
    int err;

    if (lie->model)
        fixture_add_str(&f, "tokenizer.ggml.model", lie->model);
    if (lie->pre)
        fixture_add_str(&f, "tokenizer.ggml.pre", lie->pre);
    if (lie->without != 1)
        fixture_add_strs(&f, "tokenizer.ggml.tokens", lie->tokens, lie->n_tokens);
    if (lie->without != 2)
        fixture_add_i32s(&f, "tokenizer.ggml.token_type", lie->kinds, lie->n_kinds);
    if (lie->without != 3)
        fixture_add_strs(&f, "tokenizer.ggml.merges", lie->merges, lie->n_merges);
    if (lie->eos >= 0)
        fixture_add_u32(&f, "tokenizer.ggml.eos_token_id", (uint32_t)lie->eos);
    if (lie->bos >= 0)
        fixture_add_u32(&f, "tokenizer.ggml.bos_token_id", (uint32_t)lie->bos);
    if (lie->add_bos)
        fixture_add_bool(&f, "tokenizer.ggml.add_bos_token", 1);
    if (lie->scores > 0) {
        fixture_key(&f, "tokenizer.ggml.scores", GGUF_ARRAY);
        fixture_u32(&f, GGUF_F32);
        fixture_u64(&f, (uint64_t)lie->scores);
        for (int i = 0; i < lie->scores; i++)
            fixture_u32(&f, 0);
    }
    ck_assert_msg(fixture_open(&f, &gguf, diag) == 0, "%s", diag->text);
    err = vocab_new(&v, gguf, diag);
    ck_assert(err < 0 ? v == NULL : v != NULL);
    vocab_free(v);
    gguf_close(gguf);
    return err;
}

/* Opens what `change` makes of the truth and expects a refusal that says all of `says`. */
#define EXPECT_REFUSED(change, ...)                                                                \
    do {                                                                                           \
        struct lie lie = truth;                                                                    \
        const char *const says[] = {__VA_ARGS__};                                                  \
        struct diag told = {""};                                                                   \
        change;                                                                                    \
        ck_assert_int_eq(lie_open(&lie, &told), -EINVAL);                                          \
        for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)                                  \
            ck_assert_msg(strstr(told.text, says[i]) != NULL, "'%s' lacks '%s'", told.text,        \
                          says[i]);                                                                \
    } while (0)

START_TEST(the_truth_that_the_refusals_change_is_accepted)
{
    struct lie lie = truth;
    struct diag diag = {""};

    ck_assert_msg(lie_open(&lie, &diag) == 0, "%s", diag.text);
    lie.scores = 6;
    ck_assert_msg(lie_open(&lie, &diag) == 0, "%s", diag.text);
}
END_TEST

START_TEST(a_missing_or_unknown_tokenizer_or_pre_tokenizer_is_refused_by_name)
{
    EXPECT_REFUSED(lie.model = NULL, "tokenizer.ggml.model", "missing");
    EXPECT_REFUSED(lie.model = "llama", "tokenizer.ggml.model", "'llama'");
    EXPECT_REFUSED(lie.pre = NULL, "tokenizer.ggml.pre", "missing");
    EXPECT_REFUSED(lie.pre = "default", "tokenizer.ggml.pre", "'default'");
    EXPECT_REFUSED(lie.pre = "smollm2", "tokenizer.ggml.pre", "'smollm2'");
    EXPECT_REFUSED(lie.pre = "", "tokenizer.ggml.pre");
}
END_TEST

START_TEST(token_arrays_that_are_missing_empty_or_of_different_lengths_are_refused)
{
    EXPECT_REFUSED(lie.without = 1, "tokenizer.ggml.tokens", "missing");
    EXPECT_REFUSED(lie.without = 2, "tokenizer.ggml.token_type", "missing");
    EXPECT_REFUSED(lie.without = 3, "tokenizer.ggml.merges", "missing");
    EXPECT_REFUSED(lie.n_tokens = 5, "token_type", "6", "5");
    EXPECT_REFUSED(lie.n_kinds = 5, "token_type", "6", "5");
    EXPECT_REFUSED(lie.n_kinds = lie.n_tokens = 0, "tokenizer.ggml.tokens", "empty");
    EXPECT_REFUSED(lie.scores = 7, "tokenizer.ggml.scores", "7", "6");
}
END_TEST

START_TEST(malformed_tokens_are_refused_by_their_number)
{
    static char huge[VOCAB_TOKEN_BYTES_MAX + 2], largest[VOCAB_TOKEN_BYTES_MAX + 1];
    static char wide[4 * VOCAB_TOKEN_BYTES_MAX + 3];
    struct lie fits = truth;
    struct diag diag = {""};

    memset(huge, 'x', sizeof huge - 1);
    memset(largest, 'x', sizeof largest - 1);
    memset(wide, 'x', sizeof wide - 1);
    EXPECT_REFUSED(lie.tokens[4] = "日", "token 4", "byte alphabet");
    EXPECT_REFUSED(lie.tokens[4] = "c d", "token 4", "byte alphabet");
    EXPECT_REFUSED(lie.tokens[4] = "\xff", "token 4", "byte alphabet");
    EXPECT_REFUSED(lie.tokens[4] = "\xc4", "token 4", "byte alphabet");
    EXPECT_REFUSED(lie.tokens[4] = "\xc4x", "token 4", "byte alphabet");
    EXPECT_REFUSED(lie.tokens[4] = "\xc1\x81", "token 4", "byte alphabet"); /* 'A', overlong */
    EXPECT_REFUSED(lie.tokens[4] = "Ņ", "token 4",
                   "byte alphabet"); /* U+0145, one after the last */
    EXPECT_REFUSED(lie.tokens[4] = "\n", "token 4", "byte alphabet");
    EXPECT_REFUSED(lie.tokens[4] = "", "token 4", "0 bytes");
    EXPECT_REFUSED(lie.tokens[4] = huge, "token 4", "too long");
    EXPECT_REFUSED(lie.tokens[4] = wide, "token 4", "allowed");
    EXPECT_REFUSED(lie.tokens[0] = huge, "token 0", "allowed");
    EXPECT_REFUSED(lie.tokens[4] = "a", "tokens 1 and 4", "same text");
    EXPECT_REFUSED(lie.kinds[4] = 0, "token 4");
    EXPECT_REFUSED(lie.kinds[4] = 6, "token 4"); /* byte tokens belong to another tokenizer model */
    EXPECT_REFUSED(lie.kinds[4] = -1, "token 4");
    fits.tokens[5] = largest;
    fits.n_merges = 1;
    ck_assert_msg(lie_open(&fits, &diag) == 0, "%s", diag.text);
}
END_TEST

START_TEST(malformed_merges_are_refused_by_their_number)
{
    static char huge[8 * VOCAB_TOKEN_BYTES_MAX];

    memset(huge, 'a', sizeof huge - 1);
    EXPECT_REFUSED(lie.merges[1] = "bc", "merge 1", "space");
    EXPECT_REFUSED(lie.merges[1] = "", "merge 1", "space");
    EXPECT_REFUSED(lie.merges[1] = " ", "merge 1", "space");
    EXPECT_REFUSED(lie.merges[1] = " bc", "merge 1", "space");
    EXPECT_REFUSED(lie.merges[1] = "bc ", "merge 1", "space");
    EXPECT_REFUSED(lie.merges[1] = "b  c", "merge 1", "space");
    EXPECT_REFUSED(lie.merges[1] = "b c c", "merge 1", "second space");
    EXPECT_REFUSED(lie.merges[1] = "b 日", "merge 1", "byte alphabet");
    EXPECT_REFUSED(lie.merges[1] = "b d", "merge 1", "not in the vocabulary");
    EXPECT_REFUSED(lie.merges[1] = "d c", "merge 1", "not in the vocabulary");
    EXPECT_REFUSED(lie.merges[1] = "c b", "merge 1",
                   "not in the vocabulary"); /* "cb" is no token */
    EXPECT_REFUSED(lie.merges[1] = "a b", "merge 1", "twice");
    EXPECT_REFUSED(lie.merges[1] = huge, "merge 1", "too long");
    EXPECT_REFUSED(lie.kinds[5] = 3, "merge 1",
                   "not in the vocabulary"); /* merges never make a control token */
}
END_TEST

START_TEST(special_ids_outside_the_vocabulary_and_a_bos_without_id_are_refused)
{
    EXPECT_REFUSED(lie.eos = 6, "tokenizer.ggml.eos_token_id", "6");
    EXPECT_REFUSED(lie.eos = 0x7fffffff, "tokenizer.ggml.eos_token_id");
    EXPECT_REFUSED(lie.bos = 6, "tokenizer.ggml.bos_token_id", "6");
    EXPECT_REFUSED(lie.add_bos = 1, "tokenizer.ggml.bos_token_id", "missing");
}
END_TEST

START_TEST(more_user_defined_tokens_than_the_limit_are_refused)
{
    static char texts[VOCAB_USER_TOKENS_MAX + 1][24];
    static const char *tokens[VOCAB_USER_TOKENS_MAX + 1];
    static int32_t kinds[VOCAB_USER_TOKENS_MAX + 1];

    for (size_t over = 0; over < 2; over++) {
        size_t n = VOCAB_USER_TOKENS_MAX + over;
        struct fixture f = {0};
        struct diag diag = {""};
        struct gguf *gguf;
        struct vocab *v = NULL;

        for (size_t i = 0; i < n; i++) {
            snprintf(texts[i], sizeof texts[i], "<%zu>", i);
            tokens[i] = texts[i];
            kinds[i] = 4;
        }
        fixture_add_str(&f, "tokenizer.ggml.model", "gpt2");
        fixture_add_str(&f, "tokenizer.ggml.pre", "gpt-2");
        fixture_add_strs(&f, "tokenizer.ggml.tokens", tokens, n);
        fixture_add_i32s(&f, "tokenizer.ggml.token_type", kinds, n);
        fixture_add_strs(&f, "tokenizer.ggml.merges", NULL, 0);
        ck_assert_int_eq(fixture_open(&f, &gguf, &diag), 0);
        ck_assert_int_eq(vocab_new(&v, gguf, &diag), over ? -EINVAL : 0);
        ck_assert(!over || strstr(diag.text, "user-defined"));
        vocab_free(v);
        gguf_close(gguf);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("vocab");
    TCase *tc = tcase_create("vocab");
    SRunner *sr;
    int failed;

    tcase_add_test(tc, every_byte_has_a_token_that_decodes_to_it);
    tcase_add_test(tc, stand_in_characters_decode_as_gpt2_publishes_them);
    tcase_add_test(tc,
                   control_and_unused_tokens_have_no_bytes_and_user_defined_ones_have_their_text);
    tcase_add_test(tc, a_control_token_is_found_by_its_whole_text_and_others_are_not);
    tcase_add_test(tc, the_end_of_generation_is_what_the_file_names_and_what_control_tokens_say);
    tcase_add_test(tc, bos_is_added_when_the_file_says_so_and_by_llama_3_unless_it_says_no);
    tcase_add_test(tc, the_truth_that_the_refusals_change_is_accepted);
    tcase_add_test(tc, a_missing_or_unknown_tokenizer_or_pre_tokenizer_is_refused_by_name);
    tcase_add_test(tc, token_arrays_that_are_missing_empty_or_of_different_lengths_are_refused);
    tcase_add_test(tc, malformed_tokens_are_refused_by_their_number);
    tcase_add_test(tc, malformed_merges_are_refused_by_their_number);
    tcase_add_test(tc, special_ids_outside_the_vocabulary_and_a_bos_without_id_are_refused);
    tcase_add_test(tc, more_user_defined_tokens_than_the_limit_are_refused);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
