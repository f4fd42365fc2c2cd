/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing, half precision and the choice of a variant. Expected values: IEEE 754-2019 section 3 for
 * binary16, and the GGUF block formats as dtype.h states them.
 */
#include "tests/kernels/kern_test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

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

static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_Q4_0,
                                   DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_BF16};

START_TEST(a_packed_row_has_the_weights_of_its_source)
{
    enum dtype type = types[_i];
    uint32_t n_rows = 37, n_cols = 96, n_groups = 3;
    size_t group_bytes = pack_group_bytes(type, n_cols), row_bytes = group_bytes / KERN_ROWS;
    uint8_t *src = guard_alloc(n_rows * row_bytes, 1),
            *data = guard_alloc(n_groups * group_bytes, 32);
    struct packed_matrix w = {type, n_rows, n_cols, data};
    float expected[96], actual[96];
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

START_TEST(packed_groups_have_the_sizes_of_the_contract)
{
    ck_assert_uint_eq(pack_group_bytes(DTYPE_Q4_0, 64), 2 * 288);
    ck_assert_uint_eq(pack_group_bytes(DTYPE_Q4_1, 64), 2 * 320);
    ck_assert_uint_eq(pack_group_bytes(DTYPE_Q8_0, 64), 2 * 544);
    ck_assert_uint_eq(pack_group_bytes(DTYPE_F16, 64), 2 * 1024);
    ck_assert_uint_eq(pack_group_bytes(DTYPE_BF16, 64), 2 * 1024);
    ck_assert_uint_eq(pack_group_bytes(DTYPE_F32, 64), 2 * 2048);
    ck_assert_uint_eq(pack_group_bytes((enum dtype)12, 64), 0); /* 12: Q4_K */
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
        best = cpu_kernels_get(CPU_AVX2, NULL);
    ck_assert_ptr_eq(cpu_kernels_get(CPU_AUTO, NULL), best ? best : cpu_kernels_get(CPU_REF, NULL));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("pack");
    TCase *tc = tcase_create("pack");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, every_half_has_the_value_of_its_bits);
    tcase_add_test(tc, every_half_survives_the_way_through_a_float);
    tcase_add_test(tc, floats_between_two_halves_round_to_the_nearer_and_ties_to_the_even_one);
    tcase_add_test(tc, floats_from_65520_on_become_infinite_halves);
    tcase_add_test(tc, a_row_by_hand_has_the_weights_of_the_format);
    tcase_add_test(tc, float_rows_are_read_as_they_are);
    tcase_add_loop_test(tc, a_packed_row_has_the_weights_of_its_source, 0, 6);
    tcase_add_test(tc, packed_groups_have_the_sizes_of_the_contract);
    tcase_add_test(tc, packed_bytes_lie_where_the_contract_says);
    tcase_add_test(tc, a_variant_is_parsed_by_its_name_only);
    tcase_add_test(tc, a_variant_is_given_or_says_what_is_missing);
    tcase_add_test(tc, auto_is_the_best_variant_that_runs_here);
    suite_add_tcase(suite, tc);
    return kern_test_main(argc, argv, suite);
}
