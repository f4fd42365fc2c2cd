/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX-512 instructions as tests/kernels/emulated has them, against what the Intel SDM volume 2
 * and the Intel Intrinsics Guide say of each; values by paper. Vectors are read and written as
 * arrays.
 */
#include <immintrin.h>

#include "tests/kernels/kern_test.h"

#include <limits.h>
#include <math.h>
#include <string.h>

union vector {
    __m512 ps;
    __m512i si;
    float f32[16];
    int32_t i32[16];
    uint32_t u32[16];
    int16_t i16[32];
    uint16_t u16[32];
    int8_t i8[64];
    uint8_t u8[64];
};

static uint32_t bits_of_float(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Lane i is i + 1. */
static union vector count_up(void)
{
    union vector v;

    for (int i = 0; i < 16; i++)
        v.f32[i] = (float)(i + 1);
    return v;
}

START_TEST(fused_multiply_add_rounds_once)
{
    /* (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24; a product rounded first gives 0. */
    const float x = 1 + 0x1p-12f, minus = -(1 + 0x1p-11f);
    union vector v = {
        .ps = _mm512_fmadd_ps(_mm512_set1_ps(x), _mm512_set1_ps(x), _mm512_set1_ps(minus))};
    union vector both = {
        .ps = _mm512_fmaddsub_ps(_mm512_set1_ps(x), _mm512_set1_ps(x), _mm512_set1_ps(-minus))};

    for (int i = 0; i < 16; i++) {
        ck_assert(v.f32[i] == 0x1p-24f);
        /* Even lanes subtract; odd ones add: 2 + 2^-10 + 2^-24, rounded. */
        ck_assert(both.f32[i] == (i % 2 ? 2 + 0x1p-10f : 0x1p-24f));
    }
}
END_TEST

START_TEST(the_plain_operations_round_each_to_the_nearest)
{
    const __m512 x = _mm512_set1_ps(1 + 0x1p-23f), third = _mm512_set1_ps(3);
    union vector sum = {.ps = _mm512_add_ps(x, _mm512_set1_ps(0x1p-24f))}; /* a tie: to even */
    union vector difference = {.ps = _mm512_sub_ps(x, _mm512_set1_ps(0x1p-25f))};
    union vector product = {.ps = _mm512_mul_ps(x, x)}; /* 1 + 2^-22 + 2^-46 */
    union vector quotient = {.ps = _mm512_div_ps(_mm512_set1_ps(1), third)};
    union vector masked = {.ps = _mm512_maskz_mul_ps(0x8001, x, third)};

    for (int i = 0; i < 16; i++) {
        ck_assert(sum.f32[i] == 1 + 0x1p-22f);
        ck_assert(difference.f32[i] == 1 + 0x1p-23f);
        ck_assert(product.f32[i] == 1 + 0x1p-22f);
        ck_assert_uint_eq(quotient.u32[i], 0x3eaaaaab);
        ck_assert(masked.f32[i] == (i == 0 || i == 15 ? 3 + 0x1.8p-22f + 0x1p-23f : 0));
    }
}
END_TEST

START_TEST(the_larger_of_a_nan_or_two_zeros_is_the_second_operand)
{
    const __m512 nan = _mm512_set1_ps(NAN), one = _mm512_set1_ps(1), zero = _mm512_setzero_ps(),
                 minus_zero = _mm512_set1_ps(-0.0f), two = _mm512_set1_ps(2);
    union vector first = {.ps = _mm512_mask_max_ps(two, 0x00ff, nan, one)};
    union vector second = {.ps = _mm512_mask_max_ps(two, 0x00ff, one, nan)};
    union vector zeros = {.ps = _mm512_mask_max_ps(two, 0x00ff, zero, minus_zero)};
    union vector larger = {.ps = _mm512_mask_max_ps(zero, 0xffff, two, one)};

    for (int i = 0; i < 16; i++) {
        ck_assert(first.f32[i] == (i < 8 ? 1 : 2));
        ck_assert(i < 8 ? isnan(second.f32[i]) != 0 : second.f32[i] == 2);
        ck_assert_uint_eq(zeros.u32[i], i < 8 ? 0x80000000 : bits_of_float(2));
        ck_assert(larger.f32[i] == 2);
    }
}
END_TEST

START_TEST(comparisons_of_floats_give_what_their_predicate_says_of_a_nan)
{
    const union vector a = {.f32 = {1, 2, NAN, 2, -0.0f, INFINITY, 1, NAN}};
    const union vector b = {.f32 = {2, 1, 1, NAN, 0, 1, 1, NAN}};

    /* Lanes 8 to 15 are equal zeros. */
    ck_assert_uint_eq(_mm512_cmp_ps_mask(a.ps, b.ps, _CMP_GT_OQ), 0x0022);
    ck_assert_uint_eq(_mm512_cmp_ps_mask(a.ps, b.ps, _CMP_EQ_OQ), 0xff50);
    ck_assert_uint_eq(_mm512_cmp_ps_mask(a.ps, b.ps, _CMP_NLT_UQ), 0xfffe);
    ck_assert_uint_eq(_mm512_mask_cmp_ps_mask(0x80c1, a.ps, b.ps, _CMP_NLT_UQ), 0x80c0);
}
END_TEST

START_TEST(comparisons_of_integers_know_their_sign)
{
    const union vector a = {.i32 = {-1, 0, 1, 5}}, b = {.i32 = {0, -1, 1, INT_MIN}};

    ck_assert_uint_eq(_mm512_cmp_epi32_mask(a.si, b.si, _MM_CMPINT_EQ), 0xfff4);
    ck_assert_uint_eq(_mm512_cmp_epi32_mask(a.si, b.si, _MM_CMPINT_LT), 0x0001);
    ck_assert_uint_eq(_mm512_cmp_epi32_mask(a.si, b.si, _MM_CMPINT_LE), 0xfff5);
    ck_assert_uint_eq(_mm512_cmp_epi32_mask(a.si, b.si, _MM_CMPINT_NE), 0x000b);
    ck_assert_uint_eq(_mm512_cmp_epi32_mask(a.si, b.si, _MM_CMPINT_NLT), 0xfffe);
    ck_assert_uint_eq(_mm512_cmp_epi32_mask(a.si, b.si, _MM_CMPINT_NLE), 0x000a);
    ck_assert_uint_eq(_mm512_cmplt_epu32_mask(a.si, b.si), 0x000a); /* 0 < 2^32 - 1, 5 < 2^31 */
}
END_TEST

START_TEST(memory_of_lanes_outside_the_mask_is_not_touched)
{
    /* Lanes before or behind the mask would be on forbidden pages. */
    for (uint32_t n = 0; n <= 16; n++) {
        const __mmask16 first = (__mmask16)((1u << n) - 1);
        float *p = guard_alloc(n * sizeof *p, 4);
        union vector v;

        _mm512_mask_storeu_ps(p, first, count_up().ps);
        v.ps = _mm512_maskz_loadu_ps(first, p);
        for (uint32_t i = 0; i < 16; i++) {
            ck_assert(v.f32[i] == (i < n ? (float)(i + 1) : 0));
            ck_assert(i >= n || p[i] == (float)(i + 1));
        }
        for (uint32_t i = 0; i < n; i++)
            p[i] = -1;
        _mm512_mask_storeu_ps(p, (__mmask16)(first & 0x5555), count_up().ps);
        for (uint32_t i = 0; i < n; i++)
            ck_assert(p[i] == (i % 2 ? -1 : (float)(i + 1)));
        guard_free(p, n * sizeof *p);
    }
}
END_TEST

START_TEST(whole_loads_and_stores_keep_the_order)
{
    _Alignas(64) float p[17], q[17];

    for (int i = 0; i < 17; i++)
        p[i] = (float)i;
    _mm512_store_ps(q, _mm512_loadu_ps(p + 1));
    ck_assert_mem_eq(q, p + 1, 64);
    _mm512_storeu_ps(q + 1, _mm512_load_ps(p));
    ck_assert_mem_eq(q + 1, p, 64);
    _mm512_store_si512((void *)q, _mm512_loadu_si512(p + 1));
    ck_assert_mem_eq(q, p + 1, 64);
    _mm512_store_si512((void *)q, _mm512_load_si512((void *)p));
    ck_assert_mem_eq(q, p, 64);
}
END_TEST

START_TEST(floats_become_integers_by_rounding_half_to_even)
{
    const union vector v = {.f32 = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 2147483520.0f,
                                    2147483648.0f, -2147483648.0f, NAN, INFINITY, 0.50001f}};
    static const int32_t expected[16] = {0,          2,       2,       0,       -2,      -2,
                                         2147483520, INT_MIN, INT_MIN, INT_MIN, INT_MIN, 1};
    union vector ret = {.si = _mm512_cvtps_epi32(v.ps)};

    ck_assert_mem_eq(&ret, expected, sizeof expected);
}
END_TEST

