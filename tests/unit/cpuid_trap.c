/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/cpuid_trap.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static struct cpuid_bit hidden_bit;

static int allow_cpuid(int allow)
{
    return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allow) == 0 ? 0 : -errno;
}

static void answer(int number, siginfo_t *info, void *context)
{
    greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)(uintptr_t)gregs[REG_RIP];
    uint32_t leaf = (uint32_t)gregs[REG_RAX], subleaf = (uint32_t)gregs[REG_RCX], reg[4];

    (void)info;
    if (code[0] != 0x0f || code[1] != 0xa2) { /* a fault of another kind takes its usual course */
        signal(number, SIG_DFL);
        return;
    }
    allow_cpuid(1);
    __cpuid_count(leaf, subleaf, reg[0], reg[1], reg[2], reg[3]);
    allow_cpuid(0);
    if (leaf == hidden_bit.leaf && (leaf != 7 || subleaf == hidden_bit.subleaf))
        reg[hidden_bit.reg] &= ~hidden_bit.bit;
    gregs[REG_RAX] = reg[0];
    gregs[REG_RBX] = reg[1];
    gregs[REG_RCX] = reg[2];
    gregs[REG_RDX] = reg[3];
    gregs[REG_RIP] += 2;
}

int cpuid_hide(struct cpuid_bit hidden)
{
    struct sigaction act = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};

    hidden_bit = hidden;
    if (sigaction(SIGSEGV, &act, NULL) < 0)
        return -errno;
    return allow_cpuid(0);
}
