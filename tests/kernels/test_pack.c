/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing, half precision and the choice of a variant. Expected values: IEEE 754-2019 section 3 for
 * binary16, the GGUF block formats as dtype.h states them, and tests/data/blocks.json (gguf-py).
 */
#include "tests/kernels/kern_test.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *source_root;

/* binary16 by its definition. */
static double half_value(uint32_t h)
{
    int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);

    return h & 0x8000 ? -magnitude : magnitude;
}

START_TEST(every_half_has_the_value_of_its_bits)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);

        if ((h & 0x7fff) > 0x7c00) {
            ck_assert(isnan(f));
        } else if ((h & 0x7fff) == 0x7c00) {
            ck_assert(isinf(f));
        } else {
            ck_assert((double)f == half_value(h));
        }
        ck_assert_int_eq(signbit(f) != 0, h >> 15);
    }
}
END_TEST

START_TEST(every_half_survives_the_way_through_a_float)
{
    for (uint32_t h = 0; h < 65536; h++) {
        /* NaN are made quiet, as the hardware does. */
        uint32_t quiet = (h & 0x7fff) > 0x7c00 ? 0x200 : 0;

        ck_assert_uint_eq(f32_to_f16(f16_to_f32((uint16_t)h)), h | quiet);
    }
}
END_TEST

START_TEST(floats_between_two_halves_round_to_the_nearer_and_ties_to_the_even_one)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float middle = (float)((half_value(h) + half_value(h + 1)) / 2); /* 12 bits: exact */
        uint32_t even = h % 2 == 0 ? h : h + 1;

        ck_assert_uint_eq(f32_to_f16(middle), even);
        ck_assert_uint_eq(f32_to_f16(-middle), even | 0x8000);
        ck_assert_uint_eq(f32_to_f16(nextafterf(middle, 0)), h);
        ck_assert_uint_eq(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
}
END_TEST

START_TEST(floats_from_65520_on_become_infinite_halves)
{
    /* 65520 is the middle of the largest half, 65504, and 2^16. */
    ck_assert_uint_eq(f32_to_f16(nextafterf(65520, 0)), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65520), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(-3e38f), 0xfc00);
    ck_assert_uint_eq(f32_to_f16(INFINITY), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(1e-45f), 0);
    ck_assert_uint_eq(f32_to_f16(-1e-45f), 0x8000);
}
END_TEST

START_TEST(a_row_by_hand_has_the_weights_of_the_format)
{
    /* d = 0.5 (0x3800), m = -1 (0xbc00); byte i = i + 16 * (15 - i) */
    uint8_t q4_0[18] = {0x00, 0x38}, q4_1[20] = {0x00, 0x38, 0x00, 0xbc}, q8_0[34] = {0x00, 0x38};
    float w[32];

    for (int i = 0; i < 16; i++)
        q4_0[2 + i] = q4_1[4 + i] = (uint8_t)(i + 16 * (15 - i));
    for (int i = 0; i < 32; i++)
        q8_0[2 + i] = (uint8_t)(i * 8 - 128);

    dequantize_row(w, DTYPE_Q4_0, q4_0, 32);
    for (int i = 0; i < 16; i++) {
        ck_assert(w[i] == 0.5f * (float)(i - 8));
        ck_assert(w[16 + i] == 0.5f * (float)(7 - i));
    }
    dequantize_row(w, DTYPE_Q4_1, q4_1, 32);
    for (int i = 0; i < 16; i++) {
        ck_assert(w[i] == 0.5f * (float)i - 1);
        ck_assert(w[16 + i] == 0.5f * (float)(15 - i) - 1);
    }
    dequantize_row(w, DTYPE_Q8_0, q8_0, 32);
    for (int i = 0; i < 32; i++)
        ck_assert(w[i] == 0.5f * (float)(i * 8 - 128));
}
END_TEST

