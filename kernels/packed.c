/* SPDX-License-Identifier: Apache-2.0 */
/* packed.c - sizes of packed groups and what stands in them; layout: cpu_kernels.h, packed.h. */
#include "kernels/packed.h"

#include <string.h>
#include "kernels/bits.h"

/* Source: ggml's table of IQ4_NL as gguf-py (0.19.0) has it, -127 -104 -83 -65 -49 -35 -22 -10 1 13
 * 25 38 53 69 89 113; 128 is added. */
const uint8_t packed_iq4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                129, 141, 153, 166, 181, 197, 217, 241};

/* Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5), 0 1 2 3 4 6 8 12 and the
 * same with a sign; 12 is added. */
const uint8_t packed_mxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

/* 2^(e - 128), subnormal for e < 2. */
static float half_of_e8m0(uint16_t e)
{
    return f32_of_bits(e < 2 ? 0x200000u << e : (e - 1u) << 23);
}

size_t pack_group_bytes(enum dtype type, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);

    if (!l.gguf_k)
        return 0;
    return (size_t)(n_cols / l.gguf_k) * packed_head_bytes(l.scales) +
           (size_t)(n_cols / KERN_BLOCK) * packed_block_bytes(l);
}

size_t gguf_row_bytes(enum dtype type, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);

    return l.gguf_k ? (size_t)(n_cols / l.gguf_k) * l.gguf_bytes : 0;
}

/* Codes from planes: four bytes of a line at once, of weights 4j .. 4j + 3. */
static void read_codes(uint8_t code[KERN_BLOCK], struct packed_layout l,
                       const struct raw_block *raw)
{
    const uint32_t low = ((1u << l.low) - 1) * 0x01010101u,
                   high = ((1u << l.high) - 1) * 0x01010101u;

    for (uint32_t j = 0; j < 8; j++) {
        /* Widths are powers of two: j % low is in the lower bits of j, j / low * low in the others. */
        uint32_t four = raw->low[j & (l.low - 1u)] >> (j & -(uint32_t)l.low) & low;

        if (l.high)
            four |= (raw->high[j & (l.high - 1u)] >> (j & -(uint32_t)l.high) & high) << l.low;
        memcpy(code + 4 * j, &four, sizeof four);
    }
    for (uint32_t k = 0; k < KERN_BLOCK && l.table; k++)
        code[k] = l.table[code[k]];
}

static void plain_of_raw(struct plain_block *ret, struct packed_layout l,
                         const struct raw_block *raw)
{
    float d = l.scales == SCALES_E8M0 ? half_of_e8m0(raw->d) : f16_to_f32(raw->d);
    float m = packed_has_min(l.scales) ? f16_to_f32(raw->m) : -0.0f;

    read_codes(ret->code, l, raw);
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t i = packed_has_halves(l.scales) ? half : 0;

        ret->d[half] = d;
        ret->m[half] = m;
        if (packed_head_bytes(l.scales) == 0)
            continue;
        ret->d[half] *= (float)raw->scale[i]; /* exact: 11 and 8 bits */
        if (packed_has_min(l.scales))
            ret->m[half] = -(m * (float)raw->min[i]);
    }
}

void raw_block_weights(float *dst, enum dtype type, const struct raw_block *raw)
{
    struct packed_layout l = packed_layout(type);
    struct plain_block plain;

    plain_of_raw(&plain, l, raw);
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t k = half * PACKED_PART; k < (half + 1) * PACKED_PART; k++)
            dst[k] = plain.d[half] * (float)(plain.code[k] - l.zero) + plain.m[half];
}

float packed_element(const uint8_t *src, enum dtype type, size_t i)
{
    float f;

    if (type == DTYPE_F16)
        return f16_to_f32(load_u16(src + 2 * i));
    if (type == DTYPE_BF16) /* the upper half of a float */
        return f32_of_bits((uint32_t)load_u16(src + 2 * i) << 16);
    memcpy(&f, src + 4 * i, sizeof f);
    return f;
}

static void read_scales(struct raw_block *ret, const uint8_t *head, const uint8_t *scales,
                        enum packed_scales kind, uint32_t r)
{
    if (kind == SCALES_E8M0) {
        ret->d = scales[r];
        return;
    }
    if (packed_head_bytes(kind) == 0)
        head = scales;
    ret->d = load_u16(head + 2 * r);
    if (packed_has_min(kind))
        ret->m = load_u16(head + 2 * KERN_ROWS + 2 * r);
    if (packed_has_halves(kind)) {
        for (uint32_t half = 0; half < 2; half++) {
            uint8_t byte = scales[half * KERN_ROWS + r];

            ret->scale[half] = (int8_t)(kind == SCALES_HALF ? byte : byte & 15);
            ret->min[half] = byte >> 4; /* only SCALES_HALF_MIN has it */
        }
    } else if (packed_head_bytes(kind)) {
        ret->scale[0] = (int8_t)scales[r];
        if (kind == SCALES_INT_MIN)
            ret->min[0] = scales[KERN_ROWS + r];
    }
}

/* Block b of row r (0 .. 15) of a group as a file would have it. */
static void read_block(struct raw_block *ret, struct packed_layout l, const uint8_t *group,
                       uint32_t b, uint32_t r)
{
    uint32_t parts = l.gguf_k / KERN_BLOCK;
    const uint8_t *head = group + (size_t)(b / parts) * packed_head_bytes(l.scales) +
                          (size_t)(b / parts * parts) * packed_block_bytes(l);
    const uint8_t *block =
        head + packed_head_bytes(l.scales) + (size_t)(b % parts) * packed_block_bytes(l);

    for (uint32_t line = 0; line < l.low; line++)
        memcpy(&ret->low[line], block + line * PACKED_LINE + 4 * r, 4);
    for (uint32_t line = 0; line < l.high; line++)
        memcpy(&ret->high[line], block + (l.low + line) * PACKED_LINE + 4 * r, 4);
    read_scales(ret, head, block + packed_code_bytes(l), l.scales, r);
}

void packed_block_read(struct plain_block *ret, enum dtype type, const uint8_t *group, uint32_t b,
                       uint32_t r)
{
    struct packed_layout l = packed_layout(type);
    struct raw_block raw;

    read_block(&raw, l, group, b, r);
    plain_of_raw(ret, l, &raw);
}

void packed_row(float *dst, const struct packed_matrix *w, uint32_t row)
{
    const uint8_t *group = w->data + row / KERN_ROWS * pack_group_bytes(w->type, w->n_cols);
    struct packed_layout l = packed_layout(w->type);
    struct raw_block raw;

    if (l.scales == SCALES_NONE) {
        for (uint32_t i = 0; i < w->n_cols; i++)
            dst[i] = packed_element(group, w->type, (size_t)i * KERN_ROWS + row % KERN_ROWS);
        return;
    }
    for (uint32_t k = 0; k < w->n_cols; k += KERN_BLOCK) {
        read_block(&raw, l, group, k / KERN_BLOCK, row % KERN_ROWS);
        raw_block_weights(dst + k, w->type, &raw);
    }
}
