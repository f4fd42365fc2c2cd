/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.c - GGUF rows to packed groups, and back to f32. Runs at load, so it is written for reading.
 *
 * Block formats: GGUF specification (dtype.h); packed layout: cpu_kernels.h.
 */
#include "kernels/cpu_kernels.h"

#include <string.h>

#define Q4_LINES 4
#define Q8_LINES 8
#define LINE     64

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float f32_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_f32(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t fraction = h & 0x3ff;

    if (exponent == 31) /* infinity, or a NaN made quiet */
        return f32_of_bits(sign | 0x7f800000 | (fraction ? 0x400000 | fraction << 13 : 0));
    if (exponent == 0) {
        float f = (float)fraction * 0x1p-24f; /* subnormal or zero: exact */

        return f32_of_bits(sign | bits_of_f32(f));
    }
    return f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* value >> shift, rounded half to even; shift 1 .. 31. */
static uint32_t shift_round(uint32_t value, uint32_t shift)
{
    uint32_t kept = value >> shift;
    uint32_t rest = value & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);

    return kept + (rest > half || (rest == half && (kept & 1)));
}

uint16_t f32_to_f16(float f)
{
    uint32_t bits = bits_of_f32(f);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t exponent = bits >> 23 & 255;
    uint32_t fraction = bits & 0x7fffff;
    uint32_t half;

    if (exponent == 255)
        half = 0x7c00 | (fraction ? 0x200 | fraction >> 13 : 0);
    else if (exponent > 142) /* 2^16 and above */
        half = 0x7c00;
    else if (exponent > 112) /* a carry out of the fraction rightly becomes the next exponent */
        half = shift_round((exponent - 112) << 23 | fraction, 13);
    else if (exponent > 101) /* subnormal: the unit is 2^-24 */
        half = shift_round(0x800000 | fraction, 126 - exponent);
    else /* below 2^-25, half of the smallest subnormal */
        half = 0;
    return (uint16_t)(sign | half);
}

static float bf16_to_f32(uint16_t h)
{
    return f32_of_bits((uint32_t)h << 16);
}

/* Bytes of one GGUF block of 32 weights; 0 for a type that cannot be packed. */
static size_t block_bytes(enum dtype type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return 2 + 16;
    case DTYPE_Q4_1:
        return 4 + 16;
    case DTYPE_Q8_0:
        return 2 + 32;
    case DTYPE_F16:
    case DTYPE_BF16:
        return 64;
    case DTYPE_F32:
        return 128;
    }
    return 0;
}

/* A packed block is 16 GGUF blocks in another order: nothing is added, nothing dropped. */
static size_t packed_block_bytes(enum dtype type)
{
    return KERN_ROWS * block_bytes(type);
}

size_t pack_group_bytes(enum dtype type, uint32_t n_cols)
{
    return packed_block_bytes(type) * (n_cols / KERN_BLOCK);
}

/* Puts the quants of one row's block into lines: byte 4r + b of line j is quant byte 4j + b. */
static void pack_lines(uint8_t *dst, const uint8_t *quants, uint32_t n_lines, uint32_t r,
                       uint8_t flip)
{
    for (uint32_t i = 0; i < 4 * n_lines; i++)
        dst[i / 4 * LINE + 4 * r + i % 4] = quants[i] ^ flip;
}

static void pack_elements(uint8_t *dst, const uint8_t *src, size_t element_bytes, uint32_t r)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        memcpy(dst + (KERN_ROWS * k + r) * element_bytes, src + k * element_bytes, element_bytes);
}

/* Puts block `src` of row r of the group into packed block `dst`. */
static void pack_block(uint8_t *dst, enum dtype type, const uint8_t *src, uint32_t r)
{
    switch (type) {
    case DTYPE_Q4_0:
        memcpy(dst + Q4_LINES * LINE + 2 * r, src, 2);
        pack_lines(dst, src + 2, Q4_LINES, r, 0);
        break;
    case DTYPE_Q4_1:
        memcpy(dst + Q4_LINES * LINE + 2 * r, src, 2);
        memcpy(dst + Q4_LINES * LINE + 2 * KERN_ROWS + 2 * r, src + 2, 2);
        pack_lines(dst, src + 4, Q4_LINES, r, 0);
        break;
    case DTYPE_Q8_0: /* s8 + 128 as u8 is the sign bit flipped */
        memcpy(dst + Q8_LINES * LINE + 2 * r, src, 2);
        pack_lines(dst, src + 2, Q8_LINES, r, 0x80);
        break;
    case DTYPE_F16:
    case DTYPE_BF16:
        pack_elements(dst, src, 2, r);
        break;
    case DTYPE_F32:
        pack_elements(dst, src, 4, r);
        break;
    }
}

