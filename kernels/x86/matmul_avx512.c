/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul_avx512.c - matrix products over packed weights with AVX-512 and VNNI.
 *
 * The 16 lanes of a vector are the 16 rows of a group, so an accumulator is 16 outputs of one
 * activation row, and nothing is ever summed across lanes. A tile is T activation rows: its T integer
 * chains hide the latency of VPDPBUSD, and each weight vector is used T times.
 *
 * Few rows (GEMV) read the packed weights in place and ask for them ahead of time: memory is the limit.
 * Many rows first unpack a group to bytes and floats, a panel that stays in L1 for all tiles:
 * instructions are the limit, and the unpacking ones would be repeated in every tile.
 */
#include "kernels/x86/avx512.h"

#include <string.h>

#define LINE            64
#define TILE_MAX        12
#define PANEL_MIN       16   /* activation rows from which a panel pays */
#define PANEL_BLOCKS    48   /* blocks of a panel: 30 KB, and no limit to n_cols */
#define PREFETCH_BYTES  6144 /* how far ahead of a GEMV the memory works */

/* One group's weights for some blocks, as VPDPBUSD and the float part want them. */
struct panel {
    uint8_t w[PANEL_BLOCKS][8 * LINE]; /* line j: byte 4r + b is weight k = 4j + b of row r */
    float d[PANEL_BLOCKS][KERN_ROWS];
    float m[PANEL_BLOCKS][KERN_ROWS];  /* Q4_1 only */
};

/* Activations of a tile, from its first row and the first block on. */
struct tile_in {
    const int8_t *q;
    const float *d, *sum;
    const int32_t *isum;
    size_t n_cols, n_blocks; /* distances between rows: of q, and of the others */
};

/* Weights of a tile: a panel or, if that is NULL, the packed group itself. */
struct tile_weights {
    const struct panel *panel;
    const uint8_t *group;
    uint32_t n_blocks;
};

struct block {
    __m512i line[8]; /* as in a panel */
    __m512 d, m;
};

static int is_q4(enum dtype type)
{
    return type == DTYPE_Q4_0 || type == DTYPE_Q4_1;
}

KERN_INLINE void unpack_block(struct block *block, const enum dtype type, const uint8_t *src)
{
    const __m512i nibble = _mm512_set1_epi8(15);

    if (type == DTYPE_Q8_0) {
        KERN_UNROLL
        for (uint32_t j = 0; j < 8; j++)
            block->line[j] = _mm512_loadu_si512(src + j * LINE);
        block->d = halves512(src + 8 * LINE);
        return;
    }
    KERN_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(src + j * LINE);

        block->line[j] = _mm512_and_si512(both, nibble);
        block->line[4 + j] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
    block->d = halves512(src + 4 * LINE);
    if (type == DTYPE_Q4_1)
        block->m = halves512(src + 4 * LINE + 2 * KERN_ROWS);
}

KERN_INLINE void prefetch_block(const uint8_t *block, size_t bytes)
{
    KERN_UNROLL
    for (size_t i = 0; i < (bytes + LINE - 1) / LINE; i++)
        _mm_prefetch((const char *)block + PREFETCH_BYTES + i * LINE, _MM_HINT_T0);
}

KERN_INLINE __m512i broadcast4(const int8_t *q)
{
    int32_t four;

    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

/* -zero * isum in every lane, without leaving the vector unit: |isum| < 2^15, so its low half is all of it. */
KERN_INLINE __m512i minus_zero(const int32_t *isum, int32_t zero)
{
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(-zero & 0xffff),
                               _mm512_set1_epi32(*isum));
}

/* acc[i] += block . activations i, for n rows from block b of `in` on: the contract's order. */
KERN_INLINE void tile_block(__m512 *acc, const struct block *block, const struct tile_in *in, size_t b,
                            const enum dtype type, const uint32_t n)
{
    __m512i isum[TILE_MAX];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        isum[i] = type == DTYPE_Q4_1 ? _mm512_setzero_si512()
                                     : minus_zero(in->isum + i * in->n_blocks + b, type == DTYPE_Q4_0 ? 8 : 128);
    KERN_UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++)
            isum[i] = _mm512_dpbusd_epi32(isum[i], block->line[j],
                                          broadcast4(in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j));
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        size_t at = i * in->n_blocks + b;

        acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[i]), _mm512_mul_ps(block->d, _mm512_set1_ps(in->d[at])),
                                 acc[i]);
        if (type == DTYPE_Q4_1)
            acc[i] = _mm512_fmadd_ps(block->m, _mm512_set1_ps(in->sum[at]), acc[i]);
    }
}

