/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp_poly.h - constants of our exp, the same in every variant.
 *
 * exp(x) = 2^n * (1 + r + r^2 * p(r)), n = x / ln 2 rounded to an integer, r = x - n ln 2 in two
 * steps (ln 2 = HI + LO; n * HI is exact for |n| < 2^9). p is the polynomial of degree 4 that meets
 * (exp(r) - 1 - r) / r^2 at the Chebyshev points of [-ln 2 / 2, ln 2 / 2]; its own error is below
 * 1.1e-8. Between the limits 2^n is a normal float, so no step can be subnormal.
 */
#ifndef KERNELS_EXP_POLY_H
#define KERNELS_EXP_POLY_H

#define EXP_MIN    -87.33f /* below: 0 */
#define EXP_MAX    88.37f  /* above: infinity */
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_ROUND  0x1.8p23f /* adding it leaves the integer part of x / ln 2 in the low bits */
#define EXP_LN2_HI 0x1.62e4p-1f
#define EXP_LN2_LO 0x1.7f7d1cp-20f
#define EXP_C2     0x1p-1f
#define EXP_C3     0x1.5554dcp-3f
#define EXP_C4     0x1.55551ap-5f
#define EXP_C5     0x1.120ba2p-7f
#define EXP_C6     0x1.6d113cp-10f

#endif
