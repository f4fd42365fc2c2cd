/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul.c - the reference matrix product over packed weights.
 *
 * Every block of 16 rows x 32 k is first brought into one plain form, w[k][row], then multiplied
 * with each activation row. y itself holds the running sums, so each output takes its blocks in
 * order.
 */
#include "kernels/packed.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

struct int_block {
    int16_t w[KERN_BLOCK][KERN_ROWS]; /* in units of d */
    float d[2][KERN_ROWS], m[2][KERN_ROWS];
};

static void read_block(struct int_block *block, enum dtype type, const uint8_t *group, uint32_t b)
{
    const int zero = packed_layout(type).zero;
    struct plain_block row;

    for (uint32_t r = 0; r < KERN_ROWS; r++) {
        packed_block_read(&row, type, group, b, r);
        for (uint32_t k = 0; k < KERN_BLOCK; k++)
            block->w[k][r] = (int16_t)(row.code[k] - zero);
        for (uint32_t half = 0; half < 2; half++) {
            block->d[half][r] = row.d[half];
            block->m[half][r] = row.m[half];
        }
    }
}

/* y[row] += k0 .. k1 - 1 of a block . activations; d, m and sum are of these k. */
static void add_part(float *y, uint32_t n_rows, const struct int_block *block, const int8_t *q,
                     uint32_t k0, uint32_t k1, const float *d, const float *m, float d_x,
                     const float *sum)
{
    int32_t isum[KERN_ROWS] = {0};

    for (uint32_t k = k0; k < k1; k++)
        for (uint32_t r = 0; r < KERN_ROWS; r++)
            isum[r] += block->w[k][r] * q[k];
    for (uint32_t r = 0; r < n_rows; r++) {
        y[r] = fmaf((float)isum[r], d[r] * d_x, y[r]);
        if (sum)
            y[r] = fmaf(m[r], *sum, y[r]);
    }
}

/* y[row] += block . activations, for n_rows rows; x_block is the activations' block of 32. */
static void add_int_block(float *y, uint32_t n_rows, const struct int_block *block,
                          enum packed_scales scales, const struct quant_rows *x, size_t x_block)
{
    const int8_t *q = x->q + x_block * KERN_BLOCK;
    const struct half_sums *isum = &x->isum[x_block];
    float d = x->d[x_block], sum[2] = {x->sum[x_block], 0};

    if (!packed_has_halves(scales)) {
        add_part(y, n_rows, block, q, 0, KERN_BLOCK, block->d[0], block->m[0], d,
                 packed_has_min(scales) ? sum : NULL);
        return;
    }
    sum[0] = d * (float)isum->low;
    sum[1] = d * (float)isum->high;
    for (uint32_t half = 0; half < 2; half++)
        add_part(y, n_rows, block, q, half * PACKED_PART, (half + 1) * PACKED_PART, block->d[half],
                 block->m[half], d, packed_has_min(scales) ? &sum[half] : NULL);
}

/* y[row] += the weight that an outlier meets * the outlier */
static void add_outlier(float *y, uint32_t n_rows, const uint8_t *group, enum dtype type,
                        const struct outlier *out)
{
    const int zero = packed_layout(type).zero;
    const uint32_t k = out->k % KERN_BLOCK, half = k / PACKED_PART;
    struct plain_block row;

    for (uint32_t r = 0; r < n_rows; r++) {
        packed_block_read(&row, type, group, out->k / KERN_BLOCK, r);
        y[r] = fmaf(row.d[half] * (float)(row.code[k] - zero) + row.m[half], out->x, y[r]);
    }
}

static void int_group(float *y, size_t y_stride, const uint8_t *group, enum dtype type,
                      uint32_t n_rows, const struct quant_rows *q, uint32_t n)
{
    uint32_t n_blocks = q->n_cols / KERN_BLOCK;
    struct int_block block;

    for (uint32_t i = 0; i < n; i++)
        memset(y + i * y_stride, 0, n_rows * sizeof *y);
    for (uint32_t b = 0; b < n_blocks; b++) {
        read_block(&block, type, group, b);
        for (uint32_t i = 0; i < n; i++)
            add_int_block(y + i * y_stride, n_rows, &block, packed_layout(type).scales, q,
                          (size_t)i * n_blocks + b);
    }
    for (uint32_t i = 0; i < n && q->n_out; i++)
        for (uint32_t o = 0; o < q->n_out[i]; o++)
            add_outlier(y + i * y_stride, n_rows, group, type, &q->out[(size_t)i * n_blocks + o]);
}

static float float_dot(const uint8_t *group, enum dtype type, uint32_t r, const float *x,
                       uint32_t n_cols)
{
    float chain[4] = {0, 0, 0, 0};

    for (uint32_t k = 0; k < n_cols; k++)
        chain[k % 4] =
            fmaf(packed_element(group, type, (size_t)k * KERN_ROWS + r), x[k], chain[k % 4]);
    return (chain[0] + chain[2]) + (chain[1] + chain[3]);
}

void ref_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);

    for (uint32_t g = group0; g < group1; g++) {
        const uint8_t *group = w->data + g * group_bytes;
        uint32_t row0 = g * KERN_ROWS;
        uint32_t n_rows = w->n_rows - row0 < KERN_ROWS ? w->n_rows - row0 : KERN_ROWS;

        if (!dtype_is_float(w->type)) {
            int_group(y + row0, y_stride, group, w->type, n_rows, q, n);
            continue;
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < n_rows; r++)
                y[i * y_stride + row0 + r] =
                    float_dot(group, w->type, r, x + (size_t)i * w->n_cols, w->n_cols);
    }
}
