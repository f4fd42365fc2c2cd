/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul_avx2.c - matrix products over packed weights with AVX2.
 *
 * A group's 16 rows are two sides of 8 lanes. Integer products are VPMADDUBSW (u8 x s8, pairs
 * summed to s16, which saturates) made exact:
 *   codes to 15   a pair is at most 2 * 15 * 127 = 3,810, so the 8 of a block add up in s16
 *                 (30,480) and one VPMADDWD widens them
 *   codes to 31   at most 7,874: the 4 of half a block do (31,496)
 *   codes to 63   at most 16,002: 2 do (32,004)
 *   zero 128      weights go in as |w| <= 128 and activations with the weight's sign: a pair is at
 *                 most 2 * 128 * 127 = 32,512, and each is widened at once
 */
#include "kernels/x86/avx2.h"
#include "kernels/x86/matmul.h"

#define TILE_MAX 4

KERN_INLINE __m256i broadcast4(const int8_t *q)
{
    return _mm256_set1_epi32(load4(q));
}

/* isum[i] = sum(w * q) of 8 rows for n activation rows; lines: the side's 32 bytes in each line. */
KERN_INLINE void q4_sums(__m256i *isum, const uint8_t *lines, const struct tile_in *in, size_t b,
                         const uint32_t n)
{
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);

    KERN_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        __m256i both = _mm256_loadu_si256((const void *)(lines + j * LINE));
        __m256i low = _mm256_and_si256(both, nibble);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            const int8_t *q = in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j;
            __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, broadcast4(q)),
                                             _mm256_maddubs_epi16(high, broadcast4(q + 16)));

            isum[i] = j == 0 ? pairs : _mm256_add_epi16(isum[i], pairs);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        isum[i] = _mm256_madd_epi16(isum[i], ones);
}

/* The same for Q8_0, whose stored weights have 128 added: here it is taken off again. */
KERN_INLINE void q8_sums(__m256i *isum, const uint8_t *lines, const struct tile_in *in, size_t b,
                         const uint32_t n)
{
    const __m256i top = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        isum[i] = _mm256_setzero_si256();
    KERN_UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        __m256i w = _mm256_xor_si256(_mm256_loadu_si256((const void *)(lines + j * LINE)), top);
        __m256i magnitude = _mm256_abs_epi8(w); /* of -128 it is 128, as u8 */

        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            __m256i q = broadcast4(in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j);
            __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w));

            isum[i] = _mm256_add_epi32(isum[i], _mm256_madd_epi16(pairs, ones));
        }
    }
}

/* Four lines of codes: k < 16 (part 0) or k >= 16. */
KERN_INLINE void part_codes(__m256i line[4], const struct packed_layout l, const uint8_t *lines,
                            const uint32_t part)
{
    const __m256i mask = _mm256_set1_epi8((char)((1 << l.low) - 1));
    const __m256i high = _mm256_set1_epi8((char)(((1 << l.high) - 1) << l.low));
    const uint8_t *plane = lines + l.low * LINE;

    KERN_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t j = 4 * part + i, from = l.high ? j / l.high * l.high : 0;
        __m256i v = _mm256_loadu_si256((const void *)(lines + j % l.low * LINE));

        /* Shifts go across bytes, which the masks take out. */
        line[i] = _mm256_and_si256(_mm256_srli_epi16(v, (int)(j / l.low * l.low)), mask);
        if (l.high) {
            v = _mm256_loadu_si256((const void *)(plane + j % l.high * LINE));
            v = from < l.low ? _mm256_slli_epi16(v, (int)(l.low - from))
                             : _mm256_srli_epi16(v, (int)(from - l.low));
            line[i] = _mm256_or_si256(line[i], _mm256_and_si256(v, high));
        }
        if (l.table)
            line[i] = _mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)l.table)), line[i]);
    }
}

