/* SPDX-License-Identifier: Apache-2.0 */
/* half.c - IEEE half to single precision and back, bit for bit as the F16C instructions do it. */
#include "kernels/bits.h"
#include "kernels/cpu_kernels.h"

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
