/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels over one row of values: each variant against the reference bit for bit, and against libm
 * in double with bounds from the number of roundings (unit roundoff u = 2^-24).
 */
#include "tests/kernels/kern_test.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const uint32_t lengths[] = {16, 32, 48, 64, 80, 128, 576, 1536, 2048};
#define N_LENGTHS  9
#define LENGTH_MAX 2048

/* n random floats up to `scale`, the last of them before a forbidden page. */
static float *random_floats(uint32_t n, float scale, uint64_t *state)
{
    float *x = guard_alloc(n * sizeof *x, 4);

    for (uint32_t i = 0; i < n; i++)
        x[i] = scale * random_float(state);
    return x;
}

static float float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Special values and values at the edges of the functions' branches. */
static const float special[] = {
    0,        -0.0f,    1e-45f,        -1e-40f,      1.17549435e-38f, 3.4e38f,
    -3.4e38f, INFINITY, -INFINITY,     NAN,          -87.33f,         -87.330009f,
    -87.4f,   88.37f,   88.370009f,    88.8f,        0.34657359f,     -0.34657359f,
    65504,    65520,    5.9604645e-8f, 2.9802322e-8f};
#define N_SPECIAL 22

START_TEST(exp_is_within_2_to_the_minus_22_of_libm)
{
    float x[1024], y[1024];

    for (uint32_t i = 0; i < 1024; i++) {
        for (uint32_t j = 0; j < 1024; j++)
            x[j] = (float)(-87.33 + (88.37 + 87.33) * (i * 1024 + j) / (1 << 20));
        kern->exp_f32(y, x, 1024);
        for (uint32_t j = 0; j < 1024; j++) {
            double expected = exp((double)x[j]);

            ck_assert_msg(fabs((double)y[j] / expected - 1) < 0x1p-22, "exp(%a) = %a", (double)x[j],
                          (double)y[j]);
        }
    }
}
END_TEST

START_TEST(exp_of_tiny_values_is_within_2_to_the_minus_22_of_libm)
{
    float x[256], y[256];

    for (uint32_t i = 0; i < 256; i++)
        x[i] = ldexpf(i % 2 ? 1.37f : -1.37f, -(int)(i / 2));
    kern->exp_f32(y, x, 256);
    for (uint32_t i = 0; i < 256; i++)
        ck_assert(fabs((double)y[i] / exp((double)x[i]) - 1) < 0x1p-22);
}
END_TEST

START_TEST(exp_has_the_limits_of_its_contract)
{
    static const float x[] = {0, -0.0f, -87.34f, -1e30f, -INFINITY, 88.38f, INFINITY, NAN};
    float y[8];

    kern->exp_f32(y, x, 8);
    ck_assert(y[0] == 1 && y[1] == 1);
    ck_assert(y[2] == 0 && y[3] == 0 && y[4] == 0);
    ck_assert(isinf(y[5]) && isinf(y[6]) && y[5] > 0 && y[6] > 0);
    ck_assert(isnan(y[7]));
}
END_TEST

START_TEST(exp_of_a_nan_is_a_nan_whatever_its_payload)
{
    for (uint32_t payload = 1; payload < 1 << 23; payload += 0xfff) {
        float x = float_of_bits(0x7f800000 | payload), y;

        kern->exp_f32(&y, &x, 1);
        ck_assert(isnan(y));
    }
}
END_TEST

START_TEST(exp_gives_the_reference_bits_for_any_length)
{
    uint64_t state = 1;

    for (uint32_t n = 1; n <= 70; n++) {
        float *x = random_floats(n, 90, &state), *y = guard_alloc(n * 4, 4), expected[70];

        for (uint32_t i = 0; i < n; i++)
            if (random_bits(&state) % 4 == 0)
                x[i] = special[random_bits(&state) % N_SPECIAL];
        ref->exp_f32(expected, x, n);
        kern->exp_f32(y, x, n);
        ck_assert_same_floats(y, expected, n);
        kern->exp_f32(x, x, n);
        ck_assert_same_floats(x, expected, n);
        guard_free(x, n * 4);
        guard_free(y, n * 4);
    }
}
END_TEST

