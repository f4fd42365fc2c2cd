/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: each variant against the reference bit for bit, and against sums in double with
 * an error bound from the number of roundings (unit roundoff u = 2^-24; Higham 2002, section 3.1).
 */
#include "tests/kernels/kern_test.h"

#include <math.h>
#include <string.h>

/* Types; for a type with codes, the scale of its random d and m, and where they stand in a GGUF
 * block (-1: there is none), so that |d q| is some tenths and |m| at most 0.1. */
static const struct {
    enum dtype type;
    int block, block_bytes; /* of GGUF */
    float d, m;
    int d_at, m_at;
} types[] = {
    {DTYPE_Q4_0, 32, 18, 0.02f, 0, 0, -1},
    {DTYPE_Q4_1, 32, 20, 0.02f, 0.1f, 0, 2},
    {DTYPE_Q5_0, 32, 22, 0.02f, 0, 0, -1},
    {DTYPE_Q5_1, 32, 24, 0.01f, 0.1f, 0, 2},
    {DTYPE_Q8_0, 32, 34, 0.02f, 0, 0, -1},
    {DTYPE_Q2_K, 256, 84, 0.005f, 0.1f / 15, 80, 82},
    {DTYPE_Q3_K, 256, 110, 0.001f, 0, 108, -1},
    {DTYPE_Q4_K, 256, 144, 0.0005f, 0.1f / 63, 0, 2},
    {DTYPE_Q5_K, 256, 176, 0.0003f, 0.1f / 63, 0, 2},
    {DTYPE_Q6_K, 256, 210, 0.0001f, 0, 208, -1},
    {DTYPE_IQ4_NL, 32, 18, 0.003f, 0, 0, -1},
    {DTYPE_IQ4_XS, 256, 136, 0.0001f, 0, 0, -1},
    {DTYPE_MXFP4, 32, 17, 0, 0, -1, -1},
    {DTYPE_F16, 32, 64, 0, 0, -1, -1},
    {DTYPE_BF16, 32, 64, 0, 0, -1, -1},
    {DTYPE_F32, 32, 128, 0, 0, -1, -1},
};
#define N_TYPES ((int)(sizeof types / sizeof types[0]))

/* A matrix and activations, every buffer ending at a forbidden page. */
struct problem {
    struct packed_matrix w;
    struct quant_rows q;
    uint8_t *data;
    float *x;
    uint32_t n, n_blocks;
    size_t data_bytes;
};

/* n_cols, rounded up to whole blocks of the type. */
static uint32_t whole_blocks(int t, uint32_t n_cols)
{
    uint32_t block = (uint32_t)types[t].block;

    return (n_cols + block - 1) / block * block;
}

/* One GGUF row of random quants with scales of sensible size. */
static void random_row(uint8_t *row, int t, uint32_t n_cols, uint64_t *state)
{
    enum dtype type = types[t].type;

    for (uint32_t i = 0; i < n_cols && dtype_is_float(type); i++) {
        float f = random_float(state);
        uint16_t half = f32_to_f16(f);

        if (type == DTYPE_F32)
            memcpy(row + 4 * i, &f, 4);
        else if (type == DTYPE_F16)
            memcpy(row + 2 * i, &half, 2);
        else
            memcpy(row + 2 * i, (uint8_t *)&f + 2, 2);
    }
    for (uint32_t b = 0; b < n_cols / (uint32_t)types[t].block && !dtype_is_float(type); b++) {
        uint8_t *block = row + b * (uint32_t)types[t].block_bytes;
        uint16_t d = f32_to_f16(types[t].d * random_float(state)),
                 m = f32_to_f16(types[t].m * random_float(state));

        for (int i = 0; i < types[t].block_bytes; i++)
            block[i] = (uint8_t)random_bits(state);
        if (types[t].d_at >= 0)
            memcpy(block + types[t].d_at, &d, 2);
        if (types[t].m_at >= 0)
            memcpy(block + types[t].m_at, &m, 2);
        if (type == DTYPE_MXFP4) /* 2^-9 to 2^-6 of half units */
            block[0] = (uint8_t)(119 + random_bits(state) % 4);
    }
}

