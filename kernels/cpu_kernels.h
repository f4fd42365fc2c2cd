/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_kernels.h - the contract of every CPU kernel, its detection and its table.
 *
 * ref/ is the plain truth; x86/ may only be faster. ALL variants give the same bits: the order of
 * every float operation is part of the contract, fused multiply-add is explicit, integer block sums
 * are exact, and exp, f16 rounding and the like are our own code. So a row's result depends on
 * nothing but the row: not on how many rows there are, the thread that computes it, or the CPU.
 * (A NaN result is a NaN in every variant; which NaN is not promised.)
 *
 * "16 lanes" means: lane l starts at 0 and takes elements l, l + 16, ... in turn; then lanes l and
 * l + 8 are added, then l and l + 4, l + 2, l + 1 (kern_tree16() in ref/rows.c). Kernels run with
 * the default floating point environment: round to nearest even, subnormals kept.
 *
 * Matrices are packed once at load into row groups of 16 ("P16"): group g holds rows
 * 16g .. 16g + 15 (n_rows is padded up to 16 with zeros), K-major, in blocks of 32 k. A block of an
 * integer type is one or two planes of codes, then scales. A plane of `bits` bits is `bits` lines
 * of 64 B: with j = k / 4, byte 4r + k % 4 of line j % bits has the bits of weight (k, row r) from
 * bit bits * (j / bits) on. A second plane has a code's upper bits. Types with blocks of 256 in
 * GGUF (n_cols % 256 == 0) have a head before each 8 blocks. With 16 rows side by side in each:
 *            bytes  planes  scales of a block           head           a weight is
 *   Q4_0       288  4       f16 d                                      d (c - 8)
 *   Q4_1       320  4       f16 d, f16 m                               d c + m
 *   Q5_0       352  4, 1    f16 d                                      d (c - 16)
 *   Q5_1       384  4, 1    f16 d, f16 m                               d c + m
 *   Q8_0       544  8       f16 d                                      d (c - 128)
 *   IQ4_NL     288  4       f16 d                                      d (T[c] - 128)
 *   MXFP4      272  4       u8 e                                       2^(e - 128) (T[c] - 12)
 *   IQ4_XS     272  4       s8 s                        f16 d          (d s) (T[c] - 128)
 *   Q4_K       288  4       u8 s, u8 n                  f16 d, f16 m   (d s) c - m n
 *   Q5_K       352  4, 1    u8 s, u8 n                  f16 d, f16 m   (d s) c - m n
 *   Q6_K       416  4, 2    s8 s of k < 16, of k >= 16  f16 d          (d s) (c - 32)
 *   Q3_K       224  2, 1    s8 s of k < 16, of k >= 16  f16 d          (d s) (c - 4)
 *   Q2_K       160  2       u8 s + 16n, the same way    f16 d, f16 m   (d s) c - m n
 *   F16, BF16 1024  32 k x 16 rows x 2 B, k-major: element (k, r) at 16k + r
 *   F32       2048  the same with 4 B
 * T: 16 codes each, IQ4's and FP4's values (kernels/packed.c). Every product of a d or m and its
 * integer is exact in f32, and so is what stands in brackets times its scale: a weight is rounded
 * at most once, by the sum. An e of 255 is 2^127 as in ggml, not NaN. A NaN or infinite scale gives
 * what IEEE 754 says.
 *
 * Activations for the integer types are quantised per 32, each operation rounded to f32:
 *   d = max|x| / 127, q = round_half_even(x * (127 / max|x|)), so |q| <= 127
 *   isum = (q_0 + .. + q_15, q_16 + .. + q_31), sum = d * (float)(q_0 + .. + q_31)
 * Outliers of a row, |x| > limit, would leave the other 31 of their block a coarse d. They count as 0
 * there, and their products are exact but for one rounding:
 *   limit = KERN_OUTLIER * sqrt(S / n_cols), at least KERN_OUTLIER_MIN; S: 16-lane fma sum of x * x
 *
 * Per row and block, in block order, starting from acc = 0, with c - zero or c as above for c,
 * d_w and m_w the factor and the addend of a weight there (m_w = -(m n) of the K types):
 *   one scale a block   acc = fma((float)sum(c * q), d_w * d_x, acc); the sum is exact in int32;
 *                       with a minimum, then acc = fma(m_w, sum_x, acc)
 *   one a half          the same for k < 16, then for k >= 16, the sum of activations of a half
 *                       being d_x * (float)isum
 *   then                acc = fma(w[k], x[k], acc) for each outlier k of the row, ascending; w[k] as
 *                       packed_row has it
 *   F*    four chains: chain c = k mod 4, acc_c = fma(w[k], x[k], acc_c), k ascending; result
 *         (acc_0 + acc_2) + (acc_1 + acc_3)
 */