START_TEST(float_rows_are_read_as_they_are)
{
    const uint16_t f16[32] = {0x3c00, 0xc000}, bf16[32] = {0x3f80, 0xc000}; /* 1 and -2 */
    const float f32[32] = {1, -2};
    float w[32];

    dequantize_row(w, DTYPE_F16, (const uint8_t *)f16, 32);
    ck_assert(w[0] == 1 && w[1] == -2 && w[31] == 0);
    dequantize_row(w, DTYPE_BF16, (const uint8_t *)bf16, 32);
    ck_assert(w[0] == 1 && w[1] == -2 && w[31] == 0);
    dequantize_row(w, DTYPE_F32, (const uint8_t *)f32, 32);
    ck_assert(w[0] == 1 && w[1] == -2 && w[31] == 0);
}
END_TEST

/* The contract's table, cpu_kernels.h. */
static const struct {
    enum dtype type;
    uint32_t head, block; /* bytes of 16 rows */
} types[] = {
    {DTYPE_F32, 0, 2048},   {DTYPE_F16, 0, 1024},  {DTYPE_BF16, 0, 1024},   {DTYPE_Q4_0, 0, 288},
    {DTYPE_Q4_1, 0, 320},   {DTYPE_Q5_0, 0, 352},  {DTYPE_Q5_1, 0, 384},    {DTYPE_Q8_0, 0, 544},
    {DTYPE_IQ4_NL, 0, 288}, {DTYPE_MXFP4, 0, 272}, {DTYPE_IQ4_XS, 32, 272}, {DTYPE_Q4_K, 64, 288},
    {DTYPE_Q5_K, 64, 352},  {DTYPE_Q6_K, 32, 416}, {DTYPE_Q3_K, 32, 224},   {DTYPE_Q2_K, 64, 160},
};
#define N_TYPES ((int)(sizeof types / sizeof types[0]))

START_TEST(a_packed_row_has_the_weights_of_its_source)
{
    enum dtype type = types[_i].type;
    uint32_t n_rows = 37, n_cols = 512, n_groups = 3;
    size_t group_bytes = pack_group_bytes(type, n_cols), row_bytes = gguf_row_bytes(type, n_cols);
    uint8_t *src = guard_alloc(n_rows * row_bytes, 1),
            *data = guard_alloc(n_groups * group_bytes, 32);
    struct packed_matrix w = {type, n_rows, n_cols, data};
    float expected[512], actual[512];
    uint64_t state = 1;

    for (size_t i = 0; i < n_rows * row_bytes; i++)
        src[i] = (uint8_t)random_bits(&state);
    for (uint32_t g = 0; g < n_groups; g++)
        pack_group(data + g * group_bytes, type, src, n_rows, n_cols, g * KERN_ROWS);
    for (uint32_t r = 0; r < n_rows; r++) {
        dequantize_row(expected, type, src + r * row_bytes, n_cols);
        packed_row(actual, &w, r);
        ck_assert_same_floats(actual, expected, n_cols);
    }
    guard_free(src, n_rows * row_bytes);
    guard_free(data, n_groups * group_bytes);
}
END_TEST

/* Bytes of a group that are row r's: with every bit of its source flipped each is another, because
 * each has bits of the source as they are, or (scales less 32) q - 32 for q, which is never 63 - q. */
static void owned_by(uint8_t *ret, enum dtype type, uint8_t *src, uint32_t n_cols, uint32_t r)
{
    size_t bytes = pack_group_bytes(type, n_cols), row_bytes = gguf_row_bytes(type, n_cols);
    uint8_t *before = malloc(bytes), *after = malloc(bytes);

    ck_assert(before && after);
    pack_group(before, type, src, KERN_ROWS, n_cols, 0);
    for (size_t i = 0; i < row_bytes; i++)
        src[r * row_bytes + i] ^= 0xff;
    pack_group(after, type, src, KERN_ROWS, n_cols, 0);
    for (size_t i = 0; i < row_bytes; i++)
        src[r * row_bytes + i] ^= 0xff;
    for (size_t i = 0; i < bytes; i++)
        ret[i] = before[i] != after[i];
    free(before);
    free(after);
}