START_TEST(integers_become_floats_by_rounding_half_to_even)
{
    const union vector v = {.i32 = {16777217, 16777219, -16777217, INT_MAX, INT_MIN, -3}};
    static const float expected[16] = {16777216,      16777220,       -16777216,
                                       2147483648.0f, -2147483648.0f, -3};
    union vector ret = {.ps = _mm512_cvtepi32_ps(v.si)};

    ck_assert_mem_eq(&ret, expected, sizeof expected);
}
END_TEST

START_TEST(halves_and_floats_become_each_other_as_ieee_754_says)
{
    /* 1/3; the largest half; what rounds to infinity and just not; the smallest half, a tie to
     * zero, and a subnormal tie to even; the tie 1 + 2^-11 to even and 1 + 3 2^-11. */
    const union vector v = {.f32 = {1 / 3.0f, 65504, 65520, 65519.996f, 0x1p-24f, 0x1p-25f,
                                    0x1.8p-24f, 1 + 0x1p-11f, 1 + 0x1.8p-10f, -2, -0.0f, NAN}};
    static const uint16_t halves[16] = {0x3555, 0x7bff, 0x7c00, 0x7bff, 0x0001, 0x0000,
                                        0x0002, 0x3c00, 0x3c02, 0xc000, 0x8000, 0x7e00};
    __m256i ret = _mm512_cvtps_ph(v.ps, _MM_FROUND_TO_NEAREST_INT);
    union vector back = {.ps = _mm512_cvtph_ps(ret)};

    ck_assert_mem_eq(&ret, halves, sizeof halves);
    ck_assert(back.f32[1] == 65504 && isinf(back.f32[2]) && back.f32[4] == 0x1p-24f);
    ck_assert(back.f32[0] == 0x1.554p-2f && back.f32[8] == 1 + 0x1p-9f && isnan(back.f32[11]));
    ck_assert_uint_eq(back.u32[10], 0x80000000);
}
END_TEST