static void problem_init(struct problem *p, int t, uint32_t n_rows, uint32_t n_cols, uint32_t n)
{
    enum dtype type = types[t].type;
    uint32_t n_groups = (n_rows + KERN_ROWS - 1) / KERN_ROWS;
    size_t group_bytes = pack_group_bytes(type, n_cols), row_bytes = gguf_row_bytes(type, n_cols);
    uint8_t *src = guard_alloc(n_rows * row_bytes, 1);
    uint64_t state = n_rows * 1000003ull + n_cols * 101ull + n;

    p->n = n;
    p->n_blocks = n_cols / KERN_BLOCK;
    p->data_bytes = n_groups * group_bytes;
    p->data = guard_alloc(p->data_bytes, 32);
    for (uint32_t r = 0; r < n_rows; r++)
        random_row(src + r * row_bytes, t, n_cols, &state);
    for (uint32_t g = 0; g < n_groups; g++)
        pack_group(p->data + g * group_bytes, type, src, n_rows, n_cols, g * KERN_ROWS);
    p->w = (struct packed_matrix){type, n_rows, n_cols, p->data};
    guard_free(src, n_rows * row_bytes);

    p->x = guard_alloc((size_t)n * n_cols * 4, 4);
    p->q.n_cols = n_cols;
    p->q.q = guard_alloc((size_t)n * n_cols, 1);
    p->q.d = guard_alloc((size_t)n * p->n_blocks * 4, 4);
    p->q.sum = guard_alloc((size_t)n * p->n_blocks * 4, 4);
    p->q.isum = guard_alloc((size_t)n * p->n_blocks * 4, 4);
    p->q.n_out = guard_alloc((size_t)n * 4, 4);
    p->q.out = guard_alloc((size_t)n * p->n_blocks * sizeof *p->q.out, 4);
    for (size_t i = 0; i < (size_t)n * n_cols; i++)
        p->x[i] = 4 * random_float(&state) * random_float(&state);
    /* 12 and more times the root mean square of the others; in rows of 32 nothing can be an outlier,
     * in the shortest others one. */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t o = 0; o < i % 4 && o * 96 < n_cols; o++)
            p->x[(size_t)i * n_cols + random_bits(&state) % n_cols] = i % 8 < 4 ? 60 : -40;
    for (uint32_t i = 0; i < n; i++)
        ref->quantize(&p->q, i, p->x + (size_t)i * n_cols, n_cols);
}

static void problem_fini(struct problem *p)
{
    guard_free(p->data, p->data_bytes);
    guard_free(p->x, (size_t)p->n * p->w.n_cols * 4);
    guard_free(p->q.q, (size_t)p->n * p->w.n_cols);
    guard_free(p->q.d, (size_t)p->n * p->n_blocks * 4);
    guard_free(p->q.sum, (size_t)p->n * p->n_blocks * 4);
    guard_free(p->q.isum, (size_t)p->n * p->n_blocks * 4);
    guard_free(p->q.n_out, (size_t)p->n * 4);
    guard_free(p->q.out, (size_t)p->n * p->n_blocks * sizeof *p->q.out);
}

/* Runs groups g0 .. g1 - 1 with n rows, as the contract allows it: the unused input is NULL. */
static void run(const struct cpu_kernels *table, float *y, size_t y_stride, const struct problem *p,
                uint32_t g0, uint32_t g1, uint32_t n)
{
    int floats = dtype_is_float(p->w.type);

    table->matmul(y, y_stride, &p->w, g0, g1, floats ? NULL : &p->q, floats ? p->x : NULL, n);
}

static void check_against_ref(int t, uint32_t n_rows, uint32_t n_cols, uint32_t n_max,
                              const uint32_t *n_list, uint32_t n_lists)
{
    uint32_t n_groups = (n_rows + KERN_ROWS - 1) / KERN_ROWS;
    size_t bytes = (size_t)n_max * n_rows * 4;
    float *expected = guard_alloc(bytes, 4);
    struct problem p;

    problem_init(&p, t, n_rows, n_cols, n_max);
    run(ref, expected, n_rows, &p, 0, n_groups, n_max);
    for (uint32_t i = 0; i < n_lists; i++) {
        uint32_t n = n_list ? n_list[i] : i + 1;
        size_t used = (size_t)n * n_rows * 4;
        float *y = guard_alloc(used, 4);

        run(kern, y, n_rows, &p, 0, n_groups, n);
        ck_assert_same_floats(y, expected, (size_t)n * n_rows);
        guard_free(y, used);
    }
    problem_fini(&p);
    guard_free(expected, bytes);
}

START_TEST(every_tile_and_row_edge_gives_the_reference_bits)
{
    static const uint32_t rows[] = {1, 7, 8, 9, 15, 16, 17, 33, 48};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_against_ref(_i, rows[i], whole_blocks(_i, 32), 40, NULL, 40);
        check_against_ref(_i, rows[i], types[_i].block == 32 ? 96 : 512, 40, NULL, 40);
    }
}
END_TEST

