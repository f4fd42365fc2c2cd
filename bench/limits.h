/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h - what this machine can do at most, measured: figures elsewhere are shares of these.
 */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

struct limits {
    char cpu[96]; /* model name, as /proc/cpuinfo has it */
    unsigned n_threads;
    double read_gbs;  /* reading 256 MiB per thread, huge pages, prefetch: GB/s of all threads */
    double int8_gops; /* VPDPBUSD, or VPMADDUBSW and what it needs where there is no VNNI; 0 without
                       * either. A multiplication and an addition are two operations. */
    const char *int8_method; /* "vpdpbusd", "vpmaddubsw", "none" */
    double fma_gflops;       /* FP32 fused multiply-add, in the widest vectors that run here */
    double barrier_ns;       /* a spinning barrier of all threads; 0 for one thread */
};

/* Measures with n_threads threads at once, in about two seconds; the best of several short tries,
 * since other loads can only make a try slower. 0 or -errno. */
int limits_measure(struct limits *ret_limits, unsigned n_threads);

#endif
