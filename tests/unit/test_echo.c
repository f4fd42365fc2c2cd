/* SPDX-License-Identifier: Apache-2.0 */
/* echo.c: its name's options, and what it answers, with pages in any order. Expected answers are by hand. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/exec/echo.h"
#include "runtime/kv/page.h"
#include "runtime/text/vocab.h"

#define PAGES 8

static struct team *team;
static struct backend *backend;
static struct echo_opt opt;
static const uint32_t pages[PAGES] = {5, 2, 7, 0, 1, 3, 4, 6};

static void setup(void)
{
    opt = (struct echo_opt){0};
    ck_assert_int_eq(team_new(&team, 1), 0);
    backend = NULL;
}

static void teardown(void)
{
    echo_backend_free(backend);
    team_free(team);
}

/* Computes n rows from pos0 on; the id that comes after the last one. */
static uint32_t compute(const uint32_t *ids, uint32_t pos0, uint32_t n, uint32_t n_prompt)
{
    uint32_t last = n - 1;
    struct step_seq seq = {.n_rows = n, .pos0 = pos0, .pages = pages};
    struct step step = {.n_rows = n, .tokens = ids, .n_seqs = 1, .seqs = &seq, .n_logits = 1,
                        .logit_rows = &last, .n_prompt = &n_prompt};
    const float *logits;
    uint32_t best = 0;

    backend->forward(backend->self, &step, &logits);
    for (uint32_t i = 0; i < ECHO_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* The answer to a prompt, n tokens of it. */
static void answer(const uint32_t *prompt, uint32_t n_prompt, uint32_t *ids, uint32_t n)
{
    if (!backend)
        ck_assert_int_eq(echo_backend_new(&backend, &opt, PAGES, 512, 4, team), 0);
    ids[0] = compute(prompt, 0, n_prompt, n_prompt);
    for (uint32_t i = 1; i < n; i++)
        ids[i] = compute(&ids[i - 1], n_prompt + i - 1, 1, n_prompt);
}

START_TEST(a_name_that_does_not_begin_with_echo_is_a_path)
{
    struct diag diag = {""};

    ck_assert_int_eq(echo_parse(&opt, "model.gguf", &diag), 0);
    ck_assert_int_eq(echo_parse(&opt, "/srv/echo:", &diag), 0);
    ck_assert_int_eq(echo_parse(&opt, "echo", &diag), 0);
}
END_TEST

START_TEST(options_are_read_and_wrong_ones_named)
{
    static const struct { const char *name, *says; } bad[] = {
        {"echo:tokens_per_s=", "expected tokens_per_s=0 to 1000000"},
        {"echo:tokens_per_s=1000001", "expected tokens_per_s=0 to 1000000"},
        {"echo:tokens_per_s=-1", "'tokens_per_s=-1'"},
        {"echo:tokens_per_s=1.5", "'tokens_per_s=1.5'"},
        {"echo:seed=18446744073709551616", "below 2^64"}, /* 2^64 */
        {"echo:seed=1,speed=2", "'speed=2' is unknown"},
        {"echo:seed=1,", "'' is unknown"},
        {"echo:,seed=1", "'' is unknown"},
    };
    struct diag diag = {""};

    ck_assert_int_eq(echo_parse(&opt, "echo:", &diag), 1);
    ck_assert_uint_eq(opt.tokens_per_s, 0);
    ck_assert_int_eq(echo_parse(&opt, "echo:seed=18446744073709551615,tokens_per_s=40", &diag), 1);
    ck_assert_uint_eq(opt.tokens_per_s, 40);
    ck_assert_uint_eq(opt.seed, UINT64_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(echo_parse(&opt, bad[i].name, &diag), -EINVAL);
        ck_assert_msg(strstr(diag.text, bad[i].says) != NULL, "%s: %s", bad[i].name, diag.text);
    }
}
END_TEST

START_TEST(the_answer_is_the_prompt_then_an_end_then_the_prompt_again)
{
    static const uint32_t prompt[] = {'a', 'b', 0xff, 'a'};
    static const uint32_t expected[] = {'a', 'b', 0xff, 'a', ECHO_IM_END, 'a', 'b', 0xff, 'a', ECHO_IM_END, 'a'};
    uint32_t ids[11];

    answer(prompt, 4, ids, 11);
    ck_assert_mem_eq(ids, expected, sizeof expected);
}
END_TEST

START_TEST(of_messages_the_last_one_is_answered)
{
    uint32_t prompt[300], ids[3], n = 0;
    static const char text[] = "\x01system\nbe brief\x02\n\x01user\nhi\x02\n\x01" "assistant\n";

    for (const char *c = text; *c; c++)
        prompt[n++] = *c == 1 ? ECHO_IM_START : *c == 2 ? ECHO_IM_END : (uint32_t)*c;
    answer(prompt, n, ids, 3);
    ck_assert_uint_eq(ids[0], 'h');
    ck_assert_uint_eq(ids[1], 'i');
    ck_assert_uint_eq(ids[2], ECHO_IM_END);
}
END_TEST

START_TEST(a_stream_that_goes_on_elsewhere_is_the_same_stream)
{
    uint32_t sequence[400];

    for (uint32_t i = 0; i < 200; i++) /* over several pages */
        sequence[i] = i;
    answer(sequence, 200, sequence + 200, 150);
    /* Prompt and received ids in one go, in a pool that knew nothing. */
    echo_backend_free(backend);
    ck_assert_int_eq(echo_backend_new(&backend, &opt, PAGES, 512, 4, team), 0);
    ck_assert_uint_eq(compute(sequence, 0, 310, 200), 110);
}
END_TEST

START_TEST(a_seed_gives_letters_instead)
{
    static const uint32_t prompt[8] = {'p', 'r', 'o', 'm', 'p', 't', '.', '.'};
    uint32_t one[9], two[9];

    opt.seed = 1;
    answer(prompt, 8, one, 9);
    echo_backend_free(backend);
    backend = NULL;
    opt.seed = 2;
    answer(prompt, 8, two, 9);
    for (int i = 0; i < 8; i++)
        ck_assert(one[i] >= 'a' && one[i] <= 'z');
    ck_assert_uint_eq(one[8], ECHO_IM_END);
    ck_assert_mem_ne(one, two, sizeof one);
}
END_TEST

START_TEST(its_vocabulary_is_the_bytes_and_the_control_tokens_of_chatml)
{
    struct vocab *vocab;
    size_t n;

    ck_assert_int_eq(vocab_new_bytes(&vocab), 0);
    ck_assert_uint_eq(vocab_size(vocab), ECHO_VOCAB);
    for (uint32_t id = 0; id < 256; id++) {
        const uint8_t *bytes = vocab_bytes(vocab, id, &n);

        ck_assert_uint_eq(n, 1);
        ck_assert_uint_eq(bytes[0], id);
        ck_assert_uint_eq(vocab_byte_ids(vocab)[id], id);
    }
    ck_assert_uint_eq(vocab_control_id(vocab, "<|im_start|>"), ECHO_IM_START);
    ck_assert_uint_eq(vocab_control_id(vocab, "<|im_end|>"), ECHO_IM_END);
    ck_assert(vocab_is_eog(vocab, ECHO_IM_END) && vocab_is_eog(vocab, 256));
    ck_assert(!vocab_is_eog(vocab, ECHO_IM_START) && vocab_bos(vocab) == VOCAB_NONE);
    vocab_free(vocab);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("echo");
    TCase *tc = tcase_create("echo");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_name_that_does_not_begin_with_echo_is_a_path);
    tcase_add_test(tc, options_are_read_and_wrong_ones_named);
    tcase_add_test(tc, the_answer_is_the_prompt_then_an_end_then_the_prompt_again);
    tcase_add_test(tc, of_messages_the_last_one_is_answered);
    tcase_add_test(tc, a_stream_that_goes_on_elsewhere_is_the_same_stream);
    tcase_add_test(tc, a_seed_gives_letters_instead);
    tcase_add_test(tc, its_vocabulary_is_the_bytes_and_the_control_tokens_of_chatml);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
