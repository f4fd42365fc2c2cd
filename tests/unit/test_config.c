/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/config.h"

static char path[64];
static struct config config;
static struct diag diag;

static void setup(void)
{
    strcpy(path, "/tmp/tkr-config-XXXXXX");
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    close(fd);
    config_init(&config);
    memset(&diag, 0, sizeof diag);
}

static void teardown(void)
{
    config_fini(&config);
    unlink(path);
}

static int read_text(const char *text)
{
    FILE *file = fopen(path, "w");
    int err;

    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    err = config_read(&config, path, &diag);
    return err < 0 ? err : config_finish(&config, path, &diag);
}

static void diag_says(const char *part)
{
    ck_assert_msg(strstr(diag.text, part) != NULL, "'%s' is not in '%s'", part, diag.text);
}

START_TEST(an_empty_file_gives_the_documented_defaults)
{
    ck_assert_int_eq(read_text(""), 0);
    /* The numbers: 64 running, 500 queued, a pool of 32,768 positions, mode 0600. */
    ck_assert_uint_eq(config.running_max, 64);
    ck_assert_uint_eq(config.queued_max, 500);
    ck_assert_uint_eq(config.kv_positions, 32768);
    ck_assert_uint_eq(config.socket_mode_bits, 0600);
    ck_assert_int_eq(config.kv_prefault, 0);
    ck_assert_int_eq((int)config.cpu_variant, (int)CPU_AUTO);
}
END_TEST

START_TEST(one_user_cannot_take_every_place_unless_the_file_says_so)
{
    ck_assert_int_eq(read_text(""), 0);
    ck_assert_uint_eq(config.user_limits.clients, 1024); /* as in systemd/tokenringd.yaml */
    ck_assert_uint_lt(config.user_limits.clients, config.clients_max);
    config_fini(&config);
    config_init(&config);
    ck_assert_int_eq(read_text("user_clients_max: 0\n"), 0);
    ck_assert_uint_eq(config.user_limits.clients, 0); /* runtime/io/io.h: no limit of its own */
}
END_TEST

START_TEST(every_kind_of_setting_is_read)
{
    ck_assert_int_eq(
        read_text(
            "model: /m.gguf\nthreads: 2\nkv_prefault: true\nsocket_mode: \"0660\"\ncpu: ref\n"),
        0);
    ck_assert_str_eq(config.model, "/m.gguf");
    ck_assert_uint_eq(config.threads, 2);
    ck_assert_int_eq(config.kv_prefault, 1);
    ck_assert_uint_eq(config.socket_mode_bits, 0660);
    ck_assert_int_eq((int)config.cpu_variant, (int)CPU_REF);
}
END_TEST

START_TEST(an_unknown_key_is_refused_with_line_and_column)
{
    ck_assert_int_eq(read_text("threads: 2\nthread: 2\n"), -EINVAL);
    diag_says(path);
    diag_says("line 2, column ");
    diag_says("thread");
}
END_TEST

START_TEST(a_number_that_is_none_is_refused_with_line_and_column)
{
    ck_assert_int_eq(read_text("threads: 2\nctx: many\n"), -EINVAL);
    diag_says("line 2, column ");
}
END_TEST

START_TEST(a_negative_number_is_refused)
{
    ck_assert_int_eq(read_text("running_max: -1\n"), -EINVAL);
    diag_says("line 1, column ");
}
END_TEST

START_TEST(a_number_out_of_its_range_is_refused_with_line_and_range)
{
    ck_assert_int_eq(read_text("threads: 2\n\nrunning_max: 5000\n"), -EINVAL);
    diag_says("line 3, column 1: running_max: 5000 is outside 1 .. 1024");
}
END_TEST

START_TEST(an_explicit_zero_is_not_taken_for_the_default)
{
    ck_assert_int_eq(read_text("running_max: 0\n"), -EINVAL);
    diag_says("running_max: 0 is outside 1 .. 1024");
}
END_TEST

START_TEST(text_that_is_not_yaml_is_refused_with_line_and_column)
{
    ck_assert_int_eq(read_text("threads: 2\nctx: [1\n"), -EINVAL);
    diag_says("line ");
    diag_says("column ");
}
END_TEST

START_TEST(a_list_in_place_of_settings_is_refused)
{
    ck_assert_int_eq(read_text("- threads\n- ctx\n"), -EINVAL);
    diag_says("line 1, column ");
}
END_TEST

