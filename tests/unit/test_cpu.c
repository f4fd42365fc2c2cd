/* SPDX-License-Identifier: Apache-2.0 */
/* test_cpu.c - which kernels a CPU gets that lacks a feature. */
#include <check.h>
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu_kernels.h"
#include "tests/unit/cpuid_trap.h"

/* Bits: Intel SDM volume 2, CPUID, leaves 1 and 7 (subleaf 1: AVX-VNNI); the names there. */
static const struct {
    struct cpuid_bit hidden;
    const char *name;
    enum cpu_variant needs_it; /* no other does; AVX2: all but the reference do */
} cases[] = {
    {{1, 0, CPUID_ECX, bit_OSXSAVE}, "AVX registers enabled by the system", CPU_AVX2},
    {{7, 0, CPUID_EBX, bit_AVX2}, "AVX2", CPU_AVX2},
    {{1, 0, CPUID_ECX, bit_FMA}, "FMA", CPU_AVX2},
    {{1, 0, CPUID_ECX, bit_F16C}, "F16C", CPU_AVX2},
    {{7, 1, CPUID_EAX, bit_AVXVNNI}, "AVX-VNNI", CPU_AVXVNNI},
    {{7, 0, CPUID_EBX, bit_AVX512F}, "AVX512F", CPU_AVX512},
    {{7, 0, CPUID_EBX, bit_AVX512BW}, "AVX512BW", CPU_AVX512},
    {{7, 0, CPUID_EBX, bit_AVX512DQ}, "AVX512DQ", CPU_AVX512},
    {{7, 0, CPUID_EBX, bit_AVX512VL}, "AVX512VL", CPU_AVX512},
    {{7, 0, CPUID_ECX, bit_AVX512VNNI}, "AVX512_VNNI", CPU_AVX512},
};
#define N_CASES ((int)(sizeof cases / sizeof cases[0]))

START_TEST(a_cpu_without_a_feature_gets_the_best_kernels_that_do_without_it)
{
    const struct cpu_kernels *before[CPU_AVX512 + 1], *best = NULL;

    for (enum cpu_variant v = CPU_REF; v <= CPU_AVX512; v++)
        before[v] = cpu_kernels_get(v, NULL);
    if (!before[cases[_i].needs_it] || cpuid_hide(cases[_i].hidden) < 0)
        return; /* it lacks that anyway, or cannot be told to lie */
    for (enum cpu_variant v = CPU_REF; v <= CPU_AVX512; v++) {
        int needs = v == cases[_i].needs_it || (v > CPU_REF && cases[_i].needs_it == CPU_AVX2);
        const char *missing = NULL;

        ck_assert_ptr_eq(cpu_kernels_get(v, &missing), needs ? NULL : before[v]);
        if (needs)
            ck_assert_str_eq(missing, cases[_i].name);
        else if (before[v])
            best = before[v];
    }
    ck_assert_ptr_eq(cpu_kernels_get(CPU_AUTO, NULL), best);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu");
    TCase *tc = tcase_create("cpu");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_loop_test(tc, a_cpu_without_a_feature_gets_the_best_kernels_that_do_without_it, 0,
                        N_CASES);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