START_TEST(every_number_of_columns_gives_the_reference_bits)
{
    static const uint32_t n[] = {1, 2, 3, 4, 5, 8, 11, 12, 13, 15, 16, 17, 25};
    static const uint32_t cols[] = {64, 160, 544, 576, 1504, 1536, 1568, 2048, 3104};

    for (size_t i = 0; i < sizeof cols / sizeof cols[0]; i++)
        check_against_ref(_i, 19, whole_blocks(_i, cols[i]), 25, n, sizeof n / sizeof n[0]);
}
END_TEST

START_TEST(only_the_rows_of_the_asked_groups_are_written)
{
    enum { ROWS = 75, STRIDE = 83, N = 18 };
    size_t bytes = ((size_t)(N - 1) * STRIDE + ROWS) * 4;
    float *expected = guard_alloc(bytes, 4), *y = guard_alloc(bytes, 4);
    struct problem p;

    problem_init(&p, _i, ROWS, whole_blocks(_i, 64), N);
    run(ref, expected, STRIDE, &p, 0, 5, N);
    for (uint32_t g0 = 0; g0 <= 5; g0++) {
        for (uint32_t g1 = g0; g1 <= 5; g1++) {
            uint32_t r0 = g0 * 16 < ROWS ? g0 * 16 : ROWS, r1 = g1 * 16 < ROWS ? g1 * 16 : ROWS;

            memset(y, POISON, bytes);
            run(kern, y, STRIDE, &p, g0, g1, N);
            for (uint32_t i = 0; i < N; i++) {
                float *row = y + (size_t)i * STRIDE;

                ck_assert(is_poison(row, r0 * 4));
                ck_assert_same_floats(row + r0, expected + (size_t)i * STRIDE + r0, r1 - r0);
                ck_assert(is_poison(row + r1, ((i + 1 < N ? STRIDE : ROWS) - r1) * 4));
            }
        }
    }
    problem_fini(&p);
    guard_free(expected, bytes);
    guard_free(y, bytes);
}
END_TEST

START_TEST(a_row_alone_gives_the_bits_it_gives_among_others)
{
    enum { ROWS = 40, N = 37 };
    uint32_t n_cols = whole_blocks(_i, 576);
    float y[N][ROWS], alone[ROWS];
    struct problem p;

    problem_init(&p, _i, ROWS, n_cols, N);
    run(kern, y[0], ROWS, &p, 0, 3, N);
    for (uint32_t i = 0; i < N; i++) {
        size_t block = (size_t)i * p.n_blocks;
        struct quant_rows one = {p.q.q + block * KERN_BLOCK,
                                 p.q.d + block,
                                 p.q.sum + block,
                                 p.q.isum + block,
                                 n_cols,
                                 p.q.n_out + i,
                                 p.q.out + block};

        kern->matmul(alone, ROWS, &p.w, 0, 3, &one, p.x + (size_t)i * n_cols, 1);
        ck_assert_same_floats(alone, y[i], ROWS);
    }
    problem_fini(&p);
}
END_TEST

/* For one output: the sum in double of weights times (dequantised) activations, the sum of the
 * magnitudes of what the kernel adds up, and how far quantisation may move the result. */
struct exact {
    double sum, magnitude, quantisation, unquantised;
};

static int is_outlier(const struct problem *p, uint32_t i, uint32_t k)
{
    for (uint32_t o = 0; o < p->q.n_out[i]; o++)
        if (p->q.out[(size_t)i * p->n_blocks + o].k == k)
            return 1;
    return 0;
}

static struct exact exact_dot(const struct problem *p, int t, const float *w, uint32_t i)
{
    struct exact e = {0, 0, 0, 0};

    for (uint32_t b = 0; b < p->n_blocks; b++) {
        size_t at = (size_t)i * p->n_blocks + b;
        double d = (double)p->q.d[at];

        for (uint32_t k = 0; k < KERN_BLOCK; k++) {
            double weight = (double)w[b * KERN_BLOCK + k], x = (double)p->x[at * KERN_BLOCK + k];
            int whole = dtype_is_float(p->w.type) || is_outlier(p, i, b * KERN_BLOCK + k);
            double used = whole ? x : d * p->q.q[at * KERN_BLOCK + k];

            e.sum += weight * used;
            e.unquantised += weight * x;
            e.quantisation += whole ? 0 : fabs(weight) * d * 0.50001;
            /* 0.1 is the largest |m| of a random block: |d q| <= |w| + |m|, and |m| itself */
            e.magnitude += (fabs(weight) + (types[t].m_at >= 0 ? 0.2 : 0)) * fabs(used);
        }
    }
    return e;
}

