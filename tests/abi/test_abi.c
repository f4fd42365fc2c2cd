/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire ABI, byte for byte. The right-hand sides are written by hand from the tables of
 * docs/abi.md: offset and the bytes that lie there, little endian; whatever is not named is zero. A
 * change here is a change of the wire.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "shm/abi.h"

struct at {
    unsigned off;
    const char *hex;
};

static void golden(const char *name, const void *object, size_t bytes, const struct at *want,
                   size_t n)
{
    uint8_t wanted[256] = {0};

    ck_assert_uint_le(bytes, sizeof wanted);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(want[i].hex) / 2;

        ck_assert_uint_le(want[i].off + len, bytes);
        for (size_t b = 0; b < len; b++) {
            unsigned value;

            ck_assert_int_eq(sscanf(want[i].hex + 2 * b, "%2x", &value), 1);
            wanted[want[i].off + b] = (uint8_t)value;
        }
    }
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg(((const uint8_t *)object)[i] == wanted[i],
                      "%s: byte 0x%02zx is %02x, the table says %02x", name, i,
                      ((const uint8_t *)object)[i], wanted[i]);
}

#define GOLDEN(object, ...)                                                                        \
    golden(#object, &(object), sizeof(object), (const struct at[]){__VA_ARGS__},                   \
           sizeof((const struct at[]){__VA_ARGS__}) / sizeof(struct at))

START_TEST(a_submission_slot_has_the_bytes_of_the_table)
{
    struct tkr_sqe sqe = {.seq = 0x04030201,
                          .op = 0x05,
                          .flags = 0x06,
                          .tag = 0x0807,
                          .user = 0x100f0e0d0c0b0a09,
                          .data_off = 0x14131211,
                          .data_len = 0x18171615,
                          .param_off = 0x1c1b1a19,
                          .max_tokens = 0x201f1e1d,
                          .resume_pos = 0x24232221,
                          .model = 0x2625,
                          .data_kind = 0x27,
                          .class_ = 0x28,
                          .deadline_ns = 0x302f2e2d2c2b2a29,
                          .session = 0x3837363534333231,
                          .param_len = 0x3c3b3a39,
                          .reserved = 0x403f3e3d};

    GOLDEN(sqe, {0x00, "01020304"}, {0x04, "05"}, {0x05, "06"}, {0x06, "0708"},
           {0x08, "090a0b0c0d0e0f10"}, {0x10, "11121314"}, {0x14, "15161718"}, {0x18, "191a1b1c"},
           {0x1c, "1d1e1f20"}, {0x20, "21222324"}, {0x24, "2526"}, {0x26, "27"}, {0x27, "28"},
           {0x28, "292a2b2c2d2e2f30"}, {0x30, "3132333435363738"}, {0x38, "393a3b3c"},
           {0x3c, "3d3e3f40"});
}
END_TEST

START_TEST(a_token_line_carries_four_ids_and_24_bytes_of_text)
{
    struct tkr_cqe cqe = {
        .seq = 0x04030201,
        .kind = TKR_CQE_TOKEN,
        .ntok = 4,
        .nbytes = 24,
        .flags = TKR_CQE_MORE | TKR_CQE_RAW,
        .user = 0x100f0e0d0c0b0a09,
        .pos = 0x14131211,
        .tag = 0x1615,
        .status = 0x1817,
        .u.token = {.tok = {0x1c1b1a19, 2, 3, 0xc0000000}, .utf8 = "abcdefghijklmnopqrstuvw"}};

    cqe.u.token.utf8[23] = 'x';
    GOLDEN(cqe, {0x00, "01020304"}, {0x04, "01"}, {0x05, "04"}, {0x06, "18"}, {0x07, "03"},
           {0x08, "090a0b0c0d0e0f10"}, {0x10, "11121314"}, {0x14, "1516"}, {0x16, "1718"},
           {0x18, "191a1b1c"}, {0x1c, "02000000"}, {0x20, "03000000"}, {0x24, "000000c0"},
           {0x28, "6162636465666768696a6b6c6d6e6f707172737475767778"});
}
END_TEST

