/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: values and positions are worked out by hand from the rule of shm/ring.h, ready at p when
 * seq == p + 1. */
#include <check.h>
#include <errno.h>
#include <string.h>
#include "shm/doorbell.h"
#include "shm/ring.h"

struct pair {
    _Alignas(64) uint64_t words[4 * TKR_SLOT_WORDS]; /* four slots */
    struct tkr_ring_out out;
    struct tkr_ring_in in;
};

static void pair_init(struct pair *p, uint32_t pos)
{
    memset(p, 0, sizeof *p);
    tkr_ring_out_init(&p->out, p->words, 2);
    tkr_ring_in_init(&p->in, p->words, 2);
    p->out.pos = p->out.head = p->in.pos = pos;
}

static uint32_t *seq_of(struct pair *p, uint32_t slot)
{
    return (uint32_t *)(void *)(p->words + (size_t)slot * TKR_SLOT_WORDS);
}

START_TEST(a_slot_arrives_as_it_was_put_with_the_number_of_its_position)
{
    struct tkr_sqe in = {.seq = 999,
                         .op = 3,
                         .flags = 4,
                         .tag = 0x1234,
                         .user = 0x1122334455667788ull,
                         .data_off = 1,
                         .data_len = 2,
                         .param_off = 3,
                         .max_tokens = 4,
                         .resume_pos = 5,
                         .model = 6,
                         .data_kind = 7,
                         .class_ = 8,
                         .deadline_ns = 9,
                         .session = 10,
                         .param_len = 11,
                         .reserved = 12};
    struct tkr_sqe out;
    struct pair p;

    pair_init(&p, 0);
    tkr_ring_put(&p.out, &in);
    ck_assert_int_eq(tkr_ring_take(&p.in, &out), 0);
    ck_assert_uint_eq(out.seq, 1);
    in.seq = 1;
    ck_assert_mem_eq(&in, &out, sizeof in);
}
END_TEST

START_TEST(an_empty_ring_gives_eagain_and_leaves_the_result_untouched)
{
    struct tkr_sqe out = {.user = 7};
    struct pair p;

    pair_init(&p, 0);
    ck_assert_int_eq(tkr_ring_take(&p.in, &out), -EAGAIN);
    ck_assert_uint_eq(out.user, 7);
}
END_TEST

START_TEST(positions_run_over_two_to_the_32)
{
    struct pair p;
    struct tkr_sqe slot = {0};

    pair_init(&p, UINT32_MAX - 5);
    for (uint64_t i = 0; i < 12; i++) {
        slot.user = i;
        ck_assert_uint_gt(tkr_ring_credit(&p.out, p.in.pos), 0);
        tkr_ring_put(&p.out, &slot);
        ck_assert_int_eq(tkr_ring_take(&p.in, &slot), 0);
        ck_assert_uint_eq(slot.user, i);
    }
    ck_assert_uint_eq(p.in.pos, 6); /* 2^32 - 6 + 12 */
}
END_TEST

/* The slot at position 2^32 - 1 is ready when seq is 0, which is what fresh memory holds: this is
 * why positions start at 0. */
START_TEST(fresh_memory_is_no_slot_at_the_first_positions)
{
    struct tkr_sqe out;
    struct pair p;

    for (uint32_t pos = 0; pos < 4; pos++) {
        pair_init(&p, pos);
        ck_assert_int_eq(tkr_ring_take(&p.in, &out), -EAGAIN);
    }
}
END_TEST

START_TEST(ring_take_ignores_a_slot_left_from_an_earlier_lap)
{
    struct tkr_sqe out = {.user = 7};
    struct pair p;

    pair_init(&p, 4);
    *seq_of(&p, 0) = 1; /* position 0's number; position 4 would be 5 */
    ck_assert_int_eq(tkr_ring_take(&p.in, &out), -EAGAIN);
    ck_assert_uint_eq(out.user, 7);
}
END_TEST

START_TEST(ring_take_ignores_a_slot_of_a_later_lap)
{
    struct tkr_sqe out;
    struct pair p;

    pair_init(&p, 4);
    *seq_of(&p, 0) = 9;
    ck_assert_int_eq(tkr_ring_take(&p.in, &out), -EAGAIN);
    *seq_of(&p, 0) = 5;
    ck_assert_int_eq(tkr_ring_take(&p.in, &out), 0);
}
END_TEST

START_TEST(room_shrinks_with_each_put_and_grows_with_the_consumers_position)
{
    struct tkr_sqe slot = {0};
    struct pair p;

    pair_init(&p, UINT32_MAX - 1);
    for (uint32_t left = 4; left; left--) {
        ck_assert_uint_eq(tkr_ring_room(&p.out), left);
        tkr_ring_put(&p.out, &slot);
    }
    ck_assert_uint_eq(tkr_ring_room(&p.out), 0);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, UINT32_MAX - 1), 0);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, UINT32_MAX), 1);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, 2), 4); /* 2^32 - 2 + 4 puts */
}
END_TEST

START_TEST(a_consumer_position_that_lies_changes_nothing)
{
    struct tkr_sqe slot = {0};
    struct pair p;

    pair_init(&p, 100);
    tkr_ring_put(&p.out, &slot);
    tkr_ring_put(&p.out, &slot);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, 101), 3);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, 100), 3); /* backwards */
    ck_assert_uint_eq(tkr_ring_credit(&p.out, 103), 3); /* beyond what was put */
    ck_assert_uint_eq(tkr_ring_credit(&p.out, 0x80000000u), 3);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, UINT32_MAX), 3);
    ck_assert_uint_eq(tkr_ring_credit(&p.out, 102), 4);
}
END_TEST

