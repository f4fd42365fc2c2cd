/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: step costs calculated on paper, and files that this test writes itself, good and bad. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime/base/team.h"
#include "runtime/tune/profile.h"

#define NOBODY 65534
#define NEAR   1e-9

static char folder[] = "/tmp/tkr-profile-XXXXXX";

/* A file as `ringctl tune` writes it; the tests replace parts of it. */
static const char good[] =
    "{\"version\":1,\"cpu\":\"Example 9000\",\"variant\":\"avx2\",\"threads\":2,"
    "\"model\":\"Small\",\"model_hash\":"
    "\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\",\"took_s\":21.5,"
    "\"limits\":{\"read_one_gbs\":12.5,\"read_gbs\":20,\"int8_method\":\"vpmaddubsw\","
    "\"int8_gops\":300,\"fma_gflops\":150.25,\"barrier_ns\":180},"
    "\"decode\":{\"rows\":[1,4],\"contexts\":[0,1000],\"positions_max\":32768,"
    "\"ms\":[[1,2],[3,6]]},"
    "\"prefill\":{\"rows\":[1,16,64],\"contexts\":[0],\"positions_max\":32768,"
    "\"ms\":[[5],[20],[70]]}}\n";

static struct profile_key key_of_good(void)
{
    struct profile_key key = {.cpu = "Example 9000", .variant = "avx2", .threads = 2};

    for (uint8_t i = 0; i < sizeof key.model; i++)
        key.model[i] = i;
    return key;
}

static struct profile parsed(const char *text)
{
    struct profile profile;
    struct diag why = {""};

    ck_assert_msg(profile_parse(&profile, text, strlen(text), &why) == 0, "%s", why.text);
    return profile;
}

START_TEST(every_field_of_a_file_is_read)
{
    struct profile p = parsed(good);
    struct profile_key key = key_of_good();

    ck_assert_str_eq(p.key.cpu, key.cpu);
    ck_assert_str_eq(p.key.variant, "avx2");
    ck_assert_uint_eq(p.key.threads, 2);
    ck_assert_mem_eq(p.key.model, key.model, sizeof key.model);
    ck_assert_str_eq(p.model_name, "Small");
    ck_assert_double_eq(p.took_s, 21.5);
    ck_assert_str_eq(p.limits.cpu, key.cpu);
    ck_assert_uint_eq(p.limits.n_threads, 2);
    ck_assert_double_eq(p.limits.read_one_gbs, 12.5);
    ck_assert_double_eq(p.limits.read_gbs, 20);
    ck_assert_str_eq(p.limits.int8_method, "vpmaddubsw");
    ck_assert_double_eq(p.limits.int8_gops, 300);
    ck_assert_double_eq(p.limits.fma_gflops, 150.25);
    ck_assert_double_eq(p.limits.barrier_ns, 180);
    ck_assert_uint_eq(p.decode.n_rows, 2);
    ck_assert_uint_eq(p.decode.n_contexts, 2);
    ck_assert_uint_eq(p.decode.rows[1], 4);
    ck_assert_uint_eq(p.decode.contexts[1], 1000);
    ck_assert_double_eq(p.decode.ms[1][0], 3);
    ck_assert_uint_eq(p.decode.positions_max, 32768);
    ck_assert_uint_eq(p.prefill.n_rows, 3);
    ck_assert_uint_eq(p.prefill.n_contexts, 1);
    ck_assert_double_eq(p.prefill.ms[2][0], 70);
}
END_TEST

START_TEST(what_is_written_is_what_is_read)
{
    struct profile a = parsed(good), b;
    char *text;

    a.decode.ms[0][1] = 2.03125;
    text = profile_text(&a);
    ck_assert_ptr_nonnull(text);
    b = parsed(text);
    free(text);
    ck_assert_mem_eq(&a.key, &b.key, sizeof a.key);
    ck_assert_double_eq(b.decode.ms[0][1], 2.03125);
    ck_assert_double_eq(b.limits.fma_gflops, 150.25);
    ck_assert_uint_eq(b.prefill.rows[2], 64);
}
END_TEST

START_TEST(a_models_name_that_is_no_text_is_written_as_question_marks)
{
    struct profile a = parsed(good), b;
    char *text;

    strcpy(a.model_name, "caf\xe9 \"x\"");
    text = profile_text(&a);
    ck_assert_ptr_nonnull(text);
    b = parsed(text);
    free(text);
    ck_assert_str_eq(b.model_name, "caf? \"x\"");
}
END_TEST

/* ---- costs ----------------------------------------------------------------------------------- */