START_TEST(the_other_completions_have_the_bytes_of_the_table)
{
    struct tkr_cqe bulk = {.kind = TKR_CQE_BULK,
                           .u.bulk = {.off = 0x04030201,
                                      .bytes = 0x08070605,
                                      .count = 0x0c0b0a09,
                                      .type = TKR_BULK_F32,
                                      .dim = 7}};
    struct tkr_cqe logprob = {.kind = TKR_CQE_LOGPROB,
                              .u.logprob = {.id = {1, 2, 3, 4}, .lp = {-1.0f, 0.5f, -2.0f, 1.0f}}};
    struct tkr_cqe progress = {.kind = TKR_CQE_PROGRESS,
                               .u.progress = {.done = 0x11, .total = 0x22}};
    struct tkr_cqe done = {
        .kind = TKR_CQE_DONE, .flags = TKR_CQE_NO_RESULT, .status = TKR_E_OVERLOADED};

    GOLDEN(bulk, {0x04, "02"}, {0x18, "01020304"}, {0x1c, "05060708"}, {0x20, "090a0b0c"},
           {0x24, "0200"}, {0x26, "0700"});
    /* IEEE 754: -1 is bf800000, 0.5 is 3f000000, -2 is c0000000, 1 is 3f800000. */
    GOLDEN(logprob, {0x04, "03"}, {0x18, "01000000020000000300000004000000"}, {0x28, "000080bf"},
           {0x2c, "0000003f"}, {0x30, "000000c0"}, {0x34, "0000803f"});
    GOLDEN(progress, {0x04, "04"}, {0x18, "11000000"}, {0x1c, "22000000"});
    /* 5 with the retry bit 0x8000. */
    GOLDEN(done, {0x04, "05"}, {0x07, "04"}, {0x16, "0580"});
}
END_TEST

START_TEST(a_result_record_has_the_bytes_of_the_table)
{
    struct tkr_result result = {.user = 0x0807060504030201,
                                .status = 0x0a09,
                                .finish = 0x0b,
                                .served = 0x0c,
                                .model = 0x0e0d,
                                .adapter = 0x100f,
                                .prompt = 0x14131211,
                                .cached = 0x18171615,
                                .output = 0x1c1b1a19,
                                .discarded = 0x201f1e1d,
                                .retry_after_ns = 0x2827262524232221,
                                .seed = 0x302f2e2d2c2b2a29,
                                .session = 0x3837363534333231,
                                .stamp = {1, 2, 3, 4, 5, 6, 7},
                                .have = 0x77,
                                .want = 0x88,
                                .bulk_off = 0x99,
                                .bulk_len = 0xaa,
                                .message = "A"};

    result.model_hash[0] = 0x39;
    result.model_hash[31] = 0x58;
    result.message[79] = 'z';
    GOLDEN(result, {0x00, "0102030405060708"}, {0x08, "090a"}, {0x0a, "0b"}, {0x0b, "0c"},
           {0x0c, "0d0e"}, {0x0e, "0f10"}, {0x10, "11121314"}, {0x14, "15161718"},
           {0x18, "191a1b1c"}, {0x1c, "1d1e1f20"}, {0x20, "2122232425262728"},
           {0x28, "292a2b2c2d2e2f30"}, {0x30, "3132333435363738"}, {0x38, "39"}, {0x57, "58"},
           {0x58, "01"}, {0x60, "02"}, {0x68, "03"}, {0x70, "04"}, {0x78, "05"}, {0x80, "06"},
           {0x88, "07"}, {0x90, "77"}, {0x98, "88"}, {0xa0, "99"}, {0xa4, "aa"}, {0xa8, "41"},
           {0xf7, "7a"});
}
END_TEST

