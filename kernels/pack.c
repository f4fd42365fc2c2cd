/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.c - reads GGUF's blocks (dtype.h) of 32 weights at a time, to packed groups or to f32. A
 * model starts no faster than it is packed, so four rows are read at once: a vector has a word of
 * each, which is also how they lie in a packed line.
 */
#include "kernels/packed.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define FOUR   4u

/* A number of each of four rows; the same bits otherwise. */
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint64_t pairs __attribute__((vector_size(16)));
typedef uint16_t halves __attribute__((vector_size(16)));

/* A GGUF block of each of four rows, of which the last may not exist: those are read as another. */
struct four {
    const uint8_t *row[FOUR];
    words exists; /* all ones or 0 */
};

/* struct raw_block of four rows. */
struct raw_four {
    words low[8], high[2], d, m, scale[2], min[2];
};

/* Word i of vector r becomes word r of vector i. */
INLINE void transpose(words v[FOUR])
{
    words a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    words b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    words c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    words d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);

    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* ---- reading -------------------------------------------------------------------------------- */

INLINE words load_bytes(const struct four *f, uint32_t at)
{
    return (words){f->row[0][at], f->row[1][at], f->row[2][at], f->row[3][at]};
}

INLINE uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

INLINE words load_halves(const struct four *f, uint32_t at)
{
    return (words){load_u16(f->row[0] + at), load_u16(f->row[1] + at), load_u16(f->row[2] + at),
                   load_u16(f->row[3] + at)};
}

