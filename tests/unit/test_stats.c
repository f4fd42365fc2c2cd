/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "shm/stats.h"

static char folder[64], path[128];

static void folder_make(void)
{
    snprintf(folder, sizeof folder, "/tmp/tokenring-stats-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket.stats", folder);
}

static void folder_remove(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0); /* also: nothing else was left behind */
}

/* Writes n bytes of text to path, then zeros up to size. */
static void file_put(const void *bytes, size_t n, off_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
    ck_assert_int_eq(ftruncate(fd, size), 0);
    close(fd);
}

START_TEST(a_new_file_is_starting_alive_and_has_mode_0640_whatever_the_umask)
{
    struct tkr_stats_file file;
    struct tkr_stats stats;
    struct stat st;
    int alive = 0;

    umask(0777);
    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    umask(022);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0640);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_uint_eq(stats.state, TKR_STATS_STARTING);
    ck_assert_int_eq(alive, 1);
    ck_assert_uint_eq(stats.pid, (uint32_t)getpid());
    ck_assert_str_eq(stats.version, "0.1.0");
    tkr_stats_close(&file);
}
END_TEST

START_TEST(a_reader_sees_the_figures_that_were_put)
{
    static const uint8_t hash[32] = {0x9f, 0x2c, [31] = 0xff};
    struct tkr_stats_file file;
    struct tkr_stats stats;
    int alive = 0;

    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    tkr_stats_set_model(&file, "SmolLM2", hash, "avx512");
    tkr_stats_set_state(&file, TKR_STATS_READY);
    tkr_stats_put(&file.page->clients, 3);
    tkr_stats_put(&file.page->output_tokens, UINT64_C(1) << 40);
    tkr_stats_count_end(&file, TKR_OK);
    tkr_stats_count_end(&file, TKR_E_OVERLOADED); /* number 5; the retry bit is no part of it */
    tkr_stats_count_end(&file, TKR_E_OVERLOADED);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_uint_eq(stats.state, TKR_STATS_READY);
    ck_assert_str_eq(stats.model, "SmolLM2");
    ck_assert_mem_eq(stats.model_hash, hash, sizeof hash);
    ck_assert_str_eq(stats.cpu_variant, "avx512");
    ck_assert_uint_eq(stats.clients, 3);
    ck_assert_uint_eq(stats.output_tokens, UINT64_C(1) << 40);
    ck_assert_uint_eq(stats.ended[0], 1);
    ck_assert_uint_eq(stats.ended[5], 2);
    tkr_stats_close(&file);
}
END_TEST