START_TEST(a_parameter_block_and_its_tail_have_the_bytes_of_the_table)
{
    struct tkr_param param = {.head_len = 128,
                              .n_tail = 0x0201,
                              .flags = TKR_PARAM_SEED | TKR_PARAM_IGNORE_EOS,
                              .tenant = 0x11,
                              .seed = 0x22,
                              .submit_ns = 0x33,
                              .session2 = 0x44,
                              .prefix = 0x55,
                              .grammar = 0x66,
                              .labels = 0x77,
                              .model_gen = 0x88,
                              .adapter = 0x99,
                              .on_late = 0xaa,
                              .pooling = 0xbb,
                              .pos = 0xcc,
                              .resume_bytes = 0xdd,
                              .n_logprobs = 0xee,
                              .emit = 0xff,
                              .reserved0 = 0x1234,
                              .top_k = 40,
                              .temperature = 0.5f,
                              .top_p = 1.0f,
                              .min_p = -1.0f,
                              .repeat = -2.0f,
                              .presence = 0.5f,
                              .frequency = 1.0f};
    struct tkr_tail tail = {.kind = TKR_TAIL_STOP_IDS,
                            .flags = 0x0201,
                            .off = 0x06050403,
                            .bytes = 0x0a090807,
                            .count = 0x0e0d0c0b};

    GOLDEN(param, {0x00, "8000"}, {0x02, "0102"}, {0x04, "03000000"}, {0x08, "11"}, {0x10, "22"},
           {0x18, "33"}, {0x20, "44"}, {0x28, "55"}, {0x30, "66"}, {0x34, "77"}, {0x38, "88"},
           {0x3c, "9900"}, {0x3e, "aa"}, {0x3f, "bb"}, {0x40, "cc"}, {0x44, "dd"}, {0x48, "ee"},
           {0x49, "ff"}, {0x4a, "3412"}, {0x4c, "28"}, {0x50, "0000003f"}, {0x54, "0000803f"},
           {0x58, "000080bf"}, {0x5c, "000000c0"}, {0x60, "0000003f"}, {0x64, "0000803f"});
    GOLDEN(tail, {0x00, "0300"}, {0x02, "0102"}, {0x04, "03040506"}, {0x08, "0708090a"},
           {0x0c, "0b0c0d0e"});
}
END_TEST

START_TEST(the_header_of_the_request_region_has_the_bytes_of_the_table)
{
    struct tkr_r_header r = {.magic = TKR_MAGIC_R,
                             .major = 1,
                             .minor = 2,
                             .header_len = 256,
                             .region_len = 0x3000,
                             .features = 0x44,
                             .nsq = 5,
                             .sq_log2 = 6,
                             .sq_off = 0x77,
                             .ctl_off = 0x1040,
                             .arena_off = 0x99,
                             .arena_len = 0xaa,
                             .client_nonce = 0xbb,
                             .max_inflight = 0xcc,
                             .colour = 0xdd,
                             .sq_stride = 0xee,
                             .cancel_off = 0xff,
                             .release_off = 0x1234};

    GOLDEN(r, {0x00, "544b525252473031" /* TKRRRG01 */}, {0x08, "0100"}, {0x0a, "0200"},
           {0x0c, "00010000"}, {0x10, "0030"}, {0x18, "44"}, {0x20, "05"}, {0x24, "06"},
           {0x28, "77"}, {0x2c, "4010"}, {0x30, "99"}, {0x38, "aa"}, {0x40, "bb"}, {0x48, "cc"},
           {0x4c, "dd"}, {0x50, "ee"}, {0x54, "ff"}, {0x58, "3412"});
}
END_TEST

