/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.c - rotation tables, the same on every machine: + - * / and sqrt-free series in double only,
 * because two C libraries may differ in the last bit of sin() and pow().
 *
 * Angles stay below 2^21 (positions below 2^20, frequencies at most 1 for a base of at least 1),
 * where the three-part reduction below keeps the error under 1e-14: far from what rounding to float
 * can see.
 */
#include "runtime/model/load.h"

#include <string.h>

/* ln 2 */
#define LN2 0.693147180559945309417232121458

/* x > 0, normal. x = m * 2^e with m in [sqrt 1/2, sqrt 2); ln m = 2 artanh((m - 1) / (m + 1)). */
static double ln(double x)
{
    uint64_t bits;
    int e;
    double m, s, s2, sum = 0;

    memcpy(&bits, &x, sizeof bits);
    e = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffff) | 0x3ff0000000000000;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m /= 2;
        e++;
    }
    s = (m - 1) / (m + 1);
    s2 = s * s;
    /* |s| <= 0.1716, so s^2n is below 2^-53 from n = 11 on. */
    for (int n = 12; n >= 0; n--)
        sum = sum * s2 + 1.0 / (2 * n + 1);
    return 2 * s * sum + e * LN2;
}

/* exp(x) = 2^n exp(r), |r| <= ln 2 / 2. |x| < 700. */
static double expo(double x)
{
    double scaled = x / LN2;
    int n = (int)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    double r = x - n * LN2, sum = 1, two_n;
    uint64_t bits = (uint64_t)(n + 1023) << 52;

    for (int i = 18; i >= 1; i--) /* 0.3466^19 / 19! is below 2^-80 */
        sum = 1 + sum * r / i;
    memcpy(&two_n, &bits, sizeof two_n);
    return sum * two_n;
}

/* pi / 2 in three parts; the first two have 20 low bits of zero, so n * part is exact for n below
 * 2^20. */
#define PIO2_1      1.57079632673412561417e+00
#define PIO2_2      6.07710050630396597660e-11
#define PIO2_3      2.02226624879595063154e-21
#define TWO_OVER_PI 0.636619772367581343076

static void sin_cos(double angle, double *ret_sin, double *ret_cos)
{
    int32_t n = (int32_t)(angle * TWO_OVER_PI + 0.5); /* angle >= 0 */
    double fn = (double)n;
    double r = ((angle - fn * PIO2_1) - fn * PIO2_2) - fn * PIO2_3;
    double r2 = r * r, s = 1, c = 1;

    /* Taylor, |r| <= pi / 4: the terms left out are below 2^-70. Reciprocals are the compiler's:
     * divisions would take most of the time that a start spends here. */
    for (int i = 10; i >= 1; i--) {
        s = 1 - s * (r2 * (1.0 / ((2 * i) * (2 * i + 1))));
        c = 1 - c * (r2 * (1.0 / ((2 * i - 1) * (2 * i))));
    }
    s *= r;
    /* By quarters of a turn: s c, c -s, -s -c, -c s. A choice of values, for branches would be
     * guessed wrong. */
    *ret_sin = (n & 2 ? -1.0 : 1.0) * (n & 1 ? c : s);
    *ret_cos = ((n + 1) & 2 ? -1.0 : 1.0) * (n & 1 ? s : c);
}

void rope_table(float *cos, float *sin, uint32_t begin, uint32_t end, const struct hparams *hp,
                const struct rope_opt *opt)
{
    uint32_t half = hp->rope_dim / 2;
    double freq[MODEL_HEAD_DIM_MAX / 2];

    for (uint32_t i = 0; i < half; i++) {
        freq[i] = expo(-2.0 * i / hp->rope_dim * ln((double)hp->rope_base));
        if (opt->freqs)
            freq[i] /= (double)opt->freqs[i];
    }
    for (uint32_t pos = begin; pos < end; pos++) {
        for (uint32_t i = 0; i < half; i++) {
            double s, c;

            sin_cos((double)pos / (double)opt->linear * freq[i], &s, &c);
            cos[(size_t)(pos - begin) * half + i] = (float)c;
            sin[(size_t)(pos - begin) * half + i] = (float)s;
        }
    }
}