/* y[i][0 .. 15] (+)= weights . activations i for n rows; `rows` masks the rows of the group that exist. */
KERN_INLINE void tile(float *y, size_t y_stride, __mmask16 rows, int first, const struct tile_weights *w,
                      const struct tile_in *in, const enum dtype type, const int from_panel, const uint32_t n)
{
    const size_t block_bytes = type == DTYPE_Q8_0 ? 544 : type == DTYPE_Q4_1 ? 320 : 288;
    __m512 acc[TILE_MAX];
    struct block block;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[i] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows, y + i * y_stride);
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        if (from_panel) {
            KERN_UNROLL
            for (uint32_t j = 0; j < 8; j++)
                block.line[j] = _mm512_load_si512(w->panel->w[b] + j * LINE);
            block.d = _mm512_load_ps(w->panel->d[b]);
            if (type == DTYPE_Q4_1)
                block.m = _mm512_load_ps(w->panel->m[b]);
        } else {
            unpack_block(&block, type, w->group + b * block_bytes);
            prefetch_block(w->group + b * block_bytes, block_bytes);
        }
        tile_block(acc, &block, in, b, type, n);
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        _mm512_mask_storeu_ps(y + i * y_stride, rows, acc[i]);
}

/* tile() with n a constant. */
KERN_INLINE void tile_n(float *y, size_t y_stride, __mmask16 rows, int first, const struct tile_weights *w,
                        const struct tile_in *in, const enum dtype type, const int from_panel, uint32_t n)
{
#define CASE(N)                                                                                                \
    case N:                                                                                                    \
        tile(y, y_stride, rows, first, w, in, type, from_panel, N);                                            \
        break
    switch (n) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
        CASE(12);
    }
#undef CASE
}

static void tile_any(float *y, size_t y_stride, __mmask16 rows, int first, const struct tile_weights *w,
                     const struct tile_in *in, enum dtype type, uint32_t n)
{
    if (type == DTYPE_Q4_0)
        w->panel ? tile_n(y, y_stride, rows, first, w, in, DTYPE_Q4_0, 1, n)
                 : tile_n(y, y_stride, rows, first, w, in, DTYPE_Q4_0, 0, n);
    else if (type == DTYPE_Q4_1)
        w->panel ? tile_n(y, y_stride, rows, first, w, in, DTYPE_Q4_1, 1, n)
                 : tile_n(y, y_stride, rows, first, w, in, DTYPE_Q4_1, 0, n);
    else
        w->panel ? tile_n(y, y_stride, rows, first, w, in, DTYPE_Q8_0, 1, n)
                 : tile_n(y, y_stride, rows, first, w, in, DTYPE_Q8_0, 0, n);
}

/* Fills a panel from n_blocks packed blocks. */
static void panel_fill(struct panel *panel, enum dtype type, const uint8_t *src, uint32_t n_blocks)
{
    size_t block_bytes = pack_group_bytes(type, KERN_BLOCK);
    struct block block;

    for (uint32_t b = 0; b < n_blocks; b++, src += block_bytes) {
        prefetch_block(src, block_bytes);
        if (type == DTYPE_Q8_0)
            unpack_block(&block, DTYPE_Q8_0, src);
        else
            unpack_block(&block, DTYPE_Q4_0, src);
        for (uint32_t j = 0; j < 8; j++)
            _mm512_store_si512(panel->w[b] + j * LINE, block.line[j]);
        _mm512_store_ps(panel->d[b], block.d);
        if (type == DTYPE_Q4_1)
            _mm512_store_ps(panel->m[b], halves512(src + 4 * LINE + 2 * KERN_ROWS));
    }
}

