/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, back-pressure and the end of a client; expected values follow from shm/abi.h. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/io_fixture.h"

/* ---- slots ---------------------------------------------------------------------------------- */

START_TEST(a_noop_comes_back_with_its_user_and_tag_and_nothing_else)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe cqe;

    client_open(&c);
    for (int i = 0; i < 200; i++) { /* six laps of the CQ, three of the SQ */
        sqe = raw_noop(&c, (uint16_t)(i % 4));
        raw_put(&c, &sqe);
        cqe = client_next(&c);
        ck_assert_int_eq(cqe.kind, TKR_CQE_DONE);
        ck_assert_int_eq(cqe.flags, TKR_CQE_NO_RESULT);
        ck_assert_int_eq(cqe.status, TKR_OK);
        ck_assert_uint_eq(cqe.user, sqe.user);
        ck_assert_uint_eq(cqe.tag, (unsigned)i % 4);
        ck_assert_uint_eq(cqe.seq, (unsigned)i + 1);
    }
    ck_assert_uint_eq(saw.submits, 0);
    raw_close(&c);
}
END_TEST

START_TEST(a_pad_slot_is_skipped)
{
    struct raw_client c;
    struct tkr_sqe pad = {.op = TKR_OP_PAD, .tag = 99, .flags = 7}, sqe;

    client_open(&c);
    raw_put(&c, &pad);
    sqe = raw_noop(&c, 1);
    raw_put(&c, &sqe);
    ck_assert_uint_eq(client_next(&c).user, sqe.user);
    ck_assert_uint_eq(*c.sq_head, 2);
    raw_close(&c);
}
END_TEST

static uint16_t answer(struct raw_client *c, const struct tkr_sqe *sqe)
{
    struct tkr_cqe cqe;

    raw_put(c, sqe);
    cqe = client_next(c);
    ck_assert_int_eq(cqe.kind, TKR_CQE_DONE);
    ck_assert_uint_eq(cqe.user, sqe->user);
    ck_assert_uint_eq(cqe.tag, sqe->tag);
    return cqe.status;
}

/* The words of a refusal name the field; a slot without a usable tag has no record for them. */
static void check_words(struct raw_client *c, const struct tkr_sqe *sqe, const char *field)
{
    size_t n = strcspn(field, "_"); /* class_ is "class" in words */

    if (sqe->tag >= 4)
        return;
    ck_assert_uint_eq(c->results[sqe->tag].user, sqe->user);
    ck_assert_msg(memmem(c->results[sqe->tag].message, 80, field, n) != NULL, "'%s' is not in '%s'",
                  field, c->results[sqe->tag].message);
}

