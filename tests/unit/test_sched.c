/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sched.c - the scheduler over a scripted backend: each request's first prompt token names a
 * script, and the backend's logits force the script's tokens, so all texts are exact. The backend
 * finds out which sequence a row belongs to only by reading the tokens it stored in the pages
 * before.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"
#include "tests/sim/fake_vocab.h"

#define STEP_NS    1000000ull
#define SCRIPTS    64
#define SCRIPT_MAX 64
#define NAN_ROW    UINT32_MAX
#define PAGES_MAX  512
#define ROWS_MAX   64
#define LOGITS_MAX 16

struct script {
    uint32_t n_prompt;
    uint32_t list[SCRIPT_MAX], n_list;
    uint32_t fill;             /* after the list */
    uint32_t rows, rows_total; /* computed in the last step, and in all */
};

static struct world {
    struct backend backend;
    struct sampler *sampler;
    struct sched *sched;
    struct vocab vocab;
    uint64_t now_ns;
    uint32_t kv[PAGES_MAX][KV_PAGE];
    float logits[LOGITS_MAX][FAKE_VOCAB];
    struct script script[SCRIPTS];
    uint32_t rows, logit_rows, seqs; /* of the last step */
    struct sched_who who;            /* whose the next request is */
    void (*hook)(void);              /* called in the middle of a step */
} w;

static uint64_t fake_now(void)
{
    return w.now_ns;
}

static void force(float *logits, struct script *script, uint32_t pos)
{
    uint32_t at = pos + 1 - script->n_prompt;
    uint32_t id = at < script->n_list ? script->list[at] : script->fill;

    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        logits[i] = (float)(i % 7) * 0.25f;
    if (pos + 1 < script->n_prompt) /* asked for by LOGPROBS only */
        logits[pos % FAKE_VOCAB] = 4;
    else if (id == NAN_ROW)
        logits[11] = NAN;
    else
        logits[id] = 50;
}

static void fake_forward(void *self, const struct step *step, const float **ret_logits)
{
    uint32_t row = 0, logit = 0;

    (void)self;
    ck_assert_uint_ge(step->n_rows, 1);
    ck_assert_uint_le(step->n_rows, w.backend.rows_max);
    ck_assert_uint_le(step->n_logits, w.backend.logits_max);
    for (uint32_t k = 0; k < SCRIPTS; k++)
        w.script[k].rows = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        struct script *script = NULL;

        ck_assert_uint_eq(seq->row0, row);
        for (uint32_t r = 0; r < seq->n_rows; r++, row++) {
            uint32_t pos = seq->pos0 + r;

            w.kv[seq->pages[pos / KV_PAGE]][pos % KV_PAGE] = step->tokens[row];
            script = &w.script[w.kv[seq->pages[0]][0]];
            if (logit < step->n_logits && step->logit_rows[logit] == row)
                force(w.logits[logit++], script, pos);
        }
        ck_assert_ptr_nonnull(script);
        script->rows = seq->n_rows;
        script->rows_total += seq->n_rows;
    }
    ck_assert_uint_eq(row, step->n_rows);
    ck_assert_uint_eq(logit, step->n_logits);
    w.rows = step->n_rows;
    w.logit_rows = step->n_logits;
    w.seqs = step->n_seqs;
    w.now_ns += STEP_NS;
    if (w.hook)
        w.hook();
    *ret_logits = w.logits[0];
}

static const struct sched_opt opt_default = {
    .running_max = 4, .queued_max = 4, .n_pages = 64, .n_ctx = 512, .chunk_rows = 16};

static void world_init(struct sched_opt opt)
{
    memset(&w, 0, sizeof w);
    w.now_ns = 1000;
    w.vocab.bos = VOCAB_NONE;
    w.backend = (struct backend){.rows_max = ROWS_MAX,
                                 .logits_max = LOGITS_MAX,
                                 .n_vocab = FAKE_VOCAB,
                                 .forward = fake_forward};
    for (uint32_t k = 0; k < SCRIPTS; k++)
        w.script[k].fill = 'a' + k % 26;
    ck_assert_int_eq(sampler_new(&w.sampler, FAKE_VOCAB, cpu_kernels_get(CPU_REF, NULL), NULL), 0);
    opt.vocab = &w.vocab;
    ck_assert_int_eq(sched_new(&w.sched, &opt, &w.backend, w.sampler), 0);
}

/* Nothing may be left behind: all requests have ended, all pages are free. */
static void world_fini(void)
{
    struct sched_counts counts;

    sched_counts(w.sched, &counts);
    ck_assert_uint_eq(counts.running + counts.queued + counts.text, 0);
    ck_assert_uint_eq(counts.pages_used, 0);
    ck_assert_uint_eq(counts.pages_reserved, 0);
    sched_free(w.sched);
    sampler_free(w.sampler);
}

/* The bytes of text as byte tokens; EOS after them. */
static void script_text(uint32_t k, const char *text)
{
    struct script *script = &w.script[k];

    for (script->n_list = 0; text[script->n_list]; script->n_list++)
        script->list[script->n_list] = (uint8_t)text[script->n_list];
    script->list[script->n_list++] = FAKE_EOS;
}

static void script_ids(uint32_t k, const uint32_t *ids, uint32_t n)
{
    memcpy(w.script[k].list, ids, n * sizeof *ids);
    w.script[k].n_list = n;
}

/* A request for script k, not yet submitted. */
static struct request *take(uint32_t k, uint32_t n_prompt, uint32_t max_tokens)
{
    struct request *req = sched_request_take(w.sched, &w.who);

    ck_assert_ptr_nonnull(req);
    ck_assert_int_eq(req->state, REQUEST_TEXT);
    detok_init(&req->detok, &w.vocab);
    req->max_tokens = max_tokens;
    req->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt && i <= sched_n_ctx(w.sched); i++)
        req->tokens[i] = i == 0 ? k : 'p';
    w.script[k].n_prompt = n_prompt;
    return req;
}

static struct request *submit(uint32_t k, uint32_t n_prompt, uint32_t max_tokens)
{
    struct request *req = take(k, n_prompt, max_tokens);

    sched_submit(w.sched, req, w.now_ns);
    return req;
}

static void run_all(void)
{
    for (unsigned i = 0; sched_has_work(w.sched); i++) {
        ck_assert_uint_lt(i, 5000);
        ck_assert_uint_gt(sched_step(w.sched, fake_now), 0);
    }
}

static void check_end(const struct request *req, enum end_status status, enum end_finish finish,
                      const char *text)
{
    ck_assert_int_eq(req->state, REQUEST_ENDED);
    ck_assert_int_eq(req->status, status);
    ck_assert_int_eq(req->finish, finish);
    ck_assert_uint_eq(req->n_text, strlen(text));
    ck_assert_mem_eq(req->out_text, text, strlen(text));
}

static void stop_at(struct request *req, const char *text)
{
    ck_assert_int_eq(detok_add_stop(&req->detok, (const uint8_t *)text, (uint32_t)strlen(text)), 0);
}

/* ---- limits ---------------------------------------------------------------------------------- */

