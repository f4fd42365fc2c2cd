/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_kernels.c - finds out what the CPU and the system offer, and hands out the table of a
 * variant.
 *
 * Sources: Intel SDM volume 2, CPUID (leaves 1 and 7) and XGETBV; AMD64 APM volume 3 agrees.
 */
#include "kernels/variants.h"

#include <errno.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

#define XCR0_AVX    0x06u /* XMM and YMM registers are saved by the system */
#define XCR0_AVX512 0xe6u /* and the mask registers, and all of ZMM */

struct cpuid_regs {
    uint32_t eax, ebx, ecx, edx;
};

static struct cpuid_regs cpuid_sub(uint32_t leaf, uint32_t subleaf)
{
    struct cpuid_regs r = {0, 0, 0, 0};

    (void)__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

static struct cpuid_regs cpuid(uint32_t leaf)
{
    return cpuid_sub(leaf, 0);
}

static uint32_t xgetbv0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* The first feature that the AVX2 variant lacks, or NULL. */
static const char *avx2_missing(void)
{
    struct cpuid_regs one = cpuid(1), seven = cpuid(7);

    if (!(one.ecx & bit_OSXSAVE) || (xgetbv0() & XCR0_AVX) != XCR0_AVX)
        return "AVX registers enabled by the system";
    if (!(seven.ebx & bit_AVX2))
        return "AVX2";
    if (!(one.ecx & bit_FMA))
        return "FMA";
    if (!(one.ecx & bit_F16C))
        return "F16C";
    return NULL;
}

static const char *avxvnni_missing(void)
{
    const char *missing = avx2_missing();

    if (missing)
        return missing;
    /* EAX of leaf 7 is the last subleaf that it has. */
    if (cpuid(7).eax < 1 || !(cpuid_sub(7, 1).eax & bit_AVXVNNI))
        return "AVX-VNNI";
    return NULL;
}

static const char *avx512_missing(void)
{
    struct cpuid_regs seven = cpuid(7);
    const char *missing = avx2_missing();

    if (missing)
        return missing;
    if ((xgetbv0() & XCR0_AVX512) != XCR0_AVX512)
        return "AVX-512 registers enabled by the system";
    if (!(seven.ebx & bit_AVX512F))
        return "AVX512F";
    if (!(seven.ebx & bit_AVX512BW))
        return "AVX512BW";
    if (!(seven.ebx & bit_AVX512DQ))
        return "AVX512DQ";
    if (!(seven.ebx & bit_AVX512VL))
        return "AVX512VL";
    if (!(seven.ecx & bit_AVX512VNNI))
        return "AVX512_VNNI";
    return NULL;
}

static const struct cpu_kernels *const table_avx2 = &kernels_avx2;
static const struct cpu_kernels *const table_avxvnni = &kernels_avxvnni;
static const struct cpu_kernels *const table_avx512 = &kernels_avx512;

#else

static const char *avx2_missing(void)
{
    return "an x86-64 CPU";
}

static const char *avxvnni_missing(void)
{
    return "an x86-64 CPU";
}

static const char *avx512_missing(void)
{
    return "an x86-64 CPU";
}

static const struct cpu_kernels *const table_avx2 = NULL;
static const struct cpu_kernels *const table_avxvnni = NULL;
static const struct cpu_kernels *const table_avx512 = NULL;

#endif

const struct cpu_kernels *cpu_kernels_get(enum cpu_variant variant, const char **ret_missing)
{
    const char *missing = NULL;

    switch (variant) {
    case CPU_AUTO:
        if (!avx512_missing())
            return table_avx512;
        if (!avxvnni_missing())
            return table_avxvnni;
        return avx2_missing() ? &kernels_ref : table_avx2;
    case CPU_REF:
        return &kernels_ref;
    case CPU_AVX2:
        missing = avx2_missing();
        if (!missing)
            return table_avx2;
        break;
    case CPU_AVXVNNI:
        missing = avxvnni_missing();
        if (!missing)
            return table_avxvnni;
        break;
    case CPU_AVX512:
        missing = avx512_missing();
        if (!missing)
            return table_avx512;
        break;
    }
    if (ret_missing)
        *ret_missing = missing;
    return NULL;
}

int cpu_variant_parse(const char *name, enum cpu_variant *ret_variant)
{
    static const struct {
        const char *name;
        enum cpu_variant variant;
    } names[] = {{"auto", CPU_AUTO},
                 {"ref", CPU_REF},
                 {"avx2", CPU_AVX2},
                 {"avxvnni", CPU_AVXVNNI},
                 {"avx512", CPU_AVX512}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i].name) == 0) {
            *ret_variant = names[i].variant;
            return 0;
        }
    }
    return -EINVAL;
}
