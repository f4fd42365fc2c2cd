/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unroll.h - stands before the kernels' header of this name: nothing is unrolled or inlined for
 * speed. With an emulated instruction being many, the tiles would take many minutes to compile.
 */
#ifndef KERNELS_X86_UNROLL_H
#define KERNELS_X86_UNROLL_H

#define KERN_UNROLL
#define KERN_INLINE static inline

#endif
