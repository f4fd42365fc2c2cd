/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variants.h - the tables that cpu_kernels.c chooses from. Internal to kernels/.
 */
#ifndef KERNELS_VARIANTS_H
#define KERNELS_VARIANTS_H

#include "kernels/cpu_kernels.h"

extern const struct cpu_kernels kernels_ref;
extern const struct cpu_kernels kernels_avx2;    /* x86/; only run where AVX2, FMA and F16C are */
extern const struct cpu_kernels kernels_avxvnni; /* x86/; and where AVX-VNNI is too */
extern const struct cpu_kernels
    kernels_avx512; /* x86/; only run where F, BW, DQ, VL and VNNI are */

#endif
