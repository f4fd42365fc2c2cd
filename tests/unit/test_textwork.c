/* SPDX-License-Identifier: Apache-2.0 */
/* textwork.c: prompts become ids on another thread, owners take turns. The vocabulary is of
 * bytes, so ids are known. */
#include <check.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/textwork.h"
#include "runtime/text/vocab.h"

#define JOBS     12
#define TEXT_MAX (1u << 20)

static struct vocab *vocab;
static struct textwork *work;
static struct request req[JOBS];
static struct job job[JOBS];
static sem_t done;

static void on_done(void *ctx)
{
    (void)ctx;
    sem_post(&done);
}

static void setup(void)
{
    struct diag diag = {""};

    ck_assert_int_eq(vocab_new_bytes(&vocab), 0);
    sem_init(&done, 0, 0);
    ck_assert_int_eq(textwork_new(&work, vocab, NULL, 100, TEXT_MAX, JOBS, 6, on_done, NULL, &diag),
                     0);
    for (int i = 0; i < JOBS; i++) {
        req[i] = (struct request){.op = REQUEST_TOKENIZE};
        job[i] = (struct job){.req = &req[i], .data_kind = TKR_DATA_TEXT, .text_max = TEXT_MAX};
        job[i].text = malloc(TEXT_MAX);
        job[i].ids = malloc(TEXT_MAX * 4u);
        ck_assert(job[i].text && job[i].ids);
    }
}

static void teardown(void)
{
    textwork_free(work);
    vocab_free(vocab);
    for (int i = 0; i < JOBS; i++) {
        free(job[i].text);
        free(job[i].ids);
    }
}

static void put_as(int i, uint32_t owner, uint32_t client, uint32_t n)
{
    req[i].owner = owner;
    req[i].client = client;
    job[i].n_text = n;
    for (uint32_t k = 0; k < n; k++)
        job[i].text[k] = (uint8_t) "words and "[k % 10];
    textwork_put(work, &job[i]);
}

static void put(int i, uint32_t owner, uint32_t n)
{
    put_as(i, owner, 3 + owner, n);
}

/* The number of the next job that is done. */
static int take(void)
{
    struct job *found;

    while ((found = textwork_take(work)) == NULL)
        sem_wait(&done);
    return (int)(found - job);
}

START_TEST(a_job_comes_back_with_its_ids)
{
    put(0, 0, 23);
    ck_assert_int_eq(take(), 0);
    ck_assert_int_eq(job[0].text_error, 0);
    ck_assert_uint_eq(job[0].n_ids, 23);
    for (uint32_t k = 0; k < 23; k++)
        ck_assert_uint_eq(job[0].ids[k], job[0].text[k]);
    ck_assert_ptr_null(textwork_take(work));
}
END_TEST

START_TEST(long_prompts_of_one_delay_another_by_one_of_them)
{
    for (int i = 0; i < 6; i++)
        put(i, 0, 100000);
    put(6, 1, 50);
    put(7, 1, 50);
    put(8, 2, 50);
    /* By hand: the first is with the worker; then the two others' turns begin, before the second
     * long one's. */
    ck_assert_int_eq(take(), 0);
    for (int i = 0, seen = 0; i < 3; i++) {
        int k = take();

        ck_assert(k >= 6 && k <= 8 && !(seen & 1 << k));
        seen |= 1 << k;
    }
    for (int i = 1; i < 6; i++)
        ck_assert_int_eq(take(), i);
}
END_TEST

START_TEST(many_clients_of_one_owner_have_one_turn_together_and_take_turns_inside_it)
{
    /* By hand: job 0 is with the worker; then the other owner's turns begin, before the first one's
     * second; then its clients that had none, and the third round in the order of their numbers. */
    const int order[] = {0, 6, 7, 2, 4, 1, 3, 5};

    for (int i = 0; i < 6; i++)
        put_as(i, 0, 2 + (uint32_t)i / 2, 100000);
    put_as(6, 1, 5, 50);
    put_as(7, 1, 5, 50);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(take(), order[i]);
}
END_TEST

START_TEST(a_number_that_was_anothers_brings_nothing_with_it)
{
    for (int i = 0; i < 6; i++) /* more than the longest prompt */
        put_as(i, 0, 3, 200000);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(take(), i);
    put_as(6, 1, 4, 100000); /* with the worker */
    put_as(7, 1, 4, 100000);
    put_as(8, 1, 3, 50); /* a new client of another owner: its turn is before the other's second */
    ck_assert_int_eq(take(), 6);
    ck_assert_int_eq(take(), 8);
    ck_assert_int_eq(take(), 7);
}
END_TEST

START_TEST(one_that_is_cancelled_before_its_turn_comes_back_untouched)
{
    put(0, 0, 200000);
    put(1, 0, 200000);
    put(2, 0, 200000);
    req[1].cancel = req[2].cancel = 1;
    for (int i = 0; i < 3; i++)
        take();
    ck_assert_uint_eq(job[0].n_ids, 200000);
    ck_assert(job[1].n_ids == 0 || job[2].n_ids == 0); /* one of them may have had its turn */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("textwork");
    TCase *tc = tcase_create("textwork");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_job_comes_back_with_its_ids);
    tcase_add_test(tc, long_prompts_of_one_delay_another_by_one_of_them);
    tcase_add_test(tc, many_clients_of_one_owner_have_one_turn_together_and_take_turns_inside_it);
    tcase_add_test(tc, a_number_that_was_anothers_brings_nothing_with_it);
    tcase_add_test(tc, one_that_is_cancelled_before_its_turn_comes_back_untouched);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