START_TEST(a_prompt_up_to_the_context_runs_and_a_longer_one_is_refused_with_both_numbers)
{
    struct request *req[3];

    world_init(opt_default);
    for (uint32_t i = 0; i < 3; i++)
        req[i] = submit(i, 511 + i, 10);
    run_all();
    check_end(req[0], END_OK, FINISH_LENGTH, "a");
    check_end(req[1], END_OK, FINISH_LENGTH, "");
    ck_assert_uint_eq(w.script[1].rows_total, 512);
    check_end(req[2], END_CONTEXT, FINISH_NONE, "");
    ck_assert_uint_eq(req[2]->have, 512);
    ck_assert_uint_eq(req[2]->want, 513);
    ck_assert_str_eq(req[2]->message, "the prompt has 513 tokens, the context holds 512");
    ck_assert_uint_eq(w.script[2].rows_total, 0);
    world_fini();
}
END_TEST

START_TEST(a_model_that_never_ends_stops_at_the_context_limit)
{
    struct request *lazy, *asked;

    world_init(opt_default);
    lazy = submit(0, 5, REQUEST_MAX_TOKENS_NONE);
    asked = submit(1, 12, 100000);
    run_all();
    ck_assert_int_eq(lazy->status, END_OK);
    ck_assert_int_eq(lazy->finish, FINISH_LENGTH);
    ck_assert_uint_eq(lazy->n_out, 507);
    ck_assert_uint_eq(lazy->n_text, 507);
    ck_assert_int_eq(asked->status, END_OK);
    ck_assert_int_eq(asked->finish, FINISH_LENGTH);
    ck_assert_uint_eq(asked->n_out, 500);
    world_fini();
}
END_TEST

START_TEST(max_tokens_0_evaluates_the_prompt_and_generates_nothing)
{
    struct request *req;

    world_init(opt_default);
    req = submit(0, 40, 0);
    run_all();
    check_end(req, END_OK, FINISH_LENGTH, "");
    ck_assert_uint_eq(req->n_out, 0);
    ck_assert_uint_eq(w.script[0].rows_total, 40);
    ck_assert_uint_ne(req->stamp[STAMP_PREFILL], 0);
    ck_assert_uint_eq(req->stamp[STAMP_FIRST], 0);
    world_fini();
}
END_TEST

START_TEST(max_tokens_counts_exactly)
{
    struct request *req;

    world_init(opt_default);
    script_text(0, "abcdefgh");
    req = submit(0, 3, 5);
    run_all();
    check_end(req, END_OK, FINISH_LENGTH, "abcde");
    ck_assert_uint_eq(req->n_out, 5);
    ck_assert_uint_eq(w.script[0].rows_total, 7); /* the fifth token is never an input */
    world_fini();
}
END_TEST

START_TEST(eos_as_the_first_token_gives_no_token_and_stop)
{
    struct request *req;

    world_init(opt_default);
    script_text(0, "");
    req = submit(0, 3, 5);
    run_all();
    check_end(req, END_OK, FINISH_STOP, "");
    ck_assert_uint_eq(req->n_out, 0);
    ck_assert_uint_eq(req->n_discarded, 0);
    world_fini();
}
END_TEST

START_TEST(ignore_eos_goes_on_and_keeps_the_id)
{
    struct request *req;

    world_init(opt_default);
    script_ids(0, (const uint32_t[]){'x', FAKE_EOS, 'y'}, 3);
    req = take(0, 3, 3);
    req->ignore_eos = 1;
    sched_submit(w.sched, req, w.now_ns);
    run_all();
    check_end(req, END_OK, FINISH_LENGTH, "xy");
    ck_assert_uint_eq(req->n_out, 3);
    ck_assert_uint_eq(req->out_ids[1], FAKE_EOS);
    world_fini();
}
END_TEST

START_TEST(ids_outside_the_vocabulary_are_refused_by_name)
{
    struct request *prompt, *stop;

    world_init(opt_default);
    prompt = take(0, 3, 5);
    prompt->tokens[2] = FAKE_VOCAB;
    sched_submit(w.sched, prompt, w.now_ns);
    check_end(prompt, END_INVALID, FINISH_NONE, "");
    ck_assert_str_eq(prompt->message, "prompt id 264 at 2 is not below 264");
    stop = take(1, 3, 5);
    stop->stop_ids[0] = 5;
    stop->stop_ids[1] = 4000000000u;
    stop->n_stop_ids = 2;
    sched_submit(w.sched, stop, w.now_ns);
    check_end(stop, END_INVALID, FINISH_NONE, "");
    ck_assert_str_eq(stop->message, "stop id 4000000000 at 1 is not below 264");
    ck_assert_int_eq(sched_has_work(w.sched), 0);
    world_fini();
}
END_TEST

START_TEST(an_empty_prompt_is_refused_unless_the_model_adds_a_bos)
{
    struct request *refused, *runs;

    world_init(opt_default);
    script_text(7, "yes");
    refused = submit(0, 0, 5);
    check_end(refused, END_INVALID, FINISH_NONE, "");
    ck_assert_str_eq(refused->message, "the prompt is empty and the model adds no BOS");
    w.vocab.bos = 7;
    runs = submit(0, 0, 5);
    w.script[7].n_prompt = 1;
    run_all();
    check_end(runs, END_OK, FINISH_STOP, "yes");
    ck_assert_uint_eq(runs->n_prompt, 1);
    world_fini();
}
END_TEST

START_TEST(output_beyond_its_memory_ends_the_request_and_says_so)
{
    struct sched_opt opt = opt_default;
    struct request *req;

    opt.out_bytes_max = 100;
    world_init(opt);
    script_ids(0, (const uint32_t[]){'a', FAKE_LONG, FAKE_LONG, 'b'}, 4);
    req = submit(0, 3, 50);
    run_all();
    ck_assert_int_eq(req->status, END_CONTEXT);
    ck_assert_uint_eq(req->n_text, 65); /* nothing after the piece that did not fit */
    ck_assert_uint_eq(req->n_out, 2);
    ck_assert_uint_eq(req->have, 100);
    ck_assert_str_eq(req->message, "the output has more than 100 bytes of text");

    /* Held back: the last x, for the stop string. It would fit when the piece before it did not. */
    script_ids(1, (const uint32_t[]){'a', FAKE_LONG, FAKE_LONG, 'b'}, 4);
    req = take(1, 3, 50);
    stop_at(req, "xq");
    sched_submit(w.sched, req, w.now_ns);
    run_all();
    ck_assert_int_eq(req->status, END_CONTEXT);
    ck_assert_uint_eq(req->n_text, 64);
    world_fini();
}
END_TEST

START_TEST(options_that_cannot_work_are_refused)
{
    struct sched_opt bad[9];
    struct sched *s = NULL;

    world_init(opt_default);
    for (int i = 0; i < 9; i++) {
        bad[i] = opt_default;
        bad[i].vocab = &w.vocab;
    }
    bad[0].running_max = 0;
    bad[1].running_max = LOGITS_MAX + 1;
    bad[2].n_pages = 0;
    bad[3].n_ctx = 0;
    bad[4].chunk_rows = 0;
    bad[5].vocab = NULL;
    bad[6].n_ctx = 1u << 30;
    bad[7].queued_max = 1u << 30;
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(sched_new(&s, &bad[i], &w.backend, w.sampler), -EINVAL);
    w.backend.n_vocab = FAKE_VOCAB + 1;
    ck_assert_int_eq(sched_new(&s, &bad[8], &w.backend, w.sampler), -EINVAL);
    w.backend.n_vocab = FAKE_VOCAB;
    w.backend.rows_max = 4;
    ck_assert_int_eq(sched_new(&s, &bad[8], &w.backend, w.sampler), -EINVAL);
    ck_assert_ptr_null(s);
    world_fini();
}
END_TEST

