/* SPDX-License-Identifier: Apache-2.0 */
/* dpbusd256.h - the one instruction of AVX-VNNI. Tests put other forms of it in this header's place. */
#ifndef KERNELS_X86_DPBUSD256_H
#define KERNELS_X86_DPBUSD256_H

#include <immintrin.h>

#include "kernels/x86/unroll.h"

/* Adds to each 32-bit lane the four products of its unsigned and signed bytes, which never saturate. */
KERN_INLINE __m256i dpbusd256(__m256i sum, __m256i codes, __m256i q)
{
    return _mm256_dpbusd_avx_epi32(sum, codes, q);
}

#endif