START_TEST(text_that_is_too_long_is_cut_and_ends_with_nul)
{
    static const uint8_t hash[32];
    char name[200];
    struct tkr_stats_file file;
    struct tkr_stats stats;
    int alive;

    memset(name, 'm', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(tkr_stats_create(&file, path, name), 0);
    tkr_stats_set_model(&file, name, hash, name);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_uint_eq(strlen(stats.version), 15);
    ck_assert_uint_eq(strlen(stats.model), 79);
    ck_assert_uint_eq(strlen(stats.cpu_variant), 15);
    tkr_stats_close(&file);
}
END_TEST

START_TEST(after_an_end_in_order_the_file_stays_and_says_gone)
{
    struct tkr_stats_file file;
    struct tkr_stats stats;
    int alive = 1;

    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    tkr_stats_put(&file.page->finished, 7);
    tkr_stats_close(&file);
    tkr_stats_close(&file); /* a second close does nothing */
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_uint_eq(stats.state, TKR_STATS_GONE);
    ck_assert_int_eq(alive, 0);
    ck_assert_uint_eq(stats.finished, 7);
    ck_assert_uint_ge(stats.stopped_ns, stats.start_ns);
}
END_TEST

/* A child makes the file, says so through a pipe and waits to be killed. */
static pid_t daemon_start(void)
{
    int ready[2];
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct tkr_stats_file file;

        if (tkr_stats_create(&file, path, "0.1.0") < 0)
            _exit(1);
        tkr_stats_set_state(&file, TKR_STATS_READY);
        tkr_stats_put(&file.page->queued, 41);
        if (write(ready[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

START_TEST(a_killed_daemon_is_dead_and_its_last_figures_are_readable)
{
    struct tkr_stats stats;
    int alive = 1;
    pid_t pid = daemon_start();

    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_int_eq(alive, 0);
    ck_assert_uint_eq(stats.state, TKR_STATS_READY); /* it had no chance to say otherwise */
    ck_assert_uint_eq(stats.queued, 41);
}
END_TEST

START_TEST(a_stopped_daemon_is_alive_and_its_process_state_is_T)
{
    struct tkr_stats stats;
    uint64_t ticks = 0;
    char process_state = 0;
    int alive = 0, status;
    pid_t pid = daemon_start();

    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_int_eq(alive, 1);
    ck_assert_int_eq(tkr_stats_process(stats.pid, &ticks, &process_state), 0);
    ck_assert_uint_eq(ticks, stats.pid_start_ticks);
    ck_assert_int_eq(process_state, 'T'); /* proc(5) */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
END_TEST

START_TEST(a_restarted_daemon_does_not_change_the_file_that_a_reader_has_open)
{
    struct tkr_stats_file first, second;
    struct tkr_stats stats;
    int alive;

    ck_assert_int_eq(tkr_stats_create(&first, path, "first"), 0);
    tkr_stats_put(&first.page->finished, 1);
    ck_assert_int_eq(tkr_stats_create(&second, path, "second"), 0);
    ck_assert_uint_eq(first.page->finished, 1);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_str_eq(stats.version, "second");
    ck_assert_uint_eq(stats.finished, 0);
    tkr_stats_close(&first);
    tkr_stats_close(&second);
}
END_TEST

START_TEST(a_left_over_fresh_file_is_replaced)
{
    char fresh[160];
    struct tkr_stats_file file;

    snprintf(fresh, sizeof fresh, "%s.new", path);
    ck_assert_int_eq(close(open(fresh, O_RDWR | O_CREAT | O_CLOEXEC, 0600)), 0);
    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    ck_assert_int_eq(access(fresh, F_OK), -1);
    tkr_stats_close(&file);
}
END_TEST

START_TEST(create_says_why_it_cannot)
{
    static char long_path[5000];
    struct tkr_stats_file file = {.page = NULL, .fd = -7};

    ck_assert_int_eq(tkr_stats_create(&file, "/nonexistent/socket.stats", "0"), -ENOENT);
    memset(long_path, 'a', sizeof long_path - 1);
    ck_assert_int_eq(tkr_stats_create(&file, long_path, "0"), -ENAMETOOLONG);
    ck_assert_ptr_null(file.page); /* out-parameters stay untouched on failure */
    ck_assert_int_eq(file.fd, -7);
}
END_TEST

START_TEST(read_refuses_what_is_no_stats_file)
{
    struct tkr_stats stats = {.pid = 5},
                     wrong = {.magic = TKR_STATS_MAGIC, .major = TKR_STATS_MAJOR};
    int alive = 9;

    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), -ENOENT);
    file_put("x", 1, 1); /* too short: mapping it would be a SIGBUS */
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), -EPROTO);
    file_put("GARBAGE!", 8, 4096);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), -EPROTO);
    wrong.bytes = sizeof wrong;
    wrong.major = TKR_STATS_MAJOR + 1;
    file_put(&wrong, sizeof wrong, 4096);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), -EPROTO);
    wrong.major = TKR_STATS_MAJOR;
    wrong.bytes = 16; /* says that it has less than this reader wants */
    file_put(&wrong, sizeof wrong, 4096);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), -EPROTO);
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* opening it must not wait for a writer */
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), -EPROTO);
    ck_assert_uint_eq(stats.pid, 5);
    ck_assert_int_eq(alive, 9);
}
END_TEST

START_TEST(read_ends_the_text_of_a_file_that_forgot_to)
{
    struct tkr_stats liar = {
        .magic = TKR_STATS_MAGIC, .major = TKR_STATS_MAJOR, .bytes = sizeof liar};
    struct tkr_stats stats;
    int alive;

    memset(liar.version, 'v', sizeof liar.version);
    memset(liar.model, 'm', sizeof liar.model);
    memset(liar.cpu_variant, 'c', sizeof liar.cpu_variant);
    file_put(&liar, sizeof liar, 4096);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive), 0);
    ck_assert_uint_eq(strlen(stats.version), 15);
    ck_assert_uint_eq(strlen(stats.model), 79);
    ck_assert_uint_eq(strlen(stats.cpu_variant), 15);
}
END_TEST

static struct tkr_stats_client client_make(uint64_t id)
{
    return (struct tkr_stats_client){.id = id,
                                     .pid = 4321,
                                     .uid = 1000,
                                     .library = "libtest 1",
                                     .n_queues = 1,
                                     .parked = 1,
                                     .published = 40,
                                     .generated = 42,
                                     .cq_pos = 50};
}

