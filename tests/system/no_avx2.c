/* SPDX-License-Identifier: Apache-2.0 */
/* no_avx2.c - loaded before a program (LD_PRELOAD), it takes AVX2 away from what the CPU says. */
#include <cpuid.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/cpuid_trap.h"

__attribute__((constructor)) static void hide(void)
{
    int err = cpuid_hide((struct cpuid_bit){7, 0, CPUID_EBX, bit_AVX2});

    if (err < 0)
        dprintf(STDERR_FILENO, "no_avx2: CPUID cannot be made to fault: %s\n", strerror(-err));
}
