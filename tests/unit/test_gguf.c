/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kernels/cpu_kernels.h"
#include "runtime/model/gguf.h"
#include "tests/unit/tiny_model.h"

/* One block of 64: a header, some 40 keys and 11 tensors; 20 to 35 KB. */
#define SMALL "layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=64, type='Q4_0'"

static void assert_str(struct gguf_str str, const char *expected)
{
    ck_assert_uint_eq(str.n, strlen(expected));
    ck_assert_mem_eq(str.s, expected, str.n);
}

/* Expected values: the arguments given to make_gguf.py and its defaults. */
START_TEST(a_file_gives_its_keys_and_tensors)
{
    const char *path =
        tiny_model(SMALL, "f.put('a.i8', m.I8, -5); f.put('a.u64', m.U64, 2**32 - 1)\n"
                          "f.put('a.f64', m.F64, 0.5)\n"
                          "f.put('a.list', m.ARR, m.Arr(m.U32, [7, 8]))\n"
                          "f.put('a.floats', m.ARR, m.Arr(m.F32, [1.5]))");
    const struct gguf_tensor *t;
    struct gguf_str str = {NULL, 0};
    struct gguf_iter it;
    struct diag diag = {""};
    struct gguf *g;
    uint32_t u = 0;
    float f = 0;
    int b = 1;

    ck_assert_int_eq(gguf_open(&g, path, &diag), 0);
    ck_assert_int_eq(gguf_get_u32(g, "llama.embedding_length", &u, &diag), 0);
    ck_assert_uint_eq(u, 64);
    ck_assert_int_eq(gguf_get_u32(g, "a.u64", &u, &diag), 0);
    ck_assert_uint_eq(u, UINT32_MAX);
    ck_assert_int_eq(gguf_get_str(g, "general.architecture", &str, &diag), 0);
    assert_str(str, "llama");
    ck_assert_int_eq(gguf_get_f32(g, "llama.rope.freq_base", &f, &diag), 0);
    ck_assert_float_eq(f, 10000);
    ck_assert_int_eq(gguf_get_f32(g, "a.f64", &f, &diag), 0);
    ck_assert_float_eq(f, 0.5F);
    ck_assert_int_eq(gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &b, &diag), 0);
    ck_assert_int_eq(b, 0);
    ck_assert_int_eq(gguf_array(g, "a.list", GGUF_U32, &it, &diag), 0);
    ck_assert_uint_eq(it.left, 2);
    ck_assert_int_eq(gguf_next_u32(&it, &u), 0);
    ck_assert_int_eq(gguf_next_u32(&it, &u), 0);
    ck_assert_uint_eq(u, 8);
    ck_assert_int_eq(gguf_next_u32(&it, &u), -ENOENT);
    ck_assert_int_eq(gguf_array(g, "a.floats", GGUF_F32, &it, &diag), 0);
    ck_assert_int_eq(gguf_next_str(&it, &str), -ENOENT);
    ck_assert_int_eq(gguf_next_f32(&it, &f), 0);
    ck_assert_float_eq(f, 1.5F);
    ck_assert_int_eq(gguf_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &it, &diag), 0);
    ck_assert_int_eq(gguf_next_str(&it, &str), 0);
    assert_str(str, "<|endoftext|>");

    ck_assert_uint_eq(gguf_n_tensors(g), 11);
    t = gguf_tensor(g, "blk.0.ffn_up.weight");
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(t->type, 2);
    ck_assert_uint_eq(t->n_dims, 2);
    ck_assert_uint_eq(t->dims[0], 64);
    ck_assert_uint_eq(t->dims[1], 64);
    ck_assert_uint_eq(t->bytes, 64 * 64 / 32 * 18);
    ck_assert_ptr_null(gguf_tensor(g, "blk.0.ffn_up"));
    ck_assert_ptr_null(gguf_tensor_at(g, 11));
    gguf_close(g);
}
END_TEST

