/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.h - element types of tensors, numbered as in GGUF (ggml's type ids), and their block sizes.
 * Source: GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2, /* 32 weights: f16 d, 16 bytes; w = d * (q - 8) */
    DTYPE_Q4_1 = 3, /* 32 weights: f16 d, f16 m, 16 bytes; w = d * q + m */
    DTYPE_Q8_0 = 8, /* 32 weights: f16 d, 32 s8; w = d * q */
    DTYPE_BF16 = 30
};

/* In GGUF's Q4 blocks byte i (0..15) holds weight i in its low and weight 16 + i in its high
 * nibble. */

#endif