/* All activation rows against some blocks of one group, in tiles as equal as they can be. */
static void tiles(float *y, size_t y_stride, __mmask16 rows, uint32_t block0, const struct tile_weights *w,
                  const struct quant_rows *x, enum dtype type, uint32_t n)
{
    size_t n_blocks = x->n_cols / KERN_BLOCK;
    uint32_t n_tiles = (n + TILE_MAX - 1) / TILE_MAX;

    for (uint32_t t = 0; t < n_tiles; t++) {
        uint32_t i0 = (uint32_t)((uint64_t)t * n / n_tiles), i1 = (uint32_t)((uint64_t)(t + 1) * n / n_tiles);
        size_t at = i0 * n_blocks + block0;
        struct tile_in in = {x->q + at * KERN_BLOCK, x->d + at, x->sum + at, x->isum + at, x->n_cols, n_blocks};

        tile_any(y + i0 * y_stride, y_stride, rows, block0 == 0, w, &in, type, i1 - i0);
    }
}

static void int_group(float *y, size_t y_stride, __mmask16 rows, const uint8_t *group, enum dtype type,
                      const struct quant_rows *x, uint32_t n)
{
    size_t block_bytes = pack_group_bytes(type, KERN_BLOCK);
    uint32_t n_blocks = x->n_cols / KERN_BLOCK;
    _Alignas(64) struct panel panel;

    if (n < PANEL_MIN) {
        struct tile_weights w = {NULL, group, n_blocks};

        tiles(y, y_stride, rows, 0, &w, x, type, n);
        return;
    }
    for (uint32_t b = 0; b < n_blocks; b += PANEL_BLOCKS) {
        struct tile_weights w = {&panel, group, n_blocks - b < PANEL_BLOCKS ? n_blocks - b : PANEL_BLOCKS};

        panel_fill(&panel, type, group + b * block_bytes, w.n_blocks);
        tiles(y, y_stride, rows, b, &w, x, type, n);
    }
}

/* Weights (k, 0 .. 15) of a group of a float type. */
KERN_INLINE __m512 float_weights(const uint8_t *group, const enum dtype type, size_t k)
{
    if (type == DTYPE_F32)
        return _mm512_loadu_ps(group + k * KERN_ROWS * 4);
    if (type == DTYPE_F16)
        return halves512(group + k * KERN_ROWS * 2);
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(group + k * KERN_ROWS * 2))), 16));
}

/* y[i][0 .. 15] = group . x[i] for n <= 4 rows: four chains each. */
KERN_INLINE void float_tile(float *y, size_t y_stride, __mmask16 rows, const uint8_t *group,
                            const enum dtype type, const float *x, uint32_t n_cols, const uint32_t n)
{
    __m512 chain[4][4];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t c = 0; c < 4; c++)
            chain[i][c] = _mm512_setzero_ps();
    }
    for (size_t k = 0; k < n_cols; k += 4) {
        KERN_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            __m512 w = float_weights(group, type, k + c);

            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++)
                chain[i][c] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(size_t)i * n_cols + k + c]), chain[i][c]);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        _mm512_mask_storeu_ps(
            y + i * y_stride, rows,
            _mm512_add_ps(_mm512_add_ps(chain[i][0], chain[i][2]), _mm512_add_ps(chain[i][1], chain[i][3])));
}

KERN_INLINE void float_group(float *y, size_t y_stride, __mmask16 rows, const uint8_t *group,
                             const enum dtype type, const float *x, uint32_t n_cols, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 4 <= n; i += 4)
        float_tile(y + i * y_stride, y_stride, rows, group, type, x + (size_t)i * n_cols, n_cols, 4);
    for (; i < n; i++)
        float_tile(y + i * y_stride, y_stride, rows, group, type, x + (size_t)i * n_cols, n_cols, 1);
}

void avx512_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0, uint32_t group1,
                   const struct quant_rows *q, const float *x, uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);

    for (uint32_t g = group0; g < group1; g++) {
        const uint8_t *group = w->data + g * group_bytes;
        uint32_t left = w->n_rows - g * KERN_ROWS;
        __mmask16 rows = left >= KERN_ROWS ? 0xffff : (__mmask16)((1u << left) - 1);
        float *out = y + g * KERN_ROWS;

        if (is_q4(w->type) || w->type == DTYPE_Q8_0)
            int_group(out, y_stride, rows, group, w->type, q, n);
        else if (w->type == DTYPE_F32)
            float_group(out, y_stride, rows, group, DTYPE_F32, x, w->n_cols, n);
        else if (w->type == DTYPE_F16)
            float_group(out, y_stride, rows, group, DTYPE_F16, x, w->n_cols, n);
        else
            float_group(out, y_stride, rows, group, DTYPE_BF16, x, w->n_cols, n);
    }
}