INLINE uint32_t load_u32(const uint8_t *p)
{
    uint32_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

INLINE words load_words(const struct four *f, uint32_t at)
{
    return (words){load_u32(f->row[0] + at), load_u32(f->row[1] + at), load_u32(f->row[2] + at),
                   load_u32(f->row[3] + at)};
}

/* The four words from byte `at` on. */
INLINE void load_four_words(words ret[FOUR], const struct four *f, uint32_t at)
{
    for (uint32_t i = 0; i < FOUR; i++)
        memcpy(&ret[i], f->row[i] + at, sizeof ret[i]);
    transpose(ret);
}

/* d and m from an f16 each. */
INLINE void read_d_m(struct raw_four *ret, words both)
{
    ret->d = both & 0xffff;
    ret->m = both >> 16;
}

/* A plane of the fields of `bits` bits from bit `shift` on of 32 bytes. */
INLINE void gather(words *plane, const struct four *f, uint32_t at, uint32_t shift,
                   const uint32_t bits)
{
    const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
    words v[8];

    load_four_words(v, f, at);
    load_four_words(v + FOUR, f, at + 16);
    for (uint32_t line = 0; line < bits; line++) {
        plane[line] = v[line] >> shift & mask;
        for (uint32_t j = bits; j < 8; j += bits)
            plane[line] |= (v[line + j] >> shift & mask) << j;
    }
}

/* 16 bytes with weight i in the low and 16 + i in the high nibble are a plane. */
INLINE void read_nibbles(struct raw_four *ret, const struct four *f, uint32_t at)
{
    load_four_words(ret->low, f, at);
}

/* A plane of one bit from 32 bits in the order of the weights: bit j of byte b is bit 4j + b. */
INLINE void read_bit_mask(struct raw_four *ret, const struct four *f, uint32_t at)
{
    words word = load_words(f, at);

    ret->high[0] = word ^ word;
    for (uint32_t b = 0; b < 4; b++) {
        words x = word >> b & 0x11111111;

        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000f000f;
        x = (x | x >> 12) & 0xff;
        ret->high[0] |= x << 8 * b;
    }
}

/* Q4_K, Q5_K: d, dmin, then 8 scales and 8 minima of 6 bits in 12 bytes. Those of parts 0 .. 3 are
 * whole bytes but for the upper two bits, which belong to those of parts 4 .. 7. */
INLINE void read_scales_k(struct raw_four *ret, const struct four *f, uint32_t part)
{
    uint32_t shift = 8 * (part % 4);
    words v[FOUR], low;

    load_four_words(v, f, 0);
    read_d_m(ret, v[0]);
    if (part < 4) {
        ret->scale[0] = v[1] >> shift & 63;
        ret->min[0] = v[2] >> shift & 63;
    } else {
        low = v[3] >> shift;
        ret->scale[0] = (low & 15) | (v[1] >> shift >> 2 & 0x30);
        ret->min[0] = (low >> 4 & 15) | (v[2] >> shift >> 2 & 0x30);
    }
}

/* Q3_K: 16 scales of 6 bits in 12 bytes: 8 bytes of low nibbles, 4 of upper pairs. */
INLINE words q3_scale(const struct four *f, uint32_t at, uint32_t i)
{
    words low = load_bytes(f, at + i % 8) >> 4 * (i / 8) & 15;

    return (low | (load_bytes(f, at + 8 + i % 4) >> 2 * (i / 4) & 3) << 4) - 32;
}

INLINE void read_q2_k(struct raw_four *ret, const struct four *f, uint32_t part)
{
    words scales = load_halves(f, 2 * part);

    gather(ret->low, f, 16 + 32 * (part / 4), 2 * (part % 4), 2);
    for (uint32_t half = 0; half < 2; half++) {
        ret->scale[half] = scales >> 8 * half & 15;
        ret->min[half] = scales >> 8 * half >> 4 & 15;
    }
    read_d_m(ret, load_words(f, 80));
}

INLINE void read_q3_k(struct raw_four *ret, const struct four *f, uint32_t part)
{
    gather(ret->low, f, 32 + 32 * (part / 4), 2 * (part % 4), 2);
    gather(ret->high, f, 0, part, 1);
    for (uint32_t half = 0; half < 2; half++)
        ret->scale[half] = q3_scale(f, 96, 2 * part + half);
    ret->d = load_halves(f, 108);
}

INLINE void read_q4_k(struct raw_four *ret, const struct four *f, uint32_t part)
{
    gather(ret->low, f, 16 + 32 * (part / 2), 4 * (part % 2), 4);
    read_scales_k(ret, f, part);
}

INLINE void read_q5_k(struct raw_four *ret, const struct four *f, uint32_t part)
{
    gather(ret->low, f, 48 + 32 * (part / 2), 4 * (part % 2), 4);
    gather(ret->high, f, 16, part, 1);
    read_scales_k(ret, f, part);
}

INLINE void read_q6_k(struct raw_four *ret, const struct four *f, uint32_t part)
{
    words scales;

    gather(ret->low, f, 64 * (part / 4) + 32 * (part % 2), 4 * (part % 4 / 2), 4);
    gather(ret->high, f, 128 + 32 * (part / 4), 2 * (part % 4), 2);
    scales = load_halves(f, 192 + 2 * part);
    ret->scale[0] = scales & 255;
    ret->scale[1] = scales >> 8;
    ret->d = load_halves(f, 208);
}

INLINE void read_iq4_xs(struct raw_four *ret, const struct four *f, uint32_t part)
{
    words low = load_bytes(f, 4 + part / 2) >> 4 * (part % 2) & 15;

    read_nibbles(ret, f, 8 + 16 * part);
    ret->scale[0] = (low | (load_halves(f, 2) >> 2 * part & 3) << 4) - 32;
    ret->d = load_halves(f, 0);
}

/* Reads weights 32 * part .. + 31 of GGUF blocks of a type with codes. */
INLINE void read_blocks(struct raw_four *ret, const enum dtype type, const struct four *f,
                        uint32_t part)
{
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        ret->d = load_halves(f, 0);
        read_nibbles(ret, f, 2);
        break;
    case DTYPE_Q4_1:
        read_d_m(ret, load_words(f, 0));
        read_nibbles(ret, f, 4);
        break;
    case DTYPE_Q5_0:
        ret->d = load_halves(f, 0);
        read_bit_mask(ret, f, 2);
        read_nibbles(ret, f, 6);
        break;
    case DTYPE_Q5_1:
        read_d_m(ret, load_words(f, 0));
        read_bit_mask(ret, f, 4);
        read_nibbles(ret, f, 8);
        break;
    case DTYPE_Q8_0: /* s8 + 128 as u8 is the sign bit flipped */
        ret->d = load_halves(f, 0);
        load_four_words(ret->low, f, 2);
        load_four_words(ret->low + FOUR, f, 18);
        for (uint32_t i = 0; i < 8; i++)
            ret->low[i] ^= 0x80808080;
        break;
    case DTYPE_Q2_K:
        read_q2_k(ret, f, part);
        break;
    case DTYPE_Q3_K:
        read_q3_k(ret, f, part);
        break;
    case DTYPE_Q4_K:
        read_q4_k(ret, f, part);
        break;
    case DTYPE_Q5_K:
        read_q5_k(ret, f, part);
        break;
    case DTYPE_Q6_K:
        read_q6_k(ret, f, part);
        break;
    case DTYPE_IQ4_XS:
        read_iq4_xs(ret, f, part);
        break;
    case DTYPE_MXFP4:
        ret->d = load_bytes(f, 0);
        read_nibbles(ret, f, 1);
        break;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        break;
    }
}

