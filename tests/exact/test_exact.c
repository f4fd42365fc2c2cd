/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_exact.c - rows 33, 34 and 10 of the case list over the whole engine: with the default model
 * (no argument), or with tiny ones of every weight type (argument: the source root).
 *
 * A sample runs, of 16 plans and a few settings; with TOKENRING_LONG=1 all of it: 64 plans, every
 * batch size to 64, and every variant with every chunk and number of threads.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/exact/exact.h"
#include "tests/unit/tiny_model.h"

#define SETTINGS_MAX 160

static struct setting settings[SETTINGS_MAX];
static int n_settings;
static int is_long, is_tiny;

static void add(enum cpu_variant variant, unsigned threads, uint32_t batch, uint32_t chunk,
                uint32_t n_requests, uint32_t rows)
{
    if (!exact_has(variant))
        return;
    settings[n_settings] =
        (struct setting){variant, threads, batch, chunk, n_requests, rows, (uint64_t)n_settings};
    n_settings++;
}

static void add_sample(void)
{
    add(CPU_AUTO, 2, 64, 512, 70, 1500);
    add(CPU_AUTO, 2, 8, 7, 14, 300);
    add(CPU_AUTO, 1, 16, 64, 20, 600);
    add(CPU_AUTO, 1, 3, 1, 5, 60);
    add(CPU_AVX2, 2, 8, 64, 12, 600);
    add(CPU_AVX2, 1, 5, 7, 6, 100);
    add(CPU_REF, 2, 4, 64, 4, 20);
}

/* Every variant, chunk and number of threads is there. */
static void add_tiny_sample(void)
{
    add(CPU_AUTO, 2, 16, 64, 24, 500);
    add(CPU_AUTO, 1, 3, 1, 5, 60);
    add(CPU_AVX2, 2, 5, 512, 8, 300);
    add(CPU_AVXVNNI, 2, 5, 512, 8, 300);
    add(CPU_REF, 1, 4, 7, 5, 60);
}

static const uint32_t chunks[] = {1, 7, 64, 512};

/* Prompt rows of a schedule: a step computes one chunk of them, so with small ones they are many. */
static uint32_t rows_of(enum cpu_variant variant, uint32_t chunk)
{
    uint32_t rows = chunk < 64 ? 150 * chunk : 3000;

    return variant == CPU_REF ? rows / 20 : rows;
}

/* Every batch size, under the others in turn; ordered by what an engine is opened for. */
static void add_batches(enum cpu_variant variant, uint32_t which, uint32_t n_variants)
{
    for (unsigned threads = 1; threads <= 2; threads++)
        for (uint32_t batch = 1; batch <= EXACT_BATCH_MAX; batch++)
            if (batch / 8 % n_variants == which && batch / 4 % 2 == threads - 1)
                add(variant, threads, batch, chunks[batch % 4], batch + 4,
                    rows_of(variant, chunks[batch % 4]));
}

static void add_long(void)
{
    static const enum cpu_variant variants[] = {CPU_AVX512, CPU_AVX2, CPU_REF};
    int best = exact_has(CPU_AVX512) ? 0 : 1;

    if (exact_has(CPU_AVX2)) {
        for (int v = best; v < 2; v++)
            add_batches(variants[v], (uint32_t)(v - best), (uint32_t)(2 - best));
    } else {
        add_batches(CPU_REF, 0, 1);
    }
    for (int v = 0; v < 3; v++)
        for (unsigned threads = 1; threads <= 2; threads++)
            for (uint32_t c = 0; c < 4; c++) {
                uint32_t n = variants[v] == CPU_REF ? 4 : 8u << c;

                add(variants[v], threads, n, chunks[c], n + n / 4, rows_of(variants[v], chunks[c]));
            }
}

START_TEST(a_request_has_the_bits_of_its_run_alone_in_any_batch_chunk_team_and_variant)
{
    exact_run(&settings[_i]);
}
END_TEST

START_TEST(the_schedules_had_every_event_that_a_stream_may_meet)
{
    const struct exact_seen *seen = exact_seen();

    ck_assert_uint_gt(seen->rows, 0);
    ck_assert_uint_gt(seen->resumed, 0);
    ck_assert_uint_gt(seen->cancelled, 0);
    ck_assert_uint_gt(seen->pauses, 0);
    ck_assert_uint_gt(seen->displaced, 0);
    printf("# %d settings, %llu requests, %llu rows of logits compared; %llu resumed, %llu "
           "cancelled, %llu paused, %llu displaced\n",
           n_settings, (unsigned long long)seen->requests, (unsigned long long)seen->rows,
           (unsigned long long)seen->resumed, (unsigned long long)seen->cancelled,
           (unsigned long long)seen->pauses, (unsigned long long)seen->displaced);
}
END_TEST

#define WIDE "layers=2, embd=192, heads=6, kv_heads=2, ffn=160, ctx=1024, "
#define W256 "layers=1, embd=256, heads=4, kv_heads=2, ffn=256, ctx=1024, " /* for blocks of 256 */

