/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.c - GGUF rows to packed groups, and both back to f32. Runs at load, so it is written for
 * reading.
 *
 * GGUF's blocks: gguf_block.c; packed layout: cpu_kernels.h, packed.h.
 */
#include "kernels/packed.h"

#include <string.h>

/* Source: ggml's table of IQ4_NL as gguf-py (0.19.0) has it, -127 -104 -83 -65 -49 -35 -22 -10 1 13
 * 25 38 53 69 89 113; 128 is added. */
const uint8_t packed_iq4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                129, 141, 153, 166, 181, 197, 217, 241};

/* Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5), 0 1 2 3 4 6 8 12 and the
 * same with a sign; 12 is added. */
const uint8_t packed_mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

static float f32_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* 2^(e - 128), subnormal for e < 2. */
static float half_of_e8m0(uint16_t e)
{
    return f32_of_bits(e < 2 ? 0x200000u << e : (e - 1u) << 23);
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static size_t packed_bytes(struct packed_layout l)
{
    return packed_head_bytes(l.scales) + (size_t)l.gguf_k / KERN_BLOCK * packed_block_bytes(l);
}

size_t pack_group_bytes(enum dtype type, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);

    return l.gguf_k ? n_cols / l.gguf_k * packed_bytes(l) : 0;
}

size_t gguf_row_bytes(enum dtype type, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);

    return l.gguf_k ? (size_t)(n_cols / l.gguf_k) * l.gguf_bytes : 0;
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Line k / 4 % bits, byte 4r + k % 4, from bit bits * (k / 4 / bits) on. */
static void write_plane(uint8_t *plane, const uint8_t code[KERN_BLOCK], uint32_t bits, uint32_t r)
{
    uint8_t bytes[KERN_BLOCK] = {0};

    for (uint32_t i = 0; i < 8; i += bits)
        for (uint32_t k = 0; k < 4 * bits; k++)
            bytes[k] |= (uint8_t)((code[i / bits * 4 * bits + k] & ((1u << bits) - 1)) << i);
    for (uint32_t line = 0; line < bits; line++)
        memcpy(plane + line * PACKED_LINE + 4 * r, bytes + 4 * line, 4);
}

static void write_codes(uint8_t *block, struct packed_layout l, const uint8_t code[KERN_BLOCK],
                        uint32_t r)
{
    uint8_t high[KERN_BLOCK];

    write_plane(block, code, l.low, r);
    if (!l.high)
        return;
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        high[k] = code[k] >> l.low;
    write_plane(block + l.low * PACKED_LINE, high, l.high, r);
}

static void write_scales(uint8_t *head, uint8_t *scales, enum packed_scales kind,
                         const struct raw_block *raw, uint32_t r)
{
    switch (kind) {
    case SCALES_F16:
    case SCALES_F16_MIN:
        memcpy(scales + 2 * r, &raw->d, 2);
        if (kind == SCALES_F16_MIN)
            memcpy(scales + 2 * KERN_ROWS + 2 * r, &raw->m, 2);
        return;
    case SCALES_E8M0:
        scales[r] = (uint8_t)raw->d;
        return;
    case SCALES_INT:
    case SCALES_INT_MIN:
        scales[r] = (uint8_t)raw->scale[0];
        if (kind == SCALES_INT_MIN)
            scales[KERN_ROWS + r] = raw->min[0];
        break;
    case SCALES_HALF:
    case SCALES_HALF_MIN:
        for (uint32_t half = 0; half < 2; half++)
            scales[half * KERN_ROWS + r] = (uint8_t)(raw->scale[half] | raw->min[half] << 4);
        break;
    case SCALES_NONE:
        return;
    }
    memcpy(head + 2 * r, &raw->d, 2);
    if (packed_has_min(kind))
        memcpy(head + 2 * KERN_ROWS + 2 * r, &raw->m, 2);
}

static void pack_elements(uint8_t *dst, const uint8_t *src, size_t element_bytes, uint32_t r)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        memcpy(dst + (KERN_ROWS * k + r) * element_bytes, src + k * element_bytes, element_bytes);
}

/* Puts GGUF block `src` of row r of the group where its packed blocks begin. */
static void pack_block(uint8_t *dst, enum dtype type, struct packed_layout l, const uint8_t *src,
                       uint32_t r)
{
    uint8_t *block = dst + packed_head_bytes(l.scales);
    struct raw_block raw = {.m = 0};

    if (l.scales == SCALES_NONE) {
        pack_elements(dst, src, l.gguf_bytes / KERN_BLOCK, r);
        return;
    }
    for (uint32_t part = 0; part < l.gguf_k / KERN_BLOCK; part++) {
        gguf_block_read(&raw, type, src, part);
        write_codes(block, l, raw.code, r);
        write_scales(dst, block + packed_code_bytes(l), l.scales, &raw, r);
        block += packed_block_bytes(l);
    }
}

void pack_group(uint8_t *dst, enum dtype type, const uint8_t *src, uint32_t n_rows, uint32_t n_cols,
                uint32_t row0)
{
    struct packed_layout l = packed_layout(type);
    uint32_t n = n_rows - row0 < KERN_ROWS ? n_rows - row0 : KERN_ROWS;
    size_t row_bytes = gguf_row_bytes(type, n_cols);

    if (n < KERN_ROWS)
        memset(dst, 0, pack_group_bytes(type, n_cols));
    for (uint32_t b = 0; b < n_cols / l.gguf_k; b++)
        for (uint32_t r = 0; r < n; r++)
            pack_block(dst + b * packed_bytes(l), type, l,
                       src + (row0 + r) * row_bytes + (size_t)b * l.gguf_bytes, r);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* write_plane() in reverse: adds the codes' bits from `at` on. */
static void read_plane(uint8_t code[KERN_BLOCK], const uint8_t *plane, uint32_t bits, uint32_t at,
                       uint32_t r)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++) {
        uint32_t byte = plane[k / 4 % bits * PACKED_LINE + 4 * r + k % 4];

        code[k] |= (uint8_t)((byte >> bits * (k / 4 / bits) & ((1u << bits) - 1)) << at);
    }
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