void pack_group(uint8_t *dst, enum dtype type, const uint8_t *src, uint32_t n_rows, uint32_t n_cols,
                uint32_t row0)
{
    uint32_t n_blocks = n_cols / KERN_BLOCK;
    size_t row_bytes = n_blocks * block_bytes(type);
    uint32_t n = n_rows - row0 < KERN_ROWS ? n_rows - row0 : KERN_ROWS;

    if (n < KERN_ROWS)
        memset(dst, 0, pack_group_bytes(type, n_cols));
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint8_t *block = dst + b * packed_block_bytes(type);

        for (uint32_t r = 0; r < n; r++)
            pack_block(block, type, src + (row0 + r) * row_bytes + b * block_bytes(type), r);
    }
}

/* Weights of a Q4 block: byte i holds weight i in its low and 16 + i in its high nibble. */
static void dequantize_q4(float *dst, const uint8_t *quants, float d, float m, int zero)
{
    for (uint32_t i = 0; i < 16; i++) {
        dst[i] = d * (float)((quants[i] & 15) - zero) + m;
        dst[16 + i] = d * (float)((quants[i] >> 4) - zero) + m;
    }
}

static void dequantize_block(float *dst, enum dtype type, const uint8_t *src)
{
    switch (type) {
    case DTYPE_Q4_0:
        dequantize_q4(dst, src + 2, f16_to_f32(load_u16(src)), 0, 8);
        break;
    case DTYPE_Q4_1:
        dequantize_q4(dst, src + 4, f16_to_f32(load_u16(src)), f16_to_f32(load_u16(src + 2)), 0);
        break;
    case DTYPE_Q8_0:
        for (uint32_t i = 0; i < KERN_BLOCK; i++)
            dst[i] = f16_to_f32(load_u16(src)) * (float)(int8_t)src[2 + i];
        break;
    case DTYPE_F16:
        for (uint32_t i = 0; i < KERN_BLOCK; i++)
            dst[i] = f16_to_f32(load_u16(src + 2 * i));
        break;
    case DTYPE_BF16:
        for (uint32_t i = 0; i < KERN_BLOCK; i++)
            dst[i] = bf16_to_f32(load_u16(src + 2 * i));
        break;
    case DTYPE_F32:
        memcpy(dst, src, KERN_BLOCK * sizeof *dst);
        break;
    }
}

void dequantize_row(float *dst, enum dtype type, const uint8_t *src, uint32_t n_cols)
{
    for (uint32_t b = 0; b < n_cols / KERN_BLOCK; b++)
        dequantize_block(dst + b * KERN_BLOCK, type, src + b * block_bytes(type));
}

/* Takes block `packed` of row r back into GGUF's form: pack_block() in reverse. */
static void unpack_block(uint8_t *dst, enum dtype type, const uint8_t *packed, uint32_t r)
{
    uint32_t n_lines = type == DTYPE_Q8_0 ? Q8_LINES : Q4_LINES;
    uint8_t flip = type == DTYPE_Q8_0 ? 0x80 : 0;
    size_t element_bytes = type == DTYPE_F32 ? 4 : 2;

    if (type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F32) {
        for (uint32_t k = 0; k < KERN_BLOCK; k++)
            memcpy(dst + k * element_bytes, packed + (KERN_ROWS * k + r) * element_bytes,
                   element_bytes);
        return;
    }
    memcpy(dst, packed + n_lines * LINE + 2 * r, 2);
    dst += 2;
    if (type == DTYPE_Q4_1) {
        memcpy(dst, packed + n_lines * LINE + 2 * KERN_ROWS + 2 * r, 2);
        dst += 2;
    }
    for (uint32_t i = 0; i < 4 * n_lines; i++)
        dst[i] = packed[i / 4 * LINE + 4 * r + i % 4] ^ flip;
}

void packed_row(float *dst, const struct packed_matrix *w, uint32_t row)
{
    const uint8_t *group = w->data + row / KERN_ROWS * pack_group_bytes(w->type, w->n_cols);
    uint8_t block[KERN_BLOCK * 4];

    for (uint32_t b = 0; b < w->n_cols / KERN_BLOCK; b++) {
        unpack_block(block, w->type, group + b * packed_block_bytes(w->type), row % KERN_ROWS);
        dequantize_block(dst + b * KERN_BLOCK, w->type, block);
    }
}
