/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_q8.c - reference attention over pages of 8-bit keys and values: integer sums, which are
 * exact in any order, and one scale for each position.
 */
#include "kernels/ref/ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Quantises n values with one scale, which it returns. */
static float quantize(int8_t *codes, const float *x, uint32_t n)
{
    float max = 0;

    memset(codes, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return NAN;
        max = fmaxf(max, fabsf(x[i]));
    }
    if (max < KERN_QUANT_MIN)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (int8_t)lrintf(x[i] * (127 / max));
    return max / 127;
}

/* Scales stand behind the codes of a page. */
static float scale_of(const void *page, uint32_t hd, uint32_t p)
{
    float scale;

    memcpy(&scale, (const uint8_t *)page + (size_t)KERN_PAGE * hd + p * sizeof scale, sizeof scale);
    return scale;
}

static void put_scale(void *page, uint32_t hd, uint32_t p, float scale)
{
    memcpy((uint8_t *)page + (size_t)KERN_PAGE * hd + p * sizeof scale, &scale, sizeof scale);
}

/* Where element d of position p stands in its page. */
static size_t k_at(uint32_t p, uint32_t d, uint32_t hd)
{
    return ((size_t)(p / 16) * (hd / 4) + d / 4) * 64 + p % 16 * 4 + d % 4;
}

static size_t v_at(uint32_t p, uint32_t d, uint32_t hd)
{
    return ((size_t)(p / 4) * hd + d) * 4 + p % 4;
}

void ref_kv_store_q8(void *k_page, void *v_page, uint32_t slot, const float *k, const float *v,
                     uint32_t hd)
{
    int8_t codes[KERN_HD_MAX];

    assert(hd <= KERN_HD_MAX);
    put_scale(k_page, hd, slot, quantize(codes, k, hd));
    for (uint32_t d = 0; d < hd; d++)
        ((uint8_t *)k_page)[k_at(slot, d, hd)] = (uint8_t)(codes[d] + 128);
    put_scale(v_page, hd, slot, quantize(codes, v, hd));
    for (uint32_t d = 0; d < hd; d++)
        ((int8_t *)v_page)[v_at(slot, d, hd)] = codes[d];
}

static int32_t key_sum(const int8_t *q, const uint8_t *k_page, uint32_t p, uint32_t hd)
{
    int32_t sum = 0;

    for (uint32_t d = 0; d < hd; d++)
        sum += q[d] * (k_page[k_at(p, d, hd)] - 128);
    return sum;
}

static int32_t value_sum(const int8_t u[KERN_PAGE], const int8_t *v_page, uint32_t d, uint32_t hd,
                         uint32_t n)
{
    int32_t sum = 0;

    for (uint32_t p = 0; p < n; p++)
        sum += u[p] * v_page[v_at(p, d, hd)];
    return sum;
}

static void attend_page(const struct attention *a, size_t i, const void *k_page, const void *v_page,
                        uint32_t n)
{
    uint32_t hd = a->hd;
    float weight[KERN_PAGE], factor, c, *o = a->o + i * hd;
    int8_t q[KERN_HD_MAX], u[KERN_PAGE];

    assert(hd <= KERN_HD_MAX);
    factor = quantize(q, a->q + i * hd, hd) * a->scale;
    for (uint32_t p = 0; p < n; p++)
        weight[p] = (float)key_sum(q, k_page, p, hd) * factor * scale_of(k_page, hd, p);
    c = ref_attention_weigh(weight, n, &a->m[i], &a->sum[i]);
    for (uint32_t p = 0; p < n; p++)
        weight[p] *= scale_of(v_page, hd, p);
    factor = quantize(u, weight, n);
    for (uint32_t d = 0; d < hd; d++)
        o[d] = fmaf(factor, (float)value_sum(u, v_page, d, hd, n), o[d] * c);
}

void ref_attention_q8(const struct attention *a)
{
    ref_attend_pages(a, attend_page);
}