START_TEST(keys_and_values_are_kept_as_f16_or_q8)
{
    ck_assert_int_eq(read_text(""), 0);
    ck_assert_int_eq((int)config.kv_kind, (int)KV_F16);
    ck_assert_int_eq(read_text("kv_type: f16\n"), 0);
    ck_assert_int_eq((int)config.kv_kind, (int)KV_F16);
    ck_assert_int_eq(read_text("kv_type: q8\n"), 0);
    ck_assert_int_eq((int)config.kv_kind, (int)KV_Q8);
    ck_assert_int_eq(read_text("threads: 1\nkv_type: q4\n"), -EINVAL);
    diag_says("line 2, column 1: kv_type: expected f16 or q8");
}
END_TEST

START_TEST(an_unknown_cpu_variant_is_refused)
{
    ck_assert_int_eq(read_text("cpu: sse\n"), -EINVAL);
    diag_says("line 1, column 1: cpu: expected auto, ref, avx2, avxvnni or avx512");
}
END_TEST

START_TEST(a_cache_is_a_whole_path_or_none)
{
    ck_assert_int_eq(read_text("cache: packed\n"), -EINVAL);
    diag_says("line 1, column 1: cache: expected an absolute path, or none");
    ck_assert_int_eq(read_text("cache: none\n"), 0);
    ck_assert_str_eq(config.cache, "none");
    config_fini(&config);
    ck_assert_int_eq(read_text("cache: \"\"\n"), 0); /* as in the shipped file: the default */
    ck_assert_ptr_null(config.cache);
}
END_TEST

START_TEST(a_context_larger_than_the_pool_is_refused)
{
    ck_assert_int_eq(read_text("ctx: 4096\nkv_positions: 1024\n"), -EINVAL);
    diag_says("ctx: larger than kv_positions");
}
END_TEST

START_TEST(a_mode_that_is_not_octal_is_refused)
{
    ck_assert_int_eq(read_text("socket_mode: \"0680\"\n"), -EINVAL);
    diag_says("socket_mode: expected an octal mode");
}
END_TEST

START_TEST(numbers_are_whole_decimal_numbers)
{
    static const char *const bad[] = {"2.5", "1024k", "1e3", "0x10", "-1",
                                      "+1",  "\"\"",  "2 3", "ten"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[64];

        snprintf(text, sizeof text, "threads: 1\nqueued_max: %s\n", bad[i]);
        teardown();
        setup();
        ck_assert_msg(read_text(text) == -EINVAL, "%s", bad[i]);
        diag_says("line 2, column 1: queued_max");
    }
}
END_TEST

START_TEST(a_number_beyond_any_range_is_refused)
{
    ck_assert_int_eq(read_text("queued_max: 99999999999999999999\n"), -EINVAL);
    diag_says("is outside 1 .. 65536");
}
END_TEST

START_TEST(a_switch_is_true_or_false)
{
    ck_assert_int_eq(read_text("kv_prefault: maybe\n"), -EINVAL);
    diag_says("line 1, column 1: kv_prefault: expected true or false");
    teardown();
    setup();
    ck_assert_int_eq(read_text("kv_prefault: false\n"), 0);
    ck_assert_int_eq(config.kv_prefault, 0);
}
END_TEST

START_TEST(a_second_document_is_refused)
{
    ck_assert_int_eq(read_text("---\nthreads: 1\n---\nthreads: 2\n"), -EINVAL);
    diag_says("line 3, column 1: one document only");
}
END_TEST

START_TEST(a_key_that_stands_twice_is_refused)
{
    ck_assert_int_eq(read_text("threads: 1\nthreads: 2\n"), -EINVAL);
    diag_says("line 2, column 1: ");
}
END_TEST

START_TEST(an_access_list_becomes_rules_with_the_limits_of_a_user)
{
    ck_assert_int_eq(
        read_text("user_requests_max: 9\nuser_memory_mib_max: 3\nallow: \"uid:12 gid:34\"\n"), 0);
    ck_assert_uint_eq(config.n_rules, 2);
    ck_assert_uint_eq(config.rules[1].id, 34);
    ck_assert_uint_eq(config.rules[1].limits.inflight, 9);
    ck_assert_uint_eq(config.rules[1].limits.bytes, 3u << 20);
}
END_TEST

START_TEST(a_wrong_access_list_is_refused_with_line_and_entry)
{
    ck_assert_int_eq(read_text("threads: 1\nallow: \"uid:12 bob\"\n"), -EINVAL);
    diag_says("line 2, column 1: allow: 'bob': expected user:NAME");
}
END_TEST

