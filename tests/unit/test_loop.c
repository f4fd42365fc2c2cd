/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which loop and which doorbell run on which kernel, and what a socket as doorbell allows. The error
 * numbers of a forbidden io_uring: EPERM from kernel.io_uring_disabled and from Docker's filter,
 * ENOSYS from a kernel without it and from filters that answer so (io_uring_setup(2), seccomp(2)).
 */
#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tests/unit/forbid.h"
#include "tests/unit/io_fixture.h"

/* ---- choosing ------------------------------------------------------------------------------- */

static struct diag diag;

/* The daemon of the fixture gives way to one with these options. */
static int restart(enum io_kind kind, enum io_doorbell doorbell)
{
    int err;

    io_free(io);
    io = NULL;
    daemon_opt.io = kind;
    daemon_opt.doorbell = doorbell;
    err = io_new(&io, &daemon_opt, &daemon_ops, &diag);
    if (err < 0)
        return err;
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
    return 0;
}

static void serve_one(void)
{
    struct raw_client c;
    struct tkr_sqe sqe;

    client_open(&c);
    for (int i = 0; i < 20; i++) {
        PUMP_UNTIL(*c.need_wakeup == 1);
        sqe = raw_noop(&c, 0);
        ck_assert_int_eq(raw_put(&c, &sqe), 1);
        ck_assert_uint_eq(client_next(&c).user, sqe.user);
    }
    raw_close(&c);
}

START_TEST(the_names_of_loops_and_doorbells_are_known_and_others_are_refused)
{
    enum io_kind kind;
    enum io_doorbell doorbell;

    ck_assert_int_eq(io_kind_parse("auto", &kind), 0);
    ck_assert_int_eq(kind, IO_KIND_AUTO);
    ck_assert_int_eq(io_kind_parse("uring", &kind), 0);
    ck_assert_int_eq(kind, IO_KIND_URING);
    ck_assert_int_eq(io_kind_parse("epoll", &kind), 0);
    ck_assert_int_eq(kind, IO_KIND_EPOLL);
    ck_assert_int_eq(io_kind_parse("io_uring", &kind), -EINVAL);
    ck_assert_int_eq(io_kind_parse("", &kind), -EINVAL);
    ck_assert_int_eq(io_doorbell_parse("auto", &doorbell), 0);
    ck_assert_int_eq(doorbell, IO_DOORBELL_AUTO);
    ck_assert_int_eq(io_doorbell_parse("futex", &doorbell), 0);
    ck_assert_int_eq(doorbell, IO_DOORBELL_FUTEX);
    ck_assert_int_eq(io_doorbell_parse("socket", &doorbell), 0);
    ck_assert_int_eq(doorbell, IO_DOORBELL_SOCKET);
    ck_assert_int_eq(io_doorbell_parse("Socket", &doorbell), -EINVAL);
}
END_TEST

START_TEST(epoll_with_futexes_is_refused_since_it_cannot_wait_for_them)
{
    ck_assert_int_eq(restart(IO_KIND_EPOLL, IO_DOORBELL_FUTEX), -EINVAL);
    ck_assert_str_eq(diag.text,
                     "io epoll cannot wait for futexes: doorbell must be auto or socket");
}
END_TEST

START_TEST(a_forbidden_io_uring_means_epoll_and_a_line_that_says_why)
{
    const int errors[] = {EPERM, ENOSYS};

    ck_assert_int_eq(forbid(SYS_io_uring_setup, errors[_i]), 0);
    ck_assert_msg(restart(IO_KIND_AUTO, IO_DOORBELL_AUTO) == 0, "%s", diag.text);
    ck_assert_str_eq(io_mode(io), "epoll+socket");
    ck_assert_ptr_nonnull(strstr(io_note(io), "io_uring is not available"));
    ck_assert_ptr_nonnull(strstr(io_note(io), strerror(errors[_i])));
    serve_one();
}
END_TEST

START_TEST(a_forbidden_io_uring_that_was_asked_for_is_an_error)
{
    ck_assert_int_eq(forbid(SYS_io_uring_setup, EPERM), 0);
    ck_assert_int_eq(restart(IO_KIND_URING, IO_DOORBELL_AUTO), -EPERM);
    ck_assert_ptr_nonnull(strstr(diag.text, "io_uring is not available"));
    /* So is a doorbell that only io_uring can wait for. */
    ck_assert_int_eq(restart(IO_KIND_AUTO, IO_DOORBELL_FUTEX), -EPERM);
    ck_assert_ptr_nonnull(strstr(diag.text, "io_uring is not available"));
}
END_TEST

/* Older than 6.7: the probe does not tell of FUTEX_WAIT, here because it fails altogether. */
START_TEST(an_io_uring_without_futexes_is_used_with_sockets_and_a_line_says_so)
{
    if (io_way()->io == IO_KIND_EPOLL)
        return;
    ck_assert_int_eq(forbid(SYS_io_uring_register, EINVAL), 0);
    ck_assert_msg(restart(IO_KIND_AUTO, IO_DOORBELL_AUTO) == 0, "%s", diag.text);
    ck_assert_str_eq(io_mode(io), "io_uring+socket");
    ck_assert_ptr_nonnull(strstr(io_note(io), "FUTEX_WAIT"));
    serve_one();
    ck_assert_int_eq(restart(IO_KIND_AUTO, IO_DOORBELL_FUTEX), -EOPNOTSUPP);
    ck_assert_ptr_nonnull(strstr(diag.text, "doorbell futex"));
}
END_TEST

