/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul_avx512.c - matrix products over packed weights with AVX-512 and VNNI.
 *
 * The 16 lanes of a vector are the 16 rows of a group, so an accumulator is 16 outputs of one
 * activation row, and nothing is ever summed across lanes. A tile is T activation rows: its T
 * integer chains hide the latency of VPDPBUSD, and each weight vector is used T times.
 *
 * Few rows (GEMV) read the packed weights in place and ask for them ahead of time: memory is the
 * limit. Many rows first unpack groups to bytes and floats, a panel that stays in L1 for all tiles:
 * instructions are the limit, and the unpacking ones would be repeated in every tile.
 */
#include "kernels/x86/avx512.h"

#include <string.h>

#define LINE           64
#define TILE_MAX       12 /* accumulators of a tile; as many integer ones fill the registers */
#define PANEL_GROUPS   2 /* groups that share each activation load: with one, loads are the limit */
#define PANEL_TILE_MAX (TILE_MAX / PANEL_GROUPS)
#define PANEL_BLOCKS   24   /* blocks of a panel: 30 KB, and no limit to n_cols */
#define PREFETCH_BYTES 6144 /* how far ahead of a GEMV the memory works */

/* Activation rows from which a panel pays: below, one tile has them all and reads weights once. */
#define PANEL_MIN (TILE_MAX + 1)

/* Weights of up to two groups for some blocks, as VPDPBUSD and the float part want them.
 * Line j of w: byte 4r + b is weight k = 4j + b of row r. */
struct panel {
    uint8_t w[PANEL_GROUPS][PANEL_BLOCKS][8 * LINE];
    float d[PANEL_GROUPS][PANEL_BLOCKS][KERN_ROWS];
    float m[PANEL_GROUPS][PANEL_BLOCKS][KERN_ROWS]; /* Q4_1 only */
};

/* Where a tile's outputs go: y[row][16 group + lane], only the lanes of rows[group]. */
struct tile_out {
    float *y;
    size_t stride;
    __mmask16 rows[PANEL_GROUPS];
    int first; /* start from 0, else go on from what y holds */
};

/* Activations of a tile, from its first row and the first block on. */
struct tile_in {
    const int8_t *q;
    const float *d, *sum;
    const int32_t *isum;
    size_t n_cols, n_blocks; /* distances between rows: of q, and of the others */
};

/* What the next panel will be filled from: tiles ask for it meanwhile, in equal steps. */
struct ahead {
    const char *next[PANEL_GROUPS];
    uint32_t lines; /* of each group for each block of the tile */
};

struct block {
    __m512i line[8]; /* as in a panel */
    __m512 d, m;
};

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

/* -zero * isum in every lane, all in the vector unit: |isum| < 2^15, its low half is all of it. */
KERN_INLINE __m512i minus_zero(const int32_t *isum, int32_t zero)
{
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(-zero & 0xffff),
                               _mm512_set1_epi32(*isum));
}

KERN_INLINE __m512i isum_start(const struct tile_in *in, size_t at, const enum dtype type)
{
    return type == DTYPE_Q4_1 ? _mm512_setzero_si512()
                              : minus_zero(in->isum + at, type == DTYPE_Q4_0 ? 8 : 128);
}

/* The contract's float part of a block for 16 rows and one activation row, whose block is `at`. */
KERN_INLINE __m512 add_block(__m512 acc, __m512i isum, __m512 d, __m512 m, const struct tile_in *in,
                             size_t at, const enum dtype type)
{
    acc =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(d, _mm512_set1_ps(in->d[at])), acc);
    return type == DTYPE_Q4_1 ? _mm512_fmadd_ps(m, _mm512_set1_ps(in->sum[at]), acc) : acc;
}