START_TEST(the_context_is_never_larger_than_the_pool)
{
    struct sched_opt opt = opt_default;
    struct request *req;

    opt.n_pages = 2;
    world_init(opt);
    ck_assert_uint_eq(sched_n_ctx(w.sched), 128);
    req = take(0, 129, 1);
    for (uint32_t i = 0; i <= opt.n_ctx; i++) /* room for what was asked for */
        req->tokens[i] = 1;
    sched_submit(w.sched, req, w.now_ns);
    ck_assert_int_eq(req->status, END_CONTEXT);
    req = submit(0, 100, 100000);
    run_all();
    ck_assert_uint_eq(req->n_out, 28);
    world_fini();
}
END_TEST

/* ---- text ------------------------------------------------------------------------------------ */

START_TEST(each_piece_is_whole_characters_and_they_join_to_the_text)
{
    struct request *req;
    uint32_t from = 0;

    world_init(opt_default);
    script_ids(
        0, (const uint32_t[]){'a', FAKE_EURO, 0xac, 0xf0, 0x9f, 0x98, 0x80, FAKE_HELLO, FAKE_EOS},
        9);
    req = submit(0, 3, 50);
    run_all();
    check_end(req, END_OK, FINISH_STOP, "a\xe2\x82\xac\xf0\x9f\x98\x80hello ");
    ck_assert_uint_eq(req->n_out, 8);
    ck_assert_uint_eq(req->marks[req->n_marks - 1].byte_end, req->n_text);
    ck_assert_uint_eq(req->marks[req->n_marks - 1].id_end, req->n_out);
    for (uint32_t i = 0; i < req->n_marks; i++) {
        ck_assert_uint_eq(req->marks[i].raw, 0);
        if (from < req->n_text)
            ck_assert_int_ne(req->out_text[from] & 0xc0,
                             0x80); /* no piece begins inside a character */
        from = req->marks[i].byte_end;
    }
    world_fini();
}
END_TEST

START_TEST(a_limit_inside_a_character_ends_at_the_last_whole_one)
{
    struct request *req;

    world_init(opt_default);
    script_ids(0, (const uint32_t[]){'a', FAKE_EURO, 0xac, FAKE_EURO}, 4);
    req = submit(0, 3, 4);
    run_all();
    check_end(req, END_OK, FINISH_LENGTH, "a\xe2\x82\xac");
    ck_assert_uint_eq(req->n_out, 4); /* all ids were generated */
    world_fini();
}
END_TEST

START_TEST(incomplete_bytes_before_eos_come_raw)
{
    struct request *req;

    world_init(opt_default);
    script_ids(0, (const uint32_t[]){'a', FAKE_EURO, FAKE_EOS}, 3);
    req = submit(0, 3, 50);
    run_all();
    check_end(req, END_OK, FINISH_STOP, "a\xe2\x82");
    ck_assert_uint_eq(req->marks[req->n_marks - 1].raw, 1);
    world_fini();
}
END_TEST

START_TEST(nothing_from_a_stop_string_on_is_delivered_or_counted)
{
    struct request *req;

    world_init(opt_default);
    script_ids(0, (const uint32_t[]){'x', FAKE_HELLO, FAKE_AB, 'c', 'd', 'e'}, 6);
    req = take(0, 3, 50);
    stop_at(req, "abcd"); /* over three tokens */
    stop_at(req, "abcde");
    sched_submit(w.sched, req, w.now_ns);
    run_all();
    check_end(req, END_OK, FINISH_STOP, "xhello ");
    ck_assert_uint_eq(req->n_out, 2);
    ck_assert_uint_eq(req->n_discarded, 3);
    world_fini();
}
END_TEST

START_TEST(text_that_only_began_like_a_stop_string_comes_at_the_end)
{
    struct request *eos, *length;

    world_init(opt_default);
    script_text(0, "so ab");
    eos = take(0, 3, 50);
    stop_at(eos, "abc");
    sched_submit(w.sched, eos, w.now_ns);
    script_text(1, "so abd");
    length = take(1, 3, 5);
    stop_at(length, "abc");
    sched_submit(w.sched, length, w.now_ns);
    for (int i = 0; i < 6; i++) {
        sched_step(w.sched, fake_now);
        ck_assert_uint_le(eos->n_text, eos->state == REQUEST_ENDED ? 5 : 3);
    }
    check_end(eos, END_OK, FINISH_STOP, "so ab");
    check_end(length, END_OK, FINISH_LENGTH, "so ab");
    world_fini();
}
END_TEST

START_TEST(a_stop_id_ends_and_is_not_part_of_the_output)
{
    struct request *req;

    world_init(opt_default);
    script_ids(0, (const uint32_t[]){'a', 'b', FAKE_PAD, 'c'}, 4);
    req = take(0, 3, 50);
    req->stop_ids[0] = 'z';
    req->stop_ids[1] = FAKE_PAD;
    req->n_stop_ids = 2;
    req->ignore_eos = 1;
    sched_submit(w.sched, req, w.now_ns);
    run_all();
    check_end(req, END_OK, FINISH_STOP, "ab");
    ck_assert_uint_eq(req->n_out, 2);
    ck_assert_uint_eq(req->n_discarded, 0);
    world_fini();
}
END_TEST

/* ---- going on where another daemon stopped --------------------------------------------------- */

/* The first k ids of `from`, as its client would offer them. */
static struct request *resume(const struct request *from, uint32_t script, uint32_t k,
                              const char *stop)
{
    struct request *req = take(script, from->n_prompt, from->max_tokens);

    memcpy(req->out_ids, from->out_ids, k * sizeof *req->out_ids);
    req->n_resume = req->n_out = k;
    stop_at(req, stop);
    sched_submit(w.sched, req, w.now_ns);
    return req;
}

START_TEST(a_resumed_stream_is_the_whole_stream_wherever_it_was_cut)
{
    /* By hand: the stop "lo wo" lies over four tokens; "he" is a begun one that is none. */
    static const uint32_t ids[] = {'a', FAKE_EURO, 0xac, 'h', FAKE_HELLO, 'l',
                                   'o', ' ',       'w',  'o', 'r'};
    struct request *whole;

    world_init(opt_default);
    script_ids(0, ids, 11);
    whole = take(0, 40, 30);
    stop_at(whole, "lo wo");
    sched_submit(w.sched, whole, w.now_ns);
    run_all();
    check_end(whole, END_OK, FINISH_STOP, "a\xe2\x82\xachhello ");
    ck_assert_uint_eq(whole->n_out, 5);
    for (uint32_t k = 1; k <= whole->n_out; k++) {
        struct request *req = resume(whole, 0, k, "lo wo");

        run_all();
        check_end(req, END_OK, FINISH_STOP, "a\xe2\x82\xachhello ");
        ck_assert_uint_eq(req->n_out, 5);
        ck_assert_uint_eq(req->n_discarded, whole->n_discarded);
        ck_assert_uint_eq(req->n_marks, whole->n_marks);
        ck_assert_mem_eq(req->marks, whole->marks, whole->n_marks * sizeof *req->marks);
        sched_request_give(w.sched, req);
    }
    world_fini();
}
END_TEST

