/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lanes8.h - sums of f32 values in 8 lanes of f64, as weigh adds them; AVX alone.
 */
#ifndef KERNELS_X86_LANES8_H
#define KERNELS_X86_LANES8_H

#include <immintrin.h>

#include "kernels/x86/unroll.h"

struct lanes8 {
    __m256d low, high; /* lanes 0 .. 3, 4 .. 7 */
};

KERN_INLINE struct lanes8 lanes8_zero(void)
{
    return (struct lanes8){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

/* Lane l += v[l]. */
KERN_INLINE void lanes8_add(struct lanes8 *lanes, __m256 v)
{
    lanes->low = _mm256_add_pd(lanes->low, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
    lanes->high = _mm256_add_pd(lanes->high, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
}

/* ((0+4)+(2+6))+((1+5)+(3+7)) */
KERN_INLINE double lanes8_sum(const struct lanes8 *lanes)
{
    __m256d v4 = _mm256_add_pd(lanes->low, lanes->high);
    __m128d v2 = _mm_add_pd(_mm256_castpd256_pd128(v4), _mm256_extractf128_pd(v4, 1));

    return _mm_cvtsd_f64(_mm_add_sd(v2, _mm_unpackhi_pd(v2, v2)));
}

#endif