/* The contract: a group has nothing but its rows; those that do not exist are zero. Sources end
 * before a page that must not be read, or a byte earlier: any alignment is right. */
START_TEST(a_group_of_fewer_rows_has_zeros_for_the_others_and_reads_no_further)
{
    enum dtype type = types[_i].type;
    const uint32_t n_cols = 512;
    size_t bytes = pack_group_bytes(type, n_cols), row_bytes = gguf_row_bytes(type, n_cols);
    uint8_t *all = guard_alloc(KERN_ROWS * row_bytes, 1), *whole = guard_alloc(bytes, 32),
            *owned = guard_alloc(bytes, 1);
    uint64_t state = 7;

    for (size_t i = 0; i < KERN_ROWS * row_bytes; i++)
        all[i] = (uint8_t)random_bits(&state);
    pack_group(whole, type, all, KERN_ROWS, n_cols, 0);
    for (uint32_t n = KERN_ROWS - 1; n > 0; n--) {
        size_t src_bytes = n * row_bytes + n % 2;
        uint8_t *src = guard_alloc(src_bytes, 1), *few = guard_alloc(bytes, 32);
        uint32_t n_owned = 0;

        owned_by(owned, type, all, n_cols, n);
        for (size_t i = 0; i < bytes; i++) {
            n_owned += owned[i];
            whole[i] = owned[i] ? 0 : whole[i];
        }
        ck_assert_uint_eq(n_owned, bytes / KERN_ROWS);
        memcpy(src, all, n * row_bytes);
        pack_group(few, type, src, n, n_cols, 0);
        ck_assert_mem_eq(few, whole, bytes);
        guard_free(src, src_bytes);
        guard_free(few, bytes);
    }
    guard_free(all, KERN_ROWS * row_bytes);
    guard_free(whole, bytes);
    guard_free(owned, bytes);
}
END_TEST

static void from_hex(uint8_t *dst, size_t n, const char *hex)
{
    ck_assert_uint_eq(strlen(hex), 2 * n);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;

        ck_assert_int_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
        dst[i] = (uint8_t)byte;
    }
}

/* Bit for bit, but that two NaN are equal: both round each product and sum in the same order. */
START_TEST(blocks_of_every_integer_type_have_the_weights_that_gguf_py_reads)
{
    enum { N = 512 };
    char path[2048];
    json_error_t error;
    json_t *root, *cases, *item;
    size_t i;

    snprintf(path, sizeof path, "%s/tests/data/blocks.json", source_root);
    root = json_load_file(path, 0, &error);
    ck_assert_msg(root != NULL, "%s: %s", path, error.text);
    cases = json_object_get(root, "cases");
    ck_assert_uint_eq(json_array_size(cases), 13);
    json_array_foreach(cases, i, item)
    {
        enum dtype type = (enum dtype)json_integer_value(json_object_get(item, "type"));
        size_t n = gguf_row_bytes(type, N);
        uint8_t *src = guard_alloc(n, 1);
        float expected[N], actual[N];

        ck_assert_uint_gt(n, 0);
        from_hex(src, n, json_string_value(json_object_get(item, "bytes")));
        from_hex((uint8_t *)expected, sizeof expected,
                 json_string_value(json_object_get(item, "weights")));
        dequantize_row(actual, type, src, N);
        ck_assert_same_floats(actual, expected, N);
        guard_free(src, n);
    }
    json_decref(root);
}
END_TEST

START_TEST(packed_groups_have_the_sizes_of_the_contract)
{
    for (int i = 0; i < N_TYPES; i++)
        ck_assert_uint_eq(pack_group_bytes(types[i].type, 512),
                          2 * types[i].head + 16 * types[i].block);
    ck_assert_uint_eq(pack_group_bytes(DTYPE_Q5_0, 96), 3 * 352);
    ck_assert_uint_eq(pack_group_bytes((enum dtype)9, 512), 0); /* 9: Q8_1, not for weights */
    ck_assert_uint_eq(pack_group_bytes((enum dtype)UINT32_MAX, 512), 0);
    ck_assert_uint_eq(gguf_row_bytes((enum dtype)9, 512), 0);
}
END_TEST