/* sqe is a good GENERATE but for one field. */
#define ASSERT_REFUSED(field, value, wanted)                                                       \
    do {                                                                                           \
        struct tkr_sqe bad = client_generate(&c, 0);                                               \
        bad.field = (value);                                                                       \
        ck_assert_msg(answer(&c, &bad) == (wanted), #field " = " #value);                          \
        check_words(&c, &bad, #field);                                                             \
    } while (0)

START_TEST(every_field_that_is_wrong_or_not_implemented_is_answered_with_its_status)
{
    struct raw_client c;

    client_open(&c);
    ASSERT_REFUSED(op, TKR_OP_SCORE, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(op, TKR_OP_LABELS, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(op, TKR_OP_COUNT, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(op, 255, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(flags, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(reserved, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(class_, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(session, 1, TKR_E_UNSUPPORTED);
    ASSERT_REFUSED(tag, 4, TKR_E_INVALID);
    ASSERT_REFUSED(tag, 65535, TKR_E_INVALID);
    ASSERT_REFUSED(user, 0, TKR_E_INVALID);
    ASSERT_REFUSED(user, 1ull << 32, TKR_E_INVALID);
    ASSERT_REFUSED(data_kind, 4, TKR_E_INVALID);
    ASSERT_REFUSED(data_kind, TKR_DATA_NONE, TKR_E_INVALID); /* data_len is set */
    ASSERT_REFUSED(data_kind, TKR_DATA_MESSAGES, TKR_E_INVALID);
    ASSERT_REFUSED(data_kind, TKR_DATA_TOKENS, TKR_E_INVALID); /* 5 bytes */
    ASSERT_REFUSED(data_len, 65537, TKR_E_INVALID);
    ASSERT_REFUSED(data_len, UINT32_MAX, TKR_E_INVALID);
    ASSERT_REFUSED(data_off, 65532, TKR_E_INVALID);
    ASSERT_REFUSED(data_off, UINT32_MAX - 3, TKR_E_INVALID); /* off + len wraps over 2^32 */
    ASSERT_REFUSED(param_len, 127, TKR_E_INVALID);
    ASSERT_REFUSED(param_len, 129, TKR_E_INVALID);
    ASSERT_REFUSED(param_len, 128 + 16 * 65, TKR_E_INVALID);
    ASSERT_REFUSED(param_len, UINT32_MAX - 15, TKR_E_INVALID);
    {
        struct tkr_sqe bad = client_generate(&c, 0);

        bad.op = TKR_OP_NOOP; /* only a request that made tokens can go on */
        bad.data_len = 0;
        bad.data_kind = TKR_DATA_NONE;
        bad.resume_pos = 1;
        ck_assert_int_eq(answer(&c, &bad), TKR_E_UNSUPPORTED);
        bad = client_generate(&c, 0);
        bad.param_len = 128;
        bad.param_off = 4; /* not a multiple of 8 */
        ck_assert_int_eq(answer(&c, &bad), TKR_E_INVALID);
        bad.user = ++c.user;
        bad.param_off = 65536 - 120; /* ends 8 bytes after the arena */
        ck_assert_int_eq(answer(&c, &bad), TKR_E_INVALID);
    }
    ck_assert_uint_eq(saw.submits, 0);
    raw_close(&c);
}
END_TEST

START_TEST(a_request_at_the_last_byte_of_the_arena_is_accepted)
{
    struct raw_client c;
    struct tkr_sqe sqe;

    client_open(&c);
    saw.end_at_once = 1;
    sqe = client_generate(&c, 3);
    sqe.data_off = 65536 - 5;
    sqe.param_len = 128 + 16 * 64;
    sqe.param_off = 65536 - sqe.param_len;
    ck_assert_int_eq(answer(&c, &sqe), TKR_OK);
    ck_assert_uint_eq(saw.submits, 1);
    ck_assert_uint_eq(saw.sqe.data_off, 65531);
    ck_assert_uint_gt(saw.seen_ns, 0);
    raw_close(&c);
}
END_TEST

START_TEST(the_arena_is_copied_only_inside_its_bounds)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    uint8_t text[64];

    client_open(&c);
    sqe = client_generate(&c, 0);
    memcpy(c.arena + 3, "hello, ring", 11);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 3, 11), 0);
    ck_assert_mem_eq(text, "hello, ring", 11);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 65536 - 4, 4), 0);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 65536 - 4, 5), -EFAULT);
    ck_assert_int_eq(io_arena_copy(saw.client, text, UINT32_MAX, 2), -EFAULT);
    io_done(saw.client, 0, sqe.user, TKR_OK, NULL);
    raw_close(&c);
}
END_TEST

START_TEST(a_tag_or_user_that_is_alive_is_a_duplicate_and_the_first_request_goes_on)
{
    struct raw_client c;
    struct tkr_sqe first, second;
    struct tkr_cqe cqe;

    client_open(&c);
    first = client_generate(&c, 2);
    raw_put(&c, &first);
    PUMP_UNTIL(saw.submits == 1);
    second = client_generate(&c, 2);
    ck_assert_int_eq(answer(&c, &second), TKR_E_DUPLICATE);
    second = client_generate(&c, 1);
    second.user = first.user | 7ull << 32; /* the low half names requests in the cancel words */
    ck_assert_int_eq(answer(&c, &second), TKR_E_DUPLICATE);
    ck_assert_uint_eq(saw.submits, 1);
    io_done(saw.client, 2, first.user, TKR_OK, NULL);
    cqe = client_next(&c);
    ck_assert_uint_eq(cqe.user, first.user);
    second = client_generate(&c, 2); /* free again */
    raw_put(&c, &second);
    PUMP_UNTIL(saw.submits == 2);
    raw_close(&c);
}
END_TEST

START_TEST(a_cancel_word_reaches_the_daemon_once_and_a_stale_one_never)
{
    struct raw_client c;
    struct tkr_sqe sqe;

    client_open(&c);
    sqe = client_generate(&c, 1);
    TKR_STORE_RELAXED(c.cancel + 1, 77u); /* of some earlier request of this tag */
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    for (int i = 0; i < 3; i++)
        daemon_pump();
    ck_assert_uint_eq(saw.cancels, 0);
    TKR_STORE_RELAXED(c.cancel + 1, (uint32_t)sqe.user);
    PUMP_UNTIL(saw.cancels);
    for (int i = 0; i < 3; i++)
        daemon_pump();
    ck_assert_uint_eq(saw.cancels, 1);
    ck_assert_uint_eq(saw.cancel_tag, 1);
    ck_assert_uint_eq(saw.cancel_user, sqe.user);
    io_done(saw.client, 1, sqe.user, TKR_E_CANCELLED, NULL);
    ck_assert_int_eq(client_next(&c).status, TKR_E_CANCELLED);
    raw_close(&c);
}
END_TEST

START_TEST(a_cancel_slot_is_answered_and_cancels_the_request_that_it_names)
{
    struct raw_client c;
    struct tkr_sqe sqe, cancel;

    client_open(&c);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    cancel = raw_noop(&c, 1);
    cancel.op = TKR_OP_CANCEL;
    cancel.session = sqe.user;
    ck_assert_int_eq(answer(&c, &cancel), TKR_OK);
    ck_assert_uint_eq(saw.cancels, 1);
    ck_assert_uint_eq(saw.cancel_user, sqe.user);
    cancel = raw_noop(&c, 1);
    cancel.op = TKR_OP_CANCEL;
    cancel.session = 424242; /* ended already, or never was */
    ck_assert_int_eq(answer(&c, &cancel), TKR_OK);
    ck_assert_uint_eq(saw.cancels, 1);
    raw_close(&c);
}
END_TEST

START_TEST(garbage_in_seq_stalls_only_its_own_queue)
{
    struct raw_client bad, good;
    struct tkr_sqe sqe;

    client_open(&bad);
    client_open(&good);
    for (uint32_t i = 0; i <= bad.sq.mask; i++)
        *(uint32_t *)(void *)(bad.sq.slots + (size_t)i * TKR_SLOT_WORDS) = 0xdeadbeef + i;
    for (int i = 0; i < 40; i++) {
        sqe = raw_noop(&good, 0);
        ck_assert_int_eq(answer(&good, &sqe), TKR_OK);
    }
    ck_assert_uint_eq(*bad.sq_head, 0);
    raw_close(&bad);
    raw_close(&good);
}
END_TEST

START_TEST(one_pass_takes_eight_slots_of_a_queue_and_no_more)
{
    struct raw_client c;

    client_open(&c);
    for (int i = 0; i < 20; i++) {
        struct tkr_sqe sqe = raw_noop(&c, 0);

        raw_put(&c, &sqe);
    }
    /* Parked at the end of the attach: the first pass finds it by its peek, or the bell does. */
    PUMP_UNTIL(*c.need_wakeup == 0);
    ck_assert_uint_le(io_pass(io), 8);
    ck_assert_uint_le(io_pass(io), 8);
    PUMP_UNTIL(*c.sq_head == 20);
    raw_close(&c);
}
END_TEST

/* ---- back-pressure -------------------------------------------------------------------------- */

START_TEST(a_full_cq_loses_nothing_delivers_in_order_and_keeps_the_slot_of_the_terminal)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN, .ntok = 1}, cqe;
    uint32_t published = 0, got = 0;

    client_open(&c);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    line.user = sqe.user;
    while (line.pos = published, io_put(saw.client, &line) == 0)
        published++;
    ck_assert_uint_eq(published, 31); /* 32 slots, one kept for the terminal */
    ck_assert_uint_eq(io_cq_room(saw.client), 0);
    ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    /* A new request finds no room for its answer: it stays in the SQ. */
    sqe = raw_noop(&c, 1);
    raw_put(&c, &sqe);
    for (int i = 0; i < 5; i++)
        daemon_pump();
    ck_assert_uint_eq(*c.sq_head, 1);
    for (; got < 10; got++) {
        ck_assert_int_eq(raw_take(&c, &cqe, 0), 0);
        ck_assert_uint_eq(cqe.pos, got);
    }
    while (published < 60) {
        line.pos = published;
        if (io_put(saw.client, &line) == 0)
            published++;
        daemon_pump();
        while (raw_take(&c, &cqe, 0) == 0) {
            if (cqe.kind == TKR_CQE_DONE)
                ck_assert_uint_eq(cqe.user, sqe.user);
            else
                ck_assert_uint_eq(cqe.pos, got++);
        }
    }
    io_done(saw.client, 0, line.user, TKR_OK, NULL);
    PUMP_UNTIL(raw_take(&c, &cqe, 0) == 0);
    ck_assert_uint_eq(got, 60);
    ck_assert_int_eq(cqe.kind, TKR_CQE_DONE);
    ck_assert_uint_eq(cqe.user, line.user);
    ck_assert_int_eq(raw_take(&c, &cqe, 0), -EAGAIN);
    raw_close(&c);
}
END_TEST

