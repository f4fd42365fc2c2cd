/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unroll.h - what the vector kernels ask of the compiler.
 *
 * Arrays of vectors only live in registers when every loop over them is unrolled, and a tile's size
 * is only a constant when its function is inlined. Without optimisation both still give right
 * results.
 */
#ifndef KERNELS_X86_UNROLL_H
#define KERNELS_X86_UNROLL_H

#ifdef __clang__
#define KERN_UNROLL _Pragma("unroll")
#else
#define KERN_UNROLL _Pragma("GCC unroll 16")
#endif

#define KERN_INLINE static inline __attribute__((always_inline))

#endif
