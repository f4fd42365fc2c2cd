/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h - kernels for CPUs of other kinds, compiled from the same sources for one with AVX2, FMA
 * and F16C (immintrin.h here). They live in a shared library, so that the program has its own
 * functions of these names too.
 */
#ifndef TESTS_KERNELS_EMULATED_TABLES_H
#define TESTS_KERNELS_EMULATED_TABLES_H

#include "kernels/cpu_kernels.h"

const struct cpu_kernels *emulated_avx512(void);

#endif
