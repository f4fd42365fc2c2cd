/* SPDX-License-Identifier: Apache-2.0 */
/*
 * panel256.h - packed weights of a group as bytes and floats, for matrix products in 256-bit vectors.
 *
 * Unpacking a block costs as much as two activation rows do, so it is done once for all of them: a
 * block at a time for the few rows of one tile, some blocks (a panel, which stays in L1) for many
 * tiles. In a panel types differ in nothing but their zero, how large their codes are, and in having
 * a minimum or a scale for each half.
 */
#ifndef KERNELS_X86_PANEL256_H
#define KERNELS_X86_PANEL256_H

#include "kernels/x86/avx2.h"
#include "kernels/x86/matmul.h"

#define SIDES        2  /* vectors of 8 rows of a group's 16 */
#define PANEL_BLOCKS 24 /* 15 to 18 KB, and no limit to n_cols; whole GGUF blocks */

/* Byte 4r + i of line j is the code of k = 4j + i of row r. d and m: of the two halves of a block, or
 * of all of it the first; what a type does not have takes no room in the cache. */
struct panel {
    uint8_t line[PANEL_BLOCKS][8][LINE];
    float d[2][PANEL_BLOCKS][KERN_ROWS], m[2][PANEL_BLOCKS][KERN_ROWS];
};

/* Scales of the head that the blocks stand behind. */
struct head {
    __m256 d[SIDES], minus_m[SIDES];
};

/* What the next panel will be filled from: the tiles of this one ask for it, in equal steps. */
struct ahead {
    const char *next;
    uint32_t lines_left, step; /* lines in all, and for each block of the next tile */
};

/* Before a tile, with `blocks` blocks of tiles to come. */
KERN_INLINE void ahead_steps(struct ahead *ahead, uint32_t blocks)
{
    ahead->step = (ahead->lines_left + blocks - 1) / blocks;
}

KERN_INLINE void prefetch_ahead(struct ahead *ahead)
{
    for (uint32_t i = 0; i < ahead->step && ahead->lines_left; i++, ahead->lines_left--) {
        _mm_prefetch(ahead->next, _MM_HINT_T1);
        ahead->next += LINE;
    }
}

KERN_INLINE __m256i load256(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

/* One side of a block's codes, each xor flip. */
KERN_INLINE void unpack_codes(uint8_t (*line)[LINE], const struct packed_layout l,
                              const uint8_t *src, const uint32_t side, const uint8_t flip)
{
    const __m256i mask = _mm256_set1_epi8((char)((1 << l.low) - 1));
    const __m256i high = _mm256_set1_epi8((char)(((1 << l.high) - 1) << l.low));
    const uint8_t *low_plane = src + side * (LINE / SIDES), *high_plane = low_plane + l.low * LINE;

    KERN_UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        const uint32_t from = l.high ? j / l.high * l.high : 0;
        __m256i v = load256(low_plane + j % l.low * LINE);

        /* Shifts go across bytes, which the masks take out. */
        v = _mm256_and_si256(_mm256_srli_epi16(v, (int)(j / l.low * l.low)), mask);
        if (l.high) {
            __m256i h = load256(high_plane + j % l.high * LINE);

            h = from < l.low ? _mm256_slli_epi16(h, (int)(l.low - from))
                             : _mm256_srli_epi16(h, (int)(from - l.low));
            v = _mm256_or_si256(v, _mm256_and_si256(h, high));
        }
        if (l.table)
            v = _mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)l.table)), v);
        if (flip)
            v = _mm256_xor_si256(v, _mm256_set1_epi8((char)flip));
        _mm256_store_si256((void *)(line[j] + side * (LINE / SIDES)), v);
    }
}

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

/* One side's scales of block `to` from src, where they begin. */
KERN_INLINE void unpack_scales(struct panel *panel, uint32_t to, const enum packed_scales kind,
                               const struct head *head, const uint8_t *src, const uint32_t side)
{
    const __m128i nibble = _mm_set1_epi8(15);
    const uint8_t *bytes = src + side * 8, *halves = src + side * 16;
    __m256 d0 = head->d[side];

    if (packed_has_halves(kind)) {
        KERN_UNROLL
        for (uint32_t part = 0; part < 2; part++) {
            __m128i both = _mm_loadl_epi64((const void *)(bytes + part * KERN_ROWS));
            __m128i low = kind == SCALES_HALF ? both : _mm_and_si128(both, nibble);
            __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), nibble);

            _mm256_store_ps(panel->d[part][to] + side * 8, _mm256_mul_ps(d0, bytes256(low)));
            if (kind == SCALES_HALF_MIN)
                _mm256_store_ps(panel->m[part][to] + side * 8,
                                _mm256_mul_ps(head->minus_m[side], bytes256(high)));
        }
        return;
    }
    if (kind == SCALES_F16 || kind == SCALES_F16_MIN)
        d0 = halves256(halves);
    if (kind == SCALES_E8M0)
        d0 = e8m0_256(_mm_loadl_epi64((const void *)bytes));
    if (kind == SCALES_INT || kind == SCALES_INT_MIN)
        d0 = _mm256_mul_ps(d0, bytes256(_mm_loadl_epi64((const void *)bytes)));
    _mm256_store_ps(panel->d[0][to] + side * 8, d0);
    if (kind == SCALES_F16_MIN)
        _mm256_store_ps(panel->m[0][to] + side * 8, halves256(halves + 2 * KERN_ROWS));
    if (kind == SCALES_INT_MIN)
        _mm256_store_ps(
            panel->m[0][to] + side * 8,
            _mm256_mul_ps(head->minus_m[side],
                          bytes256(_mm_loadl_epi64((const void *)(bytes + KERN_ROWS)))));
}

