/* SPDX-License-Identifier: Apache-2.0 */
/* dpbusd256.h - stands before the kernels' header of this name: AVX-512VL's form of the instruction. */
#ifndef KERNELS_X86_DPBUSD256_H
#define KERNELS_X86_DPBUSD256_H

#include <immintrin.h>

#include "kernels/x86/unroll.h"

KERN_INLINE __m256i dpbusd256(__m256i sum, __m256i codes, __m256i q)
{
    return _mm256_dpbusd_epi32(sum, codes, q);
}

#endif
