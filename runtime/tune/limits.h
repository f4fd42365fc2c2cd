/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h - what this machine can do at most, measured: figures elsewhere are shares of these.
 */
#ifndef RUNTIME_TUNE_LIMITS_H
#define RUNTIME_TUNE_LIMITS_H

#include "kernels/cpu_kernels.h"
#include "runtime/base/cpus.h"

struct limits {
    char cpu[CPUS_NAME_BYTES];
    unsigned n_threads;
    double read_one_gbs; /* as read_gbs, by one thread */
    double
        read_gbs; /* reading 256 MiB per thread (less with more than 8), huge pages, prefetch: GB/s
                       * of all threads */
    double
        int8_gops; /* VPDPBUSD, or VPMADDUBSW and an addition in s16, the least that it needs, where
                       * there is no VNNI; 0 without either. A multiplication and an addition are two
                       * operations. */
    char int8_method[16]; /* "vpdpbusd", "vpmaddubsw", "none" */
    double fma_gflops;    /* FP32 fused multiply-add of vectors; 0 without them */
    double barrier_ns;    /* a spinning barrier of all threads; 0 for one thread */
};

struct limits_opt {
    unsigned n_threads;       /* that measure at once */
    enum cpu_variant variant; /* whose instructions; AUTO: the widest that run here */
    int quick;                /* fewer tries, in half a second */
    /* Told each figure when it is there; NULL: nobody. */
    void (*progress)(void *arg, const char *what, double value, const char *unit);
    void *arg;
};

/* In about three seconds; the best of several short tries, since other loads can only make a try
 * slower. -EINVAL: no threads; -ENOTSUP: the CPU lacks the variant; -ENOMEM. */
int limits_measure(struct limits *ret_limits, const struct limits_opt *opt);

#endif
