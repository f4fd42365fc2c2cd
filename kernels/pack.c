/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.c - reads GGUF's blocks (dtype.h) of 32 weights at a time, to packed groups or to f32. A
 * model starts no faster than it is packed.
 */
#include "kernels/packed.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Four bytes that are shifted and masked together, each by itself. */
INLINE uint32_t load_4(const uint8_t *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof four);
    return four;
}

/* A plane of the fields of `bits` bits from bit `shift` on of 32 bytes. */
INLINE void gather(uint32_t *plane, const uint8_t *src, uint32_t shift, const uint32_t bits)
{
    const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;

    for (uint32_t line = 0; line < bits; line++) {
        plane[line] = 0;
        for (uint32_t at = 0; at < 8; at += bits)
            plane[line] |= (load_4(src + 4 * (line + at)) >> shift & mask) << at;
    }
}

/* 16 bytes with weight i in the low and 16 + i in the high nibble are a plane. */
INLINE void read_nibbles(struct raw_block *ret, const uint8_t *qs)
{
    memcpy(ret->low, qs, 16);
}

/* A plane of one bit from 32 bits in the order of the weights: bit j of byte b is bit 4j + b. */
INLINE void read_bit_mask(struct raw_block *ret, const uint8_t *qh)
{
    uint32_t word = load_4(qh), high = 0;

    for (uint32_t b = 0; b < 4; b++) {
        uint32_t x = word >> b & 0x11111111;

        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000f000f;
        x = (x | x >> 12) & 0xff;
        high |= x << 8 * b;
    }
    ret->high[0] = high;
}

/* Q4_K, Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes. Those of parts 0 .. 3 are whole bytes
 * but for the upper two bits, which belong to those of parts 4 .. 7. */
INLINE void read_scale_min(struct raw_block *ret, const uint8_t *scales, uint32_t part)
{
    if (part < 4) {
        ret->scale[0] = (int8_t)(scales[part] & 63);
        ret->min[0] = scales[4 + part] & 63;
    } else {
        ret->scale[0] = (int8_t)((scales[4 + part] & 15) | (scales[part - 4] >> 6) << 4);
        ret->min[0] = (uint8_t)(scales[4 + part] >> 4 | (scales[part] >> 6) << 4);
    }
}

/* Q3_K: 16 scales of 6 bits in 12 bytes: 8 bytes of low nibbles, 4 of upper pairs. */
INLINE int8_t q3_scale(const uint8_t *scales, uint32_t i)
{
    int low = scales[i % 8] >> 4 * (i / 8) & 15, high = scales[8 + i % 4] >> 2 * (i / 4) & 3;

    return (int8_t)((low | high << 4) - 32);
}

INLINE void read_q2_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    gather(ret->low, src + 16 + 32 * (part / 4), 2 * (part % 4), 2);
    for (uint32_t half = 0; half < 2; half++) {
        ret->scale[half] = (int8_t)(src[2 * part + half] & 15);
        ret->min[half] = src[2 * part + half] >> 4;
    }
    ret->d = load_u16(src + 80);
    ret->m = load_u16(src + 82);
}

INLINE void read_q3_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    gather(ret->low, src + 32 + 32 * (part / 4), 2 * (part % 4), 2);
    gather(ret->high, src, part, 1);
    for (uint32_t half = 0; half < 2; half++)
        ret->scale[half] = q3_scale(src + 96, 2 * part + half);
    ret->d = load_u16(src + 108);
}

INLINE void read_q4_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    gather(ret->low, src + 16 + 32 * (part / 2), 4 * (part % 2), 4);
    read_scale_min(ret, src + 4, part);
    ret->d = load_u16(src);
    ret->m = load_u16(src + 2);
}

INLINE void read_q5_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    gather(ret->low, src + 48 + 32 * (part / 2), 4 * (part % 2), 4);
    gather(ret->high, src + 16, part, 1);
    read_scale_min(ret, src + 4, part);
    ret->d = load_u16(src);
    ret->m = load_u16(src + 2);
}

INLINE void read_q6_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    gather(ret->low, src + 64 * (part / 4) + 32 * (part % 2), 4 * (part % 4 / 2), 4);
    gather(ret->high, src + 128 + 32 * (part / 4), 2 * (part % 4), 2);
    memcpy(ret->scale, src + 192 + 2 * part, 2);
    ret->d = load_u16(src + 208);
}

INLINE void read_iq4_xs(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    int low = src[4 + part / 2] >> 4 * (part % 2) & 15, high = load_u16(src + 2) >> 2 * part & 3;

    read_nibbles(ret, src + 8 + 16 * part);
    ret->scale[0] = (int8_t)((low | high << 4) - 32);
    ret->d = load_u16(src);
}

