/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpuid_trap.h - a CPU with less than the one that runs the test: CPUID faults (arch_prctl(2),
 * ARCH_CPUID) and the handler of SIGSEGV answers in its place, with some bits taken away.
 *
 * For threads that are started afterwards, too; they must not block SIGSEGV. Intel CPUs can do this
 * since 2012, AMD's since Zen 5. x86-64 only.
 */
#ifndef TESTS_UNIT_CPUID_TRAP_H
#define TESTS_UNIT_CPUID_TRAP_H

#include <stdint.h>

enum cpuid_register { CPUID_EAX, CPUID_EBX, CPUID_ECX, CPUID_EDX };

struct cpuid_bit {
    uint32_t leaf, subleaf; /* only leaf 7 has several here */
    enum cpuid_register reg;
    uint32_t bit; /* mask */
};

/* 0, or -errno where CPU or kernel cannot. */
int cpuid_hide(struct cpuid_bit hidden);

#endif
