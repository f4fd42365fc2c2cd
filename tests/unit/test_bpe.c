/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "runtime/text/bpe.h"
#include "runtime/text/utf8.h"
#include "tests/unit/vocab_fixture.h"

#define MIB (1u << 20)

/* As ck_assert, for what is asked many thousand times: Check makes a system call of each of its
 * own. */
#define MUST(holds)                                                                                \
    do {                                                                                           \
        if (!(holds))                                                                              \
            ck_abort_msg("not so: %s", #holds);                                                    \
    } while (0)
#define B(c) (FIXTURE_BYTE + (uint8_t)(c)) /* the token of one byte */
#define M(i) (FIXTURE_MERGED + (i))        /* what merge i makes */

static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    return (uint32_t)(seed >> 33) % n;
}

static struct vocab *vocab_of(const char *pre, const char *const *merges, size_t n)
{
    struct tiny tiny = {.pre = pre, .merges = merges, .n_merges = n};

    return fixture_vocab_new(&tiny);
}

static struct bpe *bpe_of(const struct vocab *vocab, size_t bytes_max)
{
    struct bpe *bpe = NULL;
    struct diag diag = {""};

    ck_assert_msg(bpe_new(&bpe, vocab, bytes_max, &diag) == 0, "%s", diag.text);
    return bpe;
}

/* Joins the bytes of ids; the caller frees. */
static uint8_t *decode(const struct vocab *vocab, const uint32_t *ids, uint32_t n, size_t *ret_n)
{
    uint8_t *text = malloc((size_t)n * VOCAB_TOKEN_BYTES_MAX + 1);
    size_t at = 0, bytes;

    ck_assert_ptr_nonnull(text);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *token = vocab_bytes(vocab, ids[i], &bytes);

        memcpy(text + at, token, bytes);
        at += bytes;
    }
    *ret_n = at;
    return text;
}

static void expect_ids(struct bpe *bpe, const char *text, const uint32_t *expect, uint32_t n)
{
    uint32_t ids[256], n_ids = 0;

    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)text, strlen(text), ids, &n_ids, 256), 0);
    ck_assert_msg(n_ids == n, "'%s' has %u ids, expected %u", text, n_ids, n);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(ids[i] == expect[i], "'%s': id %u is %u, expected %u", text, i, ids[i],
                      expect[i]);
}
#define EXPECT_IDS(bpe, text, ...)                                                                 \
    expect_ids(bpe, text, (const uint32_t[]){__VA_ARGS__},                                         \
               sizeof((const uint32_t[]){__VA_ARGS__}) / 4)

/* ---- merges; the expected ids are worked out by hand ---------------------------------- */

