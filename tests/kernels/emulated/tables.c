/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/emulated/tables.h"

#include "kernels/variants.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT const struct cpu_kernels *emulated_avx512(void)
{
    return &kernels_avx512;
}

EXPORT const struct cpu_kernels *emulated_avxvnni(void)
{
    return &kernels_avxvnni;
}