/* One more in one weight's code changes the byte of the contract by the plane's unit, and nothing
 * else: "byte 4r + k % 4 of line j % bits has the bits of weight (k, row r) from bit
 * bits * (j / bits) on". Blocks of 32, whose nibbles are where dtype.h says. */
START_TEST(a_code_lies_in_the_lines_that_the_contract_says)
{
    enum { ROW = 11, QS = 6 };
    uint8_t src[16 * 22] = {0}, packed[352], expected[352];

    for (uint32_t k = 0; k < 32; k++) {
        uint8_t *block = src + ROW * 22;
        uint32_t j = k / 4;

        memset(block, 0, 22);
        memset(expected, 0, sizeof expected);
        block[QS + k % 16] = k < 16 ? 0x0d : 0xd0; /* the lower 4 bits: 13 */
        block[2 + k / 8] = (uint8_t)(1 << k % 8);  /* the upper one */
        expected[j % 4 * 64 + 4 * ROW + k % 4] = (uint8_t)(13 << 4 * (j / 4));
        expected[256 + 4 * ROW + k % 4] = (uint8_t)(1 << j);
        pack_group(packed, DTYPE_Q5_0, src, 16, 32, 0);
        ck_assert_mem_eq(packed, expected, sizeof packed);
    }
}
END_TEST

/* By hand: Q6_K with d = 1 in row 5, all codes 0 but weight 100, which is in part 3: k 4 there. Its
 * ql is the upper nibble of byte 32 + 4, its qh bits 6 and 7 of byte 4; the scales of its 32 are
 * bytes 6 and 7 of 16. */
START_TEST(a_block_of_256_lies_where_the_contract_says)
{
    uint8_t src[16 * 210] = {0}, packed[32 + 8 * 416], *row = src + 5 * 210;
    const uint8_t *block = packed + 32 + 3 * 416;
    float w[256];
    struct packed_matrix m = {DTYPE_Q6_K, 16, 256, packed};

    row[36] = 0xa0;
    row[128 + 4] = 0xc0;
    row[192 + 6] = 0xfe; /* -2 */
    row[192 + 7] = 3;
    row[209] = 0x3c;
    pack_group(packed, DTYPE_Q6_K, src, 16, 256, 0);
    ck_assert(packed[2 * 5] == 0 && packed[2 * 5 + 1] == 0x3c);
    ck_assert_uint_eq(block[64 * 1 + 4 * 5 + 0], 0x0a);    /* j = 1: line 1, low */
    ck_assert_uint_eq(block[256 + 64 * 1 + 4 * 5 + 0], 3); /* line 1 % 2, bits 0 and 1 */
    ck_assert_uint_eq(block[384 + 5], 0xfe);
    ck_assert_uint_eq(block[400 + 5], 3);
    packed_row(w, &m, 5);
    ck_assert(w[100] == -2 * (0x3a - 32) && w[99] == -2 * -32 && w[112] == 3 * -32 && w[95] == 0);
}
END_TEST

START_TEST(packed_bytes_lie_where_the_contract_says)
{
    /* Row 3's Q4_1 block: byte i of the quants is 0x40 + i, d = 0x1234, m = 0x5678. */
    uint8_t src[4 * 20] = {0}, packed[320];

    src[60] = 0x34;
    src[61] = 0x12;
    src[62] = 0x78;
    src[63] = 0x56;
    for (uint8_t i = 0; i < 16; i++)
        src[64 + i] = (uint8_t)(0x40 + i);
    pack_group(packed, DTYPE_Q4_1, src, 4, 32, 0);
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t b = 0; b < 4; b++)
            ck_assert_uint_eq(packed[64 * j + 4 * 3 + b], 0x40 + 4 * j + b);
    ck_assert(packed[256 + 6] == 0x34 && packed[256 + 7] == 0x12);
    ck_assert(packed[288 + 6] == 0x78 && packed[288 + 7] == 0x56);
    ck_assert(packed[4 * 15] == 0 && packed[319] == 0); /* rows that do not exist are zero */
}
END_TEST