START_TEST(the_lowest_rank_merges_first_and_among_equals_the_leftmost)
{
    static const char *const merges[] = {"b c", "a b", "a a", "aa a", "ab c"};
    struct vocab *vocab = vocab_of("gpt-2", merges, 5);
    struct bpe *bpe = bpe_of(vocab, 1024);

    EXPECT_IDS(bpe, "abc", B('a'),
               M(0)); /* "b c" before "a b", though "ab c" would make one token */
    EXPECT_IDS(bpe, "ab", M(1));
    EXPECT_IDS(bpe, "aab", B('a'), M(1));
    EXPECT_IDS(bpe, "aaa", M(3));
    EXPECT_IDS(bpe, "aaaaa", M(2), M(3)); /* aa aa a, then "aa a" */
    EXPECT_IDS(bpe, "cba", B('c'), B('b'), B('a'));
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(merges_do_not_cross_words)
{
    static const char *const merges[] = {"a Ġ", "Ġ b", "1 2", "a .", "' s", "s x"};
    struct vocab *vocab = vocab_of("smollm", merges, 6);
    struct bpe *bpe = bpe_of(vocab, 1024);

    EXPECT_IDS(bpe, "a b", B('a'), M(1));
    EXPECT_IDS(bpe, "12", B('1'), B('2')); /* each digit alone */
    EXPECT_IDS(bpe, "a.", B('a'), B('.'));
    EXPECT_IDS(bpe, "'sx", M(4), B('x')); /* a contraction is a word */
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(llama_3_takes_a_word_that_is_a_token_whole_and_others_merge)
{
    /* No merge leads to "abc": "b c" comes first. */
    static const char *const merges[] = {"b c", "a b", "ab c", "1 2", "12 3", "123 4"};
    struct vocab *vocab = vocab_of("llama-bpe", merges, 6);
    struct bpe *bpe = bpe_of(vocab, 1024);

    EXPECT_IDS(bpe, "abc", M(2));
    EXPECT_IDS(bpe, "abca", B('a'), M(0), B('a'));
    EXPECT_IDS(bpe, "1234", M(4), B('4')); /* digits by three */
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

/* The definition, literally: find the lowest rank, the leftmost of it, merge, begin again. */
static uint32_t merge_naive(const struct vocab *vocab, uint32_t *ids, uint32_t n)
{
    for (;;) {
        uint32_t best = MERGE_NONE, at = 0;

        for (uint32_t i = 0; i + 1 < n; i++) {
            uint32_t rank = merges_slot(vocab_merges(vocab), ids[i], ids[i + 1])->rank;

            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == MERGE_NONE)
            return n;
        ids[at] = M(best);
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    }
}

START_TEST(words_of_every_length_merge_as_the_definition_says)
{
    static const char *const merges[] = {"a b", "b a",   "a a",     "ab ab",   "aa b",  "ba ba",
                                         "c a", "ab c",  "abab ab", "b b",     "bb bb", "aa aa",
                                         "c c", "cc cc", "abc abc", "aab aab", "ca b"};
    struct vocab *vocab = vocab_of("gpt-2", merges, sizeof merges / sizeof merges[0]);
    struct bpe *bpe = bpe_of(vocab, 1024);

    for (int round = 0; round < 4000; round++) {
        uint32_t n = 1 + draw(round % 2 ? 48 : 400), n_expect, n_ids = 0;
        uint32_t expect[400], ids[400];
        uint8_t text[400];

        for (uint32_t i = 0; i < n; i++) {
            text[i] = (uint8_t)('a' + draw(3));
            expect[i] = B(text[i]);
        }
        n_expect = merge_naive(vocab, expect, n);
        ck_assert_int_eq(bpe_encode(bpe, text, n, ids, &n_ids, 400), 0);
        ck_assert_uint_eq(n_ids, n_expect);
        ck_assert_mem_eq(ids, expect, n_ids * sizeof *ids);
    }
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

/* ---- witnesses ------------------------------------------------------------------------ */

static const char **strings_of(const json_t *array)
{
    const char **texts = calloc(json_array_size(array) + 1, sizeof *texts);

    ck_assert_ptr_nonnull(texts);
    for (size_t i = 0; i < json_array_size(array); i++)
        texts[i] = json_string_value(json_array_get(array, i));
    return texts;
}

static struct vocab *vocab_of_json(const json_t *data)
{
    const json_t *tokens = json_object_get(data, "vocabulary"),
                 *merges = json_object_get(data, "merges");
    size_t n = json_array_size(tokens);
    const char **texts = strings_of(tokens), **pairs = strings_of(merges);
    int32_t *kinds = calloc(n, sizeof *kinds);
    struct fixture f = {0};
    struct diag diag = {""};
    struct gguf *gguf = NULL;
    struct vocab *vocab = NULL;

    ck_assert_ptr_nonnull(kinds);
    for (size_t i = 0; i < n; i++)
        kinds[i] = !strncmp(texts[i], "<|", 2) && texts[i][2] ? 3 : 1;
    fixture_add_str(&f, "tokenizer.ggml.model", "gpt2");
    fixture_add_str(&f, "tokenizer.ggml.pre", json_string_value(json_object_get(data, "pre")));
    fixture_add_strs(&f, "tokenizer.ggml.tokens", texts, n);
    fixture_add_i32s(&f, "tokenizer.ggml.token_type", kinds, n);
    fixture_add_strs(&f, "tokenizer.ggml.merges", pairs, json_array_size(merges));
    ck_assert_msg(fixture_open(&f, &gguf, &diag) == 0, "%s", diag.text);
    ck_assert_msg(vocab_new(&vocab, gguf, &diag) == 0, "%s", diag.text);
    gguf_close(gguf);
    free(texts);
    free(pairs);
    free(kinds);
    return vocab;
}

/* tests/data/tokens_*.json: ids by Hugging Face tokenizers, see tests/tools/make_tokens.py. */
static void expect_witness(const char *name)
{
    char path[512];
    json_error_t error;
    json_t *data, *entry;
    size_t i, k, n_texts;
    struct vocab *vocab;
    struct bpe *bpe;

    snprintf(path, sizeof path, "%s/tests/data/%s", SOURCE_ROOT, name);
    data = json_load_file(path, JSON_ALLOW_NUL, &error);
    ck_assert_msg(data != NULL, "%s: %s", path, error.text);
    vocab = vocab_of_json(data);
    bpe = bpe_of(vocab, 1 << 16);
    n_texts = json_array_size(json_object_get(data, "texts"));
    ck_assert_uint_ge(n_texts, 40);
    json_array_foreach(json_object_get(data, "texts"), i, entry)
    {
        const json_t *text = json_object_get(entry, "text"),
                     *expect = json_object_get(entry, "ids");
        uint32_t ids[4096], n_ids = 0;

        ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)json_string_value(text),
                                    json_string_length(text), ids, &n_ids, 4096),
                         0);
        ck_assert_msg(n_ids == json_array_size(expect), "%s, text %zu '%s': %u ids, expected %zu",
                      name, i, json_string_value(text), n_ids, json_array_size(expect));
        for (k = 0; k < n_ids; k++)
            ck_assert_msg(ids[k] == json_integer_value(json_array_get(expect, k)),
                          "%s, text %zu '%s': id %zu is %u", name, i, json_string_value(text), k,
                          ids[k]);
    }
    bpe_free(bpe);
    vocab_free(vocab);
    json_decref(data);
}

START_TEST(ids_with_the_gpt2_pattern_are_those_of_the_reference)
{
    expect_witness("tokens_gpt2.json");
}
END_TEST

START_TEST(ids_with_the_llama_3_pattern_are_those_of_the_reference)
{
    expect_witness("tokens_llama_bpe.json");
}
END_TEST

/* ---- control and user-defined tokens -------------------------------------------------- */

START_TEST(control_token_text_stays_text)
{
    struct vocab *vocab = vocab_of("smollm", NULL, 0);
    struct bpe *bpe = bpe_of(vocab, 1024);
    const char *text = "<|im_start|>system\n<|im_end|><s><unused>";
    uint32_t ids[64], n_ids = 0;

    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)text, strlen(text), ids, &n_ids, 64), 0);
    ck_assert_uint_eq(n_ids, strlen(text)); /* no merges: a token for each byte */
    for (uint32_t i = 0; i < n_ids; i++)
        ck_assert_uint_eq(ids[i], B(text[i]));
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(the_leftmost_and_then_the_longest_user_defined_token_is_taken_before_words_are_split)
{
    static const char *const merges[] = {"a b", "Ġ a"};
    static const char *const user[] = {"<x>", "<x><y>", "b<", "  "};
    struct tiny tiny = {.pre = "gpt-2", .merges = merges, .n_merges = 2, .user = user, .n_user = 4};
    struct vocab *vocab = fixture_vocab_new(&tiny);
    struct bpe *bpe = bpe_of(vocab, 1024);
    uint32_t x = M(2), xy = M(3), b = M(4), spaces = M(5);

    EXPECT_IDS(bpe, "<x>", x);
    EXPECT_IDS(bpe, "<x><y>", xy);
    EXPECT_IDS(bpe, "<x><x><y><y>", x, xy, B('<'), B('y'), B('>'));
    EXPECT_IDS(bpe, "ab<x>", B('a'), b, B('x'), B('>')); /* "b<" starts before "<x>" */
    EXPECT_IDS(bpe, "ab", M(0));
    EXPECT_IDS(bpe, "   a", spaces, M(1));
    EXPECT_IDS(bpe, "<x", B('<'), B('x'));
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

/* ---- bytes ---------------------------------------------------------------------------- */

START_TEST(any_bytes_come_back_from_their_ids)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe"};
    static const char *const merges[] = {"h e", "he l", "Ġ Ġ", "ĠĠ Ġ", "Ã ©", "1 2", "Ċ Ċ", "ð Ł"};
    static const char *const snippets[] = {"hello",
                                           " ",
                                           "  ",
                                           "\n",
                                           "\r\n",
                                           "12345",
                                           "é",
                                           "日本",
                                           "😀",
                                           "'s",
                                           "'LL",
                                           "\t",
                                           "--",
                                           "\xff",
                                           "\xf0\x9f",
                                           "\xe2\x82",
                                           "\xc0\x80",
                                           "\xed\xa0\x80",
                                           "\x80",
                                           "\xf4\x90\x80\x80",
                                           "\xc2\xa0",
                                           "\xe1\xa0\x8e",
                                           "\xe2\x80\xa8",
                                           "\x01",
                                           "he he"};

    for (size_t p = 0; p < 3; p++) {
        struct vocab *vocab = vocab_of(pres[p], merges, 8);
        struct bpe *bpe = bpe_of(vocab, 4096);

        for (int round = 0; round < 3000; round++) {
            uint8_t text[4096], *back;
            uint32_t ids[4096], n_ids = 0;
            size_t n = 0, n_back;

            for (uint32_t left = draw(40); left > 0; left--) {
                const char *piece = snippets[draw(sizeof snippets / sizeof snippets[0])];

                memcpy(text + n, piece, strlen(piece));
                n += strlen(piece);
                for (uint32_t more = draw(4); more > 2; more--)
                    text[n++] = (uint8_t)draw(256);
            }
            ck_assert_int_eq(bpe_encode(bpe, text, n, ids, &n_ids, 4096), 0);
            back = decode(vocab, ids, n_ids, &n_back);
            ck_assert_uint_eq(n_back, n);
            ck_assert_mem_eq(back, text, n);
            free(back);
        }
        bpe_free(bpe);
        vocab_free(vocab);
    }
}
END_TEST