START_TEST(every_accepted_tag_has_room_for_its_terminal_even_when_nobody_reads)
{
    struct raw_client c;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN}, cqe;
    uint32_t seen = 0;
    uint64_t first;

    client_open(&c);
    first = c.user + 1;
    for (uint16_t tag = 0; tag < 4; tag++) {
        struct tkr_sqe sqe = client_generate(&c, tag);

        raw_put(&c, &sqe);
    }
    PUMP_UNTIL(saw.submits == 4);
    while (io_put(saw.client, &line) == 0)
        continue;
    for (uint16_t tag = 0; tag < 4; tag++)
        io_done(saw.client, tag, first + tag, TKR_OK, NULL);
    while (raw_take(&c, &cqe, 0) == 0)
        seen |= cqe.kind == TKR_CQE_DONE ? 1u << cqe.tag : 0;
    ck_assert_uint_eq(seen, 15);
    raw_close(&c);
}
END_TEST

START_TEST(a_cq_head_that_lies_changes_nothing_for_the_daemon)
{
    static const uint32_t lies[] = {0x80000000u, 0xffffffffu, 33, 1000, 0};
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN};
    uint32_t n = 0;

    client_open(&c);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    while (io_put(saw.client, &line) == 0)
        n++;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        TKR_STORE_RELEASE(c.cq_head, lies[i]);
        ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    }
    TKR_STORE_RELEASE(c.cq_head, 5u);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(io_put(saw.client, &line), 0);
    TKR_STORE_RELEASE(c.cq_head, 3u); /* backwards */
    ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    raw_close(&c);
}
END_TEST