struct quantised {
    int8_t q[3][LENGTH_MAX];
    float d[3][LENGTH_MAX / 32], sum[3][LENGTH_MAX / 32];
    struct half_sums isum[3][LENGTH_MAX / 32];
    uint32_t n_out[3];
    struct outlier out[3][LENGTH_MAX / 32];
};

static void quantise(const struct cpu_kernels *table, struct quantised *out, uint32_t r,
                     const float *x, uint32_t n)
{
    struct quant_rows rows = {out->q[0], out->d[0], out->sum[0], out->isum[0], n, NULL, NULL};

    table->quantize(&rows, r, x, n);
}

/* With outliers. */
static void quantise_whole(const struct cpu_kernels *table, struct quantised *out, uint32_t r,
                           const float *x, uint32_t n)
{
    struct quant_rows rows = {out->q[0], out->d[0],  out->sum[0], out->isum[0],
                              n,         out->n_out, out->out[0]};

    table->quantize(&rows, r, x, n);
}

START_TEST(quantize_gives_the_reference_bits_and_touches_its_row_only)
{
    uint32_t n = 32 * (uint32_t)(_i + 1), n_blocks = n / 32;
    uint64_t state = (uint64_t)_i;
    float *x = random_floats(n, 3, &state);
    static struct quantised actual, expected;

    for (uint32_t b = 0; b < n_blocks; b++) {
        /* Also below KERN_QUANT_MIN. */
        float scale = ldexpf(1, (int)(random_bits(&state) % 250) - 125);

        for (uint32_t i = 0; i < 32; i++)
            x[32 * b + i] =
                b % 7 == 6 ? special[random_bits(&state) % N_SPECIAL] : x[32 * b + i] * scale;
    }
    memset(&actual, POISON, sizeof actual);
    memset(&expected, POISON, sizeof expected);
    quantise(ref, &expected, 1, x, n);
    quantise(kern, &actual, 1, x, n);
    ck_assert_mem_eq(actual.q, expected.q, sizeof actual.q);
    ck_assert_mem_eq(actual.isum, expected.isum, sizeof actual.isum);
    ck_assert_same_floats(actual.d[0], expected.d[0], 3 * n_blocks);
    ck_assert_same_floats(actual.sum[0], expected.sum[0], 3 * n_blocks);
    ck_assert(is_poison(actual.q[0], n) && is_poison(actual.q[0] + 2 * n, n));
    ck_assert(is_poison(actual.d[0], 4 * n_blocks) &&
              is_poison(actual.d[0] + 2 * n_blocks, 4 * n_blocks));
    guard_free(x, n * 4);
}
END_TEST

START_TEST(quantised_values_are_within_half_a_step)
{
    uint64_t state = 7;
    float *x = random_floats(LENGTH_MAX, 5, &state);
    static struct quantised out;

    quantise(kern, &out, 0, x, LENGTH_MAX);
    for (uint32_t b = 0; b < LENGTH_MAX / 32; b++) {
        double d = (double)out.d[0][b], max = 0;
        int isum[2] = {0, 0};

        for (uint32_t i = 32 * b; i < 32 * b + 32; i++) {
            max = fmax(max, fabs((double)x[i]));
            isum[i % 32 / 16] += out.q[0][i];
            ck_assert(fabs(d * out.q[0][i] - (double)x[i]) <= d * 0.5001);
            ck_assert_int_ge(out.q[0][i], -127);
        }
        ck_assert(fabs(d * 127 / max - 1) < 0x1p-23);
        ck_assert_int_eq(out.isum[0][b].low, isum[0]);
        ck_assert_int_eq(out.isum[0][b].high, isum[1]);
        ck_assert(out.sum[0][b] == out.d[0][b] * (float)(isum[0] + isum[1]));
    }
    guard_free(x, LENGTH_MAX * 4);
}
END_TEST

START_TEST(quantize_rounds_ties_to_even)
{
    /* max = 127, so scale = 1 and q is the value itself, rounded: IEEE 754 roundTiesToEven */
    float x[32] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 125.5f, 0.50001f, -127};
    static const int8_t expected[11] = {127, 0, 2, 2, 0, -2, -2, 126, 126, 1, -127};
    static struct quantised out;

    quantise(kern, &out, 0, x, 32);
    ck_assert_mem_eq(out.q[0], expected, sizeof expected);
    ck_assert(out.d[0][0] == 1);
}
END_TEST

