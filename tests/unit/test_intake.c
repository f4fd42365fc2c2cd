/* SPDX-License-Identifier: Apache-2.0 */
/* intake.c against a fake transport: each wrong field of a request ends it with a status and a
 * name. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "runtime/intake.h"
#include "tests/unit/fake_io.h"

#define TEXT_MAX 4096
#define CTX      64

static struct model model = {.n_ctx = CTX};
static struct intake intake;
static struct request req;
static struct job job;
static struct tkr_sqe sqe;
static struct tkr_param param;
static struct tkr_tail tail[TKR_TAIL_MAX];
static uint32_t tokens[CTX + 1];
static uint32_t out_ids[CTX + 1];
static uint8_t text[TEXT_MAX];

static void setup(void)
{
    fake_reset();
    memset(&req, 0, sizeof req);
    memset(&job, 0, sizeof job);
    memset(&param, 0, sizeof param);
    memset(tail, 0, sizeof tail);
    req.tokens = tokens;
    req.out_ids = out_ids;
    job.req = &req;
    job.text = text;
    job.text_max = TEXT_MAX;
    intake = (struct intake){.model = &model, .model_gen = 2, .has_template = 1, .seed_base = 1};
    sqe = (struct tkr_sqe){
        .op = TKR_OP_GENERATE, .user = 9, .data_kind = TKR_DATA_TEXT, .max_tokens = 16};
    param.head_len = sizeof param;
    memcpy(fake.arena + 32768, "hello", 5);
    sqe.data_off = 32768;
    sqe.data_len = 5;
}

static int read_sqe(void)
{
    struct tkr_param head;

    return intake_read(&intake, &job, &sqe, intake_head(job.client, &sqe, &head));
}

/* Parameters stand at arena offset 0, tail texts from 16384 on. */
static int read_slot(void)
{
    sqe.param_off = 0;
    sqe.param_len = (uint32_t)(sizeof param + param.n_tail * sizeof tail[0]);
    memcpy(fake.arena, &param, sizeof param);
    memcpy(fake.arena + sizeof param, tail, param.n_tail * sizeof tail[0]);
    return read_sqe();
}

static void refused(enum tkr_status status, const char *names)
{
    ck_assert_int_eq(read_slot(), -EINVAL);
    ck_assert_int_eq((int)req.status, (int)status);
    ck_assert_msg(strstr(req.message, names) != NULL, "'%s' is not in '%s'", names, req.message);
}

START_TEST(a_plain_text_request_is_copied)
{
    ck_assert_int_eq(read_slot(), 0);
    ck_assert_uint_eq(job.n_text, 5);
    ck_assert_mem_eq(job.text, "hello", 5);
    ck_assert_uint_eq(req.max_tokens, 16);
    memcpy(fake.arena + 32768, "HELLO", 5); /* rewritten after submit: the copy is what counts */
    ck_assert_mem_eq(job.text, "hello", 5);
}
END_TEST

START_TEST(no_parameter_block_means_greedy_defaults)
{
    ck_assert_int_eq(read_sqe(), 0);
    ck_assert(req.sampling.temperature == 0.0f);
    ck_assert_int_eq(req.ignore_eos, 0);
}
END_TEST

START_TEST(sampling_values_out_of_range_or_not_finite_are_refused_by_name)
{
    const float bad[] = {-0.5f, 101.0f, NAN, INFINITY, -INFINITY};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setup();
        param.temperature = bad[i];
        refused(TKR_E_INVALID, "temperature");
        setup();
        param.top_p = bad[i];
        refused(TKR_E_INVALID, "top_p");
        setup();
        param.min_p = bad[i];
        refused(TKR_E_INVALID, "min_p");
    }
    setup();
    param.top_k = UINT32_MAX;
    refused(TKR_E_INVALID, "top_k: 4294967295 is outside 0 .. ");
    setup();
    sqe.max_tokens = UINT32_MAX - 1;
    refused(TKR_E_INVALID, "max_tokens: 4294967294 is outside 0 .. ");
}
END_TEST

