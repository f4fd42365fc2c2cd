/* SPDX-License-Identifier: Apache-2.0 */
/* bits.h - a float as the 32 bits that it is made of. */
#ifndef KERNELS_BITS_H
#define KERNELS_BITS_H

#include <stdint.h>
#include <string.h>

static inline float f32_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of_f32(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

#endif