START_TEST(a_reader_sees_the_clients_that_are_attached_and_only_those)
{
    struct tkr_stats_client first = client_make(7), second = client_make(9), *got;
    struct tkr_stats_file file;
    struct tkr_stats stats;
    uint32_t n = 5;
    int alive;

    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
    ck_assert_uint_eq(n, 0);
    ck_assert_ptr_null(got);
    ck_assert_int_eq(tkr_stats_add_clients(&file, 20), 0);
    ck_assert_int_eq(tkr_stats_add_clients(&file, 20), -EINVAL);
    ck_assert_int_eq(tkr_stats_put_client(&file, 3, &first, 100), 1);
    ck_assert_int_eq(tkr_stats_put_client(&file, 19, &second, 101), 1);
    ck_assert_int_eq(tkr_stats_put_client(&file, 20, &second, 101), 0); /* beyond the table */
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(got[0].id, 7);
    ck_assert_uint_eq(got[0].pid, 4321);
    ck_assert_str_eq(got[0].library, "libtest 1");
    ck_assert_uint_eq(got[0].stored_ns, 100);
    ck_assert_uint_eq(got[0].seq % 2, 0);
    ck_assert_uint_eq(got[1].id, 9);
    free(got);
    ck_assert_int_eq(tkr_stats_put_client(&file, 3, NULL, 102), 1);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(got[0].id, 9);
    free(got);
    tkr_stats_close(&file);
}
END_TEST

START_TEST(a_record_that_did_not_change_is_not_written_again)
{
    struct tkr_stats_client client = client_make(7);
    struct tkr_stats_file file;
    uint64_t seq;

    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    ck_assert_int_eq(tkr_stats_add_clients(&file, 1), 0);
    ck_assert_int_eq(tkr_stats_put_client(&file, 0, NULL, 1), 0); /* nobody, as before */
    ck_assert_int_eq(tkr_stats_put_client(&file, 0, &client, 2), 1);
    seq = file.clients[0].seq;
    ck_assert_int_eq(tkr_stats_put_client(&file, 0, &client, 3), 0);
    ck_assert_uint_eq(file.clients[0].seq, seq);
    ck_assert_uint_eq(file.clients[0].stored_ns, 2);
    client.cq_pos++;
    ck_assert_int_eq(tkr_stats_put_client(&file, 0, &client, 4), 1);
    ck_assert_uint_eq(file.clients[0].seq, seq + 2);
    tkr_stats_close(&file);
}
END_TEST

START_TEST(a_record_that_its_writer_left_unfinished_is_marked_and_does_not_hang_the_reader)
{
    struct tkr_stats_client client = client_make(7), *got;
    struct tkr_stats_file file;
    struct tkr_stats stats;
    uint32_t n;
    int alive;

    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    ck_assert_int_eq(tkr_stats_add_clients(&file, 1), 0);
    tkr_stats_put_client(&file, 0, &client, 2);
    file.clients[0].seq++; /* as if it were killed after its first store */
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(got[0].seq % 2, 1);
    free(got);
    tkr_stats_close(&file);
}
END_TEST

/* The writer puts records whose words are all equal; a torn one would have two different ones. */
START_TEST(a_record_is_never_torn)
{
    struct tkr_stats_file file;
    struct tkr_stats stats;
    int alive, status;
    uint32_t whole = 0;
    pid_t pid;

    ck_assert_int_eq(tkr_stats_create(&file, path, "0.1.0"), 0);
    ck_assert_int_eq(tkr_stats_add_clients(&file, 1), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        for (uint64_t i = 1;; i++) {
            struct tkr_stats_client client = {
                .id = i, .generated = i, .wait = i, .cq_pos = (uint32_t)i};

            tkr_stats_put_client(&file, 0, &client, i);
        }
    }
    while (whole < 2000) {
        struct tkr_stats_client *got;
        uint32_t n;

        ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
        if (n && got->seq % 2 == 0) { /* odd: the writer was scheduled away in the middle */
            ck_assert_uint_eq(got->generated, got->id);
            ck_assert_uint_eq(got->wait, got->id);
            ck_assert_uint_eq(got->stored_ns, got->id);
            ck_assert_uint_eq(got->cq_pos, (uint32_t)got->id);
            whole++;
        }
        free(got);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    tkr_stats_close(&file);
}
END_TEST

START_TEST(a_table_that_does_not_fit_its_file_is_refused_and_an_older_file_has_none)
{
    struct tkr_stats liar = {
        .magic = TKR_STATS_MAGIC, .major = TKR_STATS_MAJOR, .bytes = sizeof liar};
    struct tkr_stats_client *got = NULL;
    struct tkr_stats stats;
    uint32_t n = 5;
    int alive;

    liar.clients_off = 4096;
    liar.client_slots = 17; /* the file has room for 16 */
    file_put(&liar, sizeof liar, 8192);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), -EPROTO);
    liar.client_slots = UINT64_C(1) << 60;
    file_put(&liar, sizeof liar, 8192);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), -EPROTO);
    liar.client_slots = 1;
    liar.clients_off = UINT64_MAX - 4095;
    file_put(&liar, sizeof liar, 8192);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), -EPROTO);
    liar.clients_off = 4100; /* not a page */
    file_put(&liar, sizeof liar, 8192);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), -EPROTO);
    ck_assert_int_eq(tkr_stats_read(path, &stats, &alive),
                     0); /* who does not ask for it need not care */
    liar.bytes = 0x270;  /* of minor 0, as docs/abi.md had it */
    file_put(&liar, sizeof liar, 8192);
    ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
    ck_assert_uint_eq(n, 0);
}
END_TEST