START_TEST(narrow_integers_are_widened_by_their_kind_and_cut_to_their_low_byte)
{
    uint8_t bytes[16];
    uint16_t words[16];
    __m128i b;
    union vector wide, cut;

    for (int i = 0; i < 16; i++) {
        bytes[i] = (uint8_t)(i % 2 ? 0x80 + i : 3 * i);
        words[i] = (uint16_t)(i % 2 ? 0x8000 + i : 300 * i);
    }
    memcpy(&b, bytes, sizeof b);
    wide.si = _mm512_cvtepi8_epi32(b);
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(wide.i32[i], (int8_t)bytes[i]);
    wide.si = _mm512_cvtepu8_epi32(b);
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(wide.i32[i], bytes[i]);
    wide.si = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)words));
    for (int i = 0; i < 16; i++) {
        ck_assert_int_eq(wide.i32[i], words[i]);
        cut.u32[i] = 0x12345600u * (uint32_t)(i + 1) + bytes[i];
        bytes[i] = (uint8_t)cut.u32[i];
    }
    b = _mm512_cvtepi32_epi8(cut.si);
    ck_assert_mem_eq(&b, bytes, sizeof bytes);
}
END_TEST

START_TEST(dot_products_of_bytes_do_not_saturate)
{
    /* VPDPBUSD: the first factors are unsigned, the second signed; only VPDPBUSDS saturates. */
    union vector a, b, sum, ret;

    for (int i = 0; i < 64; i++) {
        a.u8[i] = i < 32 ? 255 : (uint8_t)(i + 150);
        b.i8[i] = (int8_t)(i < 16 ? -128 : i < 32 ? 127 : 3 * i - 140);
    }
    for (int i = 0; i < 16; i++)
        sum.i32[i] = i == 0 ? INT_MIN : i == 4 ? INT_MAX : i;
    ret.si = _mm512_dpbusd_epi32(sum.si, a.si, b.si);
    for (int i = 0; i < 16; i++) {
        int64_t exact = sum.i32[i];

        for (int k = 4 * i; k < 4 * i + 4; k++)
            exact += (int64_t)a.u8[k] * b.i8[k];
        ck_assert_uint_eq(ret.u32[i], (uint32_t)exact); /* modulo 2^32 */
    }
    ck_assert_int_eq(ret.i32[1], 1 - 4 * 255 * 128);
    ck_assert_int_eq(ret.i32[5], 5 + 4 * 255 * 127);
}
END_TEST

