/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_block.c - reads the blocks of GGUF's integer types (dtype.h) as codes and scales.
 */
#include "kernels/packed.h"

#include <string.h>

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* 16 bytes: weight i in the low, weight 16 + i in the high nibble. */
static void read_nibbles(uint8_t code[KERN_BLOCK], const uint8_t *qs)
{
    for (uint32_t i = 0; i < KERN_BLOCK / 2; i++) {
        code[i] = qs[i] & 15;
        code[KERN_BLOCK / 2 + i] = qs[i] >> 4;
    }
}

/* Bit i of 4 bytes is bit 4 of weight i. */
static void add_bit_mask(uint8_t code[KERN_BLOCK], const uint8_t *qh)
{
    for (uint32_t i = 0; i < KERN_BLOCK; i++)
        code[i] |= (uint8_t)((qh[i / 8] >> i % 8 & 1) << 4);
}

/* One code of `bits` bits from each of 32 bytes. */
static void read_bits(uint8_t code[KERN_BLOCK], const uint8_t *src, uint32_t shift, uint32_t bits)
{
    for (uint32_t i = 0; i < KERN_BLOCK; i++)
        code[i] = (uint8_t)(src[i] >> shift & ((1u << bits) - 1));
}

/* The same, put above the `at` bits that code has. */
static void add_bits(uint8_t code[KERN_BLOCK], const uint8_t *src, uint32_t shift, uint32_t bits,
                     uint32_t at)
{
    for (uint32_t i = 0; i < KERN_BLOCK; i++)
        code[i] |= (uint8_t)((src[i] >> shift & ((1u << bits) - 1)) << at);
}

/* Q4_K, Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes. Those of parts 0 .. 3 are whole bytes
 * but for the upper two bits, which belong to those of parts 4 .. 7. */
static void read_scale_min(struct raw_block *ret, const uint8_t *scales, uint32_t part)
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
static int8_t q3_scale(const uint8_t *scales, uint32_t i)
{
    int low = scales[i % 8] >> 4 * (i / 8) & 15, high = scales[8 + i % 4] >> 2 * (i / 4) & 3;

    return (int8_t)((low | high << 4) - 32);
}

static void read_q2_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    read_bits(ret->code, src + 16 + 32 * (part / 4), 2 * (part % 4), 2);
    for (uint32_t half = 0; half < 2; half++) {
        ret->scale[half] = (int8_t)(src[2 * part + half] & 15);
        ret->min[half] = src[2 * part + half] >> 4;
    }
    ret->d = load_u16(src + 80);
    ret->m = load_u16(src + 82);
}

static void read_q3_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    read_bits(ret->code, src + 32 + 32 * (part / 4), 2 * (part % 4), 2);
    add_bits(ret->code, src, part, 1, 2);
    for (uint32_t half = 0; half < 2; half++)
        ret->scale[half] = q3_scale(src + 96, 2 * part + half);
    ret->d = load_u16(src + 108);
}

static void read_q4_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    read_bits(ret->code, src + 16 + 32 * (part / 2), 4 * (part % 2), 4);
    read_scale_min(ret, src + 4, part);
    ret->d = load_u16(src);
    ret->m = load_u16(src + 2);
}

static void read_q5_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    read_bits(ret->code, src + 48 + 32 * (part / 2), 4 * (part % 2), 4);
    add_bits(ret->code, src + 16, part, 1, 4);
    read_scale_min(ret, src + 4, part);
    ret->d = load_u16(src);
    ret->m = load_u16(src + 2);
}

static void read_q6_k(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    read_bits(ret->code, src + 64 * (part / 4) + 32 * (part % 2), 4 * (part % 4 / 2), 4);
    add_bits(ret->code, src + 128 + 32 * (part / 4), 2 * (part % 4), 2, 4);
    memcpy(ret->scale, src + 192 + 2 * part, 2);
    ret->d = load_u16(src + 208);
}

static void read_iq4_xs(struct raw_block *ret, const uint8_t *src, uint32_t part)
{
    int low = src[4 + part / 2] >> 4 * (part % 2) & 15, high = load_u16(src + 2) >> 2 * part & 3;

    read_nibbles(ret->code, src + 8 + 16 * part);
    ret->scale[0] = (int8_t)((low | high << 4) - 32);
    ret->d = load_u16(src);
}

void gguf_block_read(struct raw_block *ret, enum dtype type, const uint8_t *src, uint32_t part)
{
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        ret->d = load_u16(src);
        read_nibbles(ret->code, src + 2);
        break;
    case DTYPE_Q4_1:
        ret->d = load_u16(src);
        ret->m = load_u16(src + 2);
        read_nibbles(ret->code, src + 4);
        break;
    case DTYPE_Q5_0:
        ret->d = load_u16(src);
        read_nibbles(ret->code, src + 6);
        add_bit_mask(ret->code, src + 2);
        break;
    case DTYPE_Q5_1:
        ret->d = load_u16(src);
        ret->m = load_u16(src + 2);
        read_nibbles(ret->code, src + 8);
        add_bit_mask(ret->code, src + 4);
        break;
    case DTYPE_Q8_0: /* s8 + 128 as u8 is the sign bit flipped */
        ret->d = load_u16(src);
        for (uint32_t i = 0; i < KERN_BLOCK; i++)
            ret->code[i] = src[2 + i] ^ 0x80;
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
        read_nibbles(ret->code, src + 1);
        break;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        break;
    }
}