START_TEST(a_tenant_is_taken_from_users_that_may_speak_for_others_and_denied_to_all_else)
{
    setup();
    param.tenant = 77;
    refused(TKR_E_DENIED, "tenant: this user may not speak for others");
    setup();
    fake.trusted = 1;
    param.tenant = 77;
    ck_assert_int_eq(read_slot(), 0);
    setup();
    fake.trusted = 1;
    param.tenant = 77;
    param.prefix = 1; /* all else is refused to them as to everybody */
    refused(TKR_E_UNSUPPORTED, "prefix");
}
END_TEST

START_TEST(the_head_is_read_once_so_who_a_request_is_for_cannot_change)
{
    struct tkr_param head;
    const struct tkr_param *got;

    setup();
    fake.trusted = 1;
    param.tenant = 77;
    ck_assert_int_eq(read_slot(), 0);
    got = intake_head(NULL, &sqe, &head);
    ck_assert_ptr_eq(got, &head);
    param.tenant = 78, param.temperature = 200; /* rewritten after that: the copy is what counts */
    memcpy(fake.arena, &param, sizeof param);
    ck_assert_uint_eq(got->tenant, 77);
    ck_assert_int_eq(intake_read(&intake, &job, &sqe, got), 0);
    sqe.param_len = 0;
    ck_assert_ptr_null(intake_head(NULL, &sqe, &head));
    sqe.param_len = 127;
    ck_assert_ptr_null(intake_head(NULL, &sqe, &head));
    sqe.param_len = 128, sqe.param_off = sizeof fake.arena - 120;
    ck_assert_ptr_null(intake_head(NULL, &sqe, &head));
}
END_TEST

START_TEST(a_field_that_is_not_implemented_must_be_zero)
{
    setup(), param.prefix = 1, refused(TKR_E_UNSUPPORTED, "prefix");
    setup(), param.grammar = 1, refused(TKR_E_UNSUPPORTED, "grammar");
    setup(), param.labels = 1, refused(TKR_E_UNSUPPORTED, "labels");
    setup(), param.on_late = TKR_LATE_KEEP, refused(TKR_E_UNSUPPORTED, "on_late");
    setup(), param.n_logprobs = 3, refused(TKR_E_UNSUPPORTED, "n_logprobs");
    setup(), param.repeat = 1.1f, refused(TKR_E_UNSUPPORTED, "repeat");
    setup(), param.repeat = NAN, refused(TKR_E_UNSUPPORTED, "repeat");
    setup(), param.flags = 8, refused(TKR_E_UNSUPPORTED, "flags");
    setup(), param.n_tail = 1, tail[0].kind = TKR_TAIL_BIAS,
             refused(TKR_E_UNSUPPORTED, "tail kind 5");
}
END_TEST

START_TEST(reserved_bytes_must_be_zero)
{
    setup(), param.reserved[23] = 1, refused(TKR_E_INVALID, "reserved");
    setup(), param.reserved0 = 1, refused(TKR_E_INVALID, "reserved");
}
END_TEST

START_TEST(a_parameter_block_of_the_wrong_size_is_refused)
{
    setup(), param.head_len = 64, refused(TKR_E_INVALID, "head_len");
    setup(), param.n_tail = TKR_TAIL_MAX + 1;
    sqe.param_len = 128;
    memcpy(fake.arena, &param, sizeof param);
    ck_assert_int_eq(read_sqe(), -EINVAL);
    ck_assert_msg(strstr(req.message, "n_tail: 65") != NULL, "%s", req.message);
    setup(), param.n_tail = 1;
    sqe.param_len = 128;
    memcpy(fake.arena, &param, sizeof param);
    ck_assert_int_eq(read_sqe(), -EINVAL);
    ck_assert_msg(strstr(req.message, "param_len") != NULL, "%s", req.message);
    setup(), sqe.param_len = 128, sqe.param_off = 4;
    ck_assert_int_eq(read_sqe(), -EINVAL);
    ck_assert_msg(strstr(req.message, "param_off") != NULL, "%s", req.message);
}
END_TEST