/* write_scales() in reverse. */
static void read_scales(struct raw_block *ret, const uint8_t *head, const uint8_t *scales,
                        enum packed_scales kind, uint32_t r)
{
    switch (kind) {
    case SCALES_F16:
    case SCALES_F16_MIN:
        head = scales;
        break;
    case SCALES_E8M0:
        ret->d = scales[r];
        return;
    case SCALES_INT:
    case SCALES_INT_MIN:
        ret->scale[0] = (int8_t)scales[r];
        ret->min[0] = kind == SCALES_INT_MIN ? scales[KERN_ROWS + r] : 0;
        break;
    case SCALES_HALF:
    case SCALES_HALF_MIN:
        for (uint32_t half = 0; half < 2; half++) {
            uint8_t byte = scales[half * KERN_ROWS + r];

            ret->scale[half] = (int8_t)(kind == SCALES_HALF ? byte : byte & 15);
            ret->min[half] = kind == SCALES_HALF ? 0 : byte >> 4;
        }
        break;
    case SCALES_NONE:
        return;
    }
    ret->d = load_u16(head + 2 * r);
    ret->m = packed_has_min(kind) ? load_u16(head + 2 * KERN_ROWS + 2 * r) : 0;
}

static void plain_of_raw(struct plain_block *ret, struct packed_layout l,
                         const struct raw_block *raw)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        ret->code[k] = l.table ? l.table[raw->code[k]] : raw->code[k];
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t i = packed_has_halves(l.scales) ? half : 0;

        ret->m[half] = -0.0f;
        if (l.scales == SCALES_E8M0) {
            ret->d[half] = half_of_e8m0(raw->d);
            continue;
        }
        ret->d[half] = f16_to_f32(raw->d);
        if (l.scales == SCALES_F16_MIN)
            ret->m[half] = f16_to_f32(raw->m);
        if (packed_head_bytes(l.scales) == 0)
            continue;
        ret->d[half] *= (float)raw->scale[i]; /* exact: 11 and 8 bits */
        if (packed_has_min(l.scales))
            ret->m[half] = -(f16_to_f32(raw->m) * (float)raw->min[i]);
    }
}

void packed_block_read(struct plain_block *ret, enum dtype type, const uint8_t *group, uint32_t b,
                       uint32_t r)
{
    struct packed_layout l = packed_layout(type);
    uint32_t parts = l.gguf_k / KERN_BLOCK;
    const uint8_t *head = group + b / parts * packed_bytes(l);
    const uint8_t *block = head + packed_head_bytes(l.scales) + b % parts * packed_block_bytes(l);
    struct raw_block raw = {.m = 0};

    read_plane(raw.code, block, l.low, 0, r);
    if (l.high)
        read_plane(raw.code, block + l.low * PACKED_LINE, l.high, l.low, r);
    read_scales(&raw, head, block + packed_code_bytes(l), l.scales, r);
    plain_of_raw(ret, l, &raw);
}

static void dequantize(float *dst, const struct plain_block *block, int zero)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        dst[k] =
            block->d[k / PACKED_PART] * (float)(block->code[k] - zero) + block->m[k / PACKED_PART];
}

/* Element i of a float type. */
static float element(const uint8_t *src, enum dtype type, size_t i)
{
    float f;

    if (type == DTYPE_F16)
        return f16_to_f32(load_u16(src + 2 * i));
    if (type == DTYPE_BF16) /* the upper half of a float */
        return f32_of_bits((uint32_t)load_u16(src + 2 * i) << 16);
    memcpy(&f, src + 4 * i, sizeof f);
    return f;
}

void dequantize_row(float *dst, enum dtype type, const uint8_t *src, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);
    struct raw_block raw = {.m = 0};
    struct plain_block plain;

    for (uint32_t i = 0; i < n_cols && l.scales == SCALES_NONE; i++)
        dst[i] = element(src, type, i);
    for (uint32_t k = 0; k < n_cols && l.scales != SCALES_NONE; k += KERN_BLOCK) {
        gguf_block_read(&raw, type, src + (size_t)(k / l.gguf_k) * l.gguf_bytes,
                        k % l.gguf_k / KERN_BLOCK);
        plain_of_raw(&plain, l, &raw);
        dequantize(dst + k, &plain, l.zero);
    }
}

void packed_row(float *dst, const struct packed_matrix *w, uint32_t row)
{
    const uint8_t *group = w->data + row / KERN_ROWS * pack_group_bytes(w->type, w->n_cols);
    struct packed_layout l = packed_layout(w->type);
    struct plain_block plain;

    for (uint32_t i = 0; i < w->n_cols && l.scales == SCALES_NONE; i++)
        dst[i] = element(group, w->type, (size_t)i * KERN_ROWS + row % KERN_ROWS);
    for (uint32_t k = 0; k < w->n_cols && l.scales != SCALES_NONE; k += KERN_BLOCK) {
        packed_block_read(&plain, w->type, group, k / KERN_BLOCK, row % KERN_ROWS);
        dequantize(dst + k, &plain, l.zero);
    }
}