START_TEST(a_value_of_another_type_is_refused_and_an_absent_one_is_absent)
{
    const char *path =
        tiny_model(SMALL, "f.put('a.negative', m.I32, -1); f.put('a.large', m.U64, 2**32)\n"
                          "f.put('a.bool', m.BOOL, m.Raw(m.BOOL, bytes([2])))");
    struct gguf_str str = {NULL, 9};
    struct gguf_iter it = {.left = 9};
    struct gguf *g;
    uint32_t u = 9;
    float f = 9;
    int b = 9;
    struct diag diag = {""};

    ck_assert_int_eq(gguf_open(&g, path, &diag), 0);
    ck_assert_int_eq(gguf_get_u32(g, "nothing", &u, &diag), -ENOENT);
    ck_assert_int_eq(gguf_get_f32(g, "nothing", &f, &diag), -ENOENT);
    ck_assert_int_eq(gguf_get_bool(g, "nothing", &b, &diag), -ENOENT);
    ck_assert_int_eq(gguf_get_str(g, "nothing", &str, &diag), -ENOENT);
    ck_assert_int_eq(gguf_array(g, "nothing", GGUF_U32, &it, &diag), -ENOENT);
    ck_assert_str_eq(diag.text, "");
    ck_assert_int_eq(gguf_get_u32(g, "general.name", &u, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "key 'general.name' has type 8, expected an integer"));
    ck_assert_int_eq(gguf_get_u32(g, "llama.rope.freq_base", &u, &diag), -EINVAL);
    ck_assert_int_eq(gguf_get_u32(g, "a.negative", &u, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "'a.negative' is -1"));
    ck_assert_int_eq(gguf_get_u32(g, "a.large", &u, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "'a.large' is 4294967296"));
    ck_assert_int_eq(gguf_get_f32(g, "llama.block_count", &f, &diag), -EINVAL);
    ck_assert_int_eq(gguf_get_bool(g, "llama.block_count", &b, &diag), -EINVAL);
    ck_assert_int_eq(gguf_get_bool(g, "a.bool", &b, &diag), -EINVAL);
    ck_assert_int_eq(gguf_get_str(g, "llama.block_count", &str, &diag), -EINVAL);
    ck_assert_int_eq(gguf_array(g, "llama.block_count", GGUF_U32, &it, &diag), -EINVAL);
    ck_assert_int_eq(gguf_array(g, "tokenizer.ggml.tokens", GGUF_U32, &it, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "tokenizer.ggml.tokens"));
    /* Out-parameters stay as they were. */
    ck_assert_uint_eq(u, 9);
    ck_assert_float_eq(f, 9);
    ck_assert_int_eq(b, 9);
    ck_assert_uint_eq(str.n, 9);
    ck_assert_uint_eq(it.left, 9);
    gguf_close(g);
}
END_TEST

/* A file in memory that is opened by name. */
struct memory_file {
    int fd;
    char path[64];
};

static void memory_file_open(struct memory_file *file)
{
    file->fd = memfd_create("gguf", MFD_CLOEXEC);
    ck_assert_int_ge(file->fd, 0);
    snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

static void memory_file_set(const struct memory_file *file, const unsigned char *bytes, size_t n)
{
    ck_assert_int_eq(ftruncate(file->fd, 0), 0);
    ck_assert_int_eq(pwrite(file->fd, bytes, n, 0), (ssize_t)n);
}

/* Touches whatever an open file offers. */
static unsigned touch_all(const struct gguf *g)
{
    unsigned sum = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        sum += t->data[0] + t->data[t->bytes - 1];
    }
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        struct gguf_str key = gguf_key_at(g, i), str;
        struct gguf_iter it;
        char name[64];

        if (key.n >= sizeof name)
            continue;
        memcpy(name, key.s, key.n);
        name[key.n] = '\0';
        if (gguf_get_str(g, name, &str, NULL) == 0 && str.n)
            sum += (unsigned char)str.s[str.n - 1];
        if (gguf_array(g, name, GGUF_STRING, &it, NULL) == 0)
            while (gguf_next_str(&it, &str) == 0)
                sum += str.n ? (unsigned char)str.s[str.n - 1] : 0;
    }
    return sum;
}

START_TEST(a_file_cut_anywhere_is_refused_with_bytes_needed_and_bytes_there)
{
    size_t n;
    unsigned char *bytes = tiny_read(tiny_model(SMALL, ""), &n);
    struct memory_file file;
    struct gguf *g = NULL;

    memory_file_open(&file);
    for (size_t cut = 0; cut < n; cut += cut < 400 ? 1 : 37) {
        struct diag diag = {""};
        char has[64];

        memory_file_set(&file, bytes, cut);
        ck_assert_int_eq(gguf_open(&g, file.path, &diag), -EINVAL);
        ck_assert_ptr_null(g);
        snprintf(has, sizeof has, "the file has %zu bytes", cut);
        if (cut >= 32)
            ck_assert_msg(strstr(diag.text, has) && strstr(diag.text, " needs "), "%s", diag.text);
    }
    memory_file_set(&file, bytes, n);
    ck_assert_int_eq(gguf_open(&g, file.path, NULL), 0);
    gguf_close(g);
    close(file.fd);
    free(bytes);
}
END_TEST