START_TEST(another_model_or_generation_is_refused)
{
    setup(), sqe.model = 3, refused(TKR_E_NO_MODEL, "model");
    setup(), param.model_gen = 4, refused(TKR_E_MISMATCH, "model_gen: 4, the model has 2");
    setup(), param.model_gen = 2;
    ck_assert_int_eq(read_slot(), 0);
}
END_TEST

START_TEST(a_prompt_larger_than_the_limit_is_refused_with_both_numbers)
{
    setup(), sqe.data_off = 0, sqe.data_len = TEXT_MAX + 1,
             refused(TKR_E_INVALID, "prompt bytes: 4097");
    ck_assert_uint_eq(req.have, TEXT_MAX);
    ck_assert_uint_eq(req.want, TEXT_MAX + 1);
    setup(), sqe.data_kind = TKR_DATA_TOKENS, sqe.data_off = 0, sqe.data_len = (CTX + 1) * 4;
    refused(TKR_E_CONTEXT, "prompt of 65 tokens, the context has 64");
    ck_assert_uint_eq(req.have, CTX);
    ck_assert_uint_eq(req.want, CTX + 1);
}
END_TEST

START_TEST(ids_of_odd_length_or_place_are_refused)
{
    setup(), sqe.data_kind = TKR_DATA_TOKENS, sqe.data_len = 7, refused(TKR_E_INVALID, "token ids");
    setup(), sqe.data_kind = TKR_DATA_TOKENS, sqe.data_off = 2, sqe.data_len = 8,
             refused(TKR_E_INVALID, "token ids");
}
END_TEST

static void stop_text(const char *s, uint32_t n)
{
    memcpy(fake.arena + 16384, s, n);
    tail[param.n_tail++] = (struct tkr_tail){.kind = TKR_TAIL_STOP_TEXT, .off = 16384, .bytes = n};
}

START_TEST(stop_strings_have_limits_in_number_and_length)
{
    char longest[TKR_STOP_BYTES_MAX + 1];

    memset(longest, 's', sizeof longest);
    setup(), stop_text(longest, TKR_STOP_BYTES_MAX);
    ck_assert_int_eq(read_slot(), 0);
    ck_assert_uint_eq(req.detok.n_stops, 1);
    setup(), stop_text(longest, sizeof longest), refused(TKR_E_INVALID, "stop: 257 bytes");
    setup(), stop_text("", 0), refused(TKR_E_INVALID, "stop: 0 bytes");
    setup();
    for (uint32_t i = 0; i <= TKR_STOPS_MAX; i++)
        stop_text("x", 1);
    refused(TKR_E_INVALID, "at most 16 stop strings");
}
END_TEST

START_TEST(more_stop_ids_than_the_limit_are_refused)
{
    setup();
    tail[0] = (struct tkr_tail){.kind = TKR_TAIL_STOP_IDS,
                                .off = 16384,
                                .bytes = 4 * (TKR_STOP_IDS_MAX + 1),
                                .count = TKR_STOP_IDS_MAX + 1};
    param.n_tail = 1;
    refused(TKR_E_INVALID, "stop ids: 65");
    setup();
    tail[0] = (struct tkr_tail){.kind = TKR_TAIL_STOP_IDS, .off = 16384, .bytes = 5, .count = 1};
    param.n_tail = 1;
    refused(TKR_E_INVALID, "stop ids: 5 bytes for 1 ids");
}
END_TEST

START_TEST(messages_are_copied_with_their_roles)
{
    sqe.data_kind = TKR_DATA_MESSAGES;
    sqe.data_len = 0;
    memcpy(fake.arena + 16384, "be briefhi", 10);
    tail[0] = (struct tkr_tail){
        .kind = TKR_TAIL_MESSAGE, .flags = TKR_ROLE_SYSTEM, .off = 16384, .bytes = 8};
    tail[1] = (struct tkr_tail){
        .kind = TKR_TAIL_MESSAGE, .flags = TKR_ROLE_USER, .off = 16392, .bytes = 2};
    param.n_tail = 2;
    ck_assert_int_eq(read_slot(), 0);
    ck_assert_uint_eq(job.n_messages, 2);
    ck_assert_uint_eq(job.messages[0].n, 8);
    ck_assert_mem_eq(job.messages[1].text, "hi", 2);
    ck_assert_uint_eq(job.messages[1].role, TKR_ROLE_USER);
}
END_TEST

