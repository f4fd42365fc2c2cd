/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/emulated/tables.h"

#include "kernels/variants.h"

__attribute__((visibility("default"))) const struct cpu_kernels *avx512vl_avxvnni(void)
{
    return &kernels_avxvnni;
}
