/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of packed weights. What a model from the cache must hold is what model_open() packs of the same
 * file without one; damage is done by this test to bytes and inodes whose meaning pack_cache.h states.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "runtime/model/load.h"
#include "runtime/model/pack_cache.h"
#include "runtime/model/pack_save.h"
#include "tests/unit/tiny_model.h"

#define NOBODY     65534
#define PATH_BYTES 600

static struct team *team;
static char folder[300];  /* of the cache */
static char gguf[280];    /* the model file */
static struct model *own; /* packed without a cache */

static struct model *open_plain(uint32_t n_ctx)
{
    struct diag diag = {""};
    struct model *model = NULL;

    ck_assert_msg(model_open(&model, gguf, n_ctx, NULL, team, &diag) == 0, "%s", diag.text);
    return model;
}

static struct model *open_cached(uint32_t n_ctx)
{
    struct diag diag = {""};
    struct model *model = NULL;

    ck_assert_msg(model_open(&model, gguf, n_ctx, folder, team, &diag) == 0, "%s",
                  diag.text);
    return model;
}

static void make_gguf(const char *name, const char *options)
{
    const char *made = tiny_model(options, "");

    snprintf(gguf, sizeof gguf, "%s/%s-%d.gguf", tiny_folder(), name, (int)getpid());
    ck_assert_int_eq(rename(made, gguf), 0);
}

static void setup(void)
{
    ck_assert_int_eq(team_new(&team, 2), 0);
    snprintf(folder, sizeof folder, "%s/cache-%d/tokenring", tiny_folder(), (int)getpid());
    make_gguf("model", "seed=1");
    own = open_plain(0);
}

static void teardown(void)
{
    model_free(own);
    team_free(team);
}

/* Files in the cache's folder; *ret_path gets the last one's. */
static unsigned count_files(char ret_path[PATH_BYTES])
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    unsigned n = 0;

    if (!dir)
        return 0;
    while ((entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(ret_path, PATH_BYTES, "%s/%s", folder, entry->d_name);
        n++;
    }
    closedir(dir);
    return n;
}

static void save(const struct model *model)
{
    struct diag note = {""};

    ck_assert_ptr_nonnull(model->keep);
    ck_assert_msg(pack_save(model->keep, NULL, &note) == 0, "%s", note.text);
}

/* Starts, keeps, ends: the path of the file is in `path`. */
static void make_cache(char path[PATH_BYTES])
{
    struct model *model = open_cached(0);

    ck_assert_ptr_null(model->packed);
    ck_assert_str_eq(model->cache_note.text, "");
    save(model);
    model_free(model);
    ck_assert_uint_eq(count_files(path), 1);
}

/* The same weights, hash and tables as `expected`, wherever they stand. */
static void assert_same(const struct model *model, const struct model *expected)
{
    const uint8_t *a = model->layers[0].qkv.data, *b = expected->layers[0].qkv.data;
    size_t fixed = (size_t)((const uint8_t *)expected->rope_cos - b);
    size_t table = (size_t)expected->n_ctx * (expected->hp.rope_dim / 2) * sizeof(float);

    ck_assert_mem_eq(model->hash, expected->hash, sizeof model->hash);
    ck_assert_uint_eq((size_t)((const uint8_t *)model->rope_cos - a), fixed);
    ck_assert_mem_eq(a, b, fixed); /* matrices and norms: one piece */
    ck_assert_int_eq((const uint8_t *)model->output_norm - a,
                     (const uint8_t *)expected->output_norm - b);
    ck_assert_int_eq(model->head.data - a, expected->head.data - b);
    ck_assert_mem_eq(model->rope_cos, expected->rope_cos, table);
    ck_assert_mem_eq(model->rope_sin, expected->rope_sin, table);
    ck_assert_uint_eq(model->n_ctx, expected->n_ctx);
}

static void assert_mapped(uint32_t n_ctx, const struct model *expected)
{
    struct model *model = open_cached(n_ctx);

    ck_assert_ptr_nonnull(model->packed);
    ck_assert_ptr_null(model->memory);
    ck_assert_ptr_null(model->keep);
    ck_assert_str_eq(model->cache_note.text, "");
    assert_same(model, expected);
    model_free(model);
}

START_TEST(a_second_start_maps_what_the_first_has_packed)
{
    char path[PATH_BYTES];

    make_cache(path);
    assert_mapped(0, own);
}
END_TEST

