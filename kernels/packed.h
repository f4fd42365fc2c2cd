/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed.h - how each type lies in packed blocks, and 32 weights of one row in plain form. Internal
 * to kernels/; what the layouts mean: cpu_kernels.h.
 */
#ifndef KERNELS_PACKED_H
#define KERNELS_PACKED_H

#include <stddef.h>
#include "kernels/cpu_kernels.h"

#define PACKED_LINE 64
#define PACKED_PART (KERN_BLOCK / 2) /* k that share a scale where a block has two */

enum packed_scales {
    SCALES_NONE,     /* elements, not codes */
    SCALES_F16,      /* block: d */
    SCALES_F16_MIN,  /* block: d, m */
    SCALES_E8M0,     /* block: e */
    SCALES_INT,      /* head: d; block: sc */
    SCALES_INT_MIN,  /* head: d, dmin; block: sc, mn */
    SCALES_HALF,     /* head: d; block: sc of k < 16, sc of k >= 16 */
    SCALES_HALF_MIN, /* head: d, dmin; block: the same two, sc + 16 mn */
};

struct packed_layout {
    uint16_t gguf_k, gguf_bytes; /* weights and bytes of a GGUF block */
    uint8_t low, high;           /* bits of a code in the first and in the second plane */
    uint8_t zero;                /* the code of weight 0 */
    enum packed_scales scales;
    const uint8_t *table; /* [16] codes are indices of these codes; NULL: codes as they are */
};

/* What IQ4_NL and MXFP4 nibbles stand for, plus the layout's zero. */
extern const uint8_t packed_iq4[16], packed_mxfp4[16];

/* Of a constant type it is a constant. gguf_k is 0 for a type that cannot be packed. */
static inline __attribute__((always_inline)) struct packed_layout packed_layout(enum dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return (struct packed_layout){32, 128, 0, 0, 0, SCALES_NONE, NULL};
    case DTYPE_F16:
    case DTYPE_BF16:
        return (struct packed_layout){32, 64, 0, 0, 0, SCALES_NONE, NULL};
    case DTYPE_Q4_0:
        return (struct packed_layout){32, 18, 4, 0, 8, SCALES_F16, NULL};
    case DTYPE_Q4_1:
        return (struct packed_layout){32, 20, 4, 0, 0, SCALES_F16_MIN, NULL};
    case DTYPE_Q5_0:
        return (struct packed_layout){32, 22, 4, 1, 16, SCALES_F16, NULL};
    case DTYPE_Q5_1:
        return (struct packed_layout){32, 24, 4, 1, 0, SCALES_F16_MIN, NULL};
    case DTYPE_Q8_0:
        return (struct packed_layout){32, 34, 8, 0, 128, SCALES_F16, NULL};
    case DTYPE_Q2_K:
        return (struct packed_layout){256, 84, 2, 0, 0, SCALES_HALF_MIN, NULL};
    case DTYPE_Q3_K:
        return (struct packed_layout){256, 110, 2, 1, 4, SCALES_HALF, NULL};
    case DTYPE_Q4_K:
        return (struct packed_layout){256, 144, 4, 0, 0, SCALES_INT_MIN, NULL};
    case DTYPE_Q5_K:
        return (struct packed_layout){256, 176, 4, 1, 0, SCALES_INT_MIN, NULL};
    case DTYPE_Q6_K:
        return (struct packed_layout){256, 210, 4, 2, 32, SCALES_HALF, NULL};
    case DTYPE_IQ4_NL:
        return (struct packed_layout){32, 18, 4, 0, 128, SCALES_F16, packed_iq4};
    case DTYPE_IQ4_XS:
        return (struct packed_layout){256, 136, 4, 0, 128, SCALES_INT, packed_iq4};
    case DTYPE_MXFP4:
        return (struct packed_layout){32, 17, 4, 0, 12, SCALES_E8M0, packed_mxfp4};
    }
    return (struct packed_layout){0, 0, 0, 0, 0, SCALES_NONE, NULL};
}