START_TEST(a_step_between_the_points_costs_what_lies_between)
{
    static const struct {
        uint32_t rows, context;
        double ms;
    } cases[] = {
        {1, 0, 1},
        {4, 1000, 6},
        {1, 500, 1.5},
        {4, 250, 3.75},
        {2, 0, 1 + 2.0 / 3},
        /* A third of the way: from 1 to 3, from 2 to 6; in the middle of 5/3 and 10/3. */
        {2, 500, 2.5},
        {3, 1000, 2 + 4 * 2.0 / 3},
    };
    struct profile p = parsed(good);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_double_eq_tol(profile_step_ms(&p.decode, cases[i].rows, cases[i].context),
                                cases[i].ms, NEAR);
}
END_TEST

START_TEST(a_step_beyond_the_last_points_goes_on_as_between_the_last_two)
{
    struct profile p = parsed(good);

    ck_assert_double_eq_tol(profile_step_ms(&p.decode, 1, 3000), 4, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&p.decode, 4, 2000), 9, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&p.decode, 7, 0), 5, NEAR);
    /* 1 ms a thousand positions of one row, 3 of four: 5 of seven. */
    ck_assert_double_eq_tol(profile_step_ms(&p.decode, 7, 1000), 10, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&p.decode, 7, 2000), 15, NEAR);
    /* (70 - 20) / 48 each row */
    ck_assert_double_eq_tol(profile_step_ms(&p.prefill, 112, 0), 120, NEAR);
}
END_TEST

START_TEST(a_step_before_the_first_points_costs_what_they_cost)
{
    struct step_grid grid = {.n_rows = 2,
                             .n_contexts = 2,
                             .rows = {2, 4},
                             .contexts = {100, 200},
                             .ms = {{8, 9}, {10, 12}}};

    ck_assert_double_eq_tol(profile_step_ms(&grid, 1, 0), 8, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&grid, 0, 150), 8.5, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&grid, 3, 7), 9, NEAR);
}
END_TEST

START_TEST(noise_that_makes_the_last_point_cheaper_does_not_make_larger_steps_free)
{
    struct step_grid grid = {
        .n_rows = 2, .n_contexts = 2, .rows = {1, 2}, .contexts = {0, 10}, .ms = {{4, 3}, {3, 2}}};

    ck_assert_double_eq_tol(profile_step_ms(&grid, 1, 1000), 3, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&grid, 1000, 0), 3, NEAR);
    ck_assert_double_eq_tol(profile_step_ms(&grid, 1000, 1000), 2, NEAR);
}
END_TEST

START_TEST(a_grid_of_one_cell_says_the_same_for_every_step)
{
    struct step_grid grid = {
        .n_rows = 1, .n_contexts = 1, .rows = {8}, .contexts = {64}, .ms = {{2.5}}};

    ck_assert_double_eq(profile_step_ms(&grid, 1, 0), 2.5);
    ck_assert_double_eq(profile_step_ms(&grid, 8, 64), 2.5);
    ck_assert_double_eq(profile_step_ms(&grid, UINT32_MAX, UINT32_MAX), 2.5);
}
END_TEST

START_TEST(steps_too_large_to_measure_get_the_attention_of_the_largest_that_was)
{
    struct step_grid grid = {.n_rows = 3,
                             .n_contexts = 3,
                             .rows = {1, 4, 16},
                             .contexts = {0, 100, 1000},
                             .positions_max = 4000,
                             .ms = {{5, 6, 7}, {8, 10, 24}, {20, 25, 0}}};

    step_grid_extend(&grid);
    ck_assert_int_eq(step_grid_measured(&grid, 1, 2), 1);
    ck_assert_int_eq(step_grid_measured(&grid, 2, 2), 0);
    /* 16 ms for 4 rows of 1000 positions, 4 a row; 16 rows: 20 + 64 */
    ck_assert_double_eq_tol(grid.ms[2][2], 84, NEAR);
    /* What was measured stays. */
    ck_assert_double_eq(grid.ms[2][1], 25);
    ck_assert_double_eq(grid.ms[1][2], 24);
}
END_TEST

/* ---- bad files ------------------------------------------------------------------------------- */

/* The good one with its first `from` replaced; free() it. */
static char *replaced(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    char *text;

    ck_assert_msg(at != NULL, "%s", from);
    ck_assert_int_ge(asprintf(&text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from)), 0);
    return text;
}