START_TEST(received_ids_count_towards_max_tokens)
{
    struct request *whole, *full, *most;

    world_init(opt_default);
    script_text(0, "abcdefgh");
    whole = submit(0, 3, 5);
    run_all();
    full = resume(whole, 0, 5, "xyz");
    most = resume(whole, 0, 4, "xyz");
    run_all();
    check_end(full, END_OK, FINISH_LENGTH, "abcde");
    check_end(most, END_OK, FINISH_LENGTH, "abcde");
    ck_assert_uint_eq(full->n_out, 5);
    ck_assert_uint_eq(full->stamp[STAMP_FIRST], 0); /* nothing was left to generate */
    world_fini();
}
END_TEST

START_TEST(a_stop_string_among_received_ids_ends_at_once)
{
    struct request *whole, *req;

    world_init(opt_default);
    script_text(0, "abcdefgh");
    whole = submit(0, 3, 8);
    run_all();
    req = resume(whole, 0, 6, "cd");
    run_all();
    check_end(req, END_OK, FINISH_STOP, "ab");
    ck_assert_uint_eq(req->n_out, 6); /* they cannot be taken back */
    ck_assert_uint_eq(req->n_discarded, 0);
    world_fini();
}
END_TEST

static struct request *resume_wrong(uint32_t n, uint32_t bytes, uint32_t id, uint32_t max_tokens)
{
    struct request *req = take(0, 500, max_tokens);

    for (uint32_t i = 0; i < n; i++)
        req->out_ids[i] = id;
    req->n_resume = req->n_out = n;
    req->resume_bytes = bytes;
    sched_submit(w.sched, req, w.now_ns);
    ck_assert_int_eq(req->state, REQUEST_ENDED);
    return req;
}

START_TEST(a_resume_that_cannot_be_is_refused)
{
    struct request *req;

    world_init(opt_default);
    req = resume_wrong(2, 0, FAKE_VOCAB, 5);
    ck_assert_str_eq(req->message, "resume id 264 at 0 is not below 264");
    req = resume_wrong(6, 0, 'a', 5);
    ck_assert_str_eq(req->message, "resume_pos: 6, max_tokens is 5");
    req = resume_wrong(2, 3 + DETOK_HOLD, 'a', 5);
    ck_assert_int_eq(req->status, END_INVALID);
    ck_assert_uint_eq(req->have, 2 + DETOK_HOLD);
    ck_assert_uint_eq(req->want, 3 + DETOK_HOLD);
    req = resume_wrong(13, 0, 'a', REQUEST_MAX_TOKENS_NONE);
    ck_assert_int_eq(req->status, END_CONTEXT);
    ck_assert_uint_eq(req->have, 512);
    ck_assert_uint_eq(req->want, 513);
    ck_assert_int_eq(sched_has_work(w.sched), 0);
    world_fini();
}
END_TEST

START_TEST(a_tokenize_past_its_deadline_or_with_a_wrong_stop_id_is_no_success)
{
    struct request *req[4];

    world_init(opt_default);
    for (uint32_t i = 0; i < 4; i++) {
        req[i] = take(i, 0, 0);
        req[i]->op = REQUEST_TOKENIZE;
        req[i]->n_prompt = 100000; /* more than a context is fine: nothing is computed */
    }
    req[0]->deadline_ns = w.now_ns;
    req[1]->stop_ids[0] = FAKE_VOCAB;
    req[1]->n_stop_ids = 1;
    req[2]->cancel = 1;
    for (uint32_t i = 0; i < 4; i++)
        sched_submit(w.sched, req[i], w.now_ns);
    check_end(req[0], END_DEADLINE, FINISH_NONE, "");
    check_end(req[1], END_INVALID, FINISH_NONE, "");
    check_end(req[2], END_CANCELLED, FINISH_NONE, "");
    check_end(req[3], END_OK, FINISH_NONE, "");
    world_fini();
}
END_TEST

/* ---- arithmetic that went wrong, and scores -------------------------------------------------- */

START_TEST(a_row_that_is_not_finite_ends_its_own_request_only)
{
    struct request *greedy, *sampled, *other;

    world_init(opt_default);
    script_ids(0, (const uint32_t[]){'a', NAN_ROW}, 2);
    script_ids(1, (const uint32_t[]){NAN_ROW}, 1);
    script_text(2, "all is well");
    greedy = submit(0, 20, 50);
    sampled = take(1, 3, 50);
    sampled->sampling.temperature = 1;
    sched_submit(w.sched, sampled, w.now_ns);
    other = submit(2, 30, 50);
    run_all();
    check_end(greedy, END_NUMERIC, FINISH_NONE, "a");
    check_end(sampled, END_NUMERIC, FINISH_NONE, "");
    ck_assert_str_eq(greedy->message, "the model computed a value that is not finite");
    check_end(other, END_OK, FINISH_STOP, "all is well");
    world_fini();
}
END_TEST

/* What force() puts at a prompt position, by hand: id i has (i % 7) / 4, id pos % 264 has 4. */
static double score_expected(uint32_t pos, uint32_t id)
{
    double sum = 0;

    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        sum += exp(i == pos % FAKE_VOCAB ? 4 : (i % 7) * 0.25);
    return (id == pos % FAKE_VOCAB ? 4 : (id % 7) * 0.25) - log(sum);
}

START_TEST(logprobs_come_for_every_token_but_the_first_however_few_rows_of_logits_there_are)
{
    struct request *req, *other, *one;

    world_init(opt_default);
    other = submit(1, 30, 40);
    req = take(0, 200, 0);
    req->op = REQUEST_LOGPROBS;
    sched_submit(w.sched, req, w.now_ns);
    one = take(2, 1, 0);
    one->op = REQUEST_LOGPROBS;
    sched_submit(w.sched, one, w.now_ns);
    check_end(one, END_OK, FINISH_NONE, "");
    ck_assert_uint_eq(one->n_logprobs, 0);
    run_all();
    ck_assert_int_eq(req->status, END_OK);
    ck_assert_int_eq(req->finish, FINISH_NONE);
    ck_assert_uint_eq(req->n_logprobs, 199);
    for (uint32_t i = 0; i < 199; i++)
        ck_assert_double_lt(fabs((double)req->logprobs[i] - score_expected(i, 'p')), 1e-5);
    ck_assert_uint_eq(w.script[0].rows_total, 199);
    ck_assert_int_eq(other->status, END_OK);
    ck_assert_uint_eq(other->n_out, 40);
    world_fini();
}
END_TEST

/* ---- order and shares ------------------------------------------------------------------------ */