START_TEST(nobody_is_trusted_unless_the_file_says_so)
{
    ck_assert_int_eq(read_text(""), 0);
    ck_assert_uint_eq(config.n_trusted, 0);
    config_fini(&config);
    config_init(&config);
    ck_assert_int_eq(read_text("trusted: \"uid:12, gid:34\"\nuser_queued_max: 5\n"), 0);
    ck_assert_uint_eq(config.n_trusted, 2);
    ck_assert_int_eq((int)config.trusted_rules[0].kind, (int)IO_RULE_UID);
    ck_assert_uint_eq(config.trusted_rules[0].id, 12);
    ck_assert_uint_eq(config.trusted_rules[1].id, 34);
    ck_assert_uint_eq(config.n_rules, 0); /* and whoever may open the socket may still attach */
    ck_assert_uint_eq(config.user_queued_max, 5);
    config_fini(&config);
    config_init(&config);
    ck_assert_int_eq(read_text("threads: 1\ntrusted: \"uid:12 bob\"\n"), -EINVAL);
    diag_says("line 2, column 1: trusted: 'bob': expected user:NAME");
}
END_TEST

START_TEST(the_ceiling_of_a_class_has_a_name)
{
    ck_assert_int_eq(read_text(""), 0);
    ck_assert_uint_eq(config.user_limits.class_max, 0); /* runtime/io/io.h: none */
    config_fini(&config);
    config_init(&config);
    ck_assert_int_eq(read_text("user_class_max: interactive\nallow: uid:3\n"), 0);
    ck_assert_uint_eq(config.user_limits.class_max, TKR_CLASS_INTERACTIVE);
    ck_assert_uint_eq(config.rules[0].limits.class_max, TKR_CLASS_INTERACTIVE);
    config_fini(&config);
    config_init(&config);
    ck_assert_int_eq(read_text("threads: 1\nuser_class_max: trading\n"), -EINVAL);
    diag_says("line 2, column 1: user_class_max: expected batch, interactive or realtime");
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    ck_assert_int_eq(config_read(&config, "/nonexistent/x.yaml", &diag), -ENOENT);
    diag_says("/nonexistent/x.yaml: cannot open");
}
END_TEST

START_TEST(a_folder_is_not_a_configuration)
{
    ck_assert_int_eq(config_read(&config, "/tmp", &diag), -EINVAL);
    diag_says("regular file");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tc = tcase_create("config");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, an_empty_file_gives_the_documented_defaults);
    tcase_add_test(tc, one_user_cannot_take_every_place_unless_the_file_says_so);
    tcase_add_test(tc, every_kind_of_setting_is_read);
    tcase_add_test(tc, an_unknown_key_is_refused_with_line_and_column);
    tcase_add_test(tc, a_number_that_is_none_is_refused_with_line_and_column);
    tcase_add_test(tc, a_negative_number_is_refused);
    tcase_add_test(tc, a_number_out_of_its_range_is_refused_with_line_and_range);
    tcase_add_test(tc, an_explicit_zero_is_not_taken_for_the_default);
    tcase_add_test(tc, text_that_is_not_yaml_is_refused_with_line_and_column);
    tcase_add_test(tc, a_list_in_place_of_settings_is_refused);
    tcase_add_test(tc, keys_and_values_are_kept_as_f16_or_q8);
    tcase_add_test(tc, an_unknown_cpu_variant_is_refused);
    tcase_add_test(tc, a_cache_is_a_whole_path_or_none);
    tcase_add_test(tc, a_context_larger_than_the_pool_is_refused);
    tcase_add_test(tc, a_mode_that_is_not_octal_is_refused);
    tcase_add_test(tc, numbers_are_whole_decimal_numbers);
    tcase_add_test(tc, a_number_beyond_any_range_is_refused);
    tcase_add_test(tc, a_switch_is_true_or_false);
    tcase_add_test(tc, a_second_document_is_refused);
    tcase_add_test(tc, a_key_that_stands_twice_is_refused);
    tcase_add_test(tc, an_access_list_becomes_rules_with_the_limits_of_a_user);
    tcase_add_test(tc, a_wrong_access_list_is_refused_with_line_and_entry);
    tcase_add_test(tc, nobody_is_trusted_unless_the_file_says_so);
    tcase_add_test(tc, the_ceiling_of_a_class_has_a_name);
    tcase_add_test(tc, a_missing_file_is_named);
    tcase_add_test(tc, a_folder_is_not_a_configuration);
    suite_add_tcase(suite, tc);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