static const struct {
    const char *from, *to, *says;
} bad[] = {
    {"{", "", "is not JSON: line 1"},
    {"}\n", "", "is not JSON"},
    {"\n", " x", "is not JSON"},
    {good, "", "is not JSON"},
    {good, "[]", "is not a profile"},
    {good, "{}", "is not a profile: Object item not found: version"},
    {"\"version\":1", "\"version\":2", "has version 2, this program reads 1"},
    {"\"version\":1", "\"version\":\"1\"", "is not a profile"},
    {"\"version\":1,", "\"version\":1,\"version\":1,", "duplicate"},
    {"\"took_s\":21.5,", "", "took_s"},
    {"\"took_s\":21.5", "\"took_s\":21.5,\"extra\":0", "extra"},
    {"\"took_s\":21.5", "\"took_s\":-1", "took_s outside"},
    {"\"took_s\":21.5", "\"took_s\":NaN", "is not JSON"},
    {"\"took_s\":21.5", "\"took_s\":1e999", "is not JSON"},
    {"\"cpu\":\"Example 9000\"", "\"cpu\":7", "is not a profile"},
    {"Example 9000", "Ex\\u0000ample", "is not JSON"},
    {"Example 9000", "Ex\xff", "is not JSON"},
    {"\"avx2\"", "\"an unheard-of set\"", "has a variant of 17 bytes"},
    {"\"threads\":2", "\"threads\":0", "0 threads"},
    {"\"threads\":2", "\"threads\":257", "257 threads"},
    {"\"threads\":2", "\"threads\":4294967298", "4294967298 threads"},
    {"\"threads\":2", "\"threads\":2.0", "is not a profile"},
    {"1d1e1f\"", "1d1e1\"", "model_hash"},
    {"1d1e1f\"", "1d1e1g\"", "model_hash"},
    {"\"read_gbs\":20", "\"read_gbs\":-0.5", "a limit outside"},
    {"\"read_gbs\":20", "\"read_gbs\":1e10", "a limit outside"},
    {"\"read_gbs\":20,", "", "has in limits"},
    {"\"rows\":[1,4]", "\"rows\":[4,1]", "has rows outside"},
    {"\"rows\":[1,4]", "\"rows\":[1,1]", "has rows outside"},
    {"\"rows\":[1,4]", "\"rows\":[0,4]", "has rows outside 1 .. 65536"},
    {"\"rows\":[1,4]", "\"rows\":[1,65537]", "has rows outside"},
    {"\"rows\":[1,4]", "\"rows\":[1,4.5]", "has rows outside"},
    {"\"rows\":[1,4]", "\"rows\":[]", "no list of 1 .. 16"},
    {"\"rows\":[1,4]", "\"rows\":4", "no list of 1 .. 16"},
    {"\"rows\":[1,4]", "\"rows\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
     "no list of 1 .. 16"},
    {"\"rows\":[1,4]", "\"rows\":[1,4,8]", "2 lines of decode for 3 rows"},
    {"\"contexts\":[0,1000]", "\"contexts\":[0]", "2 numbers in a line of decode for 1 contexts"},
    {"\"contexts\":[0,1000]", "\"contexts\":[-1,1000]", "has contexts outside"},
    {"\"positions_max\":32768", "\"positions_max\":-1", "positions_max"},
    {"\"positions_max\":32768", "\"positions_max\":4294967296", "positions_max"},
    {"[3,6]", "[3,0]", "has a step of decode outside"},
    {"[3,6]", "[3,-6]", "has a step of decode outside"},
    {"[3,6]", "[3,\"6\"]", "has a step of decode outside"},
    {"[3,6]", "[3,1.1e7]", "has a step of decode outside"},
    {"[3,6]", "3", "0 numbers in a line"},
    {"[70]", "[null]", "has a step of prefill outside"},
    {"\"prefill\":{", "\"prefill\":{\"x\":1,", "has in prefill"},
    {"\"prefill\":", "\"prefill\":null,\"more\":", "is not a profile"},
};

START_TEST(a_file_with_a_wrong_field_is_refused_and_the_reason_told)
{
    char *text = replaced(bad[_i].from, bad[_i].to);
    struct profile p = {.took_s = 7};
    struct diag why = {""};

    ck_assert_int_eq(profile_parse(&p, text, strlen(text), &why), -EINVAL);
    ck_assert_msg(strstr(why.text, bad[_i].says) != NULL, "'%s' says not '%s'", why.text,
                  bad[_i].says);
    ck_assert_double_eq(p.took_s, 7); /* untouched */
    free(text);
}
END_TEST

/* No byte of a file that is cut, or flipped, makes the parser do more than refuse or accept; what it
 * accepts can be asked. */
