/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpus.h - what CPUs this machine has.
 */
#ifndef RUNTIME_BASE_CPUS_H
#define RUNTIME_BASE_CPUS_H

#include <stddef.h>

#define CPUS_NAME_BYTES 96

/* Their model name as /proc/cpuinfo has it, cut to fit; "unknown" where it has none. */
void cpus_name(char *ret_name, size_t bytes);

#endif
