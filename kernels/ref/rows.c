/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - reference kernels over one row of values, and the reference table.
 */
#include "kernels/bits.h"
#include "kernels/exp_poly.h"
#include "kernels/outliers.h"
#include "kernels/ref/ref.h"
#include "kernels/variants.h"

#include <math.h>
#include <string.h>

float kern_tree16(float lane[16])
{
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

float kern_exp(float x)
{
    float shifted, n, r, p;

    if (x < EXP_MIN)
        return 0;
    if (x > EXP_MAX)
        return INFINITY;
    shifted = fmaf(x, EXP_LOG2E, EXP_ROUND);
    n = shifted - EXP_ROUND;
    r = fmaf(n, -EXP_LN2_HI, x);
    r = fmaf(n, -EXP_LN2_LO, r);
    p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1);
    p = fmaf(p, r, 1);
    /* The low bits of shifted are n: moved to the exponent of 1 they make 2^n. */
    return p * f32_of_bits((bits_of_f32(shifted) << 23) + 0x3f800000);
}

static void ref_exp_f32(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = kern_exp(x[i]);
}

/* One block of 32: returns d, sets *ret_isum. */
static float quantize_block(int8_t *q, const float *x, struct half_sums *ret_isum)
{
    float max = 0, scale;
    int32_t isum[2] = {0, 0};

    memset(q, 0, KERN_BLOCK);
    *ret_isum = (struct half_sums){0, 0};
    for (uint32_t i = 0; i < KERN_BLOCK; i++) {
        if (!isfinite(x[i]))
            return NAN;
        max = fmaxf(max, fabsf(x[i]));
    }
    if (max < KERN_QUANT_MIN)
        return 0;
    scale = 127 / max;
    for (uint32_t i = 0; i < KERN_BLOCK; i++) {
        q[i] = (int8_t)lrintf(x[i] * scale);
        isum[i / (KERN_BLOCK / 2)] += q[i];
    }
    *ret_isum = (struct half_sums){(int16_t)isum[0], (int16_t)isum[1]};
    return max / 127;
}

/* The root mean square, without what rmsnorm adds to it. */
static float row_rms(const float *x, uint32_t n)
{
    float lane[16] = {0};

    for (uint32_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    return sqrtf(kern_tree16(lane) / (float)n);
}

/* Bit i: x[i] of a block is an outlier. */
static uint32_t block_outliers(const float *x, float limit)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; i < KERN_BLOCK; i++)
        bits |= (uint32_t)(fabsf(x[i]) > limit) << i;
    return bits;
}

static void ref_quantize(struct quant_rows *out, uint32_t r, const float *x, uint32_t n)
{
    size_t block0 = (size_t)r * (n / KERN_BLOCK);
    float rest[KERN_BLOCK], limit = outliers_begin(out, r, out->n_out ? row_rms(x, n) : 0);

    for (uint32_t b = 0; b < n / KERN_BLOCK; b++) {
        size_t i = block0 + b;
        const float *block = outliers_take(out, r, b, block_outliers(x + b * KERN_BLOCK, limit),
                                           x + b * KERN_BLOCK, rest);

        out->d[i] = quantize_block(out->q + i * KERN_BLOCK, block, &out->isum[i]);
        out->sum[i] = out->d[i] * (float)(out->isum[i].low + out->isum[i].high);
    }
}

static void ref_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    float lane[16] = {0};
    float scale;

    for (uint32_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    scale = 1 / sqrtf(kern_tree16(lane) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void ref_swiglu(float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + kern_exp(-gate[i])) * up[i];
}

static void ref_add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void ref_rope(float *x, const float *cos, const float *sin, uint32_t hd)
{
    for (uint32_t i = 0; i < hd / 2; i++) {
        float x0 = x[2 * i], x1 = x[2 * i + 1];

        x[2 * i] = fmaf(x0, cos[i], -(x1 * sin[i]));
        x[2 * i + 1] = fmaf(x1, cos[i], x0 * sin[i]);
    }
}

static void ref_block_max(float *max, const float *x, uint32_t n)
{
    for (uint32_t at = 0; at < n; at += KERN_TOP, max++) {
        *max = -INFINITY;
        for (uint32_t i = at; i < n && i < at + KERN_TOP; i++) {
            if (!isfinite(x[i])) {
                *max = NAN;
                break;
            }
            *max = x[i] > *max ? x[i] : *max;
        }
        *max += 0.0f;
    }
}

static void ref_weigh(float *w, double *sum, const float *x, uint32_t n, float largest, float t,
                      float least)
{
    for (uint32_t at = 0; at < n; at += KERN_SUM, sum++) {
        double lane[8] = {0};

        for (uint32_t i = at; i < n && i < at + KERN_SUM; i++) {
            float weight = kern_exp((x[i] - largest) / t);

            w[i] = weight < least ? 0 : weight;
            lane[i % 8] += (double)w[i];
        }
        *sum = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
               ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    }
}

const struct cpu_kernels kernels_ref = {
    .name = "ref",
    .matmul = ref_matmul,
    .quantize = ref_quantize,
    .rmsnorm = ref_rmsnorm,
    .swiglu = ref_swiglu,
    .add = ref_add,
    .rope = ref_rope,
    .kv_store = ref_kv_store,
    .kv_store_q8 = ref_kv_store_q8,
    .attention = ref_attention,
    .attention_q8 = ref_attention_q8,
    .attention_merge = ref_attention_merge,
    .block_max = ref_block_max,
    .weigh = ref_weigh,
    .exp_f32 = ref_exp_f32,
};
