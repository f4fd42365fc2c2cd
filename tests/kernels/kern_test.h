/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kern_test.h - what the kernel tests share: buffers that end at a forbidden page, random values,
 * and a main() that runs the tests against one variant, named by its argument.
 */
#ifndef TESTS_KERNELS_KERN_TEST_H
#define TESTS_KERNELS_KERN_TEST_H

#include <check.h>

#include "kernels/cpu_kernels.h"

/* The variant under test, and the plain C truth. */
extern const struct cpu_kernels *kern, *ref;

#define POISON 0xa5

/* A buffer of POISON bytes between two pages that must not be touched; its last byte, but for the
 * alignment (a power of two), is the last before the second. The tests never run out: abort() on
 * failure. */
void *guard_alloc(size_t bytes, size_t align);
void guard_free(void *buffer, size_t bytes);

/* Pseudo-random 64 bits from a counter: the same in every run. */
uint64_t random_bits(uint64_t *state);
/* Uniform in [-1, 1). */
float random_float(uint64_t *state);

/* 1 when all bytes are still POISON. */
int is_poison(const void *p, size_t bytes);

/* Runs the suite for the variant argv[1]; a variant this machine cannot run is skipped visibly. */
int kern_test_main(int argc, char **argv, Suite *suite);

/* Bitwise equality of n floats, naming the first that differs; two NaN count as equal. */
#define ck_assert_same_floats(actual, expected, n)                                                 \
    check_same_floats(actual, expected, n, __FILE__, __LINE__)
void check_same_floats(const float *actual, const float *expected, size_t n, const char *file,
                       int line);

#endif
