/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - reference attention over paged keys and values: one head, one page, one position at
 * a time. The running maximum moves once per page, so the result depends on absolute positions
 * only. Method: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867.
 */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

void ref_kv_store(uint16_t *k_page, uint16_t *v_page, uint32_t slot, const float *k, const float *v,
                  uint32_t hd)
{
    for (uint32_t d = 0; d < hd; d++) {
        k_page[(slot / 16 * hd + d) * 16 + slot % 16] = f32_to_f16(k[d]);
        v_page[slot * hd + d] = f32_to_f16(v[d]);
    }
}

static float score(const float *q, const uint16_t *k_page, uint32_t p, uint32_t hd, float scale)
{
    float chain[2] = {0, 0};

    for (uint32_t d = 0; d < hd; d++)
        chain[d % 2] =
            fmaf(q[d], f16_to_f32(k_page[(p / 16 * hd + d) * 16 + p % 16]), chain[d % 2]);
    return (chain[0] + chain[1]) * scale;
}

float ref_attention_weigh(float weight[KERN_PAGE], uint32_t n, float *m, float *sum)
{
    float lane[16] = {0};
    float max = *m, c;

    for (uint32_t p = 0; p < n; p++)
        max = weight[p] > max ? weight[p] : max;
    max += 0; /* -0 becomes +0: which of two equal zeros was met first must not show */
    c = kern_exp(*m - max);
    for (uint32_t p = 0; p < n; p++) {
        weight[p] = kern_exp(weight[p] - max);
        lane[p % 16] += weight[p];
    }
    *m = max;
    *sum = fmaf(*sum, c, kern_tree16(lane));
    return c;
}

/* One page of n valid positions for one head. */
static void attend_page(const struct attention *a, size_t i, const void *k_page, const void *v_page,
                        uint32_t n)
{
    const uint16_t *v = v_page;
    float *o = a->o + i * a->hd;
    float weight[KERN_PAGE], c;

    for (uint32_t p = 0; p < n; p++)
        weight[p] = score(a->q + i * a->hd, k_page, p, a->hd, a->scale);
    c = ref_attention_weigh(weight, n, &a->m[i], &a->sum[i]);
    for (uint32_t d = 0; d < a->hd; d++)
        o[d] *= c;
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t d = 0; d < a->hd; d++)
            o[d] = fmaf(weight[p], f16_to_f32(v[p * a->hd + d]), o[d]);
}

void ref_attend_pages(const struct attention *a, ref_page_fn page)
{
    for (size_t i = 0; i < (size_t)a->n_rows * a->group; i++) {
        size_t row = i / a->group;
        uint32_t n_pos = row < KERN_SPLIT - a->n_pos ? a->n_pos + (uint32_t)row : KERN_SPLIT;

        memset(a->o + i * a->hd, 0, a->hd * sizeof *a->o);
        a->m[i] = -INFINITY;
        a->sum[i] = 0;
        for (uint32_t p = 0; p < n_pos; p += KERN_PAGE)
            page(a, i, a->k[p / KERN_PAGE], a->v[p / KERN_PAGE],
                 n_pos - p < KERN_PAGE ? n_pos - p : KERN_PAGE);
    }
}

void ref_attention(const struct attention *a)
{
    ref_attend_pages(a, attend_page);
}

void ref_attention_merge(float *out, const float *o, const float *m, const float *sum,
                         uint32_t n_split, size_t stride, uint32_t group, uint32_t hd)
{
    for (uint32_t h = 0; h < group; h++) {
        float max = m[h], total = 0;

        for (uint32_t i = 1; i < n_split; i++)
            max = m[i * stride + h] > max ? m[i * stride + h] : max;
        memset(out + h * hd, 0, hd * sizeof *out);
        for (uint32_t i = 0; i < n_split; i++) {
            float c = kern_exp(m[i * stride + h] - max);

            total = fmaf(sum[i * stride + h], c, total);
            for (uint32_t d = 0; d < hd; d++)
                out[h * hd + d] = fmaf(o[(i * stride + h) * hd + d], c, out[h * hd + d]);
        }
        for (uint32_t d = 0; d < hd; d++)
            out[h * hd + d] *= 1 / total;
    }
}