START_TEST(the_result_record_is_complete_when_the_terminal_is_seen)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe cqe;
    struct tkr_result result = {.user = 1, .status = 9, .prompt = 11, .output = 22, .message = "x"};

    client_open(&c);
    sqe = client_generate(&c, 3);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    io_done(saw.client, 3, sqe.user, TKR_E_CONTEXT, &result);
    cqe = client_next(&c);
    ck_assert_int_eq(cqe.flags, 0);
    ck_assert_int_eq(cqe.status, TKR_E_CONTEXT);
    ck_assert_uint_eq(c.results[3].user, sqe.user);
    ck_assert_uint_eq(c.results[3].status, TKR_E_CONTEXT);
    ck_assert_uint_eq(c.results[3].prompt, 11);
    ck_assert_uint_eq(c.results[3].output, 22);
    raw_close(&c);
}
END_TEST

START_TEST(bulk_memory_comes_back_by_the_release_word_and_by_a_new_request_of_the_tag)
{
    struct raw_client c;
    struct tkr_sqe a, b;
    uint32_t off;
    void *ptr;

    client_open(&c); /* 64 KiB of bulk */
    a = client_generate(&c, 0);
    raw_put(&c, &a);
    b = client_generate(&c, 1);
    raw_put(&c, &b);
    PUMP_UNTIL(saw.submits == 2);
    ck_assert_int_eq(io_bulk_take(saw.client, 0, 40000, &off, &ptr), 0);
    ck_assert_uint_eq(off, 0);
    memset(ptr, 0x5a, 40000);
    ck_assert_int_eq(c.bulk[39999], 0x5a);
    ck_assert_int_eq(io_bulk_take(saw.client, 0, 8, &off, &ptr), -EBUSY);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 40000, &off, &ptr), -ENOSPC);
    TKR_STORE_RELEASE(c.release, (uint32_t)a.user); /* a live request: nothing is given back */
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 40000, &off, &ptr), -ENOSPC);
    TKR_STORE_RELEASE(c.release, 0u);
    io_done(saw.client, 0, a.user, TKR_OK, NULL);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 40000, &off, &ptr), -ENOSPC);
    TKR_STORE_RELEASE(c.release, (uint32_t)a.user);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65536, &off, &ptr), 0);
    io_done(saw.client, 1, b.user, TKR_OK, NULL);
    a = client_generate(&c, 0);
    raw_put(&c, &a);
    b = client_generate(&c, 1);
    raw_put(&c, &b);
    PUMP_UNTIL(saw.submits == 4);
    ck_assert_int_eq(io_bulk_take(saw.client, 0, 100, &off, &ptr), 0);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65536, &off, &ptr), -ENOSPC);
    ck_assert_int_eq(io_bulk_take(saw.client, 1, 65000, &off, &ptr), 0);
    ck_assert_uint_eq(off, 128); /* 100 rounded up to whole lines */
    raw_close(&c);
}
END_TEST