/* ---- to packed groups ----------------------------------------------------------------------- */

INLINE void put_words(uint8_t *dst, words v)
{
    memcpy(dst, &v, sizeof v);
}

/* Lanes are below 65536. */
INLINE void put_halves(uint8_t *dst, words v)
{
    pairs p = (pairs)v | (pairs)v >> 16;
    uint64_t all = (uint32_t)p[0] | p[1] << 32;

    memcpy(dst, &all, sizeof all);
}

/* Of each lane the lowest. */
INLINE void put_bytes(uint8_t *dst, words v)
{
    pairs p = (pairs)(v & 255) | (pairs)(v & 255) >> 24;
    uint32_t all = (uint32_t)((p[0] & 0xffff) | p[1] << 16);

    memcpy(dst, &all, sizeof all);
}

/* scales: where those of the packed block begin; head: those of its GGUF block, NULL but for its
 * first; r: the first row. */
INLINE void write_scales(uint8_t *head, uint8_t *scales, const enum packed_scales kind,
                         const struct raw_four *raw, words exists, uint32_t r)
{
    if (kind == SCALES_E8M0)
        put_bytes(scales + r, raw->d & exists);
    if (kind == SCALES_F16 || kind == SCALES_F16_MIN)
        head = scales;
    if (kind == SCALES_INT || kind == SCALES_INT_MIN)
        put_bytes(scales + r, raw->scale[0] & exists);
    if (kind == SCALES_INT_MIN)
        put_bytes(scales + KERN_ROWS + r, raw->min[0] & exists);
    for (uint32_t half = 0; half < 2 && packed_has_halves(kind); half++)
        put_bytes(scales + half * KERN_ROWS + r,
                  exists & (kind == SCALES_HALF ? raw->scale[half]
                                                : raw->scale[half] | raw->min[half] << 4));
    if (kind != SCALES_E8M0 && head)
        put_halves(head + 2 * r, raw->d & exists);
    if (packed_has_min(kind) && head)
        put_halves(head + 2 * KERN_ROWS + 2 * r, raw->m & exists);
}

/* Puts the GGUF blocks of rows r .. r + 3 of the group where its packed blocks begin. */
INLINE void pack_blocks(uint8_t *dst, const enum dtype type, const struct four *f, uint32_t r)
{
    const struct packed_layout l = packed_layout(type);
    uint8_t *block = dst + packed_head_bytes(l.scales);
    struct raw_four raw;

    for (uint32_t part = 0; part < l.gguf_k / KERN_BLOCK; part++) {
        read_blocks(&raw, type, f, part);
        for (uint32_t line = 0; line < l.low; line++)
            put_words(block + line * PACKED_LINE + 4 * r, raw.low[line] & f->exists);
        for (uint32_t line = 0; line < l.high; line++)
            put_words(block + (l.low + line) * PACKED_LINE + 4 * r, raw.high[line] & f->exists);
        write_scales(part == 0 ? dst : NULL, block + packed_code_bytes(l), l.scales, &raw,
                     f->exists, r);
        block += packed_block_bytes(l);
    }
}

/* Half 2i of vector r becomes half r of vector i, half 2i + 1 its half 4 + r. */
INLINE void transpose_halves(words v[FOUR])
{
    halves h[FOUR];
    words a, b, c, d;

    memcpy(h, v, sizeof h);
    a = (words)__builtin_shufflevector(h[0], h[1], 0, 8, 1, 9, 2, 10, 3, 11);
    b = (words)__builtin_shufflevector(h[0], h[1], 4, 12, 5, 13, 6, 14, 7, 15);
    c = (words)__builtin_shufflevector(h[2], h[3], 0, 8, 1, 9, 2, 10, 3, 11);
    d = (words)__builtin_shufflevector(h[2], h[3], 4, 12, 5, 13, 6, 14, 7, 15);
    v[0] = __builtin_shufflevector(a, c, 0, 4, 1, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 6, 3, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 4, 1, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 6, 3, 7);
}

