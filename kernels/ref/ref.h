/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.h - the plain C kernels: the truth that every variant must equal bit for bit (cpu_kernels.h).
 */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/cpu_kernels.h"

/* The sum of 16 lanes in the one order that all kernels use. Overwrites lane. */
float kern_tree16(float lane[16]);

/* exp of one value: exp_poly.h. */
float kern_exp(float x);

void ref_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n);

/* Query i (one head of one row) of a call meets a page, of which it sees n positions. */
typedef void (*ref_page_fn)(const struct attention *a, size_t i, const void *k_page,
                            const void *v_page, uint32_t n);

/* Takes every query of the call through the pages that it sees, in order. */
void ref_attend_pages(const struct attention *a, ref_page_fn page);

/* Turns n scores into weights and moves m and sum; returns the factor of what was summed before. */
float ref_attention_weigh(float weight[KERN_PAGE], uint32_t n, float *m, float *sum);

void ref_attention(const struct attention *a);
void ref_attention_q8(const struct attention *a);
void ref_attention_merge(float *out, const float *o, const float *m, const float *sum,
                         uint32_t n_split, size_t stride, uint32_t group, uint32_t hd);
void ref_kv_store(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k, const float *v,
                  uint32_t hd);
void ref_kv_store_q8(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                     uint32_t hd);

#endif