START_TEST(a_long_prompt_advances_every_step_and_delays_no_decode_row)
{
    struct request *decodes, *is_long;

    world_init(opt_default);
    decodes = submit(0, 4, 100);
    sched_step(w.sched, fake_now);
    is_long = submit(1, 400, 10);
    for (uint32_t step = 0; is_long->n_computed < 400; step++) {
        uint32_t before = is_long->n_computed;

        sched_step(w.sched, fake_now);
        ck_assert_uint_eq(w.script[0].rows, 1);
        ck_assert_uint_eq(decodes->n_out, step + 2);
        ck_assert_uint_eq(is_long->n_computed - before, 16);
    }
    run_all();
    world_fini();
}
END_TEST

START_TEST(short_prompts_behind_long_ones_get_their_first_token_in_a_few_chunks)
{
    struct request *first, *second, *is_short[2];

    world_init(opt_default);
    first = submit(0, 500, 5);
    second = submit(1, 500, 5);
    sched_step(w.sched, fake_now);
    is_short[0] = submit(2, 12, 1);
    is_short[1] = submit(3, 10, 1);
    for (int i = 0; i < 3; i++) {
        uint32_t before = first->n_computed;

        sched_step(w.sched, fake_now);
        ck_assert_uint_ge(first->n_computed - before, 8); /* half of the chunk */
        ck_assert_uint_le(w.rows, 16);
    }
    ck_assert_int_eq(is_short[0]->state, REQUEST_ENDED);
    ck_assert_int_eq(is_short[1]->state, REQUEST_ENDED);
    ck_assert_uint_lt(second->n_computed, 500);
    run_all();
    world_fini();
}
END_TEST

START_TEST(equal_prompts_are_served_in_order_of_arrival)
{
    struct request *req[4];

    world_init(opt_default);
    for (uint32_t i = 0; i < 4; i++)
        req[i] = submit(i, 40, 1);
    run_all();
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_le(req[i]->stamp[STAMP_FIRST], req[i + 1]->stamp[STAMP_FIRST]);
    /* By hand, 16 rows a step, half to the oldest: 0 and 1 end in step 5, 2 and 3 in step 10. */
    ck_assert_uint_eq(req[1]->stamp[STAMP_FIRST], 1000 + 5 * STEP_NS);
    ck_assert_uint_eq(req[2]->stamp[STAMP_FIRST], 1000 + 10 * STEP_NS);
    world_fini();
}
END_TEST

START_TEST(a_request_waits_for_its_pages_and_nobody_overtakes_it)
{
    struct sched_opt opt = opt_default;
    struct request *first, *big, *small;

    opt.n_pages = 8; /* 512 positions */
    world_init(opt);
    first = submit(0, 64, 192); /* 4 pages */
    big = submit(1, 64, 256);   /* 5 pages */
    small = submit(2, 10, 10);
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(first->state, REQUEST_RUNNING);
    ck_assert_int_eq(big->state, REQUEST_QUEUED);
    ck_assert_int_eq(small->state, REQUEST_QUEUED);
    while (first->state != REQUEST_ENDED) {
        ck_assert_int_eq(small->state, REQUEST_QUEUED);
        sched_step(w.sched, fake_now);
    }
    run_all();
    ck_assert_uint_eq(first->n_out, 192);
    ck_assert_uint_eq(big->n_out, 256);
    ck_assert_uint_eq(small->n_out, 10);
    ck_assert_uint_le(big->stamp[STAMP_PREFILL], small->stamp[STAMP_PREFILL]);
    world_fini();
}
END_TEST

START_TEST(when_pages_run_out_the_youngest_without_max_tokens_ends_with_its_text_so_far)
{
    struct sched_opt opt = opt_default;
    struct request *old, *promised, *young;

    opt.n_pages = 6;
    world_init(opt);
    old = submit(0, 10, REQUEST_MAX_TOKENS_NONE);
    promised = submit(1, 10, 100); /* 2 pages, all its own */
    young = submit(2, 10, REQUEST_MAX_TOKENS_NONE);
    w.script[0].list[0] = 'h';
    w.script[0].n_list = 1;
    while (young->state != REQUEST_ENDED)
        sched_step(w.sched, fake_now);
    ck_assert_int_eq(old->state, REQUEST_RUNNING);
    ck_assert_int_eq(young->status, END_OVERLOADED);
    ck_assert_uint_gt(young->retry_after_ns, 0);
    ck_assert_uint_gt(young->n_out, 100);
    ck_assert_uint_eq(young->n_text, young->n_out);
    for (uint32_t i = 0; i < young->n_text; i++)
        ck_assert_uint_eq(young->out_text[i], 'c');
    ck_assert_str_ne(young->message, "");
    run_all();
    ck_assert_int_eq(promised->status, END_OK);
    ck_assert_uint_eq(promised->n_out, 100);
    ck_assert_int_eq(old->status, END_OK);
    ck_assert_uint_eq(old->n_out, 384 - 10); /* the pool is its context */
    world_fini();
}
END_TEST

START_TEST(more_requests_than_places_are_refused_at_once_with_a_hint)
{
    struct request *req[12];

    world_init(opt_default); /* 4 run, 4 wait; 12 slots */
    for (uint32_t i = 0; i < 12; i++)
        req[i] = submit(i, 10, 10);
    ck_assert_ptr_null(sched_request_take(w.sched, &w.who));
    for (uint32_t i = 8; i < 12; i++) {
        check_end(req[i], END_OVERLOADED, FINISH_NONE, "");
        ck_assert_uint_ge(req[i]->retry_after_ns, 1000000);
        ck_assert_str_eq(req[i]->message, "the queue is full (8 wait)");
        sched_request_give(w.sched, req[i]);
    }
    run_all();
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_int_eq(req[i]->status, END_OK);
    world_fini();
}
END_TEST

START_TEST(the_hint_grows_with_the_step_time_and_the_prompts_that_wait)
{
    uint64_t none, some;

    world_init(opt_default);
    for (uint32_t i = 0; i < 4; i++)
        submit(i, 10, 100);
    while (w.seqs < 4)
        sched_step(w.sched, fake_now);
    none = sched_retry_after_ns(w.sched);
    submit(4, 160, 1);
    some = sched_retry_after_ns(w.sched);
    /* By hand: steps take 1 ms each, 160 rows wait, 16 a step. */
    ck_assert_uint_eq(none, 1000000);
    ck_assert_uint_eq(some, 11000000);
    run_all();
    world_fini();
}
END_TEST

/* ---- owners ---------------------------------------------------------------------------------- */

static struct request *submit_as(uint32_t uid, uint32_t k, uint32_t n_prompt, uint32_t max_tokens)
{
    w.who.uid = uid;
    return submit(k, n_prompt, max_tokens);
}

START_TEST(owners_with_prompts_get_equal_parts_of_the_rows)
{
    struct request *many[3], *one;

    world_init(opt_default);
    for (uint32_t i = 0; i < 3; i++)
        many[i] = submit_as(0, i, 300, 1);
    one = submit_as(1, 5, 80, 1);
    for (uint32_t step = 1; step <= 10; step++) { /* by hand: 8 of 16 rows a step */
        sched_step(w.sched, fake_now);
        ck_assert_uint_eq(w.script[5].rows, 8);
        ck_assert_uint_eq(w.rows, 16);
    }
    ck_assert_int_eq(one->state, REQUEST_ENDED);
    ck_assert_uint_eq(many[0]->n_computed, 10 * 4);
    sched_step(w.sched, fake_now); /* what is left is for who is left */
    ck_assert_uint_eq(many[0]->n_computed + many[1]->n_computed, 80 + 16);
    run_all();
    world_fini();
}
END_TEST