START_TEST(wrong_messages_are_refused)
{
    setup(), sqe.data_kind = TKR_DATA_MESSAGES, sqe.data_len = 0,
             refused(TKR_E_INVALID, "at least one message");
    setup(), sqe.data_kind = TKR_DATA_MESSAGES, refused(TKR_E_INVALID, "data_len");
    setup(), sqe.data_kind = TKR_DATA_MESSAGES, sqe.data_len = 0, param.n_tail = 1;
    tail[0] = (struct tkr_tail){.kind = TKR_TAIL_MESSAGE, .flags = 4, .off = 16384, .bytes = 1};
    refused(TKR_E_INVALID, "message role: 4 is outside 0 .. 3");
    setup(), sqe.data_kind = TKR_DATA_MESSAGES, sqe.data_len = 0, param.n_tail = 1;
    tail[0] = (struct tkr_tail){.kind = TKR_TAIL_MESSAGE, .flags = 1, .off = 65535, .bytes = 2};
    refused(TKR_E_INVALID, "outside the arena");
    setup(), intake.has_template = 0, sqe.data_kind = TKR_DATA_MESSAGES,
             refused(TKR_E_INVALID, "no chat template");
    setup(), sqe.data_kind = 9, refused(TKR_E_INVALID, "data_kind: 9");
}
END_TEST

START_TEST(a_tail_entry_with_fields_of_another_kind_is_refused)
{
    setup(), stop_text("x", 1), tail[0].count = 1, refused(TKR_E_INVALID, "tail count");
    setup(), stop_text("x", 1), tail[0].flags = 1, refused(TKR_E_INVALID, "tail flags");
    setup(), param.n_tail = 1, tail[0].kind = 99, refused(TKR_E_INVALID, "tail kind 99: unknown");
}
END_TEST

START_TEST(a_seed_is_drawn_once_per_request_when_none_was_given)
{
    uint64_t first;

    ck_assert_int_eq(read_slot(), 0);
    first = req.sampling.seed;
    setup(), intake.seed_count = 1;
    ck_assert_int_eq(read_slot(), 0);
    ck_assert_uint_ne(req.sampling.seed, first);
    setup(), param.flags = TKR_PARAM_SEED, param.seed = 42;
    ck_assert_int_eq(read_slot(), 0);
    ck_assert_uint_eq(req.sampling.seed, 42);
}
END_TEST

static void resume_ids(uint32_t n)
{
    static const uint32_t ids[CTX + 1] = {11, 12, 13};

    memcpy(fake.arena + 20480, ids, n * sizeof *ids);
    tail[param.n_tail++] =
        (struct tkr_tail){.kind = TKR_TAIL_RESUME_IDS, .off = 20480, .bytes = 4 * n, .count = n};
    sqe.resume_pos = n;
}

START_TEST(a_request_may_begin_with_the_ids_that_its_client_has)
{
    resume_ids(3);
    param.resume_bytes = 7;
    ck_assert_int_eq(read_slot(), 0);
    ck_assert_uint_eq(req.n_resume, 3);
    ck_assert_uint_eq(req.n_out, 3);
    ck_assert_uint_eq(req.out_ids[2], 13);
    ck_assert_uint_eq(req.resume_bytes, 7);
    ck_assert_uint_eq(job.ids_out, 3);
    ck_assert_uint_eq(job.bytes_out, 7);
    setup(), resume_ids(3), param.temperature = 0.5f, param.flags = TKR_PARAM_SEED;
    ck_assert_int_eq(read_slot(), 0);
}
END_TEST

