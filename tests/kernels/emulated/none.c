/* SPDX-License-Identifier: Apache-2.0 */
/* none.c - stands for tables.c where SIMDe is not installed. */
#include <stddef.h>

#include "tests/kernels/emulated/tables.h"

const struct cpu_kernels *emulated_avx512(void)
{
    return NULL;
}

const struct cpu_kernels *emulated_avxvnni(void)
{
    return NULL;
}