static const struct {
    const char *weights, *embedding;
} types[] = {
    {WIDE "type='F32'", "F16"},     {WIDE "type='F16'", "F32"},      {WIDE "type='BF16'", "BF16"},
    {WIDE "type='Q8_0'", "Q8_0"},   {WIDE "type='Q4_0'", "Q4_0"},    {WIDE "type='Q4_1'", "Q8_0"},
    {WIDE "type='Q5_0'", "Q5_1"},   {WIDE "type='IQ4_NL'", "MXFP4"}, {W256 "type='Q4_K'", "Q6_K"},
    {W256 "type='Q5_K'", "IQ4_XS"}, {W256 "type='Q3_K'", "Q2_K"},
};
#define N_TYPES ((int)(sizeof types / sizeof types[0]))
#define Q4_1_AT 5
#define POISON  50

static void open_tiny(const char *weights, const char *embedding, const char *more, uint32_t poison,
                      enum kv_type kv_type)
{
    struct exact_opt opt = {.n_plans = EXACT_PLANS, .kv_type = kv_type, .poison = poison};
    char options[256];

    snprintf(options, sizeof options, "%s, embd_type='%s'%s", weights, embedding, more);
    opt.model = tiny_model(options, "");
    exact_open(&opt);
}

START_TEST(tiny_models_of_every_type_keep_the_bits_of_a_request)
{
    open_tiny(types[_i].weights, types[_i].embedding, "", UINT32_MAX, KV_F16);
    for (int i = 0; i < n_settings; i++)
        exact_run(&settings[i]);
    exact_close();
}
END_TEST

START_TEST(keys_and_values_in_8_bits_keep_the_bits_of_a_request)
{
    open_tiny(types[_i].weights, types[_i].embedding, "", UINT32_MAX, KV_Q8);
    for (int i = 0; i < n_settings; i++)
        exact_run(&settings[i]);
    exact_close();
}
END_TEST

/* Row 10. With an output matrix of its own: in a tied one the poisoned id's logit would be bad in
 * every row. */
START_TEST(a_sequence_that_is_not_finite_ends_alone_and_leaves_its_neighbours_their_bits)
{
    open_tiny(types[_i].weights, "F32", ", untied=True, poison=50", POISON,
              _i % 2 ? KV_Q8 : KV_F16);
    exact_check_poison();
    for (int i = 0; i < n_settings; i++)
        exact_run(&settings[i]);
    ck_assert_uint_gt(exact_seen()->numeric, (unsigned)n_settings);
    exact_close();
}
END_TEST

static void find_model(char *path, size_t size)
{
    const char *given = getenv("TOKENRING_TEST_MODEL");
    FILE *fetch;

    if (given && given[0]) {
        snprintf(path, size, "%s", given);
        return;
    }
    fetch = popen(SOURCE_ROOT "/tools/fetch-model", "re");
    if (!fetch || !fgets(path, (int)size, fetch) || pclose(fetch) != 0) {
        fprintf(stderr, "no model: set TOKENRING_TEST_MODEL\n");
        exit(1);
    }
    path[strcspn(path, "\n")] = 0;
}

static void open_real(void)
{
    char path[4096];

    find_model(path, sizeof path);
    exact_open(&(struct exact_opt){
        .model = path, .n_plans = is_long ? EXACT_PLANS : 16, .poison = UINT32_MAX});
}

int main(int argc, char **argv)
{
    const char *env = getenv("TOKENRING_LONG");
    Suite *suite = suite_create("exact");
    TCase *tc = tcase_create("exact");
    SRunner *sr = srunner_create(suite);
    int failed;

    is_long = env && env[0] && strcmp(env, "0") != 0;
    is_tiny = argc == 2;
    if (is_long)
        add_long();
    else if (is_tiny)
        add_tiny_sample();
    else
        add_sample();
    if (is_tiny) {
        tiny_init(argv[1]);
        tcase_add_loop_test(tc, tiny_models_of_every_type_keep_the_bits_of_a_request, 0, N_TYPES);
        tcase_add_loop_test(tc, keys_and_values_in_8_bits_keep_the_bits_of_a_request, Q4_1_AT,
                            Q4_1_AT + 1);
        tcase_add_loop_test(
            tc, a_sequence_that_is_not_finite_ends_alone_and_leaves_its_neighbours_their_bits, 0,
            N_TYPES);
    } else {
        tcase_add_unchecked_fixture(tc, open_real, exact_close);
        tcase_add_loop_test(
            tc, a_request_has_the_bits_of_its_run_alone_in_any_batch_chunk_team_and_variant, 0,
            n_settings);
        tcase_add_test(tc, the_schedules_had_every_event_that_a_stream_may_meet);
    }
    suite_add_tcase(suite, tc);
    /* One process: what a request gives alone is computed once. */
    srunner_set_fork_status(sr, CK_NOFORK);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    if (is_tiny)
        tiny_fini();
    return failed != 0;
}
