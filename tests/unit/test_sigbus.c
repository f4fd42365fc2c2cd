/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory errors. A cell that dies cannot be made here, so the daemon's mapping of a region is
 * replaced by one of a file that is then cut to nothing: the access fails in the same way, by
 * SIGBUS with its address (mmap(2)).
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "runtime/io/state.h"
#include "tests/unit/io_fixture.h"

static void spoil(const struct tkr_region *region)
{
    char name[] = "/tmp/tokenring-sigbus-XXXXXX";
    int fd = mkstemp(name);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(unlink(name), 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)region->bytes), 0);
    ck_assert_ptr_eq(
        mmap(region->base, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
        region->base);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    close(fd);
}

static void honest_goes_on(struct raw_client *c)
{
    struct tkr_sqe sqe = raw_noop(c, 0);

    raw_put(c, &sqe);
    ck_assert_uint_eq(client_next(c).user, sqe.user);
}

START_TEST(a_memory_error_in_what_a_client_wrote_ends_that_client_only)
{
    struct raw_client bad, honest;
    struct tkr_sqe sqe;
    struct io_counts counts;

    client_open(&bad);
    client_open(&honest);
    sqe = client_generate(&bad, 0);
    raw_put(&bad, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    spoil(&saw.client->r);
    PUMP_UNTIL(saw.detaches == 1);
    honest_goes_on(&honest);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.memory_errors, 1);
    ck_assert_uint_eq(counts.clients, 1);
    PUMP_UNTIL(region_maps() == 6); /* both ends of the honest one, and the other's own */
    raw_close(&bad);
    raw_close(&honest);
}
END_TEST

START_TEST(a_memory_error_in_what_the_daemon_writes_ends_that_client_only)
{
    struct raw_client bad, honest;
    struct tkr_sqe sqe;
    struct io_counts counts;

    client_open(&bad);
    client_open(&honest);
    sqe = client_generate(&bad, 0);
    raw_put(&bad, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    spoil(&saw.client->t);
    io_done(saw.client, 0, sqe.user, TKR_OK, NULL); /* goes into zeros that nobody sees */
    PUMP_UNTIL(saw.detaches == 1);
    honest_goes_on(&honest);
    io_counts(io, &counts);
    ck_assert_uint_eq(counts.memory_errors, 1);
    raw_close(&bad);
    raw_close(&honest);
}
END_TEST

START_TEST(an_arena_that_fails_while_it_is_copied_reads_as_zeros)
{
    struct raw_client c;
    struct tkr_sqe sqe;
    uint8_t copy[64], zeros[64] = {0};

    client_open(&c);
    memset(c.arena, 7, sizeof copy);
    sqe = client_generate(&c, 0);
    raw_put(&c, &sqe);
    PUMP_UNTIL(saw.submits == 1);
    spoil(&saw.client->r);
    ck_assert_int_eq(io_arena_copy(saw.client, copy, 0, sizeof copy), 0);
    ck_assert_mem_eq(copy, zeros, sizeof copy);
    io_pass(io);
    ck_assert_uint_eq(saw.detaches, 1);
    raw_close(&c);
}
END_TEST

/* In a child, which must die of the signal. */
static int end_of(void (*act)(void))
{
    int status;
    pid_t pid = fork();

    if (!pid) {
        act();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Mapped before the fork: regions do not survive one, and what a child maps may lie where one
 * was. */
static struct tkr_region nobodys = {.bytes = 4096};

static void touch_nobodys(void)
{
    spoil(&nobodys);
    TKR_LOAD_RELAXED((const uint32_t *)nobodys.base);
}

static void send_itself(void)
{
    kill(getpid(), SIGBUS);
}

START_TEST(a_memory_error_anywhere_else_ends_the_daemon)
{
    struct raw_client c;

    client_open(&c);
    nobodys.base = mmap(NULL, nobodys.bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(nobodys.base, MAP_FAILED);
    ck_assert_int_eq(end_of(touch_nobodys), SIGBUS);
    ck_assert_int_eq(end_of(send_itself), SIGBUS);
    raw_close(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sigbus");
    TCase *tc = tcase_create("sigbus");
    SRunner *sr;

    if (io_way_skip())
        return 0;
    tcase_add_checked_fixture(tc, daemon_setup, daemon_teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_memory_error_in_what_a_client_wrote_ends_that_client_only);
    tcase_add_test(tc, a_memory_error_in_what_the_daemon_writes_ends_that_client_only);
    tcase_add_test(tc, an_arena_that_fails_while_it_is_copied_reads_as_zeros);
    tcase_add_test(tc, a_memory_error_anywhere_else_ends_the_daemon);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