#ifndef KERNELS_CPU_KERNELS_H
#define KERNELS_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/dtype.h"

#define KERN_ROWS  16  /* rows of a packed group */
#define KERN_BLOCK 32  /* k of a block */
#define KERN_PAGE  64  /* positions of a KV page */
#define KERN_SPLIT 512 /* positions of one attention split: 8 pages */
#define KERN_TOP   64  /* logits of which block_max finds the largest */
#define KERN_SUM   256 /* weights of one sum of weigh */

#define KERN_HD_MAX                                                                                \
    512 /* dimensions of a head: a sum of hd products of 127 * 127 is exact in f32 */

/* x below this counts as zero when a whole block is: 127 / max|x| must stay finite. */
#define KERN_QUANT_MIN 1e-30f

/* How often an outlier is as large as the root mean square of its row: above the square root of 32, so
 * that a row of n has fewer than n / 32. Below the second its square would not be exact enough for
 * that. */
#define KERN_OUTLIER     6.0f
#define KERN_OUTLIER_MIN 1e-15f

enum cpu_variant {
    CPU_AUTO = 0,
    CPU_REF,
    CPU_AVX2,    /* AVX2 + FMA + F16C */
    CPU_AVXVNNI, /* the same and AVX-VNNI */
    CPU_AVX512   /* AVX-512 F/BW/DQ/VL + VNNI */
};

enum kv_type {
    KV_F16 = 0, /* halves */
    KV_Q8       /* 8-bit integers, quantised per position and kv head */
};

struct packed_matrix { /* W: [n_rows][n_cols], n_cols % 32 == 0; % 256 for types with a head */
    enum dtype type;
    uint32_t n_rows, n_cols;
    const uint8_t *data; /* 64-byte aligned; (n_rows + 15) / 16 groups */
};

struct half_sums { /* of q in the two halves of a block: |sum| <= 16 * 127 */
    int16_t low, high;
};

struct outlier { /* x[k] of a row */
    uint32_t k;
    float x;
};

struct quant_rows {         /* activations of several rows, quantised per 32 */
    int8_t *q;              /* [rows][n_cols], 64-byte aligned */
    float *d;               /* [rows][n_cols / 32] */
    float *sum;             /* [rows][n_cols / 32]  d * (float)sum(q) */
    struct half_sums *isum; /* [rows][n_cols / 32] */
    uint32_t n_cols;
    uint32_t *n_out;     /* [rows] outliers of each; NULL: none is looked for, and out is NULL */
    struct outlier *out; /* [rows][n_cols / 32] by ascending k */
};

/* A call of attention: queries of consecutive positions of one sequence over one split. Row r sees
 * positions 0 .. min(n_pos + r, 512) - 1 of it. */
struct attention {
    float *o;             /* [n_rows][group][hd], not normalised */
    float *m, *sum;       /* [n_rows][group] */
    const float *q;       /* [n_rows][group][hd] */
    const void *const *k; /* pages of 64 positions, 64-byte aligned, as kv_store or kv_store_q8 */
    const void *const *v; /* fills them; as many as the last row sees */
    const void *next_k;   /* K page that the caller works on next: asked for early; or NULL */
    uint32_t n_pos;       /* 1 .. 512 */
    uint32_t n_rows;      /* >= 1 */
    uint32_t group;       /* query heads that share the kv head, >= 1 */
    uint32_t hd;          /* a multiple of 16; at most KERN_HD_MAX with pages of KV_Q8 */
    float scale;
};

struct cpu_kernels {
    const char *name; /* "ref", "avx2", "avxvnni", "avx512" */

