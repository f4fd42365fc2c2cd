/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids with the default model's own vocabulary against Hugging Face tokenizers
 * (tests/data/tokens.json, made by tests/tools/make_tokens.py). Without the model file, which is
 * not part of the sources, all is skipped and said.
 */
#include <check.h>
#include <jansson.h>
#include "runtime/text/template.h"

#define FILE_NAME "SmolLM2-135M-Instruct.Q4_1.gguf"
#define IDS_MAX   4096u

static char model_path[1024];
static struct gguf *gguf;
static struct vocab *vocab;
static struct bpe *bpe;
static json_t *data;

/* TOKENRING_MODEL, else where tools/fetch-model puts it. */
static int model_find(void)
{
    const char *given = getenv("TOKENRING_MODEL"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    FILE *file;

    if (given && *given)
        snprintf(model_path, sizeof model_path, "%s", given);
    else if (cache && *cache)
        snprintf(model_path, sizeof model_path, "%s/tokenring/models/" FILE_NAME, cache);
    else
        snprintf(model_path, sizeof model_path, "%s/.cache/tokenring/models/" FILE_NAME,
                 home ? home : "");
    file = fopen(model_path, "rb");
    if (!file)
        return 0;
    fclose(file);
    return 1;
}

static void setup(void)
{
    struct diag diag = {""};
    json_error_t error;

    ck_assert_msg(gguf_open(&gguf, model_path, &diag) == 0, "%s", diag.text);
    ck_assert_msg(vocab_new(&vocab, gguf, &diag) == 0, "%s", diag.text);
    ck_assert_msg(bpe_new(&bpe, vocab, 1 << 20, &diag) == 0, "%s", diag.text);
    data = json_load_file(SOURCE_ROOT "/tests/data/tokens.json", JSON_ALLOW_NUL, &error);
    ck_assert_msg(data != NULL, "tokens.json: %s", error.text);
}

static void teardown(void)
{
    json_decref(data);
    bpe_free(bpe);
    vocab_free(vocab);
    gguf_close(gguf);
}

static void expect_ids(size_t entry, const uint32_t *ids, uint32_t n_ids, const json_t *expect)
{
    ck_assert_msg(n_ids == json_array_size(expect), "entry %zu: %u ids, expected %zu", entry, n_ids,
                  json_array_size(expect));
    for (size_t i = 0; i < n_ids; i++)
        ck_assert_msg(ids[i] == json_integer_value(json_array_get(expect, i)),
                      "entry %zu: id %zu is %u, expected %d", entry, i, ids[i],
                      (int)json_integer_value(json_array_get(expect, i)));
}

START_TEST(ids_of_texts_are_those_of_the_reference_and_decode_to_the_text)
{
    const json_t *texts = json_object_get(data, "texts");
    json_t *entry;
    size_t i;

    ck_assert_uint_ge(json_array_size(texts), 150);
    json_array_foreach(texts, i, entry)
    {
        const json_t *text = json_object_get(entry, "text");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text), at = 0, bytes;
        uint32_t ids[IDS_MAX], n_ids = 0;

        ck_assert_int_eq(bpe_encode(bpe, (const uint8_t *)s, n, ids, &n_ids, IDS_MAX), 0);
        expect_ids(i, ids, n_ids, json_object_get(entry, "ids"));
        for (uint32_t k = 0; k < n_ids; k++) {
            const uint8_t *token = vocab_bytes(vocab, ids[k], &bytes);

            ck_assert_uint_le(bytes, n - at);
            ck_assert_mem_eq(token, s + at, bytes);
            at += bytes;
        }
        ck_assert_uint_eq(at, n);
    }
}
END_TEST

START_TEST(ids_of_chats_are_those_of_the_reference)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const json_t *chats = json_object_get(data, "chats");
    struct template *template = NULL;
    struct diag diag = {""};
    struct gguf_str source;
    char *text;
    json_t *entry, *item;
    size_t i, k;

    ck_assert_int_eq(gguf_get_str(gguf, "tokenizer.chat_template", &source, &diag), 0);
    text = strndup(source.s, source.n);
    ck_assert_ptr_nonnull(text);
    ck_assert_msg(template_new(&template, text, vocab, &diag) == 0, "%s", diag.text);
    free(text);
    ck_assert_uint_ge(json_array_size(chats), 10);
    json_array_foreach(chats, i, entry)
    {
        const json_t *given = json_object_get(entry, "messages");
        struct message messages[16];
        uint32_t ids[IDS_MAX], n_ids = 0;

        ck_assert_uint_le(json_array_size(given), 16);
        json_array_foreach(given, k, item)
        {
            const json_t *content = json_object_get(item, "content");
            const char *role = json_string_value(json_object_get(item, "role"));

            messages[k] = (struct message){0, (const uint8_t *)json_string_value(content),
                                           json_string_length(content)};
            while (messages[k].role < 4 && strcmp(roles[messages[k].role], role) != 0)
                messages[k].role++;
            ck_assert_uint_lt(messages[k].role, 4);
        }
        ck_assert_int_eq(template_encode(template, bpe, messages, (uint32_t)json_array_size(given),
                                         ids, &n_ids, IDS_MAX),
                         0);
        expect_ids(i, ids, n_ids, json_object_get(entry, "ids"));
    }
    template_free(template);
}
END_TEST

START_TEST(bytes_without_token_are_those_that_the_vocabulary_lacks)
{
    const json_t *missing = json_object_get(data, "bytes_without_token");
    size_t k = 0;

    for (uint32_t b = 0; b < 256; b++)
        if (vocab_byte_ids(vocab)[b] == VOCAB_NONE)
            ck_assert_uint_eq(b, (uint64_t)json_integer_value(json_array_get(missing, k++)));
    ck_assert_uint_eq(k, json_array_size(missing));
}
END_TEST

START_TEST(a_generation_ends_with_im_end_or_endoftext_and_no_bos_is_added)
{
    uint32_t n_ends = 0;

    for (uint32_t id = 0; id < vocab_size(vocab); id++)
        n_ends += (uint32_t)vocab_is_eog(vocab, id);
    ck_assert_uint_eq(n_ends, 2);
    ck_assert_int_eq(vocab_is_eog(vocab, 0), 1); /* <|endoftext|>; ids as in the model's files */
    ck_assert_int_eq(vocab_is_eog(vocab, 2), 1); /* <|im_end|> */
    ck_assert_uint_eq(vocab_bos(vocab), VOCAB_NONE);
    ck_assert_uint_eq(vocab_size(vocab), 49152);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tokens");
    TCase *tc = tcase_create("tokens");
    SRunner *sr;
    int failed;

    if (!model_find()) {
        printf("1..0 # SKIP no model file at %s (tools/fetch-model gets it)\n", model_path);
        return 0;
    }
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, ids_of_texts_are_those_of_the_reference_and_decode_to_the_text);
    tcase_add_test(tc, ids_of_chats_are_those_of_the_reference);
    tcase_add_test(tc, bytes_without_token_are_those_that_the_vocabulary_lacks);
    tcase_add_test(tc, a_generation_ends_with_im_end_or_endoftext_and_no_bos_is_added);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