/* y[i][0 .. 15] = packed group . activations i for n rows, all blocks. */
KERN_INLINE void direct_tile(const struct tile_out *out, const uint8_t *group,
                             const struct tile_in *in, const enum dtype type, const uint32_t n)
{
    const size_t block_bytes = type == DTYPE_Q8_0 ? 544 : type == DTYPE_Q4_1 ? 320 : 288;
    __m512 acc[TILE_MAX];
    __m512i isum[TILE_MAX];
    struct block block;

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[i] = _mm512_setzero_ps();
    for (size_t b = 0; b < in->n_blocks; b++) {
        unpack_block(&block, type, group + b * block_bytes);
        prefetch_block(group + b * block_bytes, block_bytes);
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++)
            isum[i] = isum_start(in, i * in->n_blocks + b, type);
        KERN_UNROLL
        for (uint32_t j = 0; j < 8; j++) {
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++)
                isum[i] = _mm512_dpbusd_epi32(
                    isum[i], block.line[j],
                    broadcast4(in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j));
        }
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++)
            acc[i] = add_block(acc[i], isum[i], block.d, block.m, in, i * in->n_blocks + b, type);
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        _mm512_mask_storeu_ps(out->y + i * out->stride, out->rows[0], acc[i]);
}

KERN_INLINE void direct_tile_n(const struct tile_out *out, const uint8_t *group,
                               const struct tile_in *in, const enum dtype type, uint32_t n)
{
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        direct_tile(out, group, in, type, N);                                                      \
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

KERN_INLINE void prefetch_ahead(struct ahead *ahead, const uint32_t n_groups)
{
    for (uint32_t i = 0; i < ahead->lines; i++) {
        KERN_UNROLL
        for (uint32_t g = 0; g < n_groups; g++) {
            _mm_prefetch(ahead->next[g], _MM_HINT_T1);
            ahead->next[g] += LINE;
        }
    }
}

/* The same for n_blocks blocks of a panel of n_groups groups. */
KERN_INLINE void panel_tile(const struct tile_out *out, const struct panel *panel,
                            const struct tile_in *in, struct ahead *ahead, uint32_t n_blocks,
                            const enum dtype type, const uint32_t n_groups, const uint32_t n)
{
    __m512 acc[PANEL_GROUPS][PANEL_TILE_MAX];
    __m512i isum[PANEL_GROUPS][PANEL_TILE_MAX];

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t g = 0; g < n_groups; g++)
            acc[g][i] =
                out->first
                    ? _mm512_setzero_ps()
                    : _mm512_maskz_loadu_ps(out->rows[g], out->y + i * out->stride + g * KERN_ROWS);
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        prefetch_ahead(ahead, n_groups);
        KERN_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            isum[0][i] = isum_start(in, i * in->n_blocks + b, type);
            if (n_groups == 2)
                isum[1][i] = isum[0][i];
        }
        KERN_UNROLL
        for (uint32_t j = 0; j < 8; j++) {
            __m512i w[PANEL_GROUPS];

            KERN_UNROLL
            for (uint32_t g = 0; g < n_groups; g++)
                w[g] = _mm512_load_si512(panel->w[g][b] + j * LINE);
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                __m512i q = broadcast4(in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j);

                KERN_UNROLL
                for (uint32_t g = 0; g < n_groups; g++)
                    isum[g][i] = _mm512_dpbusd_epi32(isum[g][i], w[g], q);
            }
        }
        KERN_UNROLL
        for (uint32_t g = 0; g < n_groups; g++) {
            __m512 d = _mm512_load_ps(panel->d[g][b]), m = _mm512_setzero_ps();

            if (type == DTYPE_Q4_1)
                m = _mm512_load_ps(panel->m[g][b]);
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++)
                acc[g][i] = add_block(acc[g][i], isum[g][i], d, m, in, i * in->n_blocks + b, type);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t g = 0; g < n_groups; g++)
            _mm512_mask_storeu_ps(out->y + i * out->stride + g * KERN_ROWS, out->rows[g],
                                  acc[g][i]);
    }
}

KERN_INLINE void panel_tile_n(const struct tile_out *out, const struct panel *panel,
                              const struct tile_in *in, struct ahead *ahead, uint32_t n_blocks,
                              const enum dtype type, uint32_t n_groups, uint32_t n)
{
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        if (n_groups == 2)                                                                         \
            panel_tile(out, panel, in, ahead, n_blocks, type, 2, N);                               \
        else                                                                                       \
            panel_tile(out, panel, in, ahead, n_blocks, type, 1, N);                               \
        break
    switch (n) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
    }
