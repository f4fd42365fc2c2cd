/* SPDX-License-Identifier: Apache-2.0 */
/* publish.c against a fake transport: what lines come out, in which order, when the ring has how
 * much room. */
#include <check.h>
#include <stdlib.h>

#include "runtime/publish.h"
#include "tests/unit/fake_io.h"

#define MAX 512

static uint32_t out_ids[MAX];
static uint8_t out_text[8192];
static struct piece_mark marks[MAX];
static struct request req;
static struct job job;
static uint8_t hash[32];

static void setup(void)
{
    fake_reset();
    memset(&req, 0, sizeof req);
    memset(&job, 0, sizeof job);
    memset(hash, 0x5a, sizeof hash);
    req.op = REQUEST_GENERATE;
    req.state = REQUEST_RUNNING;
    req.user = 77;
    req.out_ids = out_ids;
    req.out_text = out_text;
    req.marks = marks;
    job.req = &req;
    job.tag = 5;
}

static void piece(uint32_t first_id, uint32_t n_ids, const char *text, uint32_t raw)
{
    for (uint32_t i = 0; i < n_ids; i++)
        out_ids[req.n_out++] = first_id + i;
    memcpy(out_text + req.n_text, text, strlen(text));
    req.n_text += (uint32_t)strlen(text);
    marks[req.n_marks++] = (struct piece_mark){req.n_out, req.n_text, raw};
}

/* Puts all lines together again, as a client would. */
static void check_stream(void)
{
    uint8_t text[8192];
    uint32_t n_text = 0, n_ids = 0;

    for (uint32_t i = 0; i < fake.n_lines; i++) {
        const struct tkr_cqe *c = &fake.line[i];

        ck_assert_uint_eq(c->kind, TKR_CQE_TOKEN);
        ck_assert_uint_eq(c->user, 77);
        ck_assert_uint_eq(c->tag, 5);
        ck_assert_uint_eq(c->pos, n_ids);
        ck_assert_uint_le(c->ntok, TKR_LINE_TOKENS);
        ck_assert_uint_le(c->nbytes, TKR_LINE_TEXT);
        for (uint32_t k = 0; k < c->ntok; k++)
            ck_assert_uint_eq(c->u.token.tok[k], out_ids[n_ids++]);
        memcpy(text + n_text, c->u.token.utf8, c->nbytes);
        n_text += c->nbytes;
    }
    ck_assert_uint_eq(n_ids, req.n_out);
    ck_assert_uint_eq(n_text, req.n_text);
    ck_assert_mem_eq(text, out_text, n_text);
}

START_TEST(short_pieces_share_a_line)
{
    piece(1, 1, "a", 0);
    piece(2, 1, "b", 0);
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_IDLE);
    ck_assert_uint_eq(fake.n_lines, 1);
    ck_assert_uint_eq(fake.line[0].ntok, 2);
    ck_assert_uint_eq(fake.line[0].flags, 0);
    check_stream();
}
END_TEST

START_TEST(a_line_takes_at_most_four_ids)
{
    for (uint32_t i = 0; i < 9; i++)
        piece(i, 1, "x", 0);
    publish_job(&job, hash);
    ck_assert_uint_eq(fake.n_lines, 3);
    check_stream();
}
END_TEST

START_TEST(a_long_piece_is_cut_at_characters_and_marked_more)
{
    /* 20 x U+20AC: 60 bytes, 3 a character; 24 is a multiple of 3, so shift by one letter: lines
     * of 22, 24, 15 bytes. */
    piece(9, 1,
          "x\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"
          "\xe2\x82\xac"
          "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2"
          "\x82\xac"
          "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac",
          0);
    publish_job(&job, hash);
    ck_assert_uint_eq(fake.n_lines, 3);
    ck_assert_uint_eq(fake.line[0].nbytes, 22);
    ck_assert_uint_eq(fake.line[0].flags, TKR_CQE_MORE);
    ck_assert_uint_eq(fake.line[1].nbytes, 24);
    ck_assert_uint_eq(fake.line[1].ntok, 0);
    ck_assert_uint_eq(fake.line[2].flags, 0);
    check_stream();
}
END_TEST

START_TEST(raw_bytes_never_share_a_line_with_text)
{
    piece(1, 1, "a", 0);
    piece(2, 1, "\xff", 1);
    piece(3, 1, "b", 0);
    publish_job(&job, hash);
    ck_assert_uint_eq(fake.n_lines, 3);
    ck_assert_uint_eq(fake.line[0].flags, 0);
    ck_assert_uint_eq(fake.line[1].flags, TKR_CQE_RAW);
    ck_assert_uint_eq(fake.line[2].flags, 0);
    check_stream();
}
END_TEST