START_TEST(a_variant_is_parsed_by_its_name_only)
{
    enum cpu_variant variant = CPU_REF;

    ck_assert_int_eq(cpu_variant_parse("avx512", &variant), 0);
    ck_assert_int_eq(variant, CPU_AVX512);
    ck_assert_int_eq(cpu_variant_parse("avxvnni", &variant), 0);
    ck_assert_int_eq(variant, CPU_AVXVNNI);
    ck_assert_int_eq(cpu_variant_parse("avx2", &variant), 0);
    ck_assert_int_eq(variant, CPU_AVX2);
    ck_assert_int_eq(cpu_variant_parse("ref", &variant), 0);
    ck_assert_int_eq(variant, CPU_REF);
    ck_assert_int_eq(cpu_variant_parse("auto", &variant), 0);
    ck_assert_int_eq(variant, CPU_AUTO);
    ck_assert_int_eq(cpu_variant_parse("AVX2", &variant), -EINVAL);
    ck_assert_int_eq(cpu_variant_parse("", &variant), -EINVAL);
    ck_assert_int_eq(variant, CPU_AUTO);
}
END_TEST

START_TEST(a_variant_is_given_or_says_what_is_missing)
{
    for (int i = CPU_REF; i <= CPU_AVX512; i++) {
        const char *missing = NULL;
        const struct cpu_kernels *table = cpu_kernels_get((enum cpu_variant)i, &missing);
        enum cpu_variant named;

        ck_assert((table == NULL) == (missing != NULL));
        if (table) {
            ck_assert_int_eq(cpu_variant_parse(table->name, &named), 0);
            ck_assert_int_eq(named, i);
        }
    }
}
END_TEST

START_TEST(auto_is_the_best_variant_that_runs_here)
{
    const struct cpu_kernels *best = cpu_kernels_get(CPU_AVX512, NULL);

    if (!best)
        best = cpu_kernels_get(CPU_AVXVNNI, NULL);
    if (!best)
        best = cpu_kernels_get(CPU_AVX2, NULL);
    ck_assert_ptr_eq(cpu_kernels_get(CPU_AUTO, NULL), best ? best : cpu_kernels_get(CPU_REF, NULL));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("pack");
    TCase *tc = tcase_create("pack");

    if (argc != 3)
        return 2;
    source_root = argv[2];
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, every_half_has_the_value_of_its_bits);
    tcase_add_test(tc, every_half_survives_the_way_through_a_float);
    tcase_add_test(tc, floats_between_two_halves_round_to_the_nearer_and_ties_to_the_even_one);
    tcase_add_test(tc, floats_from_65520_on_become_infinite_halves);
    tcase_add_test(tc, a_row_by_hand_has_the_weights_of_the_format);
    tcase_add_test(tc, float_rows_are_read_as_they_are);
    tcase_add_loop_test(tc, a_packed_row_has_the_weights_of_its_source, 0, N_TYPES);
    tcase_add_loop_test(tc, a_group_of_fewer_rows_has_zeros_for_the_others_and_reads_no_further, 0,
                        N_TYPES);
    tcase_add_test(tc, blocks_of_every_integer_type_have_the_weights_that_gguf_py_reads);
    tcase_add_test(tc, packed_groups_have_the_sizes_of_the_contract);
    tcase_add_test(tc, packed_bytes_lie_where_the_contract_says);
    tcase_add_test(tc, a_code_lies_in_the_lines_that_the_contract_says);
    tcase_add_test(tc, a_block_of_256_lies_where_the_contract_says);
    tcase_add_test(tc, a_variant_is_parsed_by_its_name_only);
    tcase_add_test(tc, a_variant_is_given_or_says_what_is_missing);
    tcase_add_test(tc, auto_is_the_best_variant_that_runs_here);
    suite_add_tcase(suite, tc);
    return kern_test_main(argc, argv, suite);
}
