/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include "runtime/kv/page.h"

START_TEST(a_pool_without_pages_is_refused)
{
    struct page_pool *pool = NULL;

    ck_assert_int_eq(page_pool_new(&pool, 0), -EINVAL);
    ck_assert_ptr_null(pool);
}
END_TEST

START_TEST(a_take_from_an_empty_pool_is_refused_and_leaves_the_result_alone)
{
    struct page_pool *pool;
    uint32_t page = 99;

    ck_assert_int_eq(page_pool_new(&pool, 1), 0);
    ck_assert_int_eq(page_take(pool, 0, &page), 0);
    ck_assert_uint_eq(page, 0);
    page = 99;
    ck_assert_int_eq(page_take(pool, 0, &page), -ENOSPC);
    ck_assert_uint_eq(page, 99);
    page_pool_free(pool);
}
END_TEST

START_TEST(a_reserved_page_is_kept_for_who_reserved_it)
{
    struct page_pool *pool;
    uint32_t page;

    ck_assert_int_eq(page_pool_new(&pool, 3), 0);
    ck_assert_int_eq(page_reserve(pool, 2), 0);
    ck_assert_int_eq(page_reserve(pool, 2), -ENOSPC);
    ck_assert_int_eq(page_take(pool, 0, &page), 0);
    ck_assert_int_eq(page_take(pool, 0, &page), -ENOSPC);
    ck_assert_int_eq(page_take(pool, 1, &page), 0);
    ck_assert_uint_eq(page_pool_reserved(pool), 1);
    page_unreserve(pool, 1);
    ck_assert_int_eq(page_take(pool, 0, &page), 0);
    ck_assert_uint_eq(page_pool_used(pool), 3);
    page_pool_free(pool);
}
END_TEST

START_TEST(a_page_given_twice_is_caught)
{
    struct page_pool *pool;
    uint32_t page;

    ck_assert_int_eq(page_pool_new(&pool, 2), 0);
    ck_assert_int_eq(page_take(pool, 0, &page), 0);
    page_give(pool, page);
    page_give(pool, page); /* aborts */
}
END_TEST

#define N_PAGES 37

/* The model: who holds each page, and two counters. Whatever the pool answers must follow from
 * them. */
START_TEST(random_takes_gives_and_reservations_agree_with_a_naive_model)
{
    int held[N_PAGES] = {0};
    uint32_t used = 0, reserved = 0, page;
    struct page_pool *pool;
    int err;

    srand((unsigned)_i + 1);
    ck_assert_int_eq(page_pool_new(&pool, N_PAGES), 0);
    for (int step = 0; step < 20000; step++) {
        uint32_t n = (uint32_t)rand() % 8;

        switch (rand() % 5) {
        case 0:
            err = page_reserve(pool, n);
            ck_assert_int_eq(err, used + reserved + n <= N_PAGES ? 0 : -ENOSPC);
            reserved += err == 0 ? n : 0;
            break;
        case 1:
            n = n < reserved ? n : reserved;
            page_unreserve(pool, n);
            reserved -= n;
            break;
        case 2:
        case 3:
            if (n % 2 && reserved == 0)
                break;
            err = page_take(pool, n % 2, &page);
            ck_assert_int_eq(err, n % 2 || used + reserved < N_PAGES ? 0 : -ENOSPC);
            if (err < 0)
                break;
            reserved -= n % 2;
            used++;
            ck_assert_uint_lt(page, N_PAGES);
            ck_assert_int_eq(held[page], 0);
            held[page] = 1;
            break;
        default:
            page = (uint32_t)rand() % N_PAGES;
            if (held[page]) {
                page_give(pool, page);
                held[page] = 0;
                used--;
            }
        }
        ck_assert_uint_eq(page_pool_used(pool), used);
        ck_assert_uint_eq(page_pool_reserved(pool), reserved);
    }
    ck_assert_uint_eq(page_pool_total(pool), N_PAGES);
    page_pool_free(pool);
}
END_TEST

START_TEST(positions_round_up_to_pages)
{
    ck_assert_uint_eq(pages_for(0), 0);
    ck_assert_uint_eq(pages_for(1), 1);
    ck_assert_uint_eq(pages_for(64), 1);
    ck_assert_uint_eq(pages_for(65), 2);
    ck_assert_uint_eq(pages_for(UINT32_MAX), 67108864);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("page");
    TCase *tc = tcase_create("page");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_test(tc, a_pool_without_pages_is_refused);
    tcase_add_test(tc, a_take_from_an_empty_pool_is_refused_and_leaves_the_result_alone);
    tcase_add_test(tc, a_reserved_page_is_kept_for_who_reserved_it);
    tcase_add_test_raise_signal(tc, a_page_given_twice_is_caught, SIGABRT);
    tcase_add_loop_test(tc, random_takes_gives_and_reservations_agree_with_a_naive_model, 0, 8);
    tcase_add_test(tc, positions_round_up_to_pages);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