START_TEST(a_newcomer_gets_a_place_from_who_has_most_and_the_displaced_one_loses_nothing)
{
    struct request *flood[4], *one;
    struct sched_counts counts;
    uint32_t out;

    world_init(opt_default); /* 4 run */
    script_text(3, "abcdefghijklmnopqrstuvwxyz");
    for (uint32_t i = 0; i < 4; i++)
        flood[i] = submit_as(0, i, 10, 30);
    for (int i = 0; i < 10; i++)
        sched_step(w.sched, fake_now);
    out = flood[3]->n_out;
    ck_assert_uint_gt(out, 0);
    one = submit_as(1, 9, 5, 3);
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(one->state, REQUEST_RUNNING);
    ck_assert_int_eq(flood[3]->state, REQUEST_QUEUED); /* the youngest */
    ck_assert_uint_eq(flood[3]->n_pages, 0);
    ck_assert_uint_eq(flood[3]->n_out, out);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(flood[i]->state, REQUEST_RUNNING);
    run_all();
    check_end(flood[3], END_OK, FINISH_STOP, "abcdefghijklmnopqrstuvwxyz");
    sched_counts(w.sched, &counts);
    ck_assert_uint_eq(counts.displaced, 1);
    ck_assert_uint_eq(counts.prompt_tokens, 4 * 10 + 5); /* computed again is not counted again */
    world_fini();
}
END_TEST

START_TEST(a_newcomer_gets_pages_from_who_has_most)
{
    struct sched_opt opt = opt_default;
    struct request *flood[2], *one;

    opt.n_pages = 8;
    world_init(opt);
    for (uint32_t i = 0; i < 2; i++)
        flood[i] = submit_as(0, i, 10, 240); /* 4 pages each: all of them */
    sched_step(w.sched, fake_now);
    one = submit_as(1, 9, 5, 3);
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(one->state, REQUEST_RUNNING);
    ck_assert_int_eq(flood[1]->state, REQUEST_QUEUED);
    run_all();
    ck_assert_uint_eq(flood[0]->n_out, 240);
    ck_assert_uint_eq(flood[1]->n_out, 240);
    world_fini();
}
END_TEST

START_TEST(who_fills_the_queue_makes_room_for_who_does_not)
{
    struct request *flood[8], *one;

    world_init(opt_default); /* 4 run, 4 wait */
    for (uint32_t i = 0; i < 8; i++)
        flood[i] = submit_as(0, i, 10, 10);
    one = submit_as(1, 9, 5, 3);
    ck_assert_int_eq(one->state, REQUEST_QUEUED);
    check_end(flood[7], END_OVERLOADED, FINISH_NONE, ""); /* its youngest */
    ck_assert_uint_gt(flood[7]->retry_after_ns, 0);
    ck_assert_str_eq(flood[7]->message, "the queue is full, and 8 of it were this user's");
    ck_assert_int_eq(flood[6]->state, REQUEST_QUEUED);
    run_all();
    ck_assert_int_eq(one->status, END_OK);
    world_fini();
}
END_TEST

START_TEST(an_owner_beyond_its_limits_is_refused_with_both_numbers)
{
    struct sched_opt opt = opt_default;
    struct request *req;

    opt.client_limits.requests = 2;
    opt.client_limits.pages = 4;
    opt.client_limits.prompt_tokens = 100;
    world_init(opt);
    req = submit_as(0, 0, 10, 500);
    ck_assert_int_eq(req->status, END_OVERLOADED);
    ck_assert_uint_eq(req->have, 4);
    ck_assert_uint_eq(req->want, 8); /* 510 positions, cut to the context of 512 */
    sched_request_give(w.sched, req);
    submit_as(0, 0, 60, 1);
    req = submit_as(0, 1, 41, 1);
    ck_assert_int_eq(req->status, END_OVERLOADED);
    ck_assert_uint_eq(req->have, 100);
    ck_assert_uint_eq(req->want, 101);
    sched_request_give(w.sched, req);
    req = submit_as(0, 2, 40, 1);
    ck_assert_int_eq(req->state, REQUEST_QUEUED);
    req = submit_as(0, 3, 1, 1);
    ck_assert_int_eq(req->status, END_OVERLOADED);
    ck_assert_uint_eq(req->have, 2);
    ck_assert_uint_eq(req->want, 3);
    req = submit_as(1, 4, 100, 1); /* another owner has its own */
    ck_assert_int_eq(req->state, REQUEST_QUEUED);
    run_all();
    world_fini();
}
END_TEST

START_TEST(an_owner_at_its_page_limit_waits_for_itself_and_for_nobody_else)
{
    struct sched_opt opt = opt_default;
    struct request *first, *second, *other;

    opt.client_limits.pages = 4;
    world_init(opt);
    first = submit_as(0, 0, 10, 200);
    second = submit_as(0, 1, 10, 200);
    other = submit_as(1, 2, 10, 20);
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(first->state, REQUEST_RUNNING);
    ck_assert_int_eq(second->state, REQUEST_QUEUED);
    ck_assert_int_eq(other->state, REQUEST_RUNNING);
    run_all();
    ck_assert_uint_eq(second->n_out, 200);
    world_fini();
}
END_TEST

/* ---- slow readers ---------------------------------------------------------------------------- */

static const struct sched_opt opt_lag = {.running_max = 4,
                                         .queued_max = 4,
                                         .n_pages = 64,
                                         .n_ctx = 512,
                                         .chunk_rows = 16,
                                         .lag_tokens_max = 10,
                                         .lag_timeout_ns = 50 * STEP_NS};

START_TEST(a_request_whose_reader_lags_leaves_the_batch_with_its_pages_and_comes_back)
{
    struct request *slow, *other;
    struct sched_counts counts;

    world_init(opt_lag);
    slow = submit(0, 4, 40);
    other = submit(1, 4, 40);
    for (int i = 0; i < 20; i++) {
        sched_step(w.sched, fake_now);
        other->n_published = other->n_out;
    }
    ck_assert_int_eq(slow->state, REQUEST_PAUSED);
    ck_assert_uint_eq(slow->n_out, 11);
    ck_assert_uint_eq(slow->n_pages, 1);
    ck_assert_uint_eq(other->n_out, 20);
    slow->n_published = 5; /* 6 are unread: more than half */
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(slow->state, REQUEST_PAUSED);
    slow->n_published = 6;
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(slow->state, REQUEST_RUNNING);
    ck_assert_uint_eq(slow->n_out, 12);
    while (sched_has_work(w.sched)) {
        sched_step(w.sched, fake_now);
        slow->n_published = slow->n_out;
        other->n_published = other->n_out;
    }
    ck_assert_uint_eq(slow->n_out, 40);
    ck_assert_int_eq(slow->status, END_OK);
    sched_counts(w.sched, &counts);
    ck_assert_uint_eq(counts.pauses, 1);
    ck_assert_uint_eq(counts.slow, 0);
    world_fini();
}
END_TEST