/* Reads weights 32 * part .. + 31 of a GGUF block of a type with codes. */
INLINE void read_block(struct raw_block *ret, const enum dtype type, const uint8_t *src,
                       uint32_t part)
{
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        ret->d = load_u16(src);
        read_nibbles(ret, src + 2);
        break;
    case DTYPE_Q4_1:
        ret->d = load_u16(src);
        ret->m = load_u16(src + 2);
        read_nibbles(ret, src + 4);
        break;
    case DTYPE_Q5_0:
        ret->d = load_u16(src);
        read_bit_mask(ret, src + 2);
        read_nibbles(ret, src + 6);
        break;
    case DTYPE_Q5_1:
        ret->d = load_u16(src);
        ret->m = load_u16(src + 2);
        read_bit_mask(ret, src + 4);
        read_nibbles(ret, src + 8);
        break;
    case DTYPE_Q8_0: /* s8 + 128 as u8 is the sign bit flipped */
        ret->d = load_u16(src);
        for (uint32_t i = 0; i < 8; i++)
            ret->low[i] = load_4(src + 2 + 4 * i) ^ 0x80808080;
        break;
    case DTYPE_Q2_K:
        read_q2_k(ret, src, part);
        break;
    case DTYPE_Q3_K:
        read_q3_k(ret, src, part);
        break;
    case DTYPE_Q4_K:
        read_q4_k(ret, src, part);
        break;
    case DTYPE_Q5_K:
        read_q5_k(ret, src, part);
        break;
    case DTYPE_Q6_K:
        read_q6_k(ret, src, part);
        break;
    case DTYPE_IQ4_XS:
        read_iq4_xs(ret, src, part);
        break;
    case DTYPE_MXFP4:
        ret->d = src[0];
        read_nibbles(ret, src + 1);
        break;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        break;
    }
}

/* ---- to packed groups ----------------------------------------------------------------------- */

INLINE void write_scales(uint8_t *head, uint8_t *scales, const enum packed_scales kind,
                         const struct raw_block *raw, uint32_t r)
{
    if (kind == SCALES_E8M0)
        scales[r] = (uint8_t)raw->d;
    if (kind == SCALES_F16 || kind == SCALES_F16_MIN)
        head = scales;
    if (kind == SCALES_INT || kind == SCALES_INT_MIN)
        scales[r] = (uint8_t)raw->scale[0];
    if (kind == SCALES_INT_MIN)
        scales[KERN_ROWS + r] = raw->min[0];
    for (uint32_t half = 0; half < 2 && packed_has_halves(kind); half++)
        scales[half * KERN_ROWS + r] =
            (uint8_t)(kind == SCALES_HALF ? raw->scale[half]
                                          : raw->scale[half] | raw->min[half] << 4);
    if (kind != SCALES_E8M0)
        memcpy(head + 2 * r, &raw->d, 2);
    if (packed_has_min(kind))
        memcpy(head + 2 * KERN_ROWS + 2 * r, &raw->m, 2);
}

/* Puts GGUF block `src` of row r of the group where its packed blocks begin. */
INLINE void pack_block(uint8_t *dst, const enum dtype type, const uint8_t *src, uint32_t r)
{
    const struct packed_layout l = packed_layout(type);
    uint8_t *block = dst + packed_head_bytes(l.scales);
    struct raw_block raw;

    for (uint32_t part = 0; part < l.gguf_k / KERN_BLOCK; part++) {
        read_block(&raw, type, src, part);
        for (uint32_t line = 0; line < l.low; line++)
            memcpy(block + line * PACKED_LINE + 4 * r, &raw.low[line], 4);
        for (uint32_t line = 0; line < l.high; line++)
            memcpy(block + (l.low + line) * PACKED_LINE + 4 * r, &raw.high[line], 4);
        write_scales(dst, block + packed_code_bytes(l), l.scales, &raw, r);
        block += packed_block_bytes(l);
    }
}

INLINE void pack_elements(uint8_t *dst, const uint8_t *src, const size_t bytes, uint32_t r)
{
    for (uint32_t k = 0; k < KERN_BLOCK; k++)
        memcpy(dst + (KERN_ROWS * k + r) * bytes, src + k * bytes, bytes);
}

/* Packs n rows from src on. */
INLINE void pack_rows(uint8_t *dst, const enum dtype type, const uint8_t *src, uint32_t n,
                      uint32_t n_cols)
{
    const struct packed_layout l = packed_layout(type);
    uint32_t n_blocks = n_cols / l.gguf_k;

    for (uint32_t b = 0; b < n_blocks; b++, dst += pack_group_bytes(type, l.gguf_k)) {
        for (uint32_t r = 0; r < n; r++) {
            const uint8_t *block = src + ((size_t)r * n_blocks + b) * l.gguf_bytes;

            if (l.scales == SCALES_NONE)
                pack_elements(dst, block, l.gguf_bytes / KERN_BLOCK, r);
            else
                pack_block(dst, type, block, r);
        }
    }
}

void pack_group(uint8_t *dst, enum dtype type, const uint8_t *src, uint32_t n_rows, uint32_t n_cols,
                uint32_t row0)
{
    uint32_t n = n_rows - row0 < KERN_ROWS ? n_rows - row0 : KERN_ROWS;

    if (n < KERN_ROWS)
        memset(dst, 0, pack_group_bytes(type, n_cols));
    src += row0 * gguf_row_bytes(type, n_cols);
#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        pack_rows(dst, TYPE, src, n, n_cols);                                                      \
        break;
    switch (type) {
        PACKED_EACH_INT_TYPE(CASE)
        CASE(DTYPE_F32)
        CASE(DTYPE_F16)
        CASE(DTYPE_BF16)
    }
#undef CASE
}

/* ---- to f32 --------------------------------------------------------------------------------- */

void dequantize_row(float *dst, enum dtype type, const uint8_t *src, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);
    struct raw_block raw;

    if (l.scales == SCALES_NONE) {
        for (uint32_t i = 0; i < n_cols; i++)
            dst[i] = packed_element(src, type, i);
        return;
    }
    for (uint32_t k = 0; k < n_cols; k += KERN_BLOCK) {
        read_block(&raw, type, src + (size_t)(k / l.gguf_k) * l.gguf_bytes,
                   k % l.gguf_k / KERN_BLOCK);
        raw_block_weights(dst + k, type, &raw);
    }
}
