/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits_main.c - prints this machine's limits: bench_limits [THREADS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/tune/limits.h"

int main(int argc, char **argv)
{
    unsigned n_threads =
        argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    struct limits l;
    int err = limits_measure(&l, &(struct limits_opt){.n_threads = n_threads});

    if (err < 0) {
        fprintf(stderr, "bench_limits: %s\n", strerror(-err));
        return 1;
    }
    printf("cpu %s\n", l.cpu);
    printf("limit threads %u count\n", l.n_threads);
    printf("limit read_one %.1f GB/s\n", l.read_one_gbs);
    printf("limit read %.1f GB/s\n", l.read_gbs);
    printf("limit int8_%s %.0f GOP/s\n", l.int8_method, l.int8_gops);
    printf("limit fma_f32 %.0f GFLOP/s\n", l.fma_gflops);
    printf("limit barrier %.0f ns\n", l.barrier_ns);
    return 0;
}