START_TEST(quantize_marks_a_block_with_nan_or_infinity)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float x[64] = {1, 2, 3};
    static struct quantised out;

    for (uint32_t i = 0; i < 3 * 32; i++) {
        memset(x + 32, 0, 32 * sizeof *x);
        x[32 + i / 3] = bad[i % 3];
        quantise(kern, &out, 0, x, 64);
        ck_assert(out.d[0][0] > 0);
        ck_assert(isnan(out.d[0][1]) && isnan(out.sum[0][1]));
        ck_assert(out.isum[0][1].low == 0 && out.isum[0][1].high == 0);
        for (uint32_t k = 32; k < 64; k++)
            ck_assert_int_eq(out.q[0][k], 0);
    }
}
END_TEST

START_TEST(quantize_of_zeros_is_zero)
{
    float x[64] = {0, -0.0f, 1e-31f};
    static struct quantised out;

    quantise(kern, &out, 0, x, 64);
    for (uint32_t b = 0; b < 2; b++)
        ck_assert(out.d[0][b] == 0 && out.sum[0][b] == 0 && out.isum[0][b].low == 0 &&
                  out.isum[0][b].high == 0 && out.q[0][b] == 0);
}
END_TEST

START_TEST(quantize_with_outliers_gives_the_reference_bits_and_touches_its_row_only)
{
    uint32_t n = 32 * (uint32_t)(_i + 1), n_blocks = n / 32;
    uint64_t state = (uint64_t)_i;
    float *x = random_floats(n, 3, &state);
    static struct quantised actual, expected;

    for (int large = 0; large < 5; large++) {
        /* From one that is none yet to some, the last one in a row with a NaN. */
        for (int i = 0; i < large; i++)
            x[random_bits(&state) % n] = ldexpf(i % 2 ? 1 : -1, 3 + 2 * i);
        if (large == 4)
            x[random_bits(&state) % n] = NAN;
        memset(&actual, POISON, sizeof actual);
        memset(&expected, POISON, sizeof expected);
        quantise_whole(ref, &expected, 1, x, n);
        quantise_whole(kern, &actual, 1, x, n);
        ck_assert_mem_eq(actual.q, expected.q, sizeof actual.q);
        ck_assert_mem_eq(actual.isum, expected.isum, sizeof actual.isum);
        ck_assert_mem_eq(actual.n_out, expected.n_out, sizeof actual.n_out);
        ck_assert_mem_eq(actual.out, expected.out, sizeof actual.out);
        ck_assert_same_floats(actual.d[0], expected.d[0], 3 * n_blocks);
        ck_assert_same_floats(actual.sum[0], expected.sum[0], 3 * n_blocks);
        ck_assert(is_poison(actual.n_out, 4) && is_poison(actual.n_out + 2, 4));
        ck_assert(is_poison(actual.out[0], 8 * n_blocks) &&
                  is_poison(actual.out[0] + 2 * n_blocks, 8 * n_blocks));
    }
    guard_free(x, n * 4);
}
END_TEST

/* On paper: the mean of the squares of 64 values, 63 of them 1, is (63 + v^2) / 64; v is above 6 of
 * its roots when v^2 (64 - 36) > 36 * 63, so from 9 = sqrt(81) on. */
START_TEST(an_outlier_leaves_its_block_the_scale_of_the_others)
{
    float x[64];
    static struct quantised out;

    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < 64; i++)
            x[i] = i % 2 ? 1 : -1;
        x[37] = (float)sign * 8.99f;
        quantise_whole(kern, &out, 0, x, 64);
        ck_assert_uint_eq(out.n_out[0], 0);
        ck_assert_int_eq(out.q[0][37], sign * 127);
        x[37] = (float)sign * 9.01f;
        quantise_whole(kern, &out, 0, x, 64);
        ck_assert_uint_eq(out.n_out[0], 1);
        ck_assert(out.out[0][0].k == 37 && out.out[0][0].x == x[37]);
        ck_assert_int_eq(out.q[0][37], 0);
        ck_assert_int_eq(out.q[0][36], -127);
        ck_assert(out.d[0][1] == 1.0f / 127);
        ck_assert_int_eq(out.isum[0][1].low, -127); /* 8 of -127 and 7 of 127 */
        ck_assert_int_eq(out.isum[0][1].high, 0);
    }
}
END_TEST