/* 32 elements of `bytes` bytes, 2 or 4, of four rows. */
INLINE void pack_elements(uint8_t *dst, const size_t bytes, const struct four *f, uint32_t r)
{
    words v[FOUR];

    for (size_t at = 0; at < KERN_BLOCK * bytes; at += sizeof v[0]) {
        for (uint32_t i = 0; i < FOUR; i++) {
            memcpy(&v[i], f->row[i] + at, sizeof v[i]);
            v[i] &= f->exists[i];
        }
        if (bytes == 4)
            transpose(v);
        else
            transpose_halves(v);
        for (size_t i = 0; i < sizeof v[0] / bytes; i++)
            memcpy(dst + KERN_ROWS * (at + i * bytes) + r * bytes,
                   (const uint8_t *)v + i * FOUR * bytes, FOUR * bytes);
    }
}

/* Asks for the share of block b, of n_blocks, of the group that follows. Processors follow a single
 * stream by themselves, but not short pieces of 16 rows in turn. Behind the last group there may be
 * nothing: then nothing is loaded. */
INLINE void prefetch_next(const uint8_t *src, const struct packed_layout l, uint32_t b,
                          uint32_t n_blocks)
{
    const size_t share = (size_t)KERN_ROWS * l.gguf_bytes;
    uintptr_t at = (uintptr_t)src + share * (n_blocks + b);

    for (size_t i = 0; i < share; i += PACKED_LINE)
        __builtin_prefetch((const void *)(at + i));
}

/* Packs n rows from src on. */
INLINE void pack_rows(uint8_t *dst, const enum dtype type, const uint8_t *src, uint32_t n,
                      uint32_t n_cols)
{
    const struct packed_layout l = packed_layout(type);
    uint32_t n_blocks = n_cols / l.gguf_k;
    size_t row_bytes = (size_t)n_blocks * l.gguf_bytes;
    struct four fours[KERN_ROWS / FOUR];

    for (uint32_t r = 0; r < KERN_ROWS; r++) {
        fours[r / FOUR].row[r % FOUR] = src + (r < n ? r : 0) * row_bytes;
        fours[r / FOUR].exists[r % FOUR] = r < n ? UINT32_MAX : 0;
    }
    for (uint32_t b = 0; b < n_blocks; b++, dst += pack_group_bytes(type, l.gguf_k)) {
        prefetch_next(src, l, b, n_blocks);
        for (uint32_t r = 0; r < KERN_ROWS; r += FOUR) {
            struct four *f = &fours[r / FOUR];

            if (l.scales == SCALES_NONE)
                pack_elements(dst, l.gguf_bytes / KERN_BLOCK, f, r);
            else
                pack_blocks(dst, type, f, r);
            for (uint32_t i = 0; i < FOUR; i++)
                f->row[i] += l.gguf_bytes;
        }
    }
}

void pack_group(uint8_t *dst, enum dtype type, const uint8_t *src, uint32_t n_rows, uint32_t n_cols,
                uint32_t row0)
{
    uint32_t n = n_rows - row0 < KERN_ROWS ? n_rows - row0 : KERN_ROWS;

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

/* Of the first row. */
static void raw_of_four(struct raw_block *ret, const struct raw_four *raw)
{
    for (uint32_t line = 0; line < 8; line++)
        ret->low[line] = raw->low[line][0];
    for (uint32_t i = 0; i < 2; i++) {
        ret->high[i] = raw->high[i][0];
        ret->scale[i] = (int8_t)raw->scale[i][0];
        ret->min[i] = (uint8_t)raw->min[i][0];
    }
    ret->d = (uint16_t)raw->d[0];
    ret->m = (uint16_t)raw->m[0];
}

void dequantize_row(float *dst, enum dtype type, const uint8_t *src, uint32_t n_cols)
{
    struct packed_layout l = packed_layout(type);
    struct raw_four four = {0};
    struct raw_block raw;

    if (l.scales == SCALES_NONE) {
        for (uint32_t i = 0; i < n_cols; i++)
            dst[i] = packed_element(src, type, i);
        return;
    }
    for (uint32_t k = 0; k < n_cols; k += KERN_BLOCK) {
        const uint8_t *block = src + (size_t)(k / l.gguf_k) * l.gguf_bytes;
        struct four f = {{block, block, block, block}, {0}};

        read_blocks(&four, type, &f, k % l.gguf_k / KERN_BLOCK);
        raw_of_four(&raw, &four);
        raw_block_weights(dst + k, type, &raw);
    }
}
