/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/access.h"

static struct io_rule rules[IO_RULES_MAX];
static uint32_t n_rules;
static struct diag diag;
static const struct io_limits limits = {.clients = 7};

static int parse(const char *list)
{
    n_rules = 0;
    diag.text[0] = '\0';
    return access_parse(list, &limits, rules, &n_rules, &diag);
}

static void refused(const char *list, const char *says)
{
    ck_assert_int_eq(parse(list), -EINVAL);
    ck_assert_msg(strstr(diag.text, says) != NULL, "'%s' is not in '%s'", says, diag.text);
}

START_TEST(numbers_and_names_become_rules_in_order)
{
    /* root has uid and gid 0 on every Linux. */
    ck_assert_int_eq(parse("uid:1000, gid:27 user:root,group:root"), 0);
    ck_assert_uint_eq(n_rules, 4);
    ck_assert_int_eq((int)rules[0].kind, (int)IO_RULE_UID);
    ck_assert_uint_eq(rules[0].id, 1000);
    ck_assert_int_eq((int)rules[1].kind, (int)IO_RULE_GID);
    ck_assert_uint_eq(rules[1].id, 27);
    ck_assert_int_eq((int)rules[2].kind, (int)IO_RULE_UID);
    ck_assert_uint_eq(rules[2].id, 0);
    ck_assert_int_eq((int)rules[3].kind, (int)IO_RULE_GID);
    ck_assert_uint_eq(rules[3].id, 0);
    ck_assert_uint_eq(rules[3].limits.clients, 7);
}
END_TEST

START_TEST(an_empty_list_has_no_rules)
{
    ck_assert_int_eq(parse(""), 0);
    ck_assert_int_eq(parse(" , "), 0);
    ck_assert_uint_eq(n_rules, 0);
}
END_TEST

START_TEST(an_entry_that_is_none_is_named)
{
    refused("uid:1000 alice", "'alice': expected user:NAME");
    refused("uid:-1", "'uid:-1': expected a number");
    refused("uid:12x", "'uid:12x'");
    refused("uid:", "'uid:'");
    refused("gid:4294967295", "'gid:4294967295'"); /* (gid_t)-1 names nobody */
    refused("user:nobody-of-this-name", "no such user or group");
    refused("group:nobody-of-this-name", "no such user or group");
}
END_TEST

START_TEST(more_entries_or_longer_ones_than_fit_are_refused)
{
    char list[IO_RULES_MAX * 6 + 16], entry[128];

    list[0] = '\0';
    for (uint32_t i = 0; i < IO_RULES_MAX; i++)
        strcat(list, "uid:1 ");
    ck_assert_int_eq(parse(list), 0);
    strcat(list, "uid:1");
    refused(list, "more than 64 entries");
    snprintf(entry, sizeof entry, "user:%0100d", 1);
    refused(entry, "more than 95 bytes");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("access");
    TCase *tc = tcase_create("access");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_test(tc, numbers_and_names_become_rules_in_order);
    tcase_add_test(tc, an_empty_list_has_no_rules);
    tcase_add_test(tc, an_entry_that_is_none_is_named);
    tcase_add_test(tc, more_entries_or_longer_ones_than_fit_are_refused);
    suite_add_tcase(suite, tc);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