START_TEST(products_equal_sums_in_double_within_the_roundings)
{
    enum { ROWS = 20, COLS = 1536, N = 18 };
    const double u = 0x1p-24;
    float y[N][ROWS], w[COLS];
    struct problem p;

    problem_init(&p, _i, ROWS, COLS, N);
    run(kern, y[0], ROWS, &p, 0, 2, N);
    for (uint32_t r = 0; r < ROWS; r++) {
        packed_row(w, &p.w, r);
        for (uint32_t i = 0; i < N; i++) {
            struct exact e = exact_dot(&p, _i, w, i);
            double got = (double)y[i][r];
            /* Floats: COLS / 4 fused steps and 2 sums. Integers: at most 4 fused steps a block, one
             * for each of up to 3 outliers, and 3 roundings in their factors and in the dequantised
             * weight itself. */
            double bound = (dtype_is_float(p.w.type) ? COLS / 4 + 2 : 4 * COLS / KERN_BLOCK + 6) *
                           u * e.magnitude;

            ck_assert_msg(fabs(got - e.sum) <= bound, "row %u, %u: %g, expected %g +- %g", r, i,
                          got, e.sum, bound);
            if (!dtype_is_float(p.w.type))
                ck_assert(fabs(got - e.unquantised) <= e.quantisation + bound);
        }
    }
    problem_fini(&p);
}
END_TEST

/* A block of one byte only but for its d, which is 1 (MXFP4: e = 128, 1 for FP4's half), its m, 0,
 * and the bytes from set_at on. The weight is what dtype.h says; all q are 127 or -127, d of the
 * activations is 1: on paper 256 * w * q, exact in f32 at every step. */
START_TEST(the_largest_products_do_not_saturate)
{
    static const struct {
        enum dtype type;
        uint8_t byte;
        int weight;
        int set_at, n_set;
        uint8_t set;
    } cases[] = {
        {DTYPE_Q8_0, 0x80, -128, 0, 0, 0},
        {DTYPE_Q8_0, 0x7f, 127, 0, 0, 0},
        {DTYPE_Q4_0, 0xff, 7, 0, 0, 0},
        {DTYPE_Q4_0, 0x00, -8, 0, 0, 0},
        {DTYPE_Q4_1, 0xff, 15, 0, 0, 0},
        {DTYPE_Q5_0, 0xff, 15, 0, 0, 0},
        {DTYPE_Q5_0, 0x00, -16, 0, 0, 0},
        {DTYPE_Q5_1, 0xff, 31, 0, 0, 0},
        {DTYPE_Q2_K, 0xff, 15 * 3, 0, 0, 0},
        {DTYPE_Q3_K, 0xff, 31 * 3, 0, 0, 0},
        {DTYPE_Q3_K, 0x00, -32 * -4, 0, 0, 0},
        {DTYPE_Q4_K, 0xff, 63 * 15, 0, 0, 0},
        {DTYPE_Q5_K, 0xff, 63 * 31, 0, 0, 0},
        {DTYPE_Q6_K, 0xff, 127 * 31, 192, 16, 127},
        {DTYPE_Q6_K, 0x00, -128 * -32, 192, 16, 0x80},
        {DTYPE_IQ4_NL, 0x00, -127, 0, 0, 0},
        {DTYPE_IQ4_NL, 0xff, 113, 0, 0, 0},
        {DTYPE_IQ4_XS, 0x00, -32 * -127, 0, 0, 0},
        {DTYPE_IQ4_XS, 0xff, 31 * 113, 0, 0, 0},
        {DTYPE_MXFP4, 0x77, 12, 0, 0, 0},
        {DTYPE_MXFP4, 0xff, -12, 0, 0, 0},
    };
    enum { N = 18, COLS = 256 };

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint8_t src[KERN_ROWS * 8 * 34];
        _Alignas(64) uint8_t data[8 * 544];
        float x[N][COLS], d[N][8], sum[N][8], y[N][KERN_ROWS];
        _Alignas(64) int8_t q[N][COLS];
        struct half_sums isum[N][8];
        struct quant_rows rows = {q[0], d[0], sum[0], isum[0], COLS, NULL, NULL};
        struct packed_matrix w = {cases[c].type, KERN_ROWS, COLS, data};
        int t = 0, n_blocks;

        while (types[t].type != cases[c].type)
            t++;
        n_blocks = KERN_ROWS * COLS / types[t].block;
        memset(src, cases[c].byte, sizeof src);
        for (int b = 0; b < n_blocks; b++) {
            uint8_t *block = src + b * types[t].block_bytes;

            memset(block + cases[c].set_at, cases[c].set, (size_t)cases[c].n_set);
            if (types[t].d_at >= 0)
                memcpy(block + types[t].d_at, (uint8_t[]){0x00, 0x3c}, 2);
            if (types[t].m_at >= 0)
                memset(block + types[t].m_at, 0, 2);
            if (cases[c].type == DTYPE_MXFP4)
                block[0] = 128;
        }
        pack_group(data, cases[c].type, src, KERN_ROWS, COLS, 0);
        for (uint32_t i = 0; i < N; i++) {
            for (uint32_t k = 0; k < COLS; k++)
                x[i][k] = i % 2 ? -127 : 127;
            ref->quantize(&rows, i, x[i], COLS);
        }
        kern->matmul(y[0], KERN_ROWS, &w, 0, 1, &rows, NULL, N);
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t r = 0; r < KERN_ROWS; r++)
                ck_assert_msg(y[i][r] == (float)(COLS * cases[c].weight * (i % 2 ? -127 : 127)),
                              "case %zu: %f", c, (double)y[i][r]);
    }
}
END_TEST