/* ---- the socket as doorbell ----------------------------------------------------------------- */

/* What the daemon has not taken off the socket, in bytes of kernel memory. */
static int untaken(const struct raw_client *c)
{
    int bytes = -1;

    ck_assert_int_eq(ioctl(c->socket, SIOCOUTQ, &bytes), 0);
    return bytes;
}

static void client_opens_and_never_parks(struct raw_client *c)
{
    io_free(io);
    daemon_opt.idle_park_ns = UINT64_MAX;
    ck_assert_msg(io_new(&io, &daemon_opt, &daemon_ops, &diag) == 0, "%s", diag.text);
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
    client_open(c);
}

START_TEST(welcome_says_that_the_socket_is_the_doorbell)
{
    struct raw_client c;

    client_open(&c);
    ck_assert_uint_eq(c.welcome.doorbell, TKR_DOORBELL_SOCKET);
    raw_close(&c);
}
END_TEST

START_TEST(a_flood_of_rings_is_taken_in_one_bounded_piece_per_parking)
{
    struct raw_client c, honest;
    struct tkr_sqe sqe;
    int full, left;

    client_opens_and_never_parks(&c);
    client_open(&honest);
    while (tkr_doorbell_send(c.socket) == 0)
        continue;
    full = untaken(&c);
    for (uint64_t hang = clock_ns() + HANG_NS; untaken(&c) == full;) {
        io_pass(io);
        ck_assert_uint_lt(clock_ns(), hang);
    }
    left = untaken(&c);
    ck_assert_int_gt(left, 0);
    for (int i = 0; i < 10000; i++)
        io_pass(io);
    ck_assert_int_eq(untaken(&c), left);
    sqe = raw_noop(&honest, 0);
    raw_put(&honest, &sqe);
    ck_assert_uint_eq(client_next(&honest).user, sqe.user);
    sqe = raw_noop(&c, 0);
    raw_put(&c, &sqe);
    ck_assert_uint_eq(client_next(&c).user, sqe.user);
    raw_close(&honest);
    raw_close(&c);
}
END_TEST

START_TEST(a_client_that_rang_and_did_not_park_is_still_seen_to_hang_up)
{
    struct raw_client c;

    client_opens_and_never_parks(&c);
    ck_assert_int_eq(tkr_doorbell_send(c.socket), 0);
    PUMP_UNTIL(untaken(&c) == 0);
    ck_assert_int_eq(shutdown(c.socket, SHUT_RDWR), 0);
    PUMP_UNTIL(saw.detaches == 1);
    raw_close(&c);
}
END_TEST

START_TEST(a_descriptor_that_comes_with_a_ring_is_closed_and_ends_the_client)
{
    int fds = 0, passed[3] = {0, 1, 2};
    struct raw_client c;

    client_open(&c);
    fds = folder_entries("/proc/self/fd");
    ck_assert_int_eq(raw_send(c.socket, "\x01", 1, passed, 3), 0);
    PUMP_UNTIL(saw.detaches == 1);
    PUMP_UNTIL(folder_entries("/proc/self/fd") <= fds - 2); /* the socket and the pidfd */
    ck_assert_int_eq(folder_entries("/proc/self/fd"), fds - 2);
    raw_close(&c);
}
END_TEST

/* docs/abi.md: a ring is one byte. */
START_TEST(a_datagram_that_is_no_ring_ends_the_client)
{
    const char *const datagrams[] = {"", "\x01\x01", "a ring of many bytes"};
    struct raw_client c;

    client_open(&c);
    ck_assert_int_ge(send(c.socket, datagrams[_i], strlen(datagrams[_i]), 0), 0);
    PUMP_UNTIL(saw.detaches == 1);
    raw_close(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loop");
    TCase *tc = tcase_create("loop");
    SRunner *sr;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, daemon_setup, daemon_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, the_names_of_loops_and_doorbells_are_known_and_others_are_refused);
    tcase_add_test(tc, epoll_with_futexes_is_refused_since_it_cannot_wait_for_them);
    tcase_add_loop_test(tc, a_forbidden_io_uring_means_epoll_and_a_line_that_says_why, 0, 2);
    tcase_add_test(tc, a_forbidden_io_uring_that_was_asked_for_is_an_error);
    tcase_add_test(tc, an_io_uring_without_futexes_is_used_with_sockets_and_a_line_says_so);
    if (io_way()->doorbell != IO_DOORBELL_FUTEX) {
        tcase_add_test(tc, welcome_says_that_the_socket_is_the_doorbell);
        tcase_add_test(tc, a_flood_of_rings_is_taken_in_one_bounded_piece_per_parking);
        tcase_add_test(tc, a_client_that_rang_and_did_not_park_is_still_seen_to_hang_up);
        tcase_add_test(tc, a_descriptor_that_comes_with_a_ring_is_closed_and_ends_the_client);
        tcase_add_loop_test(tc, a_datagram_that_is_no_ring_ends_the_client, 0, 3);
    }
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