/* The sums of a part: isum[i] = sum(code * q), or of code - 128 where that is the zero. */
KERN_INLINE void part_sums(__m256i *isum, const __m256i line[4], const struct packed_layout l,
                           const struct tile_in *in, size_t b, const uint32_t part,
                           const uint32_t n)
{
    const __m256i top = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    /* Lines that add up in s16. */
    const uint32_t lines_s16 = l.zero == 128 ? 1 : l.low + l.high == 6 ? 2 : 4;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        const int8_t *q = in->q + i * in->n_cols + b * KERN_BLOCK + part * PACKED_PART;
        __m256i sum = _mm256_setzero_si256(), pairs = sum;

        KERN_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            __m256i w = line[j], x = broadcast4(q + 4 * j);

            if (l.zero == 128) {
                w = _mm256_xor_si256(w, top);
                x = _mm256_sign_epi8(x, w);
                w = _mm256_abs_epi8(w);
            }
            pairs = j % lines_s16 == 0 ? _mm256_maddubs_epi16(w, x)
                                       : _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w, x));
            if ((j + 1) % lines_s16 == 0)
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        isum[i] = sum;
    }
}

/* Takes zero * sum(q) off isum: off what part `part` has, or the whole block (part 2). */
KERN_INLINE __m256i take_zero(__m256i isum, const struct tile_in *in, size_t at,
                              const struct packed_layout l, const uint32_t part)
{
    const int32_t low = part == 1 ? 0 : l.zero, high = part == 0 ? 0 : l.zero;
    int32_t both;

    if (l.zero == 0 || l.zero == 128)
        return isum;
    memcpy(&both, in->isum + at, sizeof both);
    return _mm256_sub_epi32(
        isum, _mm256_madd_epi16(_mm256_set1_epi32(both), _mm256_set1_epi32(low | high << 16)));
}

/* Scales of 8 rows: of a head, and of a block's two parts. */
struct head {
    __m256 d, minus_m;
};

struct scales {
    __m256 d[2], m[2];
};

/* 8 signed bytes as floats; unsigned ones below 128 are the same. */
KERN_INLINE __m256 bytes256(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* 2^(e - 128) of 8 bytes e. */
KERN_INLINE __m256 e8m0_256(__m128i bytes)
{
    __m256i e = _mm256_cvtepu8_epi32(bytes);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);

    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, is_small));
}

/* Scales of side `side` from src, where a block's begin. */
KERN_INLINE void read_scales(struct scales *ret, const enum packed_scales kind,
                             const struct head *head, const uint8_t *src, const uint32_t side)
{
    const __m128i nibble = _mm_set1_epi8(15);
    const uint8_t *bytes = src + side * 8, *halves = src + side * 16;

    if (kind == SCALES_F16 || kind == SCALES_F16_MIN)
        ret->d[0] = halves256(halves);
    if (kind == SCALES_F16_MIN)
        ret->m[0] = halves256(halves + 2 * KERN_ROWS);
    if (kind == SCALES_E8M0)
        ret->d[0] = e8m0_256(_mm_loadl_epi64((const void *)bytes));
    if (kind == SCALES_INT || kind == SCALES_INT_MIN)
        ret->d[0] = _mm256_mul_ps(head->d, bytes256(_mm_loadl_epi64((const void *)bytes)));
    if (kind == SCALES_INT_MIN)
        ret->m[0] = _mm256_mul_ps(head->minus_m,
                                  bytes256(_mm_loadl_epi64((const void *)(bytes + KERN_ROWS))));
    if (!packed_has_halves(kind))
        return;
    KERN_UNROLL
    for (uint32_t part = 0; part < 2; part++) {
        __m128i both = _mm_loadl_epi64((const void *)(bytes + part * KERN_ROWS));
        __m128i low = kind == SCALES_HALF ? both : _mm_and_si128(both, nibble);

        ret->d[part] = _mm256_mul_ps(head->d, bytes256(low));
        if (kind == SCALES_HALF_MIN)
            ret->m[part] = _mm256_mul_ps(head->minus_m,
                                         bytes256(_mm_and_si128(_mm_srli_epi16(both, 4), nibble)));
    }
}

