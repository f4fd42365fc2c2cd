/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h - kernels for CPUs of other kinds than this one, compiled from the same sources. They live
 * in shared libraries, so that the program has its own functions of these names too.
 *
 * emulated_: for a CPU with AVX2, FMA and F16C (immintrin.h here). NULL where SIMDe is not installed.
 * avx512vl_: for one with AVX-512VL and VNNI (tests/kernels/avx512vl).
 */
#ifndef TESTS_KERNELS_EMULATED_TABLES_H
#define TESTS_KERNELS_EMULATED_TABLES_H

#include "kernels/cpu_kernels.h"

const struct cpu_kernels *emulated_avx512(void);
const struct cpu_kernels *emulated_avxvnni(void);
const struct cpu_kernels *avx512vl_avxvnni(void);

#endif