    /* y[r][row] = W[row] . x[r] for rows of groups group0 .. group1 - 1 and activations r < n.
     * The integer types read rows 0 .. n - 1 of q (x may be NULL); F32, F16 and BF16 read x,
     * [n][n_cols] (q may be NULL). y is [n][y_stride]; rows >= n_rows are not written. y overlaps
     * nothing. */
    void (*matmul)(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                   uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n);

    /* Quantises row r of out from x[n]; n == out->n_cols. Where out->n_out is, x is the whole row, whose
     * outliers are taken out. A block whose max|x| is below KERN_QUANT_MIN has d = sum = 0 and q = 0; a
     * NaN or infinity in a block gives d = sum = NaN and q = 0, so that it reaches the logits and is
     * seen there. */
    void (*quantize)(struct quant_rows *out, uint32_t r, const float *x, uint32_t n);

    /* y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i], i < n; 16-lane fma sum of squares, tree; the
     * scale is 1 / sqrt in f32 (correctly rounded operations, no RSQRT); y[i] = (x[i] * scale) *
     * w[i]. y may be x. n % 16 == 0. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);

    /* y[i] = silu(gate[i]) * up[i]; silu(v) = v / (1 + exp(-v)). n % 16 == 0. y may be gate. */
    void (*swiglu)(float *y, const float *gate, const float *up, uint32_t n);

    /* y[i] += x[i]. n % 16 == 0 */
    void (*add)(float *y, const float *x, uint32_t n);

    /* Interleaved ("normal", GGUF llama) rotation of one head in place: pairs (2i, 2i + 1),
     * x0' = fma(x0, c, -(x1 * s)), x1' = fma(x1, c, x0 * s). cos, sin: [hd / 2]. hd % 16 == 0. */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t hd);

    /* Stores one position of one kv head: k to K page [hd][16 positions] x 4 (element (pos/16, d,
     * pos%16)), v to V page [64 positions][hd], rounded to f16 half-to-even. slot = position % 64;
     * hd % 16 == 0. */
    void (*kv_store)(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k,
                     const float *v, uint32_t hd);

    /*
     * One split of attention for n_rows rows of one sequence: struct attention. Per row and query
     * head, in this order, whatever the other rows and heads are:
     * From m = -infinity, sum = 0, o = 0; per page, in order:
     *   s[p] = (fma chain of q[d] * K[d][p] over even d + the same over odd d, ascending) * scale
     *   m' = max(m, max over valid p of s[p]) + 0
     *   c = exp(m - m'), w[p] = exp(s[p] - m')
     *   sum = fma(sum, c, sum of w[p] as 16 lanes over p)
     *   o[d] = o[d] * c, then fma(w[p], V[p][d], o[d]) for p ascending
     * Positions that a row does not see never reach its result, whatever the pages hold there. A
     * NaN or +infinite score makes sum and o of its row and head NaN.
     */
    void (*attention)(const struct attention *a);

    /*
     * The same with pages of KV_Q8. "Quantised" means as `quantize` does it, but all values with one
     * scale: d = max|x| / 127 and so on, all codes 0 and d = 0 below KERN_QUANT_MIN, all codes 0 and
     * d = NaN when a value is not finite.
     * A K page is [4][hd / 4][16 positions][4] u8, code + 128 of element d of a position at (pos /
     * 16, d / 4, pos % 16, d % 4), then the scales of its 64 positions as f32. A V page is [16][hd][4
     * positions] s8, code d of a position at (pos / 4, d, pos % 4), then its 64 scales. K and V of a
     * position have one scale each. slot = position % 64; other positions' bytes are not written.
     */
    void (*kv_store_q8)(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                        uint32_t hd);

    /*
     * q of each row and head is quantised: codes c and d_q. From m = -infinity, sum = 0, o = 0; per
     * page, in order:
     *   s[p] = ((float)sum(c * k[p]) * (d_q * scale)) * d_k[p], the sum being exact
     *   m', c, w[p] and sum as above
     *   t[p] = w[p] * d_v[p] of the valid p, 0 of the others, is quantised: codes u and d_t
     *   o[d] = fma(d_t, (float)sum(u[p] * v[p][d]), o[d] * c), the sum being exact
     * What a NaN or infinity in K, V or q meets becomes NaN in sum and o, or in o; a NaN in one
     * element is one in the whole vector.
     */
    void (*attention_q8)(const struct attention *a);

    /* Merges n_split >= 1 partial results, in order, and normalises: out[group][hd].
     * o is [n_split][stride][hd], m and sum [n_split][stride], of which the first `group` heads are
     * merged; hd % 16 == 0; out overlaps nothing.
     * M = max m_i, c_i = exp(m_i - M); from 0, total = fma(sum_i, c_i, total) and
     * a[d] = fma(o_i[d], c_i, a[d]); out[d] = a[d] * (1 / total). */
    void (*attention_merge)(float *out, const float *o, const float *m, const float *sum,
                            uint32_t n_split, size_t stride, uint32_t group, uint32_t hd);

    /* max[b] = the largest of x[64b .. 64b + 63], those below n, plus 0, so that a -0 counts as 0;
     * NaN when one of them is NaN or infinite. max: [(n + 63) / 64]. */
    void (*block_max)(float *max, const float *x, uint32_t n);

    /* w[i] = exp((x[i] - largest) / t), as exp_f32 has it, or 0 where that is below `least`; each x
     * is finite and at most `largest`, t > 0 and finite. sum[b] = the sum of w[256b .. 256b + 255],
     * those below n, in f64: 8 lanes, lane l takes l, l + 8, ..., ascending; then
     * ((0+4)+(2+6))+((1+5)+(3+7)). sum: [(n + 255) / 256]. */
    void (*weigh)(float *w, double *sum, const float *x, uint32_t n, float largest, float t,
                  float least);

    /* y[i] = exp(x[i]); our polynomial (kernels/exp_poly.h), 0 below -87.33, infinity above 88.37,
     * NaN of NaN, exp(0) = 1, relative error < 2^-22. y may be x. Any n. */
    void (*exp_f32)(float *y, const float *x, uint32_t n);
};