#undef CASE
}

/* Fills one group of a panel from n_blocks packed blocks. */
static void panel_fill(struct panel *panel, uint32_t g, enum dtype type, const uint8_t *src,
                       uint32_t n_blocks)
{
    size_t block_bytes = pack_group_bytes(type, KERN_BLOCK);
    struct block block;

    for (uint32_t b = 0; b < n_blocks; b++, src += block_bytes) {
        if (type == DTYPE_Q8_0)
            unpack_block(&block, DTYPE_Q8_0, src);
        else
            unpack_block(&block, DTYPE_Q4_0, src);
        KERN_UNROLL
        for (uint32_t j = 0; j < 8; j++)
            _mm512_store_si512(panel->w[g][b] + j * LINE, block.line[j]);
        _mm512_store_ps(panel->d[g][b], block.d);
        if (type == DTYPE_Q4_1)
            _mm512_store_ps(panel->m[g][b], halves512(src + 4 * LINE + 2 * KERN_ROWS));
    }
}

/* Row i0 of x from block0 on. */
static struct tile_in tile_in_at(const struct quant_rows *x, uint32_t i0, uint32_t block0)
{
    size_t n_blocks = x->n_cols / KERN_BLOCK, at = i0 * n_blocks + block0;

    return (struct tile_in){x->q + at * KERN_BLOCK, x->d + at, x->sum + at,
                            x->isum + at,           x->n_cols, n_blocks};
}

/* Bound t of n things shared out to n_tiles tiles, as equally as they can be. */
static uint32_t tile_bound(uint32_t n, uint32_t n_tiles, uint32_t t)
{
    return (uint32_t)((uint64_t)t * n / n_tiles);
}

/* Few activation rows: one group, its packed weights read once for each tile. */
static void direct_group(struct tile_out out, const uint8_t *group, enum dtype type,
                         const struct quant_rows *x, uint32_t n)
{
    uint32_t n_tiles = (n + TILE_MAX - 1) / TILE_MAX;
    float *y = out.y;

    for (uint32_t t = 0; t < n_tiles; t++) {
        uint32_t i0 = tile_bound(n, n_tiles, t), size = tile_bound(n, n_tiles, t + 1) - i0;
        struct tile_in in = tile_in_at(x, i0, 0);

        out.y = y + i0 * out.stride;
        if (type == DTYPE_Q4_0)
            direct_tile_n(&out, group, &in, DTYPE_Q4_0, size);
        else if (type == DTYPE_Q4_1)
            direct_tile_n(&out, group, &in, DTYPE_Q4_1, size);
        else
            direct_tile_n(&out, group, &in, DTYPE_Q8_0, size);
    }
}