START_TEST(a_reader_that_never_comes_back_ends_its_request_slow_and_gives_its_pages_back)
{
    struct request *slow;
    uint64_t due;

    world_init(opt_lag);
    slow = submit(0, 4, 40);
    while (sched_has_work(w.sched))
        sched_step(w.sched, fake_now);
    ck_assert_int_eq(slow->state, REQUEST_PAUSED);
    ck_assert_int_eq(sched_has_work(w.sched), 0); /* the loop may sleep */
    due = sched_expire(w.sched, w.now_ns);
    ck_assert_uint_eq(due, slow->paused_ns + 50 * STEP_NS);
    sched_expire(w.sched, due - 1);
    ck_assert_int_eq(slow->state, REQUEST_PAUSED);
    sched_expire(w.sched, due);
    check_end(slow, END_SLOW, FINISH_NONE, "aaaaaaaaaaa");
    ck_assert_uint_eq(slow->have, 10);
    ck_assert_uint_eq(slow->want, 11);
    ck_assert_str_eq(slow->message, "11 tokens were not read for 50 ms");
    world_fini();
}
END_TEST

START_TEST(a_paused_request_can_be_cancelled_and_ended)
{
    struct request *req[2];

    world_init(opt_lag);
    for (uint32_t i = 0; i < 2; i++)
        req[i] = submit(i, 4, 40);
    while (sched_has_work(w.sched))
        sched_step(w.sched, fake_now);
    req[0]->cancel = 1;
    sched_expire(w.sched, w.now_ns);
    ck_assert_int_eq(req[0]->status, END_CANCELLED);
    sched_end(w.sched, req[1], END_ABORTED, w.now_ns);
    ck_assert_int_eq(req[1]->status, END_ABORTED);
    world_fini();
}
END_TEST

/* ---- deadlines, cancels, the hook ------------------------------------------------------------ */

START_TEST(a_deadline_in_the_queue_ends_without_a_row)
{
    struct request *busy[4], *late, *at_once;

    world_init(opt_default);
    for (uint32_t i = 0; i < 4; i++)
        busy[i] = submit(i, 10, 40);
    sched_step(w.sched, fake_now);
    late = take(5, 10, 10);
    late->deadline_ns = w.now_ns + 3 * STEP_NS;
    sched_submit(w.sched, late, w.now_ns);
    ck_assert_uint_eq(sched_expire(w.sched, w.now_ns), late->deadline_ns);
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(late->state, REQUEST_QUEUED);
    ck_assert_uint_eq(sched_expire(w.sched, late->deadline_ns), 0);
    check_end(late, END_DEADLINE, FINISH_NONE, "");
    ck_assert_uint_eq(late->stamp[STAMP_DONE], late->deadline_ns);
    at_once = take(6, 10, 10);
    at_once->deadline_ns = w.now_ns;
    sched_submit(w.sched, at_once, w.now_ns);
    check_end(at_once, END_DEADLINE, FINISH_NONE, "");
    run_all();
    ck_assert_uint_eq(w.script[5].rows_total, 0);
    ck_assert_uint_eq(w.script[6].rows_total, 0);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(busy[i]->n_out, 40);
    world_fini();
}
END_TEST

START_TEST(a_running_request_past_its_deadline_ends_at_the_step_boundary_with_its_text)
{
    struct request *req;

    world_init(opt_default);
    req = take(0, 4, 100);
    req->deadline_ns = w.now_ns + 3 * STEP_NS + 1;
    sched_submit(w.sched, req, w.now_ns);
    run_all();
    check_end(req, END_DEADLINE, FINISH_NONE, "aaaa");
    ck_assert_uint_eq(w.script[0].rows_total, 4 + 3);
    ck_assert_str_eq(req->message, "the deadline has passed");
    world_fini();
}
END_TEST

static struct request *hooked;

static void hook_cancels(void)
{
    hooked->cancel = 1;
    sched_expire(w.sched, w.now_ns);
    ck_assert_int_eq(hooked->state, REQUEST_RUNNING); /* its rows are in the step */
}

START_TEST(a_cancel_takes_effect_within_a_step_wherever_the_request_is)
{
    struct request *queued, *prefill, *decode, *text, *other;

    world_init(opt_default);
    other = submit(0, 4, 30);
    prefill = submit(1, 200, 30);
    decode = submit(2, 4, 30);
    submit(3, 4, 30);
    queued = submit(4, 4, 30);
    text = take(5, 4, 30);
    text->cancel = 1;
    sched_submit(w.sched, text, w.now_ns);
    check_end(text, END_CANCELLED, FINISH_NONE, "");
    sched_step(w.sched, fake_now);
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(prefill->state, REQUEST_RUNNING);
    ck_assert_uint_gt(decode->n_out, 0);
    queued->cancel = prefill->cancel = decode->cancel = 1;
    sched_step(w.sched, fake_now);
    ck_assert_int_eq(queued->status, END_CANCELLED);
    ck_assert_int_eq(prefill->status, END_CANCELLED);
    ck_assert_int_eq(decode->status, END_CANCELLED);
    ck_assert_uint_eq(w.script[1].rows, 0);
    ck_assert_uint_eq(w.script[4].rows_total, 0);
    decode->cancel = 1; /* after the end, twice */
    sched_end(w.sched, decode, END_CANCELLED, w.now_ns);
    run_all();
    ck_assert_uint_eq(other->n_out, 30);
    ck_assert_int_eq(decode->status, END_CANCELLED);
    world_fini();
}
END_TEST

START_TEST(a_cancel_in_the_step_of_the_last_token_is_one_cancel)
{
    struct sched_counts counts;

    world_init(opt_default);
    hooked = submit(0, 4, 1);
    w.hook = hook_cancels;
    sched_step(w.sched, fake_now);
    check_end(hooked, END_CANCELLED, FINISH_NONE, "");
    ck_assert_str_eq(hooked->message, "cancelled by the client");
    sched_counts(w.sched, &counts);
    ck_assert_uint_eq(counts.cancelled, 1);
    ck_assert_uint_eq(counts.finished + counts.failed, 0);
    world_fini();
}
END_TEST

static struct request *hook_new;

static void hook_ends_and_submits(void)
{
    w.hook = NULL;
    sched_end(w.sched, hooked, END_SLOW, w.now_ns);
    sched_end(w.sched, hooked, END_ABORTED, w.now_ns); /* the first one counts */
    ck_assert_int_eq(hooked->state, REQUEST_RUNNING);
    hook_new = submit(5, 4, 3);
    ck_assert_int_eq(hook_new->state, REQUEST_QUEUED);
}

START_TEST(the_hook_may_end_take_and_submit_in_the_middle_of_a_step)
{
    struct request *other;

    world_init(opt_default);
    hooked = submit(0, 4, 10);
    other = submit(1, 4, 10);
    sched_step(w.sched, fake_now);
    w.hook = hook_ends_and_submits;
    sched_step(w.sched, fake_now);
    check_end(hooked, END_SLOW, FINISH_NONE, "a");
    run_all();
    ck_assert_uint_eq(hook_new->n_out, 3);
    ck_assert_uint_eq(other->n_out, 10);
    world_fini();
}
END_TEST