START_TEST(others_may_read_it_if_they_may_read_the_model)
{
    struct model *model;
    char path[PATH_BYTES];
    struct stat st;

    umask(022);
    ck_assert_int_eq(chmod(gguf, 0640), 0);
    make_cache(path);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(chmod(gguf, 0644), 0);
    model = open_cached(0);
    save(model);
    model_free(model);
    ck_assert_uint_eq(count_files(path), 1);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0644);
}
END_TEST

START_TEST(without_a_cache_nothing_is_to_be_kept)
{
    ck_assert_ptr_null(own->packed);
    ck_assert_ptr_null(own->keep);
}
END_TEST

/* ---- files that are not used ---------------------------------------------------------------- */

static void patch(const char *path, off_t at, uint8_t xor)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= xor;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static off_t size_of(const char *path)
{
    struct stat st;

    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

static void cut_by_one(const char *path)
{
    ck_assert_int_eq(truncate(path, size_of(path) - 1), 0);
}

static void cut_in_the_header(const char *path)
{
    ck_assert_int_eq(truncate(path, 100), 0);
}

static void emptied(const char *path)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void grown(const char *path)
{
    ck_assert_int_eq(truncate(path, size_of(path) + 4096), 0);
}

static void flipped_in_the_header(const char *path)
{
    patch(path, offsetof(struct pack_header, key) + 3, 0x10);
}

static void flipped_in_the_first_weight(const char *path)
{
    patch(path, PACK_HEADER_BYTES, 1);
}

static void flipped_in_the_last_byte(const char *path)
{
    patch(path, size_of(path) - 1, 0x80);
}

static void of_another_program(const char *path)
{
    patch(path, 0, 0x20);
}

static void of_a_later_version(const char *path)
{
    patch(path, offsetof(struct pack_header, version), 2);
}

static void writable_by_group(const char *path)
{
    ck_assert_int_eq(chmod(path, 0664), 0);
}

static void writable_by_all(const char *path)
{
    ck_assert_int_eq(chmod(path, 0646), 0);
}

static void a_folder(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void a_link(const char *path)
{
    char other[PATH_BYTES + 8];

    snprintf(other, sizeof other, "%s.real", path);
    ck_assert_int_eq(rename(path, other), 0);
    ck_assert_int_eq(symlink(other, path), 0);
}

static void a_fifo(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
}

static void of_another_user(const char *path)
{
    ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
}

static const struct {
    void (*damage)(const char *path);
    const char *says;
    int root; /* only root can do it */
} damages[] = {
    {cut_by_one, "its header says otherwise", 0},
    {cut_in_the_header, "too short", 0},
    {emptied, "too short", 0},
    {grown, "its header says otherwise", 0},
    {flipped_in_the_header, "damaged header", 0},
    {flipped_in_the_first_weight, "do not hash", 0},
    {flipped_in_the_last_byte, "do not hash", 0},
    {of_another_program, "not a file of packed weights", 0},
    {of_a_later_version, "version 3", 0}, /* 1 ^ 2 */
    {writable_by_group, "0664", 0},
    {writable_by_all, "0646", 0},
    {a_link, "symbolic link", 0},
    {a_fifo, "not a regular file", 0},
    {a_folder, "not a regular file", 0},
    {of_another_user, "uid 65534", 1},
};

START_TEST(a_file_that_is_damaged_or_foreign_is_ignored_with_one_line_and_the_weights_are_the_same)
{
    char path[PATH_BYTES];
    struct model *model;

    if (damages[_i].root && geteuid() != 0) {
        printf("# only root can give a file away: not tried\n");
        return;
    }
    make_cache(path);
    damages[_i].damage(path);
    model = open_cached(0);
    ck_assert_ptr_null(model->packed);
    assert_same(model, own);
    ck_assert_msg(strstr(model->cache_note.text, path) != NULL, "'%s' does not name %s",
                  model->cache_note.text, path);
    ck_assert_msg(strstr(model->cache_note.text, damages[_i].says) != NULL, "'%s' says not '%s'",
                  model->cache_note.text, damages[_i].says);
    ck_assert_ptr_null(strchr(model->cache_note.text, '\n'));
    rmdir(path); /* what is a folder stays one: only files are replaced */
    save(model);
    model_free(model);
    assert_mapped(0, own);
}
END_TEST

START_TEST(every_flipped_bit_of_a_header_is_found)
{
    struct pack_header good = {.key = {.fixed_bytes = 640, .ctx_bytes = 256, .n_ctx = 10}};
    const uint64_t bytes = PACK_HEADER_BYTES + 640 + 2560;
    struct diag why;

    memset(good.key.model, 7, sizeof good.key.model);
    pack_header_seal(&good);
    ck_assert_int_eq(pack_header_check(&good, bytes, &why), 0);
    for (size_t bit = 0; bit < 8 * sizeof good; bit++) {
        struct pack_header bad = good;

        ((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        why.text[0] = '\0';
        ck_assert_int_eq(pack_header_check(&bad, bytes, &why), -EINVAL);
        ck_assert_str_ne(why.text, "");
    }
}
END_TEST

START_TEST(a_header_whose_sizes_do_not_make_the_files_is_refused_also_when_they_overflow)
{
    static const struct {
        uint64_t fixed, ctx, n_ctx;
    } sizes[] = {{640, 256, 11},
                 {641, 256, 10},
                 {640, UINT64_MAX, UINT64_MAX},
                 {640, 1ull << 32, 1ull << 32}, /* 2^64 = 0 */
                 {UINT64_MAX - 4095, 1, 4095 + 640 + 2560},
                 {3200, 0, 1ull << 40}, /* right, and nothing that is wanted */
                 {UINT64_MAX, 256, 10}};
    struct diag why;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct pack_header h = {.key = {.fixed_bytes = sizes[i].fixed,
                                        .ctx_bytes = sizes[i].ctx,
                                        .n_ctx = sizes[i].n_ctx}};

        pack_header_seal(&h);
        ck_assert_int_eq(pack_header_check(&h, PACK_HEADER_BYTES + 640 + 2560, &why),
                         sizes[i].fixed == 3200 ? 0 : -EINVAL);
    }
}
END_TEST

START_TEST(a_right_header_of_another_layout_is_not_mapped)
{
    char path[PATH_BYTES];
    struct pack_header header;
    struct model *model;
    int fd;

    make_cache(path);
    fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &header, sizeof header, 0), sizeof header);
    header.key.fixed_bytes -= 64;
    header.key.n_ctx += 1; /* 64 bytes a position: head_dim 32 */
    ck_assert_uint_eq(header.key.ctx_bytes * header.key.n_ctx + header.key.fixed_bytes +
                          PACK_HEADER_BYTES,
                      (uint64_t)size_of(path) + header.key.ctx_bytes - 64);
    ck_assert_int_eq(ftruncate(fd, size_of(path) + (off_t)header.key.ctx_bytes - 64), 0);
    pack_header_seal(&header);
    ck_assert_int_eq(pwrite(fd, &header, sizeof header, 0), sizeof header);
    close(fd);
    model = open_cached(0);
    ck_assert_ptr_null(model->packed);
    ck_assert_ptr_nonnull(strstr(model->cache_note.text, "another layout"));
    assert_same(model, own);
    model_free(model);
}
END_TEST

/* ---- the model file changes ----------------------------------------------------------------- */

START_TEST(a_model_file_that_was_only_touched_is_known_by_its_contents_and_then_by_sight)
{
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char path[PATH_BYTES];
    struct model *model;

    make_cache(path);
    ck_assert_int_eq(utimensat(AT_FDCWD, gguf, times, 0), 0);
    model = open_cached(0);
    ck_assert_ptr_nonnull(model->packed);
    ck_assert_str_eq(model->cache_note.text, "");
    assert_same(model, own);
    save(model);
    model_free(model);
    ck_assert_uint_eq(count_files(path), 1);
    assert_mapped(0, own);
}
END_TEST

START_TEST(another_model_at_the_same_path_is_packed_and_takes_the_first_ones_place)
{
    char first[PATH_BYTES], second[PATH_BYTES];
    struct model *model, *other;

    make_cache(first);
    make_gguf("model", "seed=2");
    other = open_plain(0);
    ck_assert_mem_ne(other->hash, own->hash, sizeof own->hash);
    make_cache(second);
    ck_assert_str_ne(first, second);
    ck_assert_int_eq(access(first, F_OK), -1);
    model = open_cached(0);
    ck_assert_ptr_nonnull(model->packed);
    assert_same(model, other);
    model_free(model);
    model_free(other);
}
END_TEST

START_TEST(two_paths_of_one_model_share_a_file_and_two_models_have_one_each)
{
    char path[PATH_BYTES];
    struct model *other;

    make_cache(path);
    make_gguf("copy", "seed=1");
    assert_mapped(0, own); /* nothing to keep: the file stays the first path's */
    make_gguf("other", "seed=2");
    other = open_cached(0);
    save(other);
    model_free(other);
    ck_assert_uint_eq(count_files(path), 2);
}
END_TEST

START_TEST(a_model_that_changed_since_it_was_packed_is_not_kept)
{
    struct diag note = {""};
    struct model *model = open_cached(0);
    char path[PATH_BYTES];

    ck_assert_int_eq(chmod(gguf, 0600), 0);
    ck_assert_int_eq(pack_save(model->keep, NULL, &note), -ESTALE);
    ck_assert_ptr_nonnull(strstr(note.text, "changed"));
    ck_assert_uint_eq(count_files(path), 0);
    model_free(model);
}
END_TEST

START_TEST(a_shorter_context_maps_the_file_of_a_longer_one_and_a_longer_one_replaces_it)
{
    struct model *shorter = open_plain(40), *model = open_cached(40);
    char path[PATH_BYTES];

    save(model);
    model_free(model);
    assert_mapped(40, shorter);
    model = open_cached(0);
    ck_assert_ptr_null(model->packed);
    ck_assert_ptr_nonnull(strstr(model->cache_note.text, "context of 40"));
    assert_same(model, own);
    save(model);
    model_free(model);
    ck_assert_uint_eq(count_files(path), 1);
    assert_mapped(0, own);
    assert_mapped(40, shorter);
    model_free(shorter);
}
END_TEST

/* ---- writing -------------------------------------------------------------------------------- */

START_TEST(a_writer_that_is_stopped_leaves_nothing)
{
    const atomic_int stop = 1;
    struct diag note = {""};
    struct model *model = open_cached(0);
    char path[PATH_BYTES];

    ck_assert_int_eq(pack_save(model->keep, &stop, &note), -ECANCELED);
    ck_assert_uint_eq(count_files(path), 0);
    model_free(model);
}
END_TEST

/* A large body, so that there is a while in which to kill its writer. */
static struct pack_keep large(size_t bytes)
{
    struct pack_keep keep = {.folder = folder, .source = gguf, .body_bytes = bytes};
    struct stat st;

    keep.body = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(keep.body, MAP_FAILED);
    ck_assert_int_eq(stat(gguf, &st), 0);
    pack_source(keep.key.source, &st);
    keep.key.fixed_bytes = bytes;
    return keep;
}

START_TEST(a_writer_that_is_killed_leaves_no_half_file_in_use_and_the_next_one_clears_up)
{
    struct pack_keep keep = large((size_t)256 << 20);
    char path[PATH_BYTES], name[PACK_NAME_BYTES], temporary[PATH_BYTES];
    struct diag note = {""};
    struct pack_map map;
    pid_t pid = fork();
    int err, status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(pack_save(&keep, NULL, NULL) < 0);
    pack_name(name, &keep.key);
    snprintf(temporary, sizeof temporary, "%s/.%s.tmp", folder, name);
    while (access(temporary, F_OK) < 0)
        ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    err = pack_cache_open(&map, folder, &keep.key, &note);
    ck_assert_int_eq(err, -ENOENT);
    ck_assert_uint_eq(count_files(path), 1);
    ck_assert_str_eq(path, temporary);

    keep.body_bytes = keep.key.fixed_bytes = 8u << 20;
    ck_assert_int_eq(pack_save(&keep, NULL, &note), 0);
    ck_assert_uint_eq(count_files(path), 1);
    ck_assert_int_eq(pack_cache_open(&map, folder, &keep.key, &note), 0);
    pack_cache_close(&map);
}
END_TEST

START_TEST(who_finds_another_writer_at_work_leaves_it_to_him)
{
    struct pack_keep keep = large(8u << 20);
    char name[PACK_NAME_BYTES], temporary[PATH_BYTES], path[PATH_BYTES];
    struct diag note = {""};
    struct model *model = open_cached(0);
    int fd;

    save(model); /* makes the folder */
    pack_name(name, &keep.key);
    snprintf(temporary, sizeof temporary, "%s/.%s.tmp", folder, name);
    fd = open(temporary, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(pack_save(&keep, NULL, &note), -EBUSY);
    ck_assert_int_eq(access(temporary, F_OK), 0);
    close(fd); /* and with it the lock: this one was killed */
    ck_assert_int_eq(pack_save(&keep, NULL, &note), 0);
    ck_assert_int_eq(access(temporary, F_OK), -1);
    ck_assert_uint_eq(count_files(path), 2);
    model_free(model);
}
END_TEST

START_TEST(what_a_killed_writer_left_of_another_model_is_cleared_up_unless_he_is_at_work)
{
    struct pack_keep keep = large(1u << 20);
    char name[PACK_NAME_BYTES], left[PATH_BYTES], works[PATH_BYTES];
    struct diag note = {""};
    struct model *model = open_cached(0);
    int fd;

    save(model); /* makes the folder */
    pack_name(name, &keep.key);
    name[0] = 'x'; /* no digest begins so */
    snprintf(left, sizeof left, "%s/.%s.tmp", folder, name);
    name[0] = 'y';
    snprintf(works, sizeof works, "%s/.%s.tmp", folder, name);
    close(open(left, O_RDWR | O_CREAT | O_EXCL, 0600));
    fd = open(works, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(pack_save(&keep, NULL, &note), 0);
    ck_assert_int_eq(access(left, F_OK), -1);
    ck_assert_int_eq(access(works, F_OK), 0);
    close(fd);
    model_free(model);
}
END_TEST

static void assert_nothing_written(const struct model *model, int expected)
{
    struct diag note = {""};
    char path[PATH_BYTES];

    ck_assert_int_eq(pack_save(model->keep, NULL, &note), expected);
    ck_assert_ptr_nonnull(strstr(note.text, folder));
    ck_assert_ptr_nonnull(strstr(note.text, strerror(-expected)));
    ck_assert_uint_eq(count_files(path), 0);
    assert_same(model, own);
}

START_TEST(a_file_that_may_not_grow_so_large_costs_nothing_but_the_cache)
{
    const struct rlimit limit = {4096, 4096};
    struct model *model = open_cached(0);

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_nothing_written(model, -EFBIG);
    model_free(model);
}
END_TEST

START_TEST(a_full_disk_costs_nothing_but_the_cache)
{
    struct model *model = open_cached(0);
    char parent[128];

    snprintf(parent, sizeof parent, "%s/full-%d", tiny_folder(), (int)getpid());
    ck_assert_int_eq(mkdir(parent, 0700), 0);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", parent, "tmpfs", 0, "size=16k") < 0) {
        printf("# cannot mount a small disk (not root?): not tried\n");
    } else {
        snprintf(folder, sizeof folder, "%s", parent);
        free(model->keep->folder);
        model->keep->folder = strdup(folder);
        assert_nothing_written(model, -ENOSPC);
    }
    model_free(model);
}
END_TEST

START_TEST(a_folder_that_cannot_be_made_is_said_once_and_the_model_is_served)
{
    struct model *model;
    struct diag note = {""};

    snprintf(folder, sizeof folder, "%s/model", gguf); /* below a file */
    model = open_cached(0);
    ck_assert_str_eq(model->cache_note.text, "");
    assert_same(model, own);
    ck_assert_int_eq(pack_save(model->keep, NULL, &note), -ENOTDIR);
    ck_assert_ptr_nonnull(strstr(note.text, folder));
    model_free(model);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("pack_cache");
    TCase *tc = tcase_create("pack_cache");
    SRunner *sr;
    int failed;

    if (argc != 2)
        return 2;
    tiny_init(argv[1]);
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_second_start_maps_what_the_first_has_packed);
    tcase_add_test(tc, others_may_read_it_if_they_may_read_the_model);
    tcase_add_test(tc, without_a_cache_nothing_is_to_be_kept);
    tcase_add_loop_test(
        tc, a_file_that_is_damaged_or_foreign_is_ignored_with_one_line_and_the_weights_are_the_same,
        0, sizeof damages / sizeof damages[0]);
    tcase_add_test(tc, every_flipped_bit_of_a_header_is_found);
    tcase_add_test(tc,
                   a_header_whose_sizes_do_not_make_the_files_is_refused_also_when_they_overflow);
    tcase_add_test(tc, a_right_header_of_another_layout_is_not_mapped);
    tcase_add_test(tc,
                   a_model_file_that_was_only_touched_is_known_by_its_contents_and_then_by_sight);
    tcase_add_test(tc, another_model_at_the_same_path_is_packed_and_takes_the_first_ones_place);
    tcase_add_test(tc, two_paths_of_one_model_share_a_file_and_two_models_have_one_each);
    tcase_add_test(tc, a_model_that_changed_since_it_was_packed_is_not_kept);
    tcase_add_test(tc,
                   a_shorter_context_maps_the_file_of_a_longer_one_and_a_longer_one_replaces_it);
    tcase_add_test(tc, a_writer_that_is_stopped_leaves_nothing);
    tcase_add_test(tc,
                   a_writer_that_is_killed_leaves_no_half_file_in_use_and_the_next_one_clears_up);
    tcase_add_test(tc, who_finds_another_writer_at_work_leaves_it_to_him);
    tcase_add_test(tc,
                   what_a_killed_writer_left_of_another_model_is_cleared_up_unless_he_is_at_work);
    tcase_add_test(tc, a_file_that_may_not_grow_so_large_costs_nothing_but_the_cache);
    tcase_add_test(tc, a_full_disk_costs_nothing_but_the_cache);
    tcase_add_test(tc, a_folder_that_cannot_be_made_is_said_once_and_the_model_is_served);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    tiny_fini();
    return failed ? 1 : 0;
}