/* Many activation rows: n_groups groups (1 or 2) through a panel. */
static void panel_groups(struct tile_out out, const uint8_t *group, enum dtype type,
                         uint32_t n_groups, const struct quant_rows *x, uint32_t n)
{
    size_t block_bytes = pack_group_bytes(type, KERN_BLOCK),
           group_bytes = pack_group_bytes(type, x->n_cols);
    uint32_t n_blocks = x->n_cols / KERN_BLOCK, n_tiles = (n + PANEL_TILE_MAX - 1) / PANEL_TILE_MAX;
    float *y = out.y;
    _Alignas(64) struct panel panel;

    for (uint32_t b = 0; b < n_blocks; b += PANEL_BLOCKS) {
        uint32_t part = n_blocks - b < PANEL_BLOCKS ? n_blocks - b : PANEL_BLOCKS;
        /* Next come these groups' next blocks or, after the last, the next groups' first ones. */
        const uint8_t *next =
            b + part < n_blocks ? group + (b + part) * block_bytes : group + n_groups * group_bytes;
        struct ahead ahead = {{(const char *)next, (const char *)next + group_bytes}, 0};
        uint32_t lines_left = (uint32_t)(part * block_bytes / LINE);

        for (uint32_t g = 0; g < n_groups; g++)
            panel_fill(&panel, g, type, group + g * group_bytes + b * block_bytes, part);
        out.first = b == 0;
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t i0 = tile_bound(n, n_tiles, t), size = tile_bound(n, n_tiles, t + 1) - i0;
            struct tile_in in = tile_in_at(x, i0, b);

            ahead.lines = (lines_left + (n_tiles - t) * part - 1) / ((n_tiles - t) * part);
            lines_left -= lines_left < ahead.lines * part ? lines_left : ahead.lines * part;
            out.y = y + i0 * out.stride;
            if (type == DTYPE_Q4_0)
                panel_tile_n(&out, &panel, &in, &ahead, part, DTYPE_Q4_0, n_groups, size);
            else if (type == DTYPE_Q4_1)
                panel_tile_n(&out, &panel, &in, &ahead, part, DTYPE_Q4_1, n_groups, size);
            else
                panel_tile_n(&out, &panel, &in, &ahead, part, DTYPE_Q8_0, n_groups, size);
        }
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
                            const enum dtype type, const float *x, uint32_t n_cols,
                            const uint32_t n)
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
                chain[i][c] =
                    _mm512_fmadd_ps(w, _mm512_set1_ps(x[(size_t)i * n_cols + k + c]), chain[i][c]);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        _mm512_mask_storeu_ps(y + i * y_stride, rows,
                              _mm512_add_ps(_mm512_add_ps(chain[i][0], chain[i][2]),
                                            _mm512_add_ps(chain[i][1], chain[i][3])));
}

KERN_INLINE void float_group(float *y, size_t y_stride, __mmask16 rows, const uint8_t *group,
                             const enum dtype type, const float *x, uint32_t n_cols, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 4 <= n; i += 4)
        float_tile(y + i * y_stride, y_stride, rows, group, type, x + (size_t)i * n_cols, n_cols,
                   4);
    for (; i < n; i++)
        float_tile(y + i * y_stride, y_stride, rows, group, type, x + (size_t)i * n_cols, n_cols,
                   1);
}

/* Mask of the rows of group g that the matrix has. */
static __mmask16 group_rows(const struct packed_matrix *w, uint32_t g)
{
    uint32_t left = w->n_rows - g * KERN_ROWS;

    return left >= KERN_ROWS ? 0xffff : (__mmask16)((1u << left) - 1);
}

void avx512_matmul(float *y, size_t y_stride, const struct packed_matrix *w, uint32_t group0,
                   uint32_t group1, const struct quant_rows *q, const float *x, uint32_t n)
{
    size_t group_bytes = pack_group_bytes(w->type, w->n_cols);
    int is_int = w->type == DTYPE_Q4_0 || w->type == DTYPE_Q4_1 || w->type == DTYPE_Q8_0;
    uint32_t step = is_int && n >= PANEL_MIN ? PANEL_GROUPS : 1;

    for (uint32_t g = group0; g < group1; g += step) {
        const uint8_t *group = w->data + g * group_bytes;
        uint32_t n_groups = group1 - g < step ? group1 - g : step;
        struct tile_out out = {y + g * KERN_ROWS, y_stride, {group_rows(w, g)}, 1};

        if (n_groups == 2)
            out.rows[1] = group_rows(w, g + 1);
        if (is_int && n >= PANEL_MIN)
            panel_groups(out, group, w->type, n_groups, q, n);
        else if (is_int)
            direct_group(out, group, w->type, q, n);
        else if (w->type == DTYPE_F32)
            float_group(out.y, y_stride, out.rows[0], group, DTYPE_F32, x, w->n_cols, n);
        else if (w->type == DTYPE_F16)
            float_group(out.y, y_stride, out.rows[0], group, DTYPE_F16, x, w->n_cols, n);
        else
            float_group(out.y, y_stride, out.rows[0], group, DTYPE_BF16, x, w->n_cols, n);
    }
}