START_TEST(the_header_of_the_token_region_and_a_model_have_the_bytes_of_the_table)
{
    struct tkr_t_header t = {.magic = TKR_MAGIC_T,
                             .major = 1,
                             .minor = 2,
                             .header_len = 256,
                             .region_len = 0x3000,
                             .features = 0x44,
                             .op_bitmap = {0x3f, 2, 3, 4},
                             .ctl_off = 0x55,
                             .cq_off = 0x66,
                             .cq_log2 = 0x77,
                             .res_off = 0x88,
                             .bulk_off = 0x99,
                             .bulk_len = 0xaa,
                             .models_off = 0xbb,
                             .n_models = 0xcc,
                             .client_id = 0xdd,
                             .daemon_epoch = 0xee,
                             .prompt_tokens_max = 0xff,
                             .output_tokens_max = 0x1234};
    struct tkr_model_entry model = {.hash = {0x01},
                                    .gen = 2,
                                    .n_ctx = 0x0403,
                                    .n_vocab = 0x0605,
                                    .flags = TKR_MODEL_PRESENT | TKR_MODEL_CHAT,
                                    .name = "SmolLM2"};

    GOLDEN(t, {0x00, "544b525452473031" /* TKRTRG01 */}, {0x08, "0100"}, {0x0a, "0200"},
           {0x0c, "00010000"}, {0x10, "0030"}, {0x18, "44"}, {0x20, "3f"}, {0x28, "02"},
           {0x30, "03"}, {0x38, "04"}, {0x40, "55"}, {0x44, "66"}, {0x48, "77"}, {0x4c, "88"},
           {0x50, "99"}, {0x58, "aa"}, {0x60, "bb"}, {0x64, "cc"}, {0x68, "dd"}, {0x70, "ee"},
           {0x78, "ff"}, {0x7c, "3412"});
    GOLDEN(model, {0x00, "01"}, {0x20, "02"}, {0x24, "0304"}, {0x28, "0506"}, {0x2c, "03"},
           {0x30, "536d6f6c4c4d32"});
}
END_TEST

START_TEST(the_control_messages_have_the_bytes_of_the_table)
{
    struct tkr_ctl_head head = {
        .magic = TKR_MAGIC_CTL, .type = TKR_CTL_ATTACH, .bytes = 256, .major = 1, .minor = 2};
    struct tkr_hello hello = {.head = head,
                              .features = 0x11,
                              .arena_len = 0x22,
                              .bulk_len = 0x33,
                              .nsq = 4,
                              .sq_log2 = 5,
                              .cq_log2 = 6,
                              .max_inflight = 7,
                              .class_ = 8,
                              .library = "L"};
    struct tkr_welcome welcome = {.head = head,
                                  .features = 0x11,
                                  .arena_len = 0x22,
                                  .bulk_len = 0x33,
                                  .nsq = 4,
                                  .sq_log2 = 5,
                                  .cq_log2 = 6,
                                  .max_inflight = 7,
                                  .colour = 8,
                                  .doorbell = TKR_DOORBELL_SOCKET,
                                  .t_region_len = 0x44,
                                  .client_id = 0x55,
                                  .daemon_epoch = 0x66,
                                  .daemon_pid = 0x77};
    struct tkr_attach attach = {
        .head = head, .region_len = 0x11, .flags = 2, .sq_pos = {3, 0, 0, 0, 0, 0, 0, 4}};
    struct tkr_refused refused = {
        .head = head, .reason = TKR_REFUSED_HOLES, .have = 0x11, .want = 0x22, .message = "m"};

    /* "KCTL", type 3, 256 bytes, version 1.2 */
#define HEAD {0x00, "4b43544c"}, {0x04, "0300"}, {0x06, "0001"}, {0x08, "0100"}, {0x0a, "0200"}
    GOLDEN(head, HEAD);
    GOLDEN(hello, HEAD, {0x10, "11"}, {0x18, "22"}, {0x20, "33"}, {0x28, "04"}, {0x2c, "05"},
           {0x30, "06"}, {0x34, "07"}, {0x38, "08"}, {0x40, "4c"});
    GOLDEN(welcome, HEAD, {0x10, "11"}, {0x18, "22"}, {0x20, "33"}, {0x28, "04"}, {0x2c, "05"},
           {0x30, "06"}, {0x34, "07"}, {0x38, "08"}, {0x3c, "01"}, {0x40, "44"}, {0x48, "55"},
           {0x50, "66"}, {0x58, "77"});
    GOLDEN(attach, HEAD, {0x10, "11"}, {0x18, "02"}, {0x20, "03"}, {0x3c, "04"});
    GOLDEN(refused, HEAD, {0x10, "0900"}, {0x18, "11"}, {0x20, "22"}, {0x28, "6d"});
    ck_assert_uint_eq(sizeof(struct tkr_ready), 256);
}
END_TEST