/* ---- the end -------------------------------------------------------------------------------- */

START_TEST(a_client_that_closes_leaves_no_descriptor_and_no_mapping_behind)
{
    int fds = folder_entries("/proc/self/fd"), mapped = region_maps();

    for (int i = 0; i < 20; i++) {
        struct raw_client c;

        client_open(&c);
        raw_close(&c);
        PUMP_UNTIL(saw.detaches == (uint32_t)i + 1);
    }
    PUMP_UNTIL(folder_entries("/proc/self/fd") == fds && region_maps() == mapped);
}
END_TEST

START_TEST(a_region_that_is_held_outlives_the_client_that_closed_with_a_request_in_flight)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    struct tkr_cqe line = {.kind = TKR_CQE_TOKEN};
    char text[4];
    int mapped = region_maps();

    saw.hold = 1;
    client_open(&c);
    memcpy(c.arena, "abc", 4);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits);
    raw_close(&c);
    PUMP_UNTIL(saw.detaches == 1);
    for (int i = 0; i < 5; i++)
        daemon_pump();
    ck_assert_int_eq(io_client_dead(saw.client), 1);
    ck_assert_int_eq(io_arena_copy(saw.client, text, 0, 4), 0);
    ck_assert_str_eq(text, "abc");
    ck_assert_int_eq(io_put(saw.client, &line), -EAGAIN);
    ck_assert_uint_eq(io_cq_room(saw.client), 0);
    io_done(saw.client, 0, sqe.user, TKR_E_CANCELLED, NULL); /* allowed, goes nowhere */
    io_client_unref(saw.client);
    PUMP_UNTIL(region_maps() == mapped);
}
END_TEST

