/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul.c - the reference matrix product over packed weights.
 *
 * Every block of 16 rows x 32 k is first brought into one plain form, w[k][row], then multiplied
 * with each activation row. y itself holds the running sums, so each output takes its blocks in
 * order.
 */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#define LINE 64

struct int_block {
    int16_t w[KERN_BLOCK][KERN_ROWS]; /* as stored: 0 .. 15, or weight + 128 */
    float d[KERN_ROWS], m[KERN_ROWS];
    int32_t zero; /* what to take off w to get the weight, in units of d */
};

static void read_halves(float dst[KERN_ROWS], const uint8_t *src)
{
    uint16_t half[KERN_ROWS];

    memcpy(half, src, sizeof half);
    for (uint32_t r = 0; r < KERN_ROWS; r++)
        dst[r] = f16_to_f32(half[r]);
}

static void read_q4(struct int_block *block, const uint8_t *lines)
{
    for (uint32_t k = 0; k < 16; k++) {
        for (uint32_t r = 0; r < KERN_ROWS; r++) {
            uint8_t byte = lines[k / 4 * LINE + 4 * r + k % 4];

            block->w[k][r] = byte & 15;
            block->w[16 + k][r] = byte >> 4;
        }
    }
    read_halves(block->d, lines + 4 * LINE);
}

static void read_q8(struct int_block *block, const uint8_t *lines)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        for (uint32_t r = 0; r < KERN_ROWS; r++)
            block->w[k][r] = lines[k / 4 * LINE + 4 * r + k % 4];
    read_halves(block->d, lines + 8 * LINE);
}

static void read_block(struct int_block *block, enum dtype type, const uint8_t *src)
{
    if (type == DTYPE_Q8_0)
        read_q8(block, src);
    else
        read_q4(block, src);
    if (type == DTYPE_Q4_1)
        read_halves(block->m, src + 4 * LINE + 2 * KERN_ROWS);
    block->zero = type == DTYPE_Q8_0 ? 128 : type == DTYPE_Q4_0 ? 8 : 0;
}

/* y[row] += block . activations, for n_rows rows; x_block is the activations' block of 32. */
static void add_int_block(float *y, uint32_t n_rows, const struct int_block *block, enum dtype type,
                          const struct quant_rows *x, size_t x_block)
{
    const int8_t *q = x->q + x_block * KERN_BLOCK;
    int32_t isum[KERN_ROWS];

    for (uint32_t r = 0; r < KERN_ROWS; r++)
        isum[r] = -block->zero * x->isum[x_block];
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        for (uint32_t r = 0; r < KERN_ROWS; r++)
            isum[r] += block->w[k][r] * q[k];

    for (uint32_t r = 0; r < n_rows; r++) {
        y[r] = fmaf((float)isum[r], block->d[r] * x->d[x_block], y[r]);
        if (type == DTYPE_Q4_1)
            y[r] = fmaf(block->m[r], x->sum[x_block], y[r]);
    }
}

static void int_group(float *y, size_t y_stride, const uint8_t *group, enum dtype type,
                      uint32_t n_rows, const struct quant_rows *x, uint32_t n)
{
    size_t block_bytes = pack_group_bytes(type, KERN_BLOCK);
    uint32_t n_blocks = x->n_cols / KERN_BLOCK;
    struct int_block block;

    for (uint32_t i = 0; i < n; i++)
        memset(y + i * y_stride, 0, n_rows * sizeof *y);
    for (uint32_t b = 0; b < n_blocks; b++) {
        read_block(&block, type, group + b * block_bytes);
        for (uint32_t i = 0; i < n; i++)
            add_int_block(y + i * y_stride, n_rows, &block, type, x, (size_t)i * n_blocks + b);
    }
}

/* Weight (k, r) of a group of a float type; k counts from the group's first column. */
static float float_weight(const uint8_t *group, enum dtype type, uint32_t k, uint32_t r)
{
    size_t i = (size_t)k * KERN_ROWS + r;
    uint16_t half;
    uint32_t bits;
    float f;

    if (type == DTYPE_F32) {
        memcpy(&f, group + 4 * i, sizeof f);
        return f;
    }
    memcpy(&half, group + 2 * i, sizeof half);
    if (type == DTYPE_F16)
        return f16_to_f32(half);
    bits = (uint32_t)half << 16; /* BF16: the upper half of a float */
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float float_dot(const uint8_t *group, enum dtype type, uint32_t r, const float *x,
                       uint32_t n_cols)
{
    float chain[4] = {0, 0, 0, 0};

    for (uint32_t k = 0; k < n_cols; k++)
        chain[k % 4] = fmaf(float_weight(group, type, k, r), x[k], chain[k % 4]);
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

        if (w->type == DTYPE_Q4_0 || w->type == DTYPE_Q4_1 || w->type == DTYPE_Q8_0) {
            int_group(y + row0, y_stride, group, w->type, n_rows, q, n);
            continue;
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < n_rows; r++)
                y[i * y_stride + row0 + r] =
                    float_dot(group, w->type, r, x + (size_t)i * w->n_cols, w->n_cols);
    }
}