/* Bytes before each GGUF block's packed blocks. */
static inline __attribute__((always_inline)) uint32_t packed_head_bytes(enum packed_scales scales)
{
    return scales == SCALES_INT || scales == SCALES_HALF           ? 2 * KERN_ROWS
           : scales == SCALES_INT_MIN || scales == SCALES_HALF_MIN ? 4 * KERN_ROWS
                                                                   : 0;
}

static inline __attribute__((always_inline)) uint32_t packed_scale_bytes(enum packed_scales scales)
{
    return scales == SCALES_F16_MIN                        ? 4 * KERN_ROWS
           : scales == SCALES_E8M0 || scales == SCALES_INT ? 1 * KERN_ROWS
                                                           : 2 * KERN_ROWS;
}

/* Bytes of the planes of a packed block: where its scales begin. */
static inline __attribute__((always_inline)) uint32_t packed_code_bytes(struct packed_layout l)
{
    return PACKED_LINE * ((uint32_t)l.low + l.high);
}

/* Bytes of a packed block: 32 k of 16 rows. */
static inline __attribute__((always_inline)) uint32_t packed_block_bytes(struct packed_layout l)
{
    return l.scales == SCALES_NONE ? (uint32_t)KERN_ROWS * l.gguf_bytes
                                   : packed_code_bytes(l) + packed_scale_bytes(l.scales);
}

/* Both parts of a block have scales of their own. */
static inline __attribute__((always_inline)) int packed_has_halves(enum packed_scales scales)
{
    return scales == SCALES_HALF || scales == SCALES_HALF_MIN;
}

static inline __attribute__((always_inline)) int packed_has_min(enum packed_scales scales)
{
    return scales == SCALES_F16_MIN || scales == SCALES_INT_MIN || scales == SCALES_HALF_MIN;
}

/* A case of a switch over types for each with codes, so that each has code of its own. */
#define PACKED_EACH_INT_TYPE(CASE)                                                                 \
    CASE(DTYPE_Q4_0)                                                                               \
    CASE(DTYPE_Q4_1)                                                                               \
    CASE(DTYPE_Q5_0)                                                                               \
    CASE(DTYPE_Q5_1)                                                                               \
    CASE(DTYPE_Q8_0)                                                                               \
    CASE(DTYPE_Q2_K)                                                                               \
    CASE(DTYPE_Q3_K)                                                                               \
    CASE(DTYPE_Q4_K)                                                                               \
    CASE(DTYPE_Q5_K)                                                                               \
    CASE(DTYPE_Q6_K)                                                                               \
    CASE(DTYPE_IQ4_NL)                                                                             \
    CASE(DTYPE_IQ4_XS)                                                                             \
    CASE(DTYPE_MXFP4)

/* Both sums out of low + 65536 * high. */
static inline struct half_sums split_sums(int32_t both)
{
    int16_t low = (int16_t)(both & 0xffff);

    return (struct half_sums){low, (int16_t)((both - low) / 65536)};
}

/* 32 weights of one row as a file has them. Word `line` of a plane is the row's four bytes of that
 * line; only fields that the type has are set. */
struct raw_block {
    uint32_t low[8], high[2];
    uint16_t d, m;   /* f16; of a GGUF block of 256 these are d and dmin; MXFP4: d is e */
    int8_t scale[2]; /* of the two halves; SCALES_INT*: the first is of both */
    uint8_t min[2];
};

/* The 32 weights in f32. */
void raw_block_weights(float *dst, enum dtype type, const struct raw_block *raw);

/* Element i of a float type. */
float packed_element(const uint8_t *src, enum dtype type, size_t i);

/* 32 weights in the form that all types share: weight k is d[h] * (code[k] - zero) + m[h], with h =
 * k / 16, and m = -0 (which changes nothing) for types without a minimum. */
struct plain_block {
    uint8_t code[KERN_BLOCK]; /* looked up, where there is a table */
    float d[2], m[2];
};

/* Reads row r (0 .. 15) of block b of a packed group of a type with codes. */
void packed_block_read(struct plain_block *ret, enum dtype type, const uint8_t *group, uint32_t b,
                       uint32_t r);

#endif