/* The oracle is PCRE2's own check, which the pre-tokenizer goes without. */
START_TEST(what_counts_as_utf8_is_exactly_what_pcre2_takes)
{
    static const uint8_t edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                    0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef,
                                    0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf8, 0xfc, 0xfe, 0xff};
    int error;
    PCRE2_SIZE where;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR) "", PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &where, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    uint32_t valid = 0;

    for (int round = 0; round < 300000; round++) {
        uint8_t s[6];
        size_t n = 1 + draw(6);
        int theirs, ours;

        for (size_t i = 0; i < n; i++)
            s[i] = edges[draw(sizeof edges)];
        theirs = pcre2_match(code, s, n, 0, 0, match, NULL) >= 0;
        ours = utf8_span(s, n) == n;
        MUST(ours == theirs);
        valid += (uint32_t)ours;
    }
    ck_assert_uint_gt(valid, 1000);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}
END_TEST

START_TEST(a_cut_character_is_told_from_a_wrong_one)
{
    static const struct {
        const char *s;
        int is;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa9", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x98\x80", 4},
        {"\xc3", UTF8_CUT},
        {"\xe2", UTF8_CUT},
        {"\xe2\x82", UTF8_CUT},
        {"\xf0\x9f\x98", UTF8_CUT},
        {"\x80", 0},
        {"\xff", 0},
        {"\xc3"
         "a",
         0},
        {"\xe2\x82"
         "a",
         0},
        {"\xe0\x80", 0},
        {"\xed\xa0", 0},
        {"\xf4\x90", 0},
        {"\xf0\x80", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_int_eq(utf8_char((const uint8_t *)cases[i].s, strlen(cases[i].s)), cases[i].is);
}
END_TEST

/* ---- size ----------------------------------------------------------------------------- */

/* Each is one MiB. Quadratic work would be 10^12 steps: the test case's time-out (60 s) stands for
 * that. */
START_TEST(a_megabyte_of_anything_takes_no_quadratic_time)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe"};
    static const char *const units[] = {"a",  " ", "\n",   "1",        "é", "ab", " \n",
                                        "a ", "-", "\xff", "\xf0\x9f", "😀", "'s", " \t\r\n"};
    static const char *const merges[] = {"a a",   "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "a b",
                                         "ab ab", "Ċ Ċ",   "1 1", "- -"};
    uint8_t *text = malloc(MIB + 1);
    uint32_t *ids = malloc(MIB * sizeof *ids);

    ck_assert(text && ids);
    for (size_t p = 0; p < 3; p++) {
        struct vocab *vocab = vocab_of(pres[p], merges, 9);
        struct bpe *bpe = bpe_of(vocab, MIB);

        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t unit = strlen(units[u]), n_bytes = 0, bytes;
            uint32_t n_ids = 0;

            for (size_t i = 0; i < MIB; i++)
                text[i] = (uint8_t)units[u][i % unit];
            ck_assert_int_eq(bpe_encode(bpe, text, MIB, ids, &n_ids, MIB), 0);
            for (uint32_t i = 0; i < n_ids; i++) {
                vocab_bytes(vocab, ids[i], &bytes);
                n_bytes += bytes;
            }
            ck_assert_uint_eq(n_bytes, MIB);
            if (u == 0)
                ck_assert_uint_eq(n_ids, MIB / 4); /* "aaaa" is the longest token of this word */
        }
        bpe_free(bpe);
        vocab_free(vocab);
    }
    free(text);
    free(ids);
}
END_TEST