/* The contract's float part for 8 rows of a part (or a block: 2) and one activation row. */
KERN_INLINE __m256 add_part(__m256 acc, __m256i isum, __m256 d, __m256 m, const struct tile_in *in,
                            size_t at, const struct packed_layout l, const uint32_t part)
{
    float sum = in->sum[at];

    isum = take_zero(isum, in, at, l, part);
    acc =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(d, _mm256_set1_ps(in->d[at])), acc);
    if (!packed_has_min(l.scales))
        return acc;
    if (part < 2)
        sum = in->d[at] * (float)(part ? in->isum[at].high : in->isum[at].low);
    return _mm256_fmadd_ps(m, _mm256_set1_ps(sum), acc);
}

/* acc[i] += one side of a block . activations i: the contract's order. */
KERN_INLINE void tile_side(__m256 *acc, const uint8_t *lines, const struct scales *scales,
                           const struct tile_in *in, size_t b, const struct packed_layout l,
                           const uint32_t n)
{
    __m256i isum[TILE_MAX], more[TILE_MAX], line[4];

    if (packed_has_halves(l.scales)) {
        KERN_UNROLL
        for (uint32_t part = 0; part < 2; part++) {
            part_codes(line, l, lines, part);
            part_sums(isum, line, l, in, b, part, n);
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++)
                acc[i] = add_part(acc[i], isum[i], scales->d[part], scales->m[part], in,
                                  i * in->n_blocks + b, l, part);
        }
        return;
    }
    if (l.low == 8) {
        q8_sums(isum, lines, in, b, n);
    } else if (!l.high && !l.table) {
        q4_sums(isum, lines, in, b, n);
    } else {
        part_codes(line, l, lines, 0);
        part_sums(isum, line, l, in, b, 0, n);
        part_codes(line, l, lines, 1);
        part_sums(more, line, l, in, b, 1, n);
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++)
            isum[i] = _mm256_add_epi32(isum[i], more[i]);
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[i] =
            add_part(acc[i], isum[i], scales->d[0], scales->m[0], in, i * in->n_blocks + b, l, 2);
}

/* Writes the first n_rows of 16 lanes. */
KERN_INLINE void store_rows(float *y, __m256 low, __m256 high, uint32_t n_rows)
{
    _mm256_maskstore_ps(y, first_lanes256(n_rows), low);
    if (n_rows > 8)
        _mm256_maskstore_ps(y + 8, first_lanes256(n_rows - 8), high);
}

/* y[i][0 .. n_rows - 1] = group . activations i, for n rows. */
KERN_INLINE void tile(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                      const struct tile_in *in, const enum dtype type, const uint32_t n)
{
    const struct packed_layout l = packed_layout(type);
    const size_t block_bytes = packed_block_bytes(l), head_bytes = packed_head_bytes(l.scales);
    struct head head[2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()},
                           {_mm256_setzero_ps(), _mm256_setzero_ps()}};
    struct scales scales;
    __m256 acc[2][TILE_MAX];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    for (size_t b = 0; b < in->n_blocks; b++, group += block_bytes) {
        if (head_bytes && b % (l.gguf_k / KERN_BLOCK) == 0) {
            KERN_UNROLL
            for (uint32_t side = 0; side < 2; side++) {
                head[side].d = halves256(group + side * 16);
                if (packed_has_min(l.scales))
                    head[side].minus_m = _mm256_xor_ps(halves256(group + 2 * KERN_ROWS + side * 16),
                                                       _mm256_set1_ps(-0.0f));
            }
            group += head_bytes;
        }
        KERN_UNROLL
        for (size_t at = 0; at < block_bytes + head_bytes; at += LINE)
            _mm_prefetch((const char *)group + PREFETCH_BYTES + at, _MM_HINT_T0);
        KERN_UNROLL
        for (uint32_t side = 0; side < 2; side++) {
            read_scales(&scales, l.scales, &head[side], group + packed_code_bytes(l), side);
            tile_side(acc[side], group + side * (LINE / 2), &scales, in, b, l, n);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        store_rows(y + i * y_stride, acc[0][i], acc[1][i], n_rows);
}

KERN_INLINE void tile_n(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                        const struct tile_in *in, const enum dtype type, uint32_t n)
{
    switch (n) {
    case 1:
        tile(y, y_stride, n_rows, group, in, type, 1);
        break;
    case 2:
        tile(y, y_stride, n_rows, group, in, type, 2);
        break;
    case 3:
        tile(y, y_stride, n_rows, group, in, type, 3);
        break;
    default:
        tile(y, y_stride, n_rows, group, in, type, 4);
        break;
    }
}

static void int_group(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                      enum dtype type, const struct quant_rows *x, uint32_t n)
{
    uint32_t n_tiles = (n + TILE_MAX - 1) / TILE_MAX;

    for (uint32_t t = 0; t < n_tiles; t++) {
        uint32_t i0 = tile_bound(n, n_tiles, t), size = tile_bound(n, n_tiles, t + 1) - i0;
        struct tile_in in = tile_in_at(x, i0, 0);
        float *out = y + i0 * y_stride;

#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        tile_n(out, y_stride, n_rows, group, &in, TYPE, size);                                     \
        break;
        switch (type) {
            PACKED_EACH_INT_TYPE(CASE)
        default:
            break;
        }
#undef CASE
    }
}

/* Weights (k, 8 half .. 8 half + 7) of a group of a float type. */
KERN_INLINE __m256 float_weights(const uint8_t *group, const enum dtype type, size_t k,
                                 uint32_t half)
{
    size_t i = k * KERN_ROWS + half * 8;

    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)group + i);
    if (type == DTYPE_F16)
        return halves256(group + 2 * i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(group + 2 * i))), 16));
}