/* More than one in 36 cannot be 6 times the root of the mean: also where squares vanish. */
START_TEST(a_row_has_fewer_outliers_than_blocks)
{
    static float x[LENGTH_MAX];
    static struct quantised out;
    uint32_t most = 0;

    for (int e = -149; e < 128; e++)
        for (uint32_t n_large = 1; n_large <= LENGTH_MAX / 32; n_large++) {
            memset(x, 0, sizeof x);
            for (uint32_t i = 0; i < n_large; i++)
                x[31 * i] = ldexpf(1.5f, e);
            quantise_whole(kern, &out, 0, x, LENGTH_MAX);
            ck_assert_uint_lt(out.n_out[0], LENGTH_MAX / 32);
            most = most > out.n_out[0] ? most : out.n_out[0];
            if (e < -60)
                ck_assert_uint_eq(out.n_out[0], 0);
            for (uint32_t i = 1; i < out.n_out[0]; i++)
                ck_assert_uint_lt(out.out[0][i - 1].k, out.out[0][i].k);
        }
    ck_assert_uint_eq(most, (LENGTH_MAX - 1) / 36);
}
END_TEST

START_TEST(rmsnorm_gives_the_reference_bits_and_the_norm)
{
    uint32_t n = lengths[_i];
    uint64_t state = n;
    float *x = random_floats(n, 3, &state), *w = random_floats(n, 2, &state),
          *y = guard_alloc(n * 4, 4);
    float expected[LENGTH_MAX];
    double squares = 0, scale;

    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    scale = 1 / sqrt(squares / n + 1e-5);
    ref->rmsnorm(expected, x, w, n, 1e-5f);
    kern->rmsnorm(y, x, w, n, 1e-5f);
    ck_assert_same_floats(y, expected, n);
    /* n / 16 + 4 roundings in the sum, halved by the root, and six more */
    for (uint32_t i = 0; i < n; i++) {
        double exact = (double)x[i] * scale * (double)w[i];

        ck_assert(fabs((double)y[i] - exact) <= fabs(exact) * (n / 32 + 8) * 0x1p-24);
    }
    kern->rmsnorm(x, x, w, n, 1e-5f);
    ck_assert_same_floats(x, expected, n);
    guard_free(x, n * 4);
    guard_free(w, n * 4);
    guard_free(y, n * 4);
}
END_TEST

START_TEST(swiglu_gives_the_reference_bits_and_the_function)
{
    uint32_t n = lengths[_i];
    uint64_t state = n;
    float *gate = random_floats(n, 20, &state), *up = random_floats(n, 2, &state),
          *y = guard_alloc(n * 4, 4);
    float expected[LENGTH_MAX];

    ref->swiglu(expected, gate, up, n);
    kern->swiglu(y, gate, up, n);
    ck_assert_same_floats(y, expected, n);
    for (uint32_t i = 0; i < n; i++) {
        double exact = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];

        /* exp's 2^-22, and three roundings */
        ck_assert(fabs((double)y[i] - exact) <= fabs(exact) * 0x1p-21);
    }
    for (uint32_t i = 0; i < n; i++)
        gate[i] = i < N_SPECIAL ? special[i] : 100 * gate[i];
    ref->swiglu(expected, gate, up, n);
    kern->swiglu(gate, gate, up, n);
    ck_assert_same_floats(gate, expected, n);
    guard_free(gate, n * 4);
    guard_free(up, n * 4);
    guard_free(y, n * 4);
}
END_TEST

START_TEST(add_adds)
{
    uint32_t n = lengths[_i];
    uint64_t state = n;
    float *x = random_floats(n, 3, &state), *y = random_floats(n, 2, &state), expected[LENGTH_MAX];

    for (uint32_t i = 0; i < n; i++)
        expected[i] = x[i] + y[i];
    kern->add(y, x, n);
    ck_assert_same_floats(y, expected, n);
    guard_free(x, n * 4);
    guard_free(y, n * 4);
}
END_TEST

