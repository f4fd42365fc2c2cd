/* SPDX-License-Identifier: Apache-2.0 */
/* median.h - the median of some rounds. */
#ifndef BENCH_MEDIAN_H
#define BENCH_MEDIAN_H

#include <stdlib.h>

static inline int median_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts values[n], n >= 1. */
static inline double median(double *values, size_t n)
{
    qsort(values, n, sizeof values[0], median_order);
    return values[n / 2];
}

#endif