START_TEST(numbers_on_the_wire_are_the_ones_that_were_given_out)
{
    static const unsigned statuses[] = {
        TKR_OK,           TKR_E_INVALID,   TKR_E_UNSUPPORTED, TKR_E_CONTEXT,   TKR_E_DEADLINE,
        TKR_E_OVERLOADED, TKR_E_CANCELLED, TKR_E_ABORTED,     TKR_E_NUMERIC,   TKR_E_SLOW,
        TKR_E_NO_MODEL,   TKR_E_MISMATCH,  TKR_E_DENIED,      TKR_E_DUPLICATE, TKR_E_INTERNAL,
        TKR_E_GONE,       TKR_E_RESTARTED};

    for (unsigned i = 0; i < sizeof statuses / sizeof *statuses; i++)
        ck_assert_uint_eq(statuses[i] & 0x7fff, i);
    /* The same request may succeed later: 5, 7, 15 and 16. */
    for (unsigned i = 0; i < sizeof statuses / sizeof *statuses; i++)
        ck_assert_int_eq(!!(statuses[i] & TKR_STATUS_RETRY),
                         i == 5 || i == 7 || i == 15 || i == 16);
    ck_assert_int_eq(TKR_OP_NOOP, 0);
    ck_assert_int_eq(TKR_OP_CANCEL, 2);
    ck_assert_int_eq(TKR_OP_GENERATE, 3);
    ck_assert_int_eq(TKR_OP_LOGPROBS, 5);
    ck_assert_int_eq(TKR_OP_LABELS, 17);
    ck_assert_int_eq(TKR_REFUSED_INTERNAL, 14);
    ck_assert_int_eq(TKR_REFUSED_STRIKES, 15);
    ck_assert_int_eq(TKR_TAIL_BANNED, 6);
    ck_assert_uint_eq(TKR_SEALS_MUST,
                      0x17); /* SEAL 1, SHRINK 2, GROW 4, FUTURE_WRITE 0x10 of linux/fcntl.h */
}
END_TEST

START_TEST(control_lines_lie_where_the_table_says)
{
    ck_assert_uint_eq(TKR_R_CQ_HEAD, 0);
    ck_assert_uint_eq(TKR_R_WAIT, 64);
    ck_assert_uint_eq(TKR_R_BELL(0), 128);
    ck_assert_uint_eq(TKR_R_BELL(7), 576);
    ck_assert_uint_eq(TKR_R_SQ_WAIT(7), 580);
    ck_assert_uint_eq(TKR_R_CTL_BYTES, 640);
    ck_assert_uint_eq(TKR_T_STATE, 0);
    ck_assert_uint_eq(TKR_T_DAEMON_CPU, 4);
    ck_assert_uint_eq(TKR_T_ENGINE_CPUS, 8);
    ck_assert_uint_eq(TKR_T_CQ_BELL, 64);
    ck_assert_uint_eq(TKR_T_SQ_HEAD(0), 128);
    ck_assert_uint_eq(TKR_T_NEED_WAKEUP(0), 192);
    ck_assert_uint_eq(TKR_T_SQ_HEAD(7), 1024);
    ck_assert_uint_eq(TKR_T_NEED_WAKEUP(7), 1088);
    ck_assert_uint_eq(TKR_T_CTL_BYTES, 1152);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("abi");
    TCase *tc = tcase_create("abi");
    SRunner *sr;

    tcase_add_test(tc, a_submission_slot_has_the_bytes_of_the_table);
    tcase_add_test(tc, a_token_line_carries_four_ids_and_24_bytes_of_text);
    tcase_add_test(tc, the_other_completions_have_the_bytes_of_the_table);
    tcase_add_test(tc, a_result_record_has_the_bytes_of_the_table);
    tcase_add_test(tc, a_parameter_block_and_its_tail_have_the_bytes_of_the_table);
    tcase_add_test(tc, the_header_of_the_request_region_has_the_bytes_of_the_table);
    tcase_add_test(tc, the_header_of_the_token_region_and_a_model_have_the_bytes_of_the_table);
    tcase_add_test(tc, the_control_messages_have_the_bytes_of_the_table);
    tcase_add_test(tc, numbers_on_the_wire_are_the_ones_that_were_given_out);
    tcase_add_test(tc, control_lines_lie_where_the_table_says);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