/* Scales of the head at src, which is not there for types without one. */
KERN_INLINE void unpack_head(struct head *head, const enum packed_scales scales, const uint8_t *src)
{
    KERN_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        head->d[side] = halves256(src + side * 16);
        if (packed_has_min(scales))
            head->minus_m[side] =
                _mm256_xor_ps(halves256(src + 2 * KERN_ROWS + side * 16), _mm256_set1_ps(-0.0f));
    }
}

/* Block b of a group, which begins at src, its head's blocks having come before, becomes block `to`
 * of the panel, its codes xor flip; returns where the next one begins. */
KERN_INLINE const uint8_t *unpack_block(struct panel *panel, uint32_t to, struct head *head,
                                        const enum dtype type, const uint8_t *src, size_t b,
                                        const uint8_t flip)
{
    const struct packed_layout l = packed_layout(type);
    const uint32_t head_bytes = packed_head_bytes(l.scales);

    if (head_bytes && b % (l.gguf_k / KERN_BLOCK) == 0) {
        unpack_head(head, l.scales, src);
        src += head_bytes;
    }
    KERN_UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        unpack_codes(panel->line[to], l, src, side, flip);
        unpack_scales(panel, to, l.scales, head, src + packed_code_bytes(l), side);
    }
    return src + packed_block_bytes(l);
}

/* zero * sum(q) of a part of block `at` (or of all of it) in every lane. */
KERN_INLINE __m256i zero_sum(const struct tile_in *in, size_t at, int32_t zero,
                             const uint32_t n_parts, const uint32_t part)
{
    const int32_t low = part == 1 ? 0 : zero, high = n_parts == 2 && part == 0 ? 0 : zero;
    int32_t both;

    memcpy(&both, in->isum + at, sizeof both);
    return _mm256_madd_epi16(_mm256_set1_epi32(both), _mm256_set1_epi32(low | high << 16));
}

/* The contract's float part of a part for 8 rows and one activation row, whose block is `at`. */
KERN_INLINE __m256 add_part(__m256 acc, __m256i isum, const float *d, const float *m,
                            const struct tile_in *in, size_t at, const enum packed_scales scales,
                            const uint32_t part)
{
    float sum = in->sum[at];

    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum),
                          _mm256_mul_ps(_mm256_load_ps(d), _mm256_set1_ps(in->d[at])), acc);
    if (!packed_has_min(scales))
        return acc;
    if (packed_has_halves(scales))
        sum = in->d[at] * (float)(part ? in->isum[at].high : in->isum[at].low);
    return _mm256_fmadd_ps(_mm256_load_ps(m), _mm256_set1_ps(sum), acc);
}

/* Where a tile's outputs go: y[row][lane] of a group, only its first n_rows lanes. */
struct tile_out {
    float *y;
    size_t stride;
    uint32_t n_rows;
};

KERN_INLINE __m256 tile_load(const struct tile_out *out, uint32_t i, const uint32_t side)
{
    if (out->n_rows == KERN_ROWS)
        return _mm256_loadu_ps(out->y + i * out->stride + side * 8);
    if (out->n_rows <= side * 8)
        return _mm256_setzero_ps();
    return _mm256_maskload_ps(out->y + i * out->stride + side * 8,
                              first_lanes256(out->n_rows - side * 8));
}

KERN_INLINE void tile_store(const struct tile_out *out, uint32_t i, const uint32_t side, __m256 v)
{
    if (out->n_rows == KERN_ROWS)
        _mm256_storeu_ps(out->y + i * out->stride + side * 8, v);
    else if (out->n_rows > side * 8)
        _mm256_maskstore_ps(out->y + i * out->stride + side * 8,
                            first_lanes256(out->n_rows - side * 8), v);
}

#endif