START_TEST(rope_gives_the_reference_bits_and_rotates_pairs)
{
    static const uint32_t dims[] = {16, 32, 48, 64, 80, 96, 128, 256};
    uint32_t hd = dims[_i];
    uint64_t state = hd;
    float *x = random_floats(hd, 3, &state), *c = random_floats(hd / 2, 1, &state),
          *s = random_floats(hd / 2, 1, &state);
    float before[256], expected[256];

    for (uint32_t i = 0; i < hd / 2; i++) {
        double angle = 3.2 * (double)random_float(&state);

        c[i] = (float)cos(angle);
        s[i] = (float)sin(angle);
    }
    memcpy(before, x, hd * sizeof *x);
    memcpy(expected, x, hd * sizeof *x);
    ref->rope(expected, c, s, hd);
    kern->rope(x, c, s, hd);
    ck_assert_same_floats(x, expected, hd);
    for (uint32_t i = 0; i < hd / 2; i++) {
        double x0 = (double)before[2 * i], x1 = (double)before[2 * i + 1],
               size = fabs(x0) + fabs(x1);

        ck_assert(fabs((double)x[2 * i] - (x0 * (double)c[i] - x1 * (double)s[i])) <=
                  size * 0x1p-23);
        ck_assert(fabs((double)x[2 * i + 1] - (x0 * (double)s[i] + x1 * (double)c[i])) <=
                  size * 0x1p-23);
    }
    guard_free(x, hd * 4);
    guard_free(c, hd / 2 * 4);
    guard_free(s, hd / 2 * 4);
}
END_TEST

