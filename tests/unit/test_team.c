/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/cpus.h"
#include "runtime/base/team.h"

#define MEMBERS_MAX 8u
#define CELLS       1024u

struct sums {
    uint32_t cells[CELLS]; /* written by one member in one region, read by another in the next */
    uint64_t total[MEMBERS_MAX]; /* by member */
    unsigned runs[MEMBERS_MAX];
    uint32_t round;
};

static void fill(void *arg, unsigned member, unsigned n)
{
    struct sums *sums = arg;
    uint32_t begin, end;

    team_share(CELLS, 16, member, n, &begin, &end);
    for (uint32_t i = begin; i < end; i++)
        sums->cells[i] = sums->round + i;
    sums->runs[member]++;
}

/* Reads the share of the next member, so that a missing barrier shows as a wrong sum and to TSan as
 * a race. */
static void add_up(void *arg, unsigned member, unsigned n)
{
    struct sums *sums = arg;
    uint32_t begin, end;

    team_share(CELLS, 16, (member + 1) % n, n, &begin, &end);
    sums->total[member] = 0;
    for (uint32_t i = begin; i < end; i++)
        sums->total[member] += sums->cells[i];
}

static void count(void *arg)
{
    ++*(unsigned *)arg;
}

/* _i: number of members. 8 are more than most machines that build this have: then members yield
 * instead of spinning. */
START_TEST(what_a_region_wrote_is_seen_by_every_member_of_the_next)
{
    static struct sums sums;
    unsigned hooks = 0;
    struct team *team;

    memset(&sums, 0, sizeof sums);
    ck_assert_int_eq(team_new(&team, (unsigned)_i), 0);
    ck_assert_uint_eq(team_size(team), (unsigned)_i);
    team_set_hook(team, count, &hooks);
    for (sums.round = 0; sums.round < 2000; sums.round++) {
        uint64_t total = 0;

        team_run(team, fill, &sums);
        team_run(team, add_up, &sums);
        for (int m = 0; m < _i; m++)
            total += sums.total[m];
        /* Gauss: 0 + 1 + .. + 1023 = 523776 */
        ck_assert_uint_eq(total, 523776u + (uint64_t)CELLS * sums.round);
    }
    for (int m = 0; m < _i; m++)
        ck_assert_uint_eq(sums.runs[m], 2000);
    ck_assert_uint_eq(hooks, 4000);
    team_free(team);
}
END_TEST

/* Waits for the kernel to say that the worker sleeps; it does so a few hundred microseconds after a
 * region. */
static void wait_until_asleep(void)
{
    for (;;) {
        DIR *tasks = opendir("/proc/self/task");
        int asleep = 0;

        ck_assert_ptr_nonnull(tasks);
        for (struct dirent *entry; (entry = readdir(tasks));) {
            char path[300], state = '?';
            FILE *stat;

            snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
            stat = fopen(path, "re");
            if (!stat)
                continue;
            if (fscanf(stat, "%*d (team-1) %c", &state) == 1)
                asleep = state == 'S';
            fclose(stat);
        }
        closedir(tasks);
        if (asleep)
            return;
        sched_yield();
    }
}

START_TEST(a_team_that_fell_asleep_wakes_for_the_next_region)
{
    static struct sums sums;
    struct team *team;

    memset(&sums, 0, sizeof sums);
    ck_assert_int_eq(team_new(&team, 2), 0);
    for (int i = 0; i < 3; i++) {
        wait_until_asleep();
        team_run(team, fill, &sums);
    }
    ck_assert_uint_eq(sums.runs[0], 3);
    ck_assert_uint_eq(sums.runs[1], 3);
    wait_until_asleep();
    team_free(team);
}
END_TEST

START_TEST(more_members_than_the_limit_are_refused)
{
    struct team *team = NULL;

    ck_assert_int_eq(team_new(&team, TEAM_MAX + 1), -EINVAL);
    ck_assert_ptr_null(team);
}
END_TEST

START_TEST(shares_are_whole_grains_and_cover_everything_once)
{
    static const uint32_t totals[] = {0, 1, 15, 16, 17, 576, 960, 49152, 49153, UINT32_MAX};

    for (size_t t = 0; t < sizeof totals / sizeof totals[0]; t++) {
        for (unsigned n = 1; n <= 7; n++) {
            uint32_t next = 0, begin, end;

            for (unsigned m = 0; m < n; m++) {
                team_share(totals[t], 16, m, n, &begin, &end);
                ck_assert_uint_eq(begin, next);
                ck_assert_uint_ge(end, begin);
                ck_assert(begin % 16 == 0 || begin == totals[t]);
                next = end;
            }
            ck_assert_uint_eq(next, totals[t]);
        }
    }
}
END_TEST

START_TEST(a_process_held_to_one_cpu_gets_one_thread)
{
    cpu_set_t set, one;
    struct team *team;

    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            CPU_SET(cpu, &one);
            break;
        }
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_uint_eq(cpus_allowed(), 1);
    ck_assert_int_eq(team_new(&team, 0), 0);
    ck_assert_uint_eq(team_size(team), 1);
    team_free(team);
    ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("team");
    TCase *tc = tcase_create("team");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, what_a_region_wrote_is_seen_by_every_member_of_the_next, 1,
                        (int)MEMBERS_MAX + 1);
    tcase_add_test(tc, a_team_that_fell_asleep_wakes_for_the_next_region);
    tcase_add_test(tc, more_members_than_the_limit_are_refused);
    tcase_add_test(tc, shares_are_whole_grains_and_cover_everything_once);
    tcase_add_test(tc, a_process_held_to_one_cpu_gets_one_thread);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