/* What the list of tensors has of one: after its name n_dims, here 1, then these. */
struct listed {
    uint64_t width;
    uint32_t type;
    uint64_t offset;
} __attribute__((packed));

static struct listed *listed_find(unsigned char *bytes, size_t n, struct gguf_str name)
{
    uint64_t length = name.n;
    unsigned char entry[80], *at;

    ck_assert_uint_le(sizeof length + name.n, sizeof entry);
    memcpy(entry, &length, sizeof length);
    memcpy(entry + sizeof length, name.s, name.n);
    at = memmem(bytes, n, entry, sizeof length + name.n);
    ck_assert_ptr_nonnull(at);
    return (struct listed *)(void *)(at + sizeof length + name.n + sizeof(uint32_t));
}

static void assert_named(const struct memory_file *file, const unsigned char *bytes, size_t n,
                         struct gguf_str name, const char *fault)
{
    struct diag diag = {""};
    struct gguf *g = NULL;
    char quoted[80];

    snprintf(quoted, sizeof quoted, "'%.*s'", (int)name.n, name.s);
    memory_file_set(file, bytes, n);
    ck_assert_msg(gguf_open(&g, file->path, &diag) == -EINVAL, "%s %s", quoted, fault);
    ck_assert_msg(strstr(diag.text, quoted) && strstr(diag.text, fault), "%s: %s", quoted,
                  diag.text);
}

/* Rows 47, 49 and 52 of the case list for each type of weights. Blocks: the list of make_gguf.py. */
START_TEST(a_tensor_of_each_type_has_whole_blocks_all_of_its_bytes_and_none_of_the_next)
{
    size_t n;
    unsigned char *bytes = tiny_read(tiny_model(SMALL, "m.add_all_types(f)"), &n);
    const struct gguf_tensor *next;
    struct memory_file file, damaged;
    unsigned n_types = 0;
    uint64_t size;
    struct gguf *g;

    memory_file_open(&file);
    memory_file_open(&damaged);
    memory_file_set(&file, bytes, n);
    ck_assert_int_eq(gguf_open(&g, file.path, NULL), 0);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        size_t end = (size_t)(t->data - gguf_bytes(g, &size)) + t->bytes;
        struct listed *entry, whole;
        uint32_t block, block_bytes;

        if (strncmp(t->name.s, "row.", 4) != 0)
            continue;
        n_types++;
        assert_named(&damaged, bytes, end - 1, t->name, "the file has");

        entry = listed_find(bytes, n, t->name);
        whole = *entry;
        ck_assert_int_eq(gguf_type_size(t->type, &block, &block_bytes), 0);
        entry->width = 256 - block / 2;
        if (block > 1)
            assert_named(&damaged, bytes, n, t->name, "not a multiple of");
        *entry = whole;

        next = gguf_tensor_at(g, i + 1);
        if (!next)
            continue;
        entry = listed_find(bytes, n, next->name);
        entry->offset = whole.offset + (t->bytes - 1) / 32 * 32;
        assert_named(&damaged, bytes, n, t->name, "overlaps");
        entry->offset = whole.offset + (t->bytes + 31) / 32 * 32; /* where it was */
    }
    ck_assert_uint_eq(n_types, 17);
    gguf_close(g);
    close(damaged.fd);
    close(file.fd);
    free(bytes);
}
END_TEST

START_TEST(a_file_with_random_damage_is_refused_or_safe_to_read)
{
    size_t n;
    unsigned char *bytes = tiny_read(tiny_model(SMALL, ""), &n), *damaged = malloc(n);
    struct memory_file file;
    unsigned opened = 0, sum = 0;

    srand((unsigned)_i);
    memory_file_open(&file);
    ck_assert_ptr_nonnull(damaged);
    for (int round = 0; round < 500; round++) {
        struct diag diag = {""};
        struct gguf *g;

        memcpy(damaged, bytes, n);
        for (int i = 0; i < 1 + rand() % 3; i++)
            damaged[(size_t)rand() % 7000] =
                (unsigned char)rand(); /* header, keys and tensor list */
        memory_file_set(&file, damaged, n);
        if (gguf_open(&g, file.path, &diag) == 0) {
            opened++;
            sum += touch_all(g);
            gguf_close(g);
        } else {
            ck_assert_str_ne(diag.text, "");
        }
    }
    ck_assert_uint_gt(opened, 0);
    ck_assert_uint_gt(sum, 0);
    close(file.fd);
    free(damaged);
    free(bytes);
}
END_TEST