/* Offsets and sizes of each minor are those of docs/abi.md, section 9. */
static void page_of_minor(uint16_t minor, uint32_t bytes)
{
    static const struct tkr_stats head = {.magic = TKR_STATS_MAGIC, .major = TKR_STATS_MAJOR};
    uint8_t page[4096];

    memset(page, 0xff, sizeof page); /* what is not this minor's is anything */
    memset(page + 0x08, 0, 0x270 - 0x08);
    memcpy(page, &head, 0x10);
    memcpy(page + 0x0a, &minor, 2);
    memcpy(page + 0x0c, &bytes, 4);
    for (uint32_t at = 0x270; at < bytes && at < sizeof page; at += 8) {
        uint64_t value = at == 0x270 ? 4096 : at == 0x278 ? 1 : at;

        memcpy(page + at, &value, 8);
    }
    file_put(page, sizeof page, 8192);
}

START_TEST(a_figure_that_is_younger_than_its_writer_reads_as_zero)
{
    static const struct {
        uint16_t minor;
        uint32_t bytes, slots;
        uint64_t paused, struck, awake_ns;
    } cases[] = {
        {0, 0x270, 0, 0, 0, 0},
        {1, 0x280, 1, 0, 0, 0},
        {2, 0x2c8, 1, 0x280, 0x2a8, 0x2c0},
        {3, 0x400, 1, 0x280, 0x2a8, 0x2c0}, /* of a writer younger than this reader */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tkr_stats_client *got;
        struct tkr_stats stats;
        uint32_t n;
        int alive;

        page_of_minor(cases[i].minor, cases[i].bytes);
        ck_assert_int_eq(tkr_stats_read_clients(path, &stats, &alive, &got, &n), 0);
        free(got);
        ck_assert_uint_eq(stats.minor, cases[i].minor);
        ck_assert_uint_eq(stats.client_slots, cases[i].slots);
        ck_assert_uint_eq(stats.paused, cases[i].paused);
        ck_assert_uint_eq(stats.struck, cases[i].struck);
        ck_assert_uint_eq(stats.awake_ns, cases[i].awake_ns);
    }
}
END_TEST

START_TEST(a_process_that_does_not_exist_is_ESRCH)
{
    uint64_t ticks = 3;
    char process_state = 'x';

    /* Above the kernel's PID_MAX_LIMIT of 2^22 (linux/threads.h). */
    ck_assert_int_eq(tkr_stats_process(1u << 23, &ticks, &process_state), -ESRCH);
    ck_assert_uint_eq(ticks, 3);
    ck_assert_int_eq(process_state, 'x');
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stats");
    TCase *tcase = tcase_create("stats");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tcase, folder_make, folder_remove);
    tcase_add_test(tcase, a_new_file_is_starting_alive_and_has_mode_0640_whatever_the_umask);
    tcase_add_test(tcase, a_reader_sees_the_figures_that_were_put);
    tcase_add_test(tcase, text_that_is_too_long_is_cut_and_ends_with_nul);
    tcase_add_test(tcase, after_an_end_in_order_the_file_stays_and_says_gone);
    tcase_add_test(tcase, a_killed_daemon_is_dead_and_its_last_figures_are_readable);
    tcase_add_test(tcase, a_stopped_daemon_is_alive_and_its_process_state_is_T);
    tcase_add_test(tcase, a_restarted_daemon_does_not_change_the_file_that_a_reader_has_open);
    tcase_add_test(tcase, a_left_over_fresh_file_is_replaced);
    tcase_add_test(tcase, create_says_why_it_cannot);
    tcase_add_test(tcase, read_refuses_what_is_no_stats_file);
    tcase_add_test(tcase, read_ends_the_text_of_a_file_that_forgot_to);
    tcase_add_test(tcase, a_reader_sees_the_clients_that_are_attached_and_only_those);
    tcase_add_test(tcase, a_record_that_did_not_change_is_not_written_again);
    tcase_add_test(tcase,
                   a_record_that_its_writer_left_unfinished_is_marked_and_does_not_hang_the_reader);
    tcase_add_test(tcase, a_record_is_never_torn);
    tcase_add_test(tcase, a_table_that_does_not_fit_its_file_is_refused_and_an_older_file_has_none);
    tcase_add_test(tcase, a_figure_that_is_younger_than_its_writer_reads_as_zero);
    tcase_add_test(tcase, a_process_that_does_not_exist_is_ESRCH);
    suite_add_tcase(suite, tcase);
    sr = srunner_create(suite);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
