/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.h - element types of tensors, numbered as in GGUF (ggml's type ids), and their blocks.
 *
 * Sources: GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the
 * blocks as gguf-py (0.19.0, gguf/quants.py) reads them; MXFP4 also the OCP Microscaling Formats
 * specification 1.0. Fields of a block stand in the order of its bytes, little endian.
 */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    /* 32 weights. Byte i (0..15) of qs has weight i in its low, weight 16 + i in its high nibble;
     * bit i of qh is bit 4 of weight i. */
    DTYPE_Q4_0 = 2, /* f16 d, qs[16]; w = d * (q - 8) */
    DTYPE_Q4_1 = 3, /* f16 d, f16 m, qs[16]; w = d * q + m */
    DTYPE_Q5_0 = 6, /* f16 d, u32 qh, qs[16]; w = d * (q - 16) */
    DTYPE_Q5_1 = 7, /* f16 d, f16 m, u32 qh, qs[16]; w = d * q + m */
    DTYPE_Q8_0 = 8, /* f16 d, 32 s8; w = d * q */
    /* 256 weights: 8 parts of 32, or 16 of 16, with integer scales sc (and minima mn) of their own;
     * w = d * sc * q - dmin * mn. Part p of 32 has nibbles 4 * (p % 2) up of qs[32 * (p / 2)] on
     * (Q4_K, Q5_K), or bits 2 * (p % 4) up of qs[32 * (p / 4)] on (Q2_K, Q3_K); its high bit is bit
     * p of qh[0..31]. */
    DTYPE_Q2_K = 10, /* scales[16]: sc in the low, mn in the high nibble; qs[64]; f16 d, f16 dmin */
    DTYPE_Q3_K = 11, /* qh[32], qs[64], scales[12]: 16 of 6 bits, less 32; f16 d; q - 4, no mn */
    DTYPE_Q4_K = 12, /* f16 d, f16 dmin, scales[12]: 8 sc and 8 mn of 6 bits; qs[128] */
    DTYPE_Q5_K = 13, /* as Q4_K, with qh[32] before qs */
    /* Part p of 32 of Q6_K, h = p / 4: nibbles 4 * (p % 4 / 2) up of ql[64h + 32 * (p % 2)] on, and
     * above them bits 2 * (p % 4) up of qh[32h] on; q - 32, no mn. */
    DTYPE_Q6_K = 14,   /* ql[128], qh[64], 16 s8 sc, f16 d */
    DTYPE_IQ4_NL = 20, /* as Q4_0, but q is an index into a table of 16 */
    DTYPE_IQ4_XS = 23, /* 8 parts of IQ4_NL's nibbles: f16 d, u16 and 4 bytes: 8 sc of 6 bits, less
                          32; qs[128] */
    DTYPE_BF16 = 30,
    DTYPE_MXFP4 = 39 /* 32 weights: u8 e, qs[16]; w = 2^(e - 127) * FP4 (E2M1) of q */
};

/* The others are integers with scales, and are multiplied with quantised activations. */
static inline int dtype_is_float(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

#endif
