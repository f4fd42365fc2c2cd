/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/emulated/tables.h"

#include "kernels/variants.h"

__attribute__((visibility("default"))) const struct cpu_kernels *emulated_avx512(void)
{
    static struct cpu_kernels table;

    table = kernels_avx512;
    table.name = "avx512 emulated";
    return &table;
}