START_TEST(put_writes_its_own_slot_and_no_other_byte)
{
    struct tkr_sqe slot;
    struct pair p;

    pair_init(&p, 6); /* slot 2 */
    memset(&slot, 0xff, sizeof slot);
    tkr_ring_put(&p.out, &slot);
    for (uint32_t i = 0; i < 4 * TKR_SLOT_WORDS; i++)
        ck_assert_msg(i / TKR_SLOT_WORDS == 2 ? p.words[i] != 0 : p.words[i] == 0, "word %u", i);
    ck_assert_uint_eq(*seq_of(&p, 2), 7);
}
END_TEST

START_TEST(copy_once_copies_every_length_and_alignment)
{
    _Alignas(8) uint8_t from[64];
    uint8_t to[66];

    for (uint32_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i + 1);
    for (uint32_t off = 0; off < 16; off++) {
        for (uint32_t len = 0; off + len <= sizeof from; len++) {
            memset(to, 0xee, sizeof to);
            tkr_copy_once(to + 1, from + off, len);
            ck_assert_mem_eq(to + 1, from + off, len);
            ck_assert_uint_eq(to[0], 0xee);
            ck_assert_uint_eq(to[len + 1], 0xee);
        }
    }
}
END_TEST

START_TEST(a_wait_is_due_when_the_position_reached_its_index_also_over_two_to_the_32)
{
    ck_assert_int_eq(tkr_wait_due(0, 5), 0);
    ck_assert_int_eq(tkr_wait_due(5, 5), 0); /* not asleep */
    ck_assert_int_eq(tkr_wait_due(TKR_WAIT_ASLEEP | 5, 4), 0);
    ck_assert_int_eq(tkr_wait_due(TKR_WAIT_ASLEEP | 5, 5), 1);
    ck_assert_int_eq(tkr_wait_due(TKR_WAIT_ASLEEP | 5, 6), 1);
    ck_assert_int_eq(tkr_wait_due(TKR_WAIT_ASLEEP | 2, UINT32_MAX), 0);
    ck_assert_int_eq(tkr_wait_due(TKR_WAIT_ASLEEP | UINT32_MAX, 2), 1);
}
END_TEST

START_TEST(parking_finds_a_slot_that_came_before_the_last_look_and_stays_hot)
{
    struct tkr_sqe slot = {0};
    uint32_t bell = 41, need_wakeup = 0, value = 0;
    struct pair p;

    pair_init(&p, 0);
    ck_assert_int_eq(tkr_doorbell_ring(&bell, &need_wakeup), 0);
    ck_assert_uint_eq(bell, 41); /* nobody sleeps: no bell, no system call */
    ck_assert_int_eq(tkr_doorbell_park(&bell, &need_wakeup, &p.in, &value), 1);
    ck_assert_uint_eq(need_wakeup, 1);
    ck_assert_uint_eq(value, 41);
    ck_assert_int_eq(tkr_doorbell_ring(&bell, &need_wakeup), 1);
    ck_assert_uint_eq(bell, 42); /* FUTEX_WAIT for 41 returns at once */
    ck_assert_int_eq(tkr_futex_wait(&bell, value, -1), -EAGAIN);
    tkr_ring_put(&p.out, &slot);
    ck_assert_int_eq(tkr_doorbell_park(&bell, &need_wakeup, &p.in, &value), 0);
    ck_assert_uint_eq(need_wakeup, 0);
    ck_assert_uint_eq(value, 41);
}
END_TEST

START_TEST(a_futex_wait_ends_at_its_time_limit)
{
    uint32_t word = 3;

    ck_assert_int_eq(tkr_futex_wait(&word, 3, 1000000), -ETIMEDOUT);
    ck_assert_int_eq(tkr_futex_wake(&word, 1), 0); /* nobody */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ring");
    TCase *tc = tcase_create("ring");
    SRunner *sr;

    tcase_add_test(tc, a_slot_arrives_as_it_was_put_with_the_number_of_its_position);
    tcase_add_test(tc, an_empty_ring_gives_eagain_and_leaves_the_result_untouched);
    tcase_add_test(tc, positions_run_over_two_to_the_32);
    tcase_add_test(tc, fresh_memory_is_no_slot_at_the_first_positions);
    tcase_add_test(tc, ring_take_ignores_a_slot_left_from_an_earlier_lap);
    tcase_add_test(tc, ring_take_ignores_a_slot_of_a_later_lap);
    tcase_add_test(tc, room_shrinks_with_each_put_and_grows_with_the_consumers_position);
    tcase_add_test(tc, a_consumer_position_that_lies_changes_nothing);
    tcase_add_test(tc, put_writes_its_own_slot_and_no_other_byte);
    tcase_add_test(tc, copy_once_copies_every_length_and_alignment);
    tcase_add_test(tc, a_wait_is_due_when_the_position_reached_its_index_also_over_two_to_the_32);
    tcase_add_test(tc, parking_finds_a_slot_that_came_before_the_last_look_and_stays_hot);
    tcase_add_test(tc, a_futex_wait_ends_at_its_time_limit);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