START_TEST(a_text_over_the_limit_is_refused_and_one_at_the_limit_is_not)
{
    struct vocab *vocab = vocab_of("smollm", NULL, 0);
    struct bpe *bpe = bpe_of(vocab, 8);
    uint32_t ids[64], n_ids = 3;

    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)"123456789", 9, ids, &n_ids, 64), -EMSGSIZE);
    ck_assert_uint_eq(n_ids, 3);
    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)"12345678", 8, ids, &n_ids, 64), 0);
    ck_assert_uint_eq(n_ids, 11); /* appended */
    ck_assert_uint_eq(ids[3], B('1'));
    n_ids = 0;
    ck_assert_int_eq(bpe_encode_after(bpe, "head", (const uint8_t *)"12345678", 8, ids, &n_ids, 64),
                     0);
    ck_assert_uint_eq(n_ids, 12);
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(an_empty_text_has_no_ids)
{
    struct vocab *vocab = vocab_of("smollm", NULL, 0);
    struct bpe *bpe = bpe_of(vocab, 8);
    uint32_t n_ids = 0;

    ck_assert_int_eq(bpe_encode(bpe, NULL, 0, NULL, &n_ids, 0), 0);
    ck_assert_uint_eq(n_ids, 0);
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(more_ids_than_fit_are_counted_and_not_written)
{
    struct vocab *vocab = vocab_of("smollm", NULL, 0);
    struct bpe *bpe = bpe_of(vocab, 64);
    uint32_t ids[6] = {7, 7, 7, 7, 7, 7}, n_ids = 1;

    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)"abcdef", 6, ids, &n_ids, 4), -E2BIG);
    ck_assert_uint_eq(n_ids, 7);
    ck_assert_uint_eq(ids[0], 7);
    ck_assert_uint_eq(ids[3], B('c'));
    ck_assert_uint_eq(ids[4], 7);
    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)"gh", 2, ids, &n_ids, 4), -E2BIG);
    ck_assert_uint_eq(n_ids, 9); /* goes on counting */
    ck_assert_uint_eq(ids[4], 7);
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(a_byte_without_token_is_refused_and_named)
{
    struct tiny tiny = {.pre = "smollm", .without_byte = 0xf1};
    struct vocab *vocab = fixture_vocab_new(&tiny);
    struct bpe *bpe = bpe_of(vocab, 1024);
    char word[100];
    uint32_t ids[128], n_ids = 2;

    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)"ab \xf1\x80\x80\x80", 7, ids, &n_ids, 128),
                     -EILSEQ);
    ck_assert_uint_eq(bpe_unknown_byte(bpe), 0xf1);
    ck_assert_uint_eq(n_ids, 2);
    memset(word, 'a', sizeof word);
    word[99] = '\xf1';
    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)word, sizeof word, ids, &n_ids, 128),
                     -EILSEQ);
    ck_assert_uint_eq(n_ids, 2);
    ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)"ab \xf0", 4, ids, &n_ids, 128), 0);
    ck_assert_uint_eq(n_ids, 6);
    bpe_free(bpe);
    vocab_free(vocab);
}
END_TEST