START_TEST(ending_before_submit_counts_by_status)
{
    struct sched_counts counts;
    struct request *tokenized, *refused, *gone;

    world_init(opt_default);
    tokenized = take(0, 4, 10);
    tokenized->op = REQUEST_TOKENIZE;
    refused = take(1, 4, 10);
    gone = take(2, 4, 10);
    sched_counts(w.sched, &counts);
    ck_assert_uint_eq(counts.text, 3);
    sched_end(w.sched, tokenized, END_OK, w.now_ns);
    sched_end(w.sched, refused, END_UNSUPPORTED, w.now_ns);
    sched_end(w.sched, gone, END_CANCELLED, w.now_ns);
    sched_counts(w.sched, &counts);
    ck_assert_uint_eq(counts.text, 0);
    ck_assert_uint_eq(counts.finished, 1);
    ck_assert_uint_eq(counts.failed, 1);
    ck_assert_uint_eq(counts.cancelled, 1);
    world_fini();
}
END_TEST

START_TEST(stamps_follow_the_stages)
{
    struct request *req;

    world_init(opt_default);
    req = submit(0, 40, 5); /* three steps of prompt, then four */
    w.now_ns += 500;
    run_all();
    ck_assert_uint_eq(req->stamp[STAMP_ADMITTED], 1000);
    ck_assert_uint_eq(req->stamp[STAMP_PREFILL], 1500);
    ck_assert_uint_eq(req->stamp[STAMP_FIRST], 1500 + 3 * STEP_NS);
    ck_assert_uint_eq(req->stamp[STAMP_LAST], 1500 + 7 * STEP_NS);
    ck_assert_uint_eq(req->stamp[STAMP_DONE], 1500 + 7 * STEP_NS);
    world_fini();
}
END_TEST

START_TEST(a_slot_used_again_remembers_nothing)
{
    struct request *req;

    world_init(opt_default);
    for (uint32_t i = 0; i < 50; i++) {
        script_text(i % SCRIPTS, "some words");
        req = take(i % SCRIPTS, 70, 30);
        stop_at(req, i % 2 ? "words" : "wordy");
        sched_submit(w.sched, req, w.now_ns);
        run_all();
        check_end(req, END_OK, FINISH_STOP, i % 2 ? "some " : "some words");
        ck_assert_str_eq(req->message, "");
        sched_request_give(w.sched, req);
        ck_assert_int_eq(req->state, REQUEST_FREE);
    }
    world_fini();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sched");
    TCase *tc = tcase_create("sched");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc,
                   a_prompt_up_to_the_context_runs_and_a_longer_one_is_refused_with_both_numbers);
    tcase_add_test(tc, a_model_that_never_ends_stops_at_the_context_limit);
    tcase_add_test(tc, max_tokens_0_evaluates_the_prompt_and_generates_nothing);
    tcase_add_test(tc, max_tokens_counts_exactly);
    tcase_add_test(tc, eos_as_the_first_token_gives_no_token_and_stop);
    tcase_add_test(tc, ignore_eos_goes_on_and_keeps_the_id);
    tcase_add_test(tc, ids_outside_the_vocabulary_are_refused_by_name);
    tcase_add_test(tc, an_empty_prompt_is_refused_unless_the_model_adds_a_bos);
    tcase_add_test(tc, output_beyond_its_memory_ends_the_request_and_says_so);
    tcase_add_test(tc, options_that_cannot_work_are_refused);
    tcase_add_test(tc, the_context_is_never_larger_than_the_pool);
    tcase_add_test(tc, each_piece_is_whole_characters_and_they_join_to_the_text);
    tcase_add_test(tc, a_limit_inside_a_character_ends_at_the_last_whole_one);
    tcase_add_test(tc, incomplete_bytes_before_eos_come_raw);
    tcase_add_test(tc, nothing_from_a_stop_string_on_is_delivered_or_counted);
    tcase_add_test(tc, text_that_only_began_like_a_stop_string_comes_at_the_end);
    tcase_add_test(tc, a_stop_id_ends_and_is_not_part_of_the_output);
    tcase_add_test(tc, a_resumed_stream_is_the_whole_stream_wherever_it_was_cut);
    tcase_add_test(tc, received_ids_count_towards_max_tokens);
    tcase_add_test(tc, a_stop_string_among_received_ids_ends_at_once);
    tcase_add_test(tc, a_resume_that_cannot_be_is_refused);
    tcase_add_test(tc, a_tokenize_past_its_deadline_or_with_a_wrong_stop_id_is_no_success);
    tcase_add_test(tc, a_row_that_is_not_finite_ends_its_own_request_only);
    tcase_add_test(
        tc, logprobs_come_for_every_token_but_the_first_however_few_rows_of_logits_there_are);
    tcase_add_test(tc, a_long_prompt_advances_every_step_and_delays_no_decode_row);
    tcase_add_test(tc, short_prompts_behind_long_ones_get_their_first_token_in_a_few_chunks);
    tcase_add_test(tc, equal_prompts_are_served_in_order_of_arrival);
    tcase_add_test(tc, a_request_waits_for_its_pages_and_nobody_overtakes_it);
    tcase_add_test(tc,
                   when_pages_run_out_the_youngest_without_max_tokens_ends_with_its_text_so_far);
    tcase_add_test(tc, more_requests_than_places_are_refused_at_once_with_a_hint);
    tcase_add_test(tc, the_hint_grows_with_the_step_time_and_the_prompts_that_wait);
    tcase_add_test(tc, owners_with_prompts_get_equal_parts_of_the_rows);
    tcase_add_test(tc,
                   a_newcomer_gets_a_place_from_who_has_most_and_the_displaced_one_loses_nothing);
    tcase_add_test(tc, a_newcomer_gets_pages_from_who_has_most);
    tcase_add_test(tc, who_fills_the_queue_makes_room_for_who_does_not);
    tcase_add_test(tc, an_owner_beyond_its_limits_is_refused_with_both_numbers);
    tcase_add_test(tc, an_owner_at_its_page_limit_waits_for_itself_and_for_nobody_else);
    tcase_add_test(tc, a_request_whose_reader_lags_leaves_the_batch_with_its_pages_and_comes_back);
    tcase_add_test(tc,
                   a_reader_that_never_comes_back_ends_its_request_slow_and_gives_its_pages_back);
    tcase_add_test(tc, a_paused_request_can_be_cancelled_and_ended);
    tcase_add_test(tc, a_deadline_in_the_queue_ends_without_a_row);
    tcase_add_test(tc, a_running_request_past_its_deadline_ends_at_the_step_boundary_with_its_text);
    tcase_add_test(tc, a_cancel_takes_effect_within_a_step_wherever_the_request_is);
    tcase_add_test(tc, a_cancel_in_the_step_of_the_last_token_is_one_cancel);
    tcase_add_test(tc, the_hook_may_end_take_and_submit_in_the_middle_of_a_step);
    tcase_add_test(tc, ending_before_submit_counts_by_status);
    tcase_add_test(tc, stamps_follow_the_stages);
    tcase_add_test(tc, a_slot_used_again_remembers_nothing);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
