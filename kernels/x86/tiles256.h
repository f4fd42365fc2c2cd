/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiles256.h - the walks of an integer matrix product in 256-bit vectors: over blocks, tiles of
 * activation rows, panels and types. For the variants that differ in how they multiply.
 *
 * Who includes it has defined before, to be inlined here:
 *   TILE_MAX     activation rows of a tile: their sums of both sides leave room in the registers for
 *                what they are made of
 *   code_flip()  what a type's codes are xored with when they are unpacked
 *   code_zero()  the zero that the multiplied codes still have
 *   part_sums()  isum[side][i] = sum of codes . q over the lines of a part of block `slot`, for n
 *                activation rows, whose block begins at q
 */
#ifndef KERNELS_X86_TILES256_H
#define KERNELS_X86_TILES256_H

#include "kernels/x86/panel256.h"

/* How far ahead of a GEMV the memory works: the lines that a Zen 3 core can wait for at a time. Four
 * times as far gives 6 to 9 % less. */
#define PREFETCH_BYTES 1536

/* acc[side][i] += block `slot` of the panel . block b of activations i: the contract's order. */
KERN_INLINE void add_block(__m256 acc[SIDES][TILE_MAX], const struct panel *panel, uint32_t slot,
                           const struct tile_in *in, size_t b, const struct packed_layout l,
                           const uint32_t n)
{
    const uint32_t n_parts = packed_has_halves(l.scales) ? 2 : 1;
    __m256i isum[SIDES][TILE_MAX];

    KERN_UNROLL
    for (uint32_t part = 0; part < n_parts; part++) {
        part_sums(isum, panel, slot, in->q + b * KERN_BLOCK, in->n_cols, l, part, n);
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            size_t at = i * in->n_blocks + b;
            __m256i zero = _mm256_setzero_si256();

            if (code_zero(l))
                zero = zero_sum(in, at, code_zero(l), n_parts, part);
            KERN_UNROLL
            for (uint32_t side = 0; side < SIDES; side++)
                acc[side][i] = add_part(acc[side][i], _mm256_sub_epi32(isum[side][i], zero),
                                        panel->d[part][slot] + side * 8,
                                        panel->m[part][slot] + side * 8, in, at, l.scales, part);
        }
    }
}

/* acc[side][i] += the products of the outliers of activations i. */
KERN_INLINE void add_outliers(__m256 acc[SIDES][TILE_MAX], const struct tile_in *in,
                              struct columns *columns, const uint32_t n)
{
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        const struct outlier *o = in->out + i * in->n_blocks, *end = o + in->n_out[i];

        for (; o < end; o++) {
            const float *w = columns_at(columns, o->k);
            __m256 x = _mm256_set1_ps(o->x);

            acc[0][i] = _mm256_fmadd_ps(_mm256_load_ps(w), x, acc[0][i]);
            acc[1][i] = _mm256_fmadd_ps(_mm256_load_ps(w + 8), x, acc[1][i]);
        }
    }
}

/* y[i] = packed group . activations i for n rows, all blocks: each is unpacked and used at once. */
KERN_INLINE void direct_tile(const struct tile_out *out, const uint8_t *group,
                             const struct tile_in *in, const enum dtype type, const uint32_t n)
{
    const struct packed_layout l = packed_layout(type);
    struct head head = {{_mm256_setzero_ps()}, {_mm256_setzero_ps()}};
    _Alignas(LINE) struct panel panel;
    struct columns columns;
    __m256 acc[SIDES][TILE_MAX];

    columns_begin(&columns, group, type);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    for (size_t b = 0; b < in->n_blocks; b++) {
        prefetch_block(group, packed_block_bytes(l) + packed_head_bytes(l.scales), PREFETCH_BYTES);
        group = unpack_block(&panel, 0, &head, type, group, b, code_flip(l));
        add_block(acc, &panel, 0, in, b, l, n);
    }
    if (in->n_out)
        add_outliers(acc, in, &columns, n);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        tile_store(out, i, 0, acc[0][i]);
        tile_store(out, i, 1, acc[1][i]);
    }
}

/* The same for the n_blocks blocks of a panel, from the activations' first block on; is_first: from
 * 0, else on from what y holds. columns: not NULL for the last, which outliers come after. */
KERN_INLINE void panel_tile(const struct tile_out *out, const struct panel *panel,
                            const struct tile_in *in, struct ahead *ahead, uint32_t n_blocks,
                            int is_first, struct columns *columns, const enum dtype type,
                            const uint32_t n)
{
    const struct packed_layout l = packed_layout(type);
    __m256 acc[SIDES][TILE_MAX];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        acc[0][i] = is_first ? _mm256_setzero_ps() : tile_load(out, i, 0);
        acc[1][i] = is_first ? _mm256_setzero_ps() : tile_load(out, i, 1);
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        prefetch_ahead(ahead);
        add_block(acc, panel, b, in, b, l, n);
    }
    if (columns && in->n_out)
        add_outliers(acc, in, columns, n);
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        tile_store(out, i, 0, acc[0][i]);
        tile_store(out, i, 1, acc[1][i]);
    }
}

