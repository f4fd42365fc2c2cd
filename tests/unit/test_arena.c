/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <stdlib.h>
#include "clients/lib/arena.h"

#define N_BLOCKS 16

static struct arena_block blocks[N_BLOCKS];
static struct arena arena;

static void setup(void)
{
    arena_init(&arena, 1024, blocks, N_BLOCKS);
}

START_TEST(blocks_are_lines_that_do_not_overlap)
{
    uint32_t a = arena_take(&arena, 1), b = arena_take(&arena, 65), c = arena_take(&arena, 0);

    ck_assert_uint_eq(blocks[a].off, 0);
    ck_assert_uint_eq(blocks[a].bytes, 64);
    ck_assert_uint_eq(blocks[b].off, 64);
    ck_assert_uint_eq(blocks[b].bytes, 128);
    ck_assert_uint_eq(blocks[c].off, 192);
}
END_TEST

START_TEST(a_full_arena_gives_nothing_and_a_freed_one_gives_all)
{
    uint32_t all = arena_take(&arena, 1024);

    ck_assert_uint_ne(all, ARENA_NONE);
    ck_assert_uint_eq(arena_take(&arena, 1), ARENA_NONE);
    arena_give(&arena, all);
    ck_assert_uint_eq(arena_take(&arena, 1025), ARENA_NONE);
    ck_assert_uint_eq(arena_take(&arena, UINT64_MAX), ARENA_NONE);
    ck_assert_uint_ne(arena_take(&arena, 1024), ARENA_NONE);
}
END_TEST

START_TEST(free_neighbours_join_whatever_the_order_of_giving)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (int i = 0; i < 6; i++) {
        uint32_t block[3];

        for (int j = 0; j < 3; j++)
            block[j] = arena_take(&arena, 320);
        for (int j = 0; j < 3; j++)
            arena_give(&arena, block[orders[i][j]]);
        block[0] = arena_take(&arena, 1024);
        ck_assert_uint_ne(block[0], ARENA_NONE);
        arena_give(&arena, block[0]);
    }
}
END_TEST

START_TEST(a_used_up_pool_refuses_and_recovers)
{
    uint32_t block[N_BLOCKS + 1];
    int n = 0;

    /* 16 lines of 64 bytes, 16 pool entries: the last line needs no entry for a rest. */
    while ((block[n] = arena_take(&arena, 64)) != ARENA_NONE)
        n++;
    ck_assert_int_eq(n, 16);
    for (int i = 0; i < n; i++)
        arena_give(&arena, block[i]);

    arena_init(&arena, 1024, blocks, 2);
    block[0] = arena_take(&arena, 64);
    ck_assert_uint_eq(arena_take(&arena, 64), ARENA_NONE); /* cannot be split: no entry */
    arena_give(&arena, block[0]);
    ck_assert_uint_ne(arena_take(&arena, 1024), ARENA_NONE);
}
END_TEST

START_TEST(a_range_is_found_only_whole_inside_one_taken_block)
{
    uint32_t a = arena_take(&arena, 128), b = arena_take(&arena, 128);

    ck_assert_uint_eq(arena_find(&arena, 0, 128), a);
    ck_assert_uint_eq(arena_find(&arena, 130, 126), b);
    ck_assert_uint_eq(arena_find(&arena, 64, 65), ARENA_NONE);  /* reaches into b */
    ck_assert_uint_eq(arena_find(&arena, 256, 1), ARENA_NONE);  /* free */
    ck_assert_uint_eq(arena_find(&arena, 2000, 1), ARENA_NONE); /* outside */
    ck_assert_uint_eq(arena_find(&arena, 10, UINT64_MAX), ARENA_NONE);
}
END_TEST

START_TEST(random_taking_and_giving_never_overlaps_or_leaks)
{
    uint32_t held[8];
    uint8_t owner[1024 / 64] = {0};
    int n = 0;

    srand(7);
    for (int i = 0; i < 100000; i++) {
        if (n < 8 && rand() % 2) {
            uint32_t block = arena_take(&arena, (uint64_t)(rand() % 400));

            if (block == ARENA_NONE)
                continue;
            for (uint32_t line = 0; line < blocks[block].bytes / 64; line++)
                ck_assert_uint_eq(owner[blocks[block].off / 64 + line]++, 0);
            held[n++] = block;
        } else if (n) {
            int pick = rand() % n;
            uint32_t block = held[pick];

            for (uint32_t line = 0; line < blocks[block].bytes / 64; line++)
                owner[blocks[block].off / 64 + line]--;
            arena_give(&arena, block);
            held[pick] = held[--n];
        }
    }
    while (n)
        arena_give(&arena, held[--n]);
    ck_assert_uint_ne(arena_take(&arena, 1024), ARENA_NONE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tc = tcase_create("arena");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, blocks_are_lines_that_do_not_overlap);
    tcase_add_test(tc, a_full_arena_gives_nothing_and_a_freed_one_gives_all);
    tcase_add_test(tc, free_neighbours_join_whatever_the_order_of_giving);
    tcase_add_test(tc, a_used_up_pool_refuses_and_recovers);
    tcase_add_test(tc, a_range_is_found_only_whole_inside_one_taken_block);
    tcase_add_test(tc, random_taking_and_giving_never_overlaps_or_leaks);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