/* The table of a variant, or NULL with *ret_missing = the CPU feature that this machine lacks for
 * it. CPU_AUTO takes the best that runs and never fails. ret_missing may be NULL. */
const struct cpu_kernels *cpu_kernels_get(enum cpu_variant variant, const char **ret_missing);

/* "auto", "ref", "avx2", "avxvnni", "avx512" -> variant; -EINVAL. */
int cpu_variant_parse(const char *name, enum cpu_variant *ret_variant);

/* Bytes of a K page, and of a V page, of one kv head; a multiple of 64. */
size_t kv_page_bytes(enum kv_type type, uint32_t hd);

/* "f16", "q8" -> type; -EINVAL. And back. */
int kv_type_parse(const char *name, enum kv_type *ret_type);
const char *kv_type_name(enum kv_type type);

/* ---- packing (kernels/pack.c, packed.c): plain C, exact ---- */

/* Bytes of one packed group of n_cols columns; 0 for a type that cannot be packed. */
size_t pack_group_bytes(enum dtype type, uint32_t n_cols);

/* Bytes of one row in GGUF's form; 0 for such a type. */
size_t gguf_row_bytes(enum dtype type, uint32_t n_cols);

/* Packs rows row0 .. row0 + 15 (those < n_rows) of a GGUF matrix (rows of whole blocks, contiguous;
 * any alignment) into one group. src is the matrix' first byte. */
void pack_group(uint8_t *dst, enum dtype type, const uint8_t *src, uint32_t n_rows, uint32_t n_cols,
                uint32_t row0);

/* Dequantises one GGUF row of n_cols weights to f32 (norms; tests). */
void dequantize_row(float *dst, enum dtype type, const uint8_t *src, uint32_t n_cols);

/* Dequantises one row of a packed matrix: same values as dequantize_row of its source. */
void packed_row(float *dst, const struct packed_matrix *w, uint32_t row);

/* IEEE half <-> single as the F16C instructions do it: exact to f32; to f16 rounds half to even,
 * overflows to infinity, keeps subnormals; a NaN stays a NaN, made quiet, with the upper bits of
 * its payload. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

#endif