START_TEST(a_piece_of_many_ids_takes_several_lines)
{
    piece(10, 10, "hello", 0);
    publish_job(&job, hash);
    ck_assert_uint_eq(fake.n_lines, 3);
    ck_assert_uint_eq(fake.line[0].flags, TKR_CQE_MORE);
    ck_assert_uint_eq(fake.line[2].flags, 0);
    check_stream();
}
END_TEST

START_TEST(a_full_ring_loses_nothing_and_goes_on_where_it_stopped)
{
    srand(7);
    for (int round = 0; round < 200; round++) {
        enum publish_state state;
        char text[64];

        setup();
        for (int i = 0; i < 20; i++) {
            int n = rand() % 40;

            memset(text, 'a' + i, (size_t)n);
            text[n] = '\0';
            piece((uint32_t)i * 16, 1 + (uint32_t)(rand() % 6), text, 0);
        }
        req.state = REQUEST_ENDED;
        fake.room = 0;
        ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_LAGGING);
        do {
            fake.room = (uint32_t)(rand() % 3);
            state = publish_job(&job, hash);
            ck_assert_int_eq(fake.done, state == PUBLISH_DONE);
        } while (state != PUBLISH_DONE);
        check_stream();
    }
}
END_TEST

/* Twenty pieces of random lengths in ids and text, the same for the same seed. */
static void random_pieces(unsigned seed)
{
    char text[80];

    srand(seed);
    for (int i = 0; i < 20; i++) {
        int n = rand() % 70;

        memset(text, 'a' + i, (size_t)n);
        text[n] = '\0';
        piece((uint32_t)i * 16, 1 + (uint32_t)(rand() % 9), text, rand() % 5 == 0);
    }
}

START_TEST(who_resumes_after_any_line_gets_the_lines_that_it_lacks)
{
    static struct tkr_cqe all[MAX];

    for (unsigned seed = 1; seed <= 50; seed++) {
        uint32_t n_all, ids = 0, bytes = 0;

        setup();
        random_pieces(seed);
        publish_job(&job, hash);
        n_all = fake.n_lines;
        memcpy(all, fake.line, n_all * sizeof *all);
        for (uint32_t got = 0; got < n_all; got++) {
            setup();
            random_pieces(seed);
            job.ids_out = ids;
            job.bytes_out = bytes;
            ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_IDLE);
            ck_assert_uint_eq(fake.n_lines, n_all - got);
            ck_assert_mem_eq(fake.line, all + got, fake.n_lines * sizeof *all);
            ids += all[got].ntok;
            bytes += all[got].nbytes;
        }
    }
}
END_TEST

START_TEST(who_says_more_than_it_had_loses_only_its_own_lines)
{
    for (unsigned seed = 1; seed <= 400; seed++) {
        uint32_t ids;

        setup();
        random_pieces(seed);
        ids = job.ids_out = (uint32_t)rand() % (req.n_out + 5);
        job.bytes_out = (uint32_t)rand() % (req.n_text + 500);
        req.state = REQUEST_ENDED;
        ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_DONE);
        for (uint32_t i = 0; i < fake.n_lines; i++) {
            ck_assert_uint_eq(fake.line[i].pos, ids);
            ids += fake.line[i].ntok;
        }
        ck_assert_uint_ge(ids, req.n_out);
    }
}
END_TEST

START_TEST(the_terminal_comes_after_all_output_even_when_the_ring_is_full)
{
    piece(1, 1, "a", 0);
    req.state = REQUEST_ENDED;
    req.status = END_OK;
    req.finish = FINISH_LENGTH;
    req.n_prompt = 3;
    fake.room = 1;
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_DONE);
    ck_assert_int_eq(fake.done, 1);
    ck_assert_uint_eq(fake.result.prompt, 3);
    ck_assert_uint_eq(fake.result.output, 1);
    ck_assert_uint_eq(fake.result.finish, TKR_FINISH_LENGTH);
    ck_assert_uint_eq(fake.result.user, 77);
    ck_assert_mem_eq(fake.result.model_hash, hash, 32);
}
END_TEST