START_TEST(a_resume_whose_numbers_disagree_is_refused)
{
    setup(), resume_ids(3), sqe.resume_pos = 2,
                            refused(TKR_E_INVALID, "resume_pos: 2, but 3 resume ids");
    setup(), sqe.resume_pos = 2, refused(TKR_E_INVALID, "resume_pos: 2, but 0 resume ids");
    setup(), param.resume_bytes = 2, refused(TKR_E_INVALID, "resume_bytes");
    setup(), resume_ids(3), resume_ids(3), refused(TKR_E_INVALID, "given twice");
    setup(), resume_ids(3), tail[0].bytes = 11, refused(TKR_E_INVALID, "11 bytes for 3 ids");
    setup(), resume_ids(3), tail[0].off = 65530, refused(TKR_E_INVALID, "outside the arena");
    setup(), resume_ids(CTX + 1), refused(TKR_E_CONTEXT, "resume_pos: 65 ids");
    setup(), resume_ids(3), param.temperature = 0.5f, refused(TKR_E_INVALID, "seed");
    setup(), resume_ids(3), sqe.op = TKR_OP_LOGPROBS, refused(TKR_E_INVALID, "only GENERATE");
    setup(), sqe.resume_pos = 2;
    ck_assert_int_eq(read_sqe(), -EINVAL); /* no parameter block at all */
}
END_TEST

START_TEST(random_bytes_never_pass_with_a_value_out_of_range)
{
    srand(3);
    for (int i = 0; i < 200000; i++) {
        uint8_t *bytes = (uint8_t *)&param;

        setup();
        for (int k = 0; k < 1 + i % 4; k++)
            bytes[rand() % (int)sizeof param] = (uint8_t)rand();
        param.n_tail = (uint16_t)(param.n_tail % 3);
        for (size_t k = 0; k < sizeof tail[0] * param.n_tail; k++)
            ((uint8_t *)tail)[k] = (uint8_t)(rand() % 8);
        if (read_slot() < 0) {
            ck_assert_int_ne((int)req.status, TKR_OK);
            ck_assert(req.message[0] != 0);
            continue;
        }
        ck_assert(req.sampling.temperature >= 0.0f && req.sampling.temperature <= 100.0f);
        ck_assert(req.sampling.top_p >= 0.0f && req.sampling.top_p <= 1.0f);
        ck_assert_uint_le(req.n_stop_ids, TKR_STOP_IDS_MAX);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("intake");
    TCase *tc = tcase_create("intake");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_plain_text_request_is_copied);
    tcase_add_test(tc, no_parameter_block_means_greedy_defaults);
    tcase_add_test(tc, sampling_values_out_of_range_or_not_finite_are_refused_by_name);
    tcase_add_test(tc,
                   a_tenant_is_taken_from_users_that_may_speak_for_others_and_denied_to_all_else);
    tcase_add_test(tc, the_head_is_read_once_so_who_a_request_is_for_cannot_change);
    tcase_add_test(tc, a_field_that_is_not_implemented_must_be_zero);
    tcase_add_test(tc, reserved_bytes_must_be_zero);
    tcase_add_test(tc, a_parameter_block_of_the_wrong_size_is_refused);
    tcase_add_test(tc, another_model_or_generation_is_refused);
    tcase_add_test(tc, a_prompt_larger_than_the_limit_is_refused_with_both_numbers);
    tcase_add_test(tc, ids_of_odd_length_or_place_are_refused);
    tcase_add_test(tc, stop_strings_have_limits_in_number_and_length);
    tcase_add_test(tc, more_stop_ids_than_the_limit_are_refused);
    tcase_add_test(tc, messages_are_copied_with_their_roles);
    tcase_add_test(tc, wrong_messages_are_refused);
    tcase_add_test(tc, a_tail_entry_with_fields_of_another_kind_is_refused);
    tcase_add_test(tc, a_seed_is_drawn_once_per_request_when_none_was_given);
    tcase_add_test(tc, a_request_may_begin_with_the_ids_that_its_client_has);
    tcase_add_test(tc, a_resume_whose_numbers_disagree_is_refused);
    tcase_add_test(tc, random_bytes_never_pass_with_a_value_out_of_range);
    suite_add_tcase(suite, tc);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