/* By the contract's words. */
static float block_largest(const float *x, uint32_t begin, uint32_t n)
{
    float largest = -INFINITY;

    for (uint32_t i = begin; i < n && i < begin + 64; i++) {
        if (!isfinite(x[i]))
            return NAN;
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest == 0 ? 0.0f : largest;
}

static void check_block_max(const float *x, uint32_t n)
{
    uint32_t blocks = (n + 63) / 64;
    float *max = guard_alloc(blocks * 4, 4);

    kern->block_max(max, x, n);
    for (uint32_t b = 0; b < blocks; b++) {
        float expected = block_largest(x, 64 * b, n);

        ck_assert_same_floats(&max[b], &expected, 1);
    }
    guard_free(max, blocks * 4);
}

START_TEST(block_max_finds_the_largest_of_each_block_of_any_length)
{
    uint64_t state = 5;

    for (uint32_t n = 1; n <= 300; n++) {
        float *x = random_floats(n, 1, &state);

        check_block_max(x, n);
        for (uint32_t i = 0; i < n; i++) /* the lanes that are left out are not the largest */
            x[i] = -1 - fabsf(x[i]);
        check_block_max(x, n);
        for (uint32_t i = 0; i < n; i++)
            x[i] = -FLT_MAX;
        check_block_max(x, n);
        for (uint32_t i = 0; i < n; i++)
            x[i] = -0.0f;
        check_block_max(x, n);
        guard_free(x, n * 4);
    }
}
END_TEST

START_TEST(block_max_sees_every_nan_and_infinity)
{
    static const float bad_values[] = {NAN, INFINITY, -INFINITY, -NAN};
    uint64_t state = 5;
    float *x = random_floats(163, 1, &state);

    for (uint32_t i = 0; i < 163; i++) {
        for (uint32_t k = 0; k < 4; k++) {
            float old = x[i];

            x[i] = bad_values[k];
            check_block_max(x, 163);
            x[i] = old;
        }
    }
    guard_free(x, 163 * 4);
}
END_TEST

/* Lengths on both sides of a vector, a block of 64 and a sum of 256. */
static const uint32_t weigh_lengths[] = {1,   7,   8,   9,   15,  16,  17,
                                         100, 255, 256, 257, 300, 511, 1025};
#define N_WEIGH ((int)(sizeof weigh_lengths / sizeof weigh_lengths[0]))

START_TEST(weigh_gives_the_reference_bits_and_the_softmax_weights)
{
    static const float temperatures[] = {1, 0.7f, 0.05f, 100, 1e-40f};
    uint32_t n = weigh_lengths[_i], sums = (n + 255) / 256;
    uint64_t state = 6;
    float *x = random_floats(n, 30, &state), *w = guard_alloc(n * 4, 4);
    float *expected = guard_alloc(n * 4, 4);
    double *sum = guard_alloc(sums * 8, 8), *expected_sum = guard_alloc(sums * 8, 8);

    for (uint32_t k = 0; k < 10; k++) {
        float t = temperatures[k % 5], least = k < 5 ? 0 : 0.01f, largest = x[0];

        for (uint32_t i = 0; i < n; i++)
            largest = x[i] > largest ? x[i] : largest;
        kern->weigh(w, sum, x, n, largest, t, least);
        ref->weigh(expected, expected_sum, x, n, largest, t, least);
        ck_assert_same_floats(w, expected, n);
        ck_assert_mem_eq(sum, expected_sum, sums * 8);
        for (uint32_t b = 0; b < sums; b++) {
            double total = 0;

            for (uint32_t i = 256 * b; i < n && i < 256 * b + 256; i++) {
                double y = ((double)x[i] - (double)largest) / (double)t, exact = exp(y);

                /* Two roundings of y and exp's 2^-22; below -87.33 it is 0. */
                if (y > -87 && fabs(exact - (double)least) > 1e-5 * exact)
                    ck_assert_double_le(fabs((double)w[i] - (exact < (double)least ? 0 : exact)),
                                        exact * (0x1p-22 + fabs(y) * 0x1p-22));
                else if (y < -88)
                    ck_assert_float_eq(w[i], 0);
                total += (double)w[i];
            }
            ck_assert_double_le(fabs(total - sum[b]), 1e-13 * total);
        }
    }
    guard_free(x, n * 4);
    guard_free(w, n * 4);
    guard_free(expected, n * 4);
    guard_free(sum, sums * 8);
    guard_free(expected_sum, sums * 8);
}
END_TEST

START_TEST(weigh_takes_logits_that_are_farther_apart_than_a_float_says)
{
    float x[] = {-FLT_MAX, FLT_MAX, 0, FLT_MAX}, w[4];
    double sum;

    kern->weigh(w, &sum, x, 4, FLT_MAX, 1e-40f, 0);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_float_eq(w[i], i % 2 ? 1.0f : 0.0f);
    ck_assert_double_eq(sum, 2);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("rows");
    TCase *tc = tcase_create("rows");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, exp_is_within_2_to_the_minus_22_of_libm);
    tcase_add_test(tc, exp_of_tiny_values_is_within_2_to_the_minus_22_of_libm);
    tcase_add_test(tc, exp_has_the_limits_of_its_contract);
    tcase_add_test(tc, exp_of_a_nan_is_a_nan_whatever_its_payload);
    tcase_add_test(tc, exp_gives_the_reference_bits_for_any_length);
    tcase_add_loop_test(tc, quantize_gives_the_reference_bits_and_touches_its_row_only, 0, 18);
    tcase_add_test(tc, quantised_values_are_within_half_a_step);
    tcase_add_test(tc, quantize_rounds_ties_to_even);
    tcase_add_test(tc, quantize_marks_a_block_with_nan_or_infinity);
    tcase_add_test(tc, quantize_of_zeros_is_zero);
    tcase_add_loop_test(
        tc, quantize_with_outliers_gives_the_reference_bits_and_touches_its_row_only, 0, 18);
    tcase_add_test(tc, an_outlier_leaves_its_block_the_scale_of_the_others);
    tcase_add_test(tc, a_row_has_fewer_outliers_than_blocks);
    tcase_add_loop_test(tc, rmsnorm_gives_the_reference_bits_and_the_norm, 0, N_LENGTHS);
    tcase_add_loop_test(tc, swiglu_gives_the_reference_bits_and_the_function, 0, N_LENGTHS);
    tcase_add_loop_test(tc, add_adds, 0, N_LENGTHS);
    tcase_add_loop_test(tc, rope_gives_the_reference_bits_and_rotates_pairs, 0, 8);
    tcase_add_test(tc, block_max_finds_the_largest_of_each_block_of_any_length);
    tcase_add_test(tc, block_max_sees_every_nan_and_infinity);
    tcase_add_loop_test(tc, weigh_gives_the_reference_bits_and_the_softmax_weights, 0, N_WEIGH);
    tcase_add_test(tc, weigh_takes_logits_that_are_farther_apart_than_a_float_says);
    suite_add_tcase(suite, tc);
    return kern_test_main(argc, argv, suite);
}