KERN_INLINE void panel_tile_n(const struct tile_out *out, const struct panel *panel,
                              const struct tile_in *in, struct ahead *ahead, uint32_t n_blocks,
                              int is_first, struct columns *columns, const enum dtype type,
                              uint32_t n)
{
    switch (n) {
    case 1:
        panel_tile(out, panel, in, ahead, n_blocks, is_first, columns, type, 1);
        break;
    case 2:
        panel_tile(out, panel, in, ahead, n_blocks, is_first, columns, type, 2);
        break;
    case 3:
        panel_tile(out, panel, in, ahead, n_blocks, is_first, columns, type, 3);
        break;
    default:
        panel_tile(out, panel, in, ahead, n_blocks, is_first, columns, type, TILE_MAX);
        break;
    }
}

/* Few activation rows, one tile of all. */
KERN_INLINE void direct_group(const struct tile_out *out, const uint8_t *group,
                              const enum dtype type, const struct quant_rows *x, uint32_t n)
{
    struct tile_in in = tile_in_at(x, 0, 0);

    switch (n) {
    case 1:
        direct_tile(out, group, &in, type, 1);
        break;
    case 2:
        direct_tile(out, group, &in, type, 2);
        break;
    case 3:
        direct_tile(out, group, &in, type, 3);
        break;
    default:
        direct_tile(out, group, &in, type, TILE_MAX);
        break;
    }
}

/* Many activation rows, in tiles that are as equal as they can be. */
KERN_INLINE void panel_group(struct tile_out out, const uint8_t *group, const enum dtype type,
                             const struct quant_rows *x, uint32_t n)
{
    const struct packed_layout l = packed_layout(type);
    uint32_t n_blocks = x->n_cols / KERN_BLOCK, n_tiles = (n + TILE_MAX - 1) / TILE_MAX;
    struct head head = {{_mm256_setzero_ps()}, {_mm256_setzero_ps()}};
    float *y = out.y;
    _Alignas(LINE) struct panel panel;
    struct columns columns;

    columns_begin(&columns, group, type);
    for (uint32_t b = 0; b < n_blocks; b += PANEL_BLOCKS) {
        uint32_t part = n_blocks - b < PANEL_BLOCKS ? n_blocks - b : PANEL_BLOCKS;
        struct ahead ahead;

        for (uint32_t i = 0; i < part; i++)
            group = unpack_block(&panel, i, &head, type, group, i, code_flip(l));
        /* Next come the group's next blocks or, after the last, the next group's first ones. */
        ahead = (struct ahead){(const char *)group,
                               (uint32_t)(pack_group_bytes(type, part * KERN_BLOCK) / LINE), 0};
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t i0 = tile_bound(n, n_tiles, t), size = tile_bound(n, n_tiles, t + 1) - i0;
            struct tile_in in = tile_in_at(x, i0, b);

            out.y = y + i0 * out.stride;
            ahead_steps(&ahead, (n_tiles - t) * part);
            panel_tile_n(&out, &panel, &in, &ahead, part, b == 0,
                         b + part == n_blocks ? &columns : NULL, type, size);
        }
    }
}

static void int_group(const struct tile_out *out, const uint8_t *group, enum dtype type,
                      const struct quant_rows *x, uint32_t n)
{
#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        if (n <= TILE_MAX)                                                                         \
            direct_group(out, group, TYPE, x, n);                                                  \
        else                                                                                       \
            panel_group(*out, group, TYPE, x, n);                                                  \
        break;
    switch (type) {
        PACKED_EACH_INT_TYPE(CASE)
    default:
        break;
    }
#undef CASE
}

/* Where the outputs of group g go. */
KERN_INLINE struct tile_out group_out(float *y, size_t y_stride, const struct packed_matrix *w,
                                      uint32_t g)
{
    uint32_t left = w->n_rows - g * KERN_ROWS;

    return (struct tile_out){y + g * KERN_ROWS, y_stride, left < KERN_ROWS ? left : KERN_ROWS};
}

/* cpu_kernels.matmul of the integer types. */
KERN_INLINE void int_matmul(float *y, size_t y_stride, const struct packed_matrix *w,
                            uint32_t group0, uint32_t group1, const struct quant_rows *q,
                            uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);

    for (uint32_t g = group0; g < group1; g++) {
        struct tile_out out = group_out(y, y_stride, w, g);

        int_group(&out, w->data + g * group_bytes, w->type, q, n);
    }
}

#endif