START_TEST(a_file_that_is_cut_or_has_a_flipped_bit_is_refused_or_in_range)
{
    char *text = strdup(good);
    size_t n = strlen(good);

    ck_assert_ptr_nonnull(text);
    for (size_t cut = 0; cut < n - 1; cut++) {
        struct profile p;

        ck_assert_int_eq(profile_parse(&p, text, cut, NULL), -EINVAL);
    }
    for (size_t bit = 0; bit < 8 * n; bit++) {
        struct profile p;

        text[bit / 8] = (char)(good[bit / 8] ^ 1 << bit % 8);
        if (profile_parse(&p, text, n, NULL) == 0) {
            double ms = profile_step_ms(&p.decode, 2, 500);

            ck_assert(ms > 0 && ms <= PROFILE_MS_MAX);
        }
        text[bit / 8] = good[bit / 8];
    }
    free(text);
}
END_TEST

START_TEST(a_file_that_is_too_long_is_refused)
{
    char *text = malloc(PROFILE_BYTES_MAX + 1);
    struct diag why = {""};
    struct profile p;

    ck_assert_ptr_nonnull(text);
    memset(text, ' ', PROFILE_BYTES_MAX + 1);
    memcpy(text, good, strlen(good));
    ck_assert_int_eq(profile_parse(&p, text, PROFILE_BYTES_MAX, &why), 0);
    ck_assert_int_eq(profile_parse(&p, text, PROFILE_BYTES_MAX + 1, &why), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why.text, "at most 65536"));
    free(text);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static void in_folder(char ret_path[300], const char *name)
{
    snprintf(ret_path, 300, "%s/%s", folder, name);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    umask(022);
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void teardown(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(a_saved_profile_is_found_by_cpu_variant_threads_and_model)
{
    struct profile p = parsed(good), found;
    struct profile_key key = p.key;
    char place[300], path[400], again[400];
    struct diag diag = {""};
    struct stat st;

    in_folder(place, "made/tokenring"); /* neither folder is there */
    ck_assert_int_eq(profile_save(&p, place, path, sizeof path, &diag), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0644);
    ck_assert_int_eq(profile_load(&found, place, &key, &diag), 0);
    ck_assert_str_eq(diag.text, "");
    ck_assert_double_eq(found.decode.ms[1][1], 6);

    p.decode.ms[1][1] = 7; /* measured again: replaced, and nothing else is left there */
    ck_assert_int_eq(profile_save(&p, place, again, sizeof again, &diag), 0);
    ck_assert_str_eq(path, again);
    ck_assert_int_eq(profile_load(&found, place, &key, &diag), 0);
    ck_assert_double_eq(found.decode.ms[1][1], 7);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(place), 0);
}
END_TEST

START_TEST(another_cpu_variant_number_of_threads_or_model_has_no_profile)
{
    struct profile p = parsed(good), found = {.took_s = 7};
    struct profile_key keys[4] = {p.key, p.key, p.key, p.key};
    struct diag note = {""};
    char path[400];

    strcpy(keys[0].cpu, "Example 9001");
    strcpy(keys[1].variant, "avx512");
    keys[2].threads = 3;
    keys[3].model[31]++;
    ck_assert_int_eq(profile_save(&p, folder, path, sizeof path, &note), 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(profile_load(&found, folder, &keys[i], &note), -ENOENT);
        ck_assert_str_eq(note.text, "");
    }
    ck_assert_double_eq(found.took_s, 7);
}
END_TEST

START_TEST(a_profile_that_was_copied_to_anothers_name_is_ignored_with_one_line)
{
    struct profile p = parsed(good), found;
    struct profile_key keys[4] = {p.key, p.key, p.key, p.key};
    static const char *const says[4] = {"is of the CPU Example 9000", "is of avx2 with 2 threads",
                                        "is of avx2 with 2 threads", "is of another model"};

    strcpy(keys[0].cpu, "Example 9001");
    strcpy(keys[1].variant, "avx512");
    keys[2].threads = 3;
    keys[3].model[31]++;
    for (int i = 0; i < 4; i++) {
        char name[PROFILE_NAME_BYTES], path[300];
        struct diag note = {""};

        profile_name(name, &keys[i]);
        in_folder(path, name);
        write_text(path, good);
        ck_assert_int_eq(profile_load(&found, folder, &keys[i], &note), -EINVAL);
        ck_assert_msg(strstr(note.text, says[i]) && strstr(note.text, path), "%s", note.text);
    }
}
END_TEST

static void writable_by_group(const char *path)
{
    ck_assert_int_eq(chmod(path, 0664), 0);
}

static void writable_by_all(const char *path)
{
    ck_assert_int_eq(chmod(path, 0646), 0);
}

static void a_link(const char *path)
{
    char other[300];

    in_folder(other, "real");
    ck_assert_int_eq(rename(path, other), 0);
    ck_assert_int_eq(symlink(other, path), 0);
}

static void a_folder(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void a_fifo(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
}

static void emptied(const char *path)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void grown(const char *path)
{
    ck_assert_int_eq(truncate(path, 1 << 30), 0);
}

static void of_another_user(const char *path)
{
    if (geteuid() == 0)
        ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
    else
        printf("# only root can give a file away: not tried\n");
}

static const struct {
    void (*damage)(const char *path);
    const char *says;
} damages[] = {
    {writable_by_group, "0664"},      {writable_by_all, "0646"},      {a_link, "symbolic link"},
    {a_folder, "not a regular file"}, {a_fifo, "not a regular file"}, {emptied, "is not JSON"},
    {grown, "has at most 65536"},     {of_another_user, "uid 65534"},
};

START_TEST(a_file_that_others_could_have_written_or_that_is_damaged_is_ignored_with_one_line)
{
    struct profile p = parsed(good), found = {.took_s = 7};
    struct diag note = {""};
    char path[400];

    ck_assert_int_eq(profile_save(&p, folder, path, sizeof path, &note), 0);
    damages[_i].damage(path);
    if (damages[_i].damage == of_another_user && geteuid() != 0)
        return;
    ck_assert_int_lt(profile_load(&found, folder, &p.key, &note), 0);
    ck_assert_msg(strstr(note.text, damages[_i].says) && strstr(note.text, path), "%s", note.text);
    ck_assert_ptr_null(strchr(note.text, '\n'));
    ck_assert_double_eq(found.took_s, 7);
    note.text[0] = '\0';
    ck_assert_int_lt(profile_read(&found, path, &note), 0);
    ck_assert_msg(strstr(note.text, damages[_i].says) != NULL, "%s", note.text);
}
END_TEST

START_TEST(a_place_that_cannot_be_written_is_named_and_nothing_is_left)
{
    struct profile p = parsed(good);
    struct diag diag = {""};
    char path[300], place[400];

    in_folder(path, "file");
    write_text(path, "in the way");
    ck_assert_int_eq(profile_save(&p, path, place, sizeof place, &diag), -ENOTDIR);
    ck_assert_ptr_nonnull(strstr(diag.text, path));
    in_folder(path, "missing/profile.json");
    ck_assert_int_eq(profile_write(&p, path, &diag), -ENOENT);
    ck_assert_ptr_nonnull(strstr(diag.text, path));
    in_folder(path, "folder");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(profile_write(&p, path, &diag), -EISDIR);
    ck_assert_int_eq(rmdir(path), 0);
    in_folder(path, "file");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0); /* empty: no temporary file */
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile");
    TCase *text = tcase_create("text"), *files = tcase_create("files");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(text, 60);
    tcase_add_test(text, every_field_of_a_file_is_read);
    tcase_add_test(text, what_is_written_is_what_is_read);
    tcase_add_test(text, a_models_name_that_is_no_text_is_written_as_question_marks);
    tcase_add_test(text, a_step_between_the_points_costs_what_lies_between);
    tcase_add_test(text, a_step_beyond_the_last_points_goes_on_as_between_the_last_two);
    tcase_add_test(text, a_step_before_the_first_points_costs_what_they_cost);
    tcase_add_test(text, noise_that_makes_the_last_point_cheaper_does_not_make_larger_steps_free);
    tcase_add_test(text, a_grid_of_one_cell_says_the_same_for_every_step);
    tcase_add_test(text, steps_too_large_to_measure_get_the_attention_of_the_largest_that_was);
    tcase_add_loop_test(text, a_file_with_a_wrong_field_is_refused_and_the_reason_told, 0,
                        (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(text, a_file_that_is_cut_or_has_a_flipped_bit_is_refused_or_in_range);
    tcase_add_test(text, a_file_that_is_too_long_is_refused);
    suite_add_tcase(suite, text);
    tcase_add_checked_fixture(files, setup, teardown);
    tcase_add_test(files, a_saved_profile_is_found_by_cpu_variant_threads_and_model);
    tcase_add_test(files, another_cpu_variant_number_of_threads_or_model_has_no_profile);
    tcase_add_test(files, a_profile_that_was_copied_to_anothers_name_is_ignored_with_one_line);
    tcase_add_loop_test(
        files, a_file_that_others_could_have_written_or_that_is_damaged_is_ignored_with_one_line, 0,
        (int)(sizeof damages / sizeof damages[0]));
    tcase_add_test(files, a_place_that_cannot_be_written_is_named_and_nothing_is_left);
    suite_add_tcase(suite, files);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