/* Row 50 of the case list: counts and lengths near 2^63 in a file of some KB. */
START_TEST(a_lying_tiny_file_is_refused_with_less_than_a_megabyte_allocated)
{
    char path[256], line[512], name[128];
    unsigned row, n = 0;
    FILE *list;

    tiny_broken();
    snprintf(path, sizeof path, "%s/list.txt", tiny_folder());
    list = fopen(path, "re");
    ck_assert_ptr_nonnull(list);
    /* Everything comes from one heap that never shrinks, so that its growth is the peak (0 under
     * sanitizers). */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    while (fgets(line, sizeof line, list)) {
        struct diag diag = {""};
        struct gguf *g = NULL;
        size_t before = mallinfo2().arena;

        if (sscanf(line, "%127s %u", name, &row) != 2 || row != 50 ||
            strcmp(name, "tensor-count-zero") == 0)
            continue; /* that one is a readable file without a model in it */
        snprintf(path, sizeof path, "%s/%s.gguf", tiny_folder(), name);
        ck_assert_msg(gguf_open(&g, path, &diag) == -EINVAL, "%s was opened", name);
        ck_assert_str_ne(diag.text, "");
        ck_assert_uint_lt(mallinfo2().arena - before, 1 << 20);
        n++;
    }
    ck_assert_uint_ge(n, 8);
    fclose(list);
}
END_TEST

START_TEST(what_is_not_a_regular_file_is_refused)
{
    struct diag diag;
    struct gguf *g = NULL;

    ck_assert_int_eq(gguf_open(&g, "/nowhere/at.gguf", &diag), -ENOENT);
    ck_assert_ptr_nonnull(strstr(diag.text, "/nowhere/at.gguf: cannot open"));
    ck_assert_int_eq(gguf_open(&g, "/tmp", &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "not a regular file"));
    ck_assert_int_eq(gguf_open(&g, "/dev/null", &diag), -EINVAL);
    ck_assert_ptr_null(g);
}
END_TEST

/* Ids and names: the list of ggml types in the GGUF specification. */
START_TEST(element_types_have_names)
{
    ck_assert_str_eq(gguf_type_name(0), "F32");
    ck_assert_str_eq(gguf_type_name(12), "Q4_K");
    ck_assert_str_eq(gguf_type_name(30), "BF16");
    ck_assert_str_eq(gguf_type_name(4), "type 4");
    ck_assert_str_eq(gguf_type_name(UINT32_MAX), "type 4294967295");
}
END_TEST

/* What packing reads of a row is what the file has of it. */
START_TEST(types_that_are_run_have_the_sizes_of_the_file_format)
{
    unsigned n = 0;

    for (uint32_t type = 0; type < 64; type++) {
        uint32_t block, bytes;

        if (gguf_row_bytes((enum dtype)type, 512) == 0)
            continue;
        ck_assert_int_eq(gguf_type_size(type, &block, &bytes), 0);
        ck_assert_uint_eq(gguf_row_bytes((enum dtype)type, 512), 512 / block * bytes);
        n++;
    }
    ck_assert_uint_eq(n, 16);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("gguf");
    TCase *tc = tcase_create("gguf");
    SRunner *sr = srunner_create(suite);
    int failed;

    if (argc != 2)
        return 2;
    tiny_init(argv[1]);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_file_gives_its_keys_and_tensors);
    tcase_add_test(tc, a_value_of_another_type_is_refused_and_an_absent_one_is_absent);
    tcase_add_test(tc, a_file_cut_anywhere_is_refused_with_bytes_needed_and_bytes_there);
    tcase_add_test(tc,
                   a_tensor_of_each_type_has_whole_blocks_all_of_its_bytes_and_none_of_the_next);
    tcase_add_loop_test(tc, a_file_with_random_damage_is_refused_or_safe_to_read, 1, 9);
    tcase_add_test(tc, a_lying_tiny_file_is_refused_with_less_than_a_megabyte_allocated);
    tcase_add_test(tc, what_is_not_a_regular_file_is_refused);
    tcase_add_test(tc, element_types_have_names);
    tcase_add_test(tc, types_that_are_run_have_the_sizes_of_the_file_format);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    tiny_fini();
    return failed != 0;
}
