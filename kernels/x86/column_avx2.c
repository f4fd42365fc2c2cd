/* SPDX-License-Identifier: Apache-2.0 */
/* column_avx2.c - one column of a packed group as floats: what outliers are multiplied with, in all x86
 * variants. */
#include "kernels/x86/panel256.h"

/* Codes of 8 rows at k of a block, whose planes begin at src (this side's part of each line). */
KERN_INLINE __m256i column_codes(const uint8_t *src, const struct packed_layout l, uint32_t k)
{
    const uint32_t j = k / 4, byte = k % 4 * 8;
    __m256i c = _mm256_srli_epi32(load256(src + j % l.low * LINE), (int)(byte + j / l.low * l.low));

    c = _mm256_and_si256(c, _mm256_set1_epi32((1 << l.low) - 1));
    if (l.high) {
        __m256i h = load256(src + (l.low + j % l.high) * LINE);

        h = _mm256_srli_epi32(h, (int)(byte + j / l.high * l.high));
        h = _mm256_and_si256(h, _mm256_set1_epi32((1 << l.high) - 1));
        c = _mm256_or_si256(c, _mm256_slli_epi32(h, l.low));
    }
    if (l.table)
        c = _mm256_and_si256(
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)l.table)),
                                c),
            _mm256_set1_epi32(0xff));
    return c;
}

/* Column k of a group as packed_row has its weights. */
KERN_INLINE void column_read(float w[KERN_ROWS], const uint8_t *group, const enum dtype type,
                             uint32_t k)
{
    const struct packed_layout l = packed_layout(type);
    const uint32_t b = k / KERN_BLOCK, per_head = l.gguf_k / KERN_BLOCK;
    const uint32_t half = packed_has_halves(l.scales) ? k % KERN_BLOCK / PACKED_PART : 0;
    const uint32_t head_bytes = packed_head_bytes(l.scales), block_bytes = packed_block_bytes(l);
    const uint8_t *src = group + (size_t)(b / per_head) * (head_bytes + per_head * block_bytes);
    struct head head = {{_mm256_setzero_ps()}, {_mm256_setzero_ps()}};
    _Alignas(LINE) struct panel panel; /* only the scales of its first block */

    if (head_bytes)
        unpack_head(&head, l.scales, src);
    src += head_bytes + b % per_head * block_bytes;
    KERN_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        __m256i codes = column_codes(src + side * (LINE / SIDES), l, k % KERN_BLOCK);
        __m256 v = _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(l.zero)));

        unpack_scales(&panel, 0, l.scales, &head, src + packed_code_bytes(l), side);
        v = _mm256_mul_ps(_mm256_load_ps(panel.d[half][0] + side * 8), v);
        if (packed_has_min(l.scales))
            v = _mm256_add_ps(v, _mm256_load_ps(panel.m[half][0] + side * 8));
        _mm256_store_ps(w + side * 8, v);
    }
}

void avx2_column(float w[KERN_ROWS], const uint8_t *group, enum dtype type, uint32_t k)
{
#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        column_read(w, group, TYPE, k);                                                            \
        break;
    switch (type) {
        PACKED_EACH_INT_TYPE(CASE)
    default:
        break;
    }
#undef CASE
}