START_TEST(after_slow_the_terminal_comes_into_a_full_ring_and_counts_what_was_published)
{
    piece(1, 4, "abcd", 0);
    piece(5, 4, "efgh", 0);
    fake.room = 1;
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_LAGGING);
    ck_assert_uint_eq(req.n_published, 4);
    req.state = REQUEST_ENDED;
    req.status = END_SLOW;
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_DONE);
    ck_assert_uint_eq(fake.n_lines, 1);
    ck_assert_int_eq(fake.done_status, TKR_E_SLOW);
    ck_assert_uint_eq(fake.result.output, 4);
    ck_assert_uint_eq(fake.result.discarded, 4);
}
END_TEST

START_TEST(token_ids_come_as_one_bulk_line_before_the_terminal)
{
    uint32_t ids[3] = {5, 6, 7};

    req.op = REQUEST_TOKENIZE;
    req.state = REQUEST_ENDED;
    job.ids = ids;
    job.n_ids = 3;
    ck_assert_int_eq(publish_reserve(&job, 3), 0);
    fake.room = 0;
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_LAGGING);
    fake.room = 1;
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_DONE);
    ck_assert_uint_eq(fake.n_lines, 1);
    ck_assert_uint_eq(fake.line[0].kind, TKR_CQE_BULK);
    ck_assert_uint_eq(fake.line[0].u.bulk.count, 3);
    ck_assert_uint_eq(fake.line[0].u.bulk.type, TKR_BULK_U32);
    ck_assert_uint_eq(fake.bulk_used, 12);
    ck_assert_mem_eq(fake.bulk + fake.line[0].u.bulk.off, ids, 12);
}
END_TEST

START_TEST(results_larger_than_the_bulk_memory_are_refused_before_they_are_computed)
{
    fake.bulk_max = 8;
    ck_assert_int_eq(publish_reserve(&job, 3), -ENOSPC);
    ck_assert_uint_eq(req.want, 12);
    ck_assert_msg(strstr(req.message, "bulk memory is full") != NULL, "%s", req.message);
    ck_assert_int_eq(publish_reserve(&job, UINT32_MAX),
                     -ENOSPC); /* 4 * count does not fit 32 bits */
}
END_TEST

START_TEST(the_place_of_a_line_is_fetched_only_for_who_has_something_to_say)
{
    setup();
    publish_soon(&job);
    ck_assert_uint_eq(fake.n_soon, 0);
    piece(1, 1, "a", 0);
    publish_soon(&job);
    ck_assert_uint_eq(fake.n_soon, 1);
    ck_assert_int_eq(publish_job(&job, hash), PUBLISH_IDLE);
    publish_soon(&job);
    ck_assert_uint_eq(fake.n_soon, 1);
    req.state = REQUEST_ENDED;
    publish_soon(&job);
    ck_assert_uint_eq(fake.n_soon, 2);
}
END_TEST

START_TEST(no_result_is_one_empty_bulk_line)
{
    req.op = REQUEST_TOKENIZE;
    req.state = REQUEST_ENDED;
    ck_assert_int_eq(publish_reserve(&job, 0), 0);
    ck_assert_int_eq((int)publish_job(&job, hash), PUBLISH_DONE);
    ck_assert_uint_eq(fake.n_lines, 1);
    ck_assert_uint_eq(fake.line[0].u.bulk.count, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("publish");
    TCase *tc = tcase_create("publish");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, short_pieces_share_a_line);
    tcase_add_test(tc, a_line_takes_at_most_four_ids);
    tcase_add_test(tc, a_long_piece_is_cut_at_characters_and_marked_more);
    tcase_add_test(tc, raw_bytes_never_share_a_line_with_text);
    tcase_add_test(tc, a_piece_of_many_ids_takes_several_lines);
    tcase_add_test(tc, a_full_ring_loses_nothing_and_goes_on_where_it_stopped);
    tcase_add_test(tc, who_resumes_after_any_line_gets_the_lines_that_it_lacks);
    tcase_add_test(tc, who_says_more_than_it_had_loses_only_its_own_lines);
    tcase_add_test(tc, the_terminal_comes_after_all_output_even_when_the_ring_is_full);
    tcase_add_test(tc,
                   after_slow_the_terminal_comes_into_a_full_ring_and_counts_what_was_published);
    tcase_add_test(tc, token_ids_come_as_one_bulk_line_before_the_terminal);
    tcase_add_test(tc, results_larger_than_the_bulk_memory_are_refused_before_they_are_computed);
    tcase_add_test(tc, the_place_of_a_line_is_fetched_only_for_who_has_something_to_say);
    tcase_add_test(tc, no_result_is_one_empty_bulk_line);
    suite_add_tcase(suite, tc);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