/* A process that attaches, says so through the pipe, and waits to be killed. */
static pid_t client_process(int *ret_pipe, struct raw_client *c, int keep_open_in_a_child)
{
    int fds[2];
    pid_t pid;

    ck_assert_int_eq(pipe(fds), 0);
    pid = fork();
    if (!pid) {
        struct tkr_sqe sqe;

        memset(c, 0, sizeof *c);
        c->socket = raw_connect(daemon_path);
        if (c->socket < 0 || raw_attach(c) < 0)
            _exit(1);
        sqe = client_generate(c, 0);
        raw_put(c, &sqe);
        if (keep_open_in_a_child && fork() == 0) {
            for (;;)
                pause(); /* holds the socket open */
        }
        if (write(fds[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    *ret_pipe = fds[0];
    return pid;
}

START_TEST(a_client_that_is_killed_is_detached_and_everything_of_it_comes_back)
{
    int fds = folder_entries("/proc/self/fd"), mapped = region_maps();

    for (uint32_t i = 1; i <= 5; i++) {
        struct raw_client c;
        int ready;
        pid_t pid = client_process(&ready, &c, 0);

        PUMP_UNTIL(saw.submits == i && socket_readable(ready));
        ck_assert_int_eq(io_client_pid(saw.client), pid);
        ck_assert_int_eq((int)io_client_uid(saw.client), (int)getuid());
        kill(pid, SIGKILL);
        PUMP_UNTIL(saw.detaches == i);
        waitpid(pid, NULL, 0);
        close(ready);
    }
    PUMP_UNTIL(folder_entries("/proc/self/fd") == fds && region_maps() == mapped);
}
END_TEST

START_TEST(a_child_that_keeps_a_dead_clients_socket_open_does_not_keep_it_attached)
{
    struct raw_client c;
    struct io_counts counts;
    int ready;
    pid_t pid;

    setpgid(0, 0); /* the grandchild is ended with the group, see below */
    pid = client_process(&ready, &c, 1);
    PUMP_UNTIL(saw.submits && socket_readable(ready));
    kill(pid, SIGKILL);
    PUMP_UNTIL(saw.detaches == 1);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.clients, 0);
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    waitpid(pid, NULL, 0);
    close(ready);
}
END_TEST

START_TEST(bytes_on_the_socket_of_a_client_that_rings_a_futex_end_it)
{
    struct raw_client c;

    client_open(&c);
    ck_assert_int_eq(raw_send(c.socket, "x", 1, NULL, 0), 0);
    PUMP_UNTIL(saw.detaches == 1);
    raw_close(&c);
}
END_TEST

START_TEST(io_says_which_transport_runs)
{
    ck_assert_str_eq(io_mode(io), io_way()->mode);
    ck_assert_str_eq(io_note(io), ""); /* it was asked for */
}
END_TEST

START_TEST(wrong_options_are_refused_in_one_line)
{
    struct io_opt bad;
    struct io *none = NULL;
    struct diag diag;

    bad = daemon_opt;
    bad.clients_max = 0;
    ck_assert_int_eq(io_new(&none, &bad, &daemon_ops, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "clients_max"));
    bad = daemon_opt;
    bad.inflight_max = 4097;
    ck_assert_int_eq(io_new(&none, &bad, &daemon_ops, &diag), -EINVAL);
    bad = daemon_opt;
    bad.arena_max = 1ull << 40;
    ck_assert_int_eq(io_new(&none, &bad, &daemon_ops, &diag), -EINVAL);
    bad = daemon_opt;
    bad.socket_path = "";
    ck_assert_int_eq(io_new(&none, &bad, &daemon_ops, &diag), -EINVAL);
    ck_assert_ptr_null(none);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("io");
    TCase *tc = tcase_create("io");
    SRunner *sr;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, daemon_setup, daemon_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_noop_comes_back_with_its_user_and_tag_and_nothing_else);
    tcase_add_test(tc, a_pad_slot_is_skipped);
    tcase_add_test(tc, every_field_that_is_wrong_or_not_implemented_is_answered_with_its_status);
    tcase_add_test(tc, a_request_at_the_last_byte_of_the_arena_is_accepted);
    tcase_add_test(tc, the_arena_is_copied_only_inside_its_bounds);
    tcase_add_test(tc, a_tag_or_user_that_is_alive_is_a_duplicate_and_the_first_request_goes_on);
    tcase_add_test(tc, a_cancel_word_reaches_the_daemon_once_and_a_stale_one_never);
    tcase_add_test(tc, a_cancel_slot_is_answered_and_cancels_the_request_that_it_names);
    tcase_add_test(tc, garbage_in_seq_stalls_only_its_own_queue);
    tcase_add_test(tc, one_pass_takes_eight_slots_of_a_queue_and_no_more);
    tcase_add_test(tc,
                   a_full_cq_loses_nothing_delivers_in_order_and_keeps_the_slot_of_the_terminal);
    tcase_add_test(tc, every_accepted_tag_has_room_for_its_terminal_even_when_nobody_reads);
    tcase_add_test(tc, a_cq_head_that_lies_changes_nothing_for_the_daemon);
    tcase_add_test(tc, the_result_record_is_complete_when_the_terminal_is_seen);
    tcase_add_test(tc, bulk_memory_comes_back_by_the_release_word_and_by_a_new_request_of_the_tag);
    tcase_add_test(tc, a_client_that_closes_leaves_no_descriptor_and_no_mapping_behind);
    tcase_add_test(tc,
                   a_region_that_is_held_outlives_the_client_that_closed_with_a_request_in_flight);
    tcase_add_test(tc, a_client_that_is_killed_is_detached_and_everything_of_it_comes_back);
    tcase_add_test(tc, a_child_that_keeps_a_dead_clients_socket_open_does_not_keep_it_attached);
    if (io_way()->doorbell == IO_DOORBELL_FUTEX) /* else: test_loop.c */
        tcase_add_test(tc, bytes_on_the_socket_of_a_client_that_rings_a_futex_end_it);
    tcase_add_test(tc, io_says_which_transport_runs);
    tcase_add_test(tc, wrong_options_are_refused_in_one_line);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