START_TEST(dot_products_of_words_do_not_saturate)
{
    union vector a, b, sum, ret;

    for (int i = 0; i < 32; i++) {
        a.i16[i] = (int16_t)(i < 4 ? -32768 : 1000 * i - 20000);
        b.i16[i] = (int16_t)(i < 4 ? -32768 : 9999 - 777 * i);
    }
    for (int i = 0; i < 16; i++)
        sum.i32[i] = i - 7;
    ret.si = _mm512_dpwssd_epi32(sum.si, a.si, b.si);
    for (int i = 0; i < 16; i++) {
        int64_t exact = sum.i32[i] + (int64_t)a.i16[2 * i] * b.i16[2 * i] +
                        (int64_t)a.i16[2 * i + 1] * b.i16[2 * i + 1];

        ck_assert_uint_eq(ret.u32[i], (uint32_t)exact);
    }
}
END_TEST

START_TEST(shifts_take_words_or_lanes_and_end_at_zero)
{
    union vector v, by, ret;

    for (int i = 0; i < 16; i++) {
        v.u32[i] = 0x8421f00fu;
        by.i32[i] = i < 12 ? 3 * i : i * 100 - 1300; /* also negative: huge */
    }
    ret.si = _mm512_sllv_epi32(v.si, by.si);
    for (int i = 0; i < 16; i++)
        ck_assert_uint_eq(ret.u32[i], by.u32[i] > 31 ? 0 : v.u32[i] << by.u32[i]);
    ret.si = _mm512_slli_epi32(v.si, 23);
    ck_assert_uint_eq(ret.u32[15], 0x07800000);
    ret.si = _mm512_srli_epi16(v.si, 4);
    ck_assert_uint_eq(ret.u32[15], 0x08420f00);
    ret.si = _mm512_slli_epi16(v.si, 4);
    ck_assert_uint_eq(ret.u32[15], 0x421000f0);
}
END_TEST

START_TEST(bitwise_operations_have_their_tables)
{
    const __m512i a = _mm512_set1_epi32(0x0f0f00ff), b = _mm512_set1_epi32(0x3333ff0f);
    union vector v = {.si = _mm512_and_si512(a, b)};
    union vector x = {.ps = _mm512_xor_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b))};
    union vector t = {.si = _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(0x55), 0xf8)};

    for (int i = 0; i < 16; i++) {
        ck_assert_uint_eq(v.u32[i], 0x0303000f);
        ck_assert_uint_eq(x.u32[i], 0x3c3cfff0);
        ck_assert_uint_eq(t.u32[i], 0x0f0f00ff | (0x3333ff0f & 0x55555555)); /* a | (b & c) */
    }
}
END_TEST

START_TEST(permutations_take_the_lanes_they_name)
{
    const __m512i order =
        _mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16 + 15);
    union vector reversed = {.ps = _mm512_permutexvar_ps(order, count_up().ps)};
    union vector swapped = {.ps = _mm512_permute_ps(count_up().ps, 0xb1)};
    union vector blend = {.ps = _mm512_mask_blend_ps(0x0180, count_up().ps, _mm512_set1_ps(-1))};
    union vector moved = {.ps = _mm512_mask_mov_ps(count_up().ps, 0x0180, _mm512_set1_ps(-1))};
    __m256 high = _mm512_extractf32x8_ps(count_up().ps, 1);

    for (int i = 0; i < 16; i++) { /* of an index, the lower four bits count */
        ck_assert(reversed.f32[i] == (float)(16 - i));
        ck_assert(swapped.f32[i] == (float)((i ^ 1) + 1));
        ck_assert(blend.f32[i] == (i == 7 || i == 8 ? -1 : (float)(i + 1)));
    }
    ck_assert_mem_eq(&moved, &blend, sizeof moved);
    ck_assert(_mm256_cvtss_f32(high) == 9);
}
END_TEST