/* One activation row: four chains for each half. */
KERN_INLINE void float_row(float *y, uint32_t n_rows, const uint8_t *group, const enum dtype type,
                           const float *x, uint32_t n_cols)
{
    __m256 chain[2][4];

    KERN_UNROLL
    for (uint32_t c = 0; c < 4; c++)
        chain[0][c] = chain[1][c] = _mm256_setzero_ps();
    for (size_t k = 0; k < n_cols; k += 4) {
        KERN_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            __m256 xk = _mm256_set1_ps(x[k + c]);

            chain[0][c] = _mm256_fmadd_ps(float_weights(group, type, k + c, 0), xk, chain[0][c]);
            chain[1][c] = _mm256_fmadd_ps(float_weights(group, type, k + c, 1), xk, chain[1][c]);
        }
    }
    KERN_UNROLL
    for (uint32_t half = 0; half < 2; half++)
        chain[half][0] = _mm256_add_ps(_mm256_add_ps(chain[half][0], chain[half][2]),
                                       _mm256_add_ps(chain[half][1], chain[half][3]));
    store_rows(y, chain[0][0], chain[1][0], n_rows);
}

static void float_group(float *y, size_t y_stride, uint32_t n_rows, const uint8_t *group,
                        enum dtype type, const float *x, uint32_t n_cols, uint32_t n)
{
    for (size_t i = 0; i < n; i++) {
        float *out = y + i * y_stride;

        if (type == DTYPE_F32)
            float_row(out, n_rows, group, DTYPE_F32, x + i * n_cols, n_cols);
        else if (type == DTYPE_F16)
            float_row(out, n_rows, group, DTYPE_F16, x + i * n_cols, n_cols);
        else
            float_row(out, n_rows, group, DTYPE_BF16, x + i * n_cols, n_cols);
    }
}

void avx2_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                 uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);

    for (uint32_t g = group0; g < group1; g++) {
        const uint8_t *group = w->data + g * group_bytes;
        uint32_t left = w->n_rows - g * KERN_ROWS;
        uint32_t n_rows = left < KERN_ROWS ? left : KERN_ROWS;
        float *out = y + g * KERN_ROWS;

        if (!dtype_is_float(w->type))
            int_group(out, y_stride, n_rows, group, w->type, q, n);
        else
            float_group(out, y_stride, n_rows, group, w->type, x, w->n_cols, n);
    }
}