START_TEST(a_nan_activation_reaches_every_output_of_its_row_only)
{
    enum { ROWS = 20, COLS = 256, N = 18 };
    float y[N][ROWS];
    struct problem p;

    problem_init(&p, _i, ROWS, COLS, N);
    p.x[3 * COLS + 70] = NAN;
    ref->quantize(&p.q, 3, p.x + 3 * COLS, COLS);
    run(kern, y[0], ROWS, &p, 0, 2, N);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t r = 0; r < ROWS; r++)
            ck_assert_int_eq(isnan(y[i][r]) != 0, i == 3);
    problem_fini(&p);
}
END_TEST

/* An outlier's product is w * x rounded once, where nothing else is in the row: its own weight, in
 * each of 32 k and at the ends of both kinds of blocks. */
START_TEST(an_outlier_alone_gives_the_product_of_its_weight)
{
    enum { ROWS = 20, N = 32 };
    uint32_t n_cols = whole_blocks(_i, 288), k[N];
    float y[N][ROWS], w[512];
    struct problem p;

    if (dtype_is_float(types[_i].type))
        return;
    problem_init(&p, _i, ROWS, n_cols, N);
    memset(p.x, 0, (size_t)N * n_cols * sizeof *p.x);
    for (uint32_t i = 0; i < N; i++) {
        k[i] = i + i % 9 * KERN_BLOCK;
        p.x[(size_t)i * n_cols + k[i]] = 1.37f + (float)i;
        ref->quantize(&p.q, i, p.x + (size_t)i * n_cols, n_cols);
        ck_assert_uint_eq(p.q.n_out[i], 1);
        ck_assert_uint_eq(p.q.out[(size_t)i * p.n_blocks].k, k[i]);
    }
    run(kern, y[0], ROWS, &p, 0, 2, N);
    for (uint32_t r = 0; r < ROWS; r++) {
        packed_row(w, &p.w, r);
        for (uint32_t i = 0; i < N; i++)
            ck_assert(y[i][r] == w[k[i]] * p.x[(size_t)i * n_cols + k[i]]);
    }
    problem_fini(&p);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("matmul");
    TCase *tc = tcase_create("matmul");

    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, every_tile_and_row_edge_gives_the_reference_bits, 0, N_TYPES);
    tcase_add_loop_test(tc, every_number_of_columns_gives_the_reference_bits, 0, N_TYPES);
    tcase_add_loop_test(tc, only_the_rows_of_the_asked_groups_are_written, 0, N_TYPES);
    tcase_add_loop_test(tc, a_row_alone_gives_the_bits_it_gives_among_others, 0, N_TYPES);
    tcase_add_loop_test(tc, products_equal_sums_in_double_within_the_roundings, 0, N_TYPES);
    tcase_add_test(tc, the_largest_products_do_not_saturate);
    tcase_add_loop_test(tc, a_nan_activation_reaches_every_output_of_its_row_only, 0, N_TYPES);
    tcase_add_loop_test(tc, an_outlier_alone_gives_the_product_of_its_weight, 0, N_TYPES);
    suite_add_tcase(suite, tc);
    return kern_test_main(argc, argv, suite);
}
