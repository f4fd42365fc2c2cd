/* SPDX-License-Identifier: Apache-2.0 */
/* test_cpu.c - which kernels a CPU gets that lacks a feature. */
#include <check.h>
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu_kernels.h"
#include "tests/unit/cpuid_trap.h"

/* Bits: Intel SDM volume 2, CPUID, leaves 1 and 7; the names there. */
static const struct {
    struct cpuid_bit hidden;
    const char *name;
    int avx2; /* what is left still runs the AVX2 variant */
} cases[] = {
    {{1, CPUID_ECX, bit_OSXSAVE}, "AVX registers enabled by the system", 0},
    {{7, CPUID_EBX, bit_AVX2}, "AVX2", 0},
    {{1, CPUID_ECX, bit_FMA}, "FMA", 0},
    {{1, CPUID_ECX, bit_F16C}, "F16C", 0},
    {{7, CPUID_EBX, bit_AVX512F}, "AVX512F", 1},
    {{7, CPUID_EBX, bit_AVX512BW}, "AVX512BW", 1},
    {{7, CPUID_EBX, bit_AVX512DQ}, "AVX512DQ", 1},
    {{7, CPUID_EBX, bit_AVX512VL}, "AVX512VL", 1},
    {{7, CPUID_ECX, bit_AVX512VNNI}, "AVX512_VNNI", 1},
};
#define N_CASES ((int)(sizeof cases / sizeof cases[0]))

START_TEST(a_cpu_without_a_feature_gets_the_best_kernels_that_do_without_it)
{
    const char *missing = NULL;

    if (!cpu_kernels_get(cases[_i].avx2 ? CPU_AVX512 : CPU_AVX2, NULL) ||
        cpuid_hide(cases[_i].hidden) < 0) /* it lacks that anyway, or cannot be told to lie */
        return;
    ck_assert_str_eq(cpu_kernels_get(CPU_AUTO, NULL)->name, cases[_i].avx2 ? "avx2" : "ref");
    ck_assert_str_eq(cpu_kernels_get(CPU_REF, NULL)->name, "ref");
    ck_assert_ptr_null(cpu_kernels_get(CPU_AVX512, &missing));
    ck_assert_str_eq(missing, cases[_i].name);
    missing = NULL;
    if (cases[_i].avx2) {
        ck_assert_str_eq(cpu_kernels_get(CPU_AVX2, &missing)->name, "avx2");
        return;
    }
    ck_assert_ptr_null(cpu_kernels_get(CPU_AVX2, &missing));
    ck_assert_str_eq(missing, cases[_i].name);
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