START_TEST(a_limit_of_nothing_or_too_much_is_refused)
{
    struct vocab *vocab = vocab_of("smollm", NULL, 0);
    struct bpe *bpe = NULL;
    struct diag diag = {""};

    ck_assert_int_eq(bpe_new(&bpe, vocab, 0, &diag), -EINVAL);
    ck_assert_int_eq(bpe_new(&bpe, vocab, BPE_BYTES_MAX + 1, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "67108865"));
    ck_assert_ptr_null(bpe);
    bpe_free(NULL);
    vocab_free(NULL);
    vocab_free(vocab);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bpe");
    TCase *tc = tcase_create("bpe");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_lowest_rank_merges_first_and_among_equals_the_leftmost);
    tcase_add_test(tc, merges_do_not_cross_words);
    tcase_add_test(tc, llama_3_takes_a_word_that_is_a_token_whole_and_others_merge);
    tcase_add_test(tc, words_of_every_length_merge_as_the_definition_says);
    tcase_add_test(tc, ids_with_the_gpt2_pattern_are_those_of_the_reference);
    tcase_add_test(tc, ids_with_the_llama_3_pattern_are_those_of_the_reference);
    tcase_add_test(tc, control_token_text_stays_text);
    tcase_add_test(
        tc, the_leftmost_and_then_the_longest_user_defined_token_is_taken_before_words_are_split);
    tcase_add_test(tc, any_bytes_come_back_from_their_ids);
    tcase_add_test(tc, what_counts_as_utf8_is_exactly_what_pcre2_takes);
    tcase_add_test(tc, a_cut_character_is_told_from_a_wrong_one);
    tcase_add_test(tc, a_megabyte_of_anything_takes_no_quadratic_time);
    tcase_add_test(tc, a_text_over_the_limit_is_refused_and_one_at_the_limit_is_not);
    tcase_add_test(tc, an_empty_text_has_no_ids);
    tcase_add_test(tc, more_ids_than_fit_are_counted_and_not_written);
    tcase_add_test(tc, a_byte_without_token_is_refused_and_named);
    tcase_add_test(tc, a_limit_of_nothing_or_too_much_is_refused);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
