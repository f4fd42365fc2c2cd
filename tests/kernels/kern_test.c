/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/kern_test.h"

#include "tests/kernels/emulated/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const struct cpu_kernels *kern, *ref;

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

void *guard_alloc(size_t bytes, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = whole_pages(bytes + align);
    uint8_t *map = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *end = map + page + inside;

    if (map == MAP_FAILED || mprotect(map + page, inside, PROT_READ | PROT_WRITE) < 0)
        abort();
    memset(map + page, POISON, inside);
    return end - (bytes + align - 1) / align * align;
}

void guard_free(void *buffer, size_t bytes)
{
    /* Only the pages that hold the buffer are known here: the guards stay, they cost no memory. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *first = (uint8_t *)((uintptr_t)buffer / page * page);

    munmap(first, whole_pages(bytes + (size_t)((uint8_t *)buffer - first)));
}

uint64_t random_bits(uint64_t *state)
{
    /* SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators". */
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

float random_float(uint64_t *state)
{
    return (float)((double)(random_bits(state) >> 40) * 0x1p-23 - 1);
}

int is_poison(const void *p, size_t bytes)
{
    const uint8_t *byte = p;

    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != POISON)
            return 0;
    return 1;
}

void check_same_floats(const float *actual, const float *expected, size_t n, const char *file,
                       int line)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&actual[i], &expected[i], sizeof *actual) == 0 ||
            (isnan(actual[i]) && isnan(expected[i])))
            continue;
        ck_abort_msg("%s:%d: element %zu is %a, expected %a", file, line, i, (double)actual[i],
                     (double)expected[i]);
    }
}

/* Variants that no program but the tests has. */
static const struct {
    const char *name;
    enum cpu_variant needs; /* what runs a variant like this runs them */
    const struct cpu_kernels *(*table)(void);
} others[] = {
    {"avx512-emulated", CPU_AVX2, emulated_avx512},
    {"avxvnni-emulated", CPU_AVX2, emulated_avxvnni},
    {"avxvnni-avx512vl", CPU_AVX512, avx512vl_avxvnni},
};

/* The variant of that name, or NULL with what this machine lacks for it. */
static const struct cpu_kernels *kernels_of(const char *name, const char **ret_missing)
{
    enum cpu_variant variant;

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(name, others[i].name) == 0) {
            *ret_missing = "SIMDe, with which this program was not built";
            return cpu_kernels_get(others[i].needs, ret_missing) ? others[i].table() : NULL;
        }
    }
    if (cpu_variant_parse(name, &variant) < 0) {
        fprintf(stderr, "no such variant: %s\n", name);
        exit(2);
    }
    return cpu_kernels_get(variant, ret_missing);
}

int kern_test_main(int argc, char **argv, Suite *suite)
{
    const char *name = argc > 1 ? argv[1] : "auto", *missing = NULL;
    SRunner *runner = srunner_create(suite);
    int n_failed;

    ref = cpu_kernels_get(CPU_REF, NULL);
    kern = kernels_of(name, &missing);
    if (!kern) {
        printf("1..0 # SKIP %s: this machine lacks %s\n", name, missing);
        srunner_free(runner);
        return 0;
    }
    printf("# %s\n", name);
    fflush(stdout); /* Check forks */
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? 1 : 0;
}