START_TEST(bytes_are_looked_up_inside_each_quarter)
{
    uint8_t table[16];
    union vector index, ret;
    __m128i t;

    for (int i = 0; i < 64; i++)
        index.u8[i] = (uint8_t)(i == 20 ? 0x83 : i * 7 & 0x7f);
    for (int i = 0; i < 16; i++)
        table[i] = (uint8_t)(200 - i);
    memcpy(&t, table, sizeof t);
    ret.si = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index.si);
    for (int i = 0; i < 64; i++) /* the top bit gives zero; else the lower four count */
        ck_assert_uint_eq(ret.u8[i], i == 20 ? 0 : table[index.u8[i] & 15]);
}
END_TEST

START_TEST(reductions_are_of_all_lanes_that_count)
{
    union vector v = {.i32 = {5, -7, 100, INT_MAX, 3, INT_MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}};
    union vector f = count_up();

    ck_assert_int_eq(_mm512_reduce_add_epi32(v.si), 5 - 7 + 100 + 3 + 9 - 2); /* modulo 2^32 */
    ck_assert_int_eq(_mm512_reduce_max_epi32(v.si), INT_MAX);
    ck_assert_uint_eq(_mm512_mask_reduce_min_epu32(0x0017, v.si), 3);
    ck_assert_uint_eq(_mm512_mask_reduce_min_epu32(0x0002, v.si), (uint32_t)-7);
    ck_assert_uint_eq(_mm512_mask_reduce_min_epu32(0, v.si), UINT_MAX);
    ck_assert(_mm512_reduce_max_ps(f.ps) == 16);
    for (int i = 0; i < 16; i++) {
        f.f32[i] = 17;
        ck_assert(_mm512_reduce_max_ps(f.ps) == 17);
        f.f32[i] = -INFINITY;
    }
}
END_TEST

START_TEST(constants_and_integer_sums_are_of_every_lane)
{
    union vector v = {.si = _mm512_add_epi32(_mm512_set1_epi32(INT_MAX), _mm512_set1_epi32(2))};
    union vector w = {.si = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1))};
    union vector m = {.si = _mm512_max_epi32(_mm512_set1_epi32(-3), _mm512_set1_epi32(-4))};
    union vector k = {.si = _mm512_mask_mov_epi32(v.si, 0x4000, m.si)};

    for (int i = 0; i < 16; i++) {
        ck_assert_int_eq(v.i32[i], INT_MIN + 1);
        ck_assert_uint_eq(w.u32[i], 0u - 0x01010101u);
        ck_assert_int_eq(m.i32[i], -3);
        ck_assert_int_eq(k.i32[i], i == 14 ? -3 : INT_MIN + 1);
    }
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("emulated");
    TCase *tc = tcase_create("emulated");

    tcase_add_test(tc, fused_multiply_add_rounds_once);
    tcase_add_test(tc, the_plain_operations_round_each_to_the_nearest);
    tcase_add_test(tc, the_larger_of_a_nan_or_two_zeros_is_the_second_operand);
    tcase_add_test(tc, comparisons_of_floats_give_what_their_predicate_says_of_a_nan);
    tcase_add_test(tc, comparisons_of_integers_know_their_sign);
    tcase_add_test(tc, memory_of_lanes_outside_the_mask_is_not_touched);
    tcase_add_test(tc, whole_loads_and_stores_keep_the_order);
    tcase_add_test(tc, floats_become_integers_by_rounding_half_to_even);
    tcase_add_test(tc, integers_become_floats_by_rounding_half_to_even);
    tcase_add_test(tc, halves_and_floats_become_each_other_as_ieee_754_says);
    tcase_add_test(tc, narrow_integers_are_widened_by_their_kind_and_cut_to_their_low_byte);
    tcase_add_test(tc, dot_products_of_bytes_do_not_saturate);
    tcase_add_test(tc, dot_products_of_words_do_not_saturate);
    tcase_add_test(tc, shifts_take_words_or_lanes_and_end_at_zero);
    tcase_add_test(tc, bitwise_operations_have_their_tables);
    tcase_add_test(tc, permutations_take_the_lanes_they_name);
    tcase_add_test(tc, bytes_are_looked_up_inside_each_quarter);
    tcase_add_test(tc, reductions_are_of_all_lanes_that_count);
    tcase_add_test(tc, constants_and_integer_sums_are_of_every_lane);
    suite_add_tcase(suite, tc);
    return kern_test_main(argc, argv, suite);
}
