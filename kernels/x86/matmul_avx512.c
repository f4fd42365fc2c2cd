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
 * instructions are the limit, and the unpacking ones would be repeated in every tile. In a panel
 * types differ in nothing but their zero and in having a minimum or a scale for each half.
 */
#include "kernels/x86/avx512.h"
#include "kernels/x86/matmul.h"

#define TILE_MAX       12 /* accumulators of a tile; as many integer ones fill the registers */
#define PANEL_GROUPS   2 /* groups that share each activation load: with one, loads are the limit */
#define PANEL_TILE_MAX (TILE_MAX / PANEL_GROUPS)
#define PANEL_BLOCKS   24 /* blocks of a panel: 30 KB, and no limit to n_cols; whole GGUF blocks */

/* Activation rows that read packed weights in place: as many as one tile has, so that weights are
 * read once; few for the types that are not worth the code. */
#define DIRECT_MAX     TILE_MAX
#define DIRECT_MAX_FEW 4

#define PREFETCH_BYTES 6144 /* how far ahead of a GEMV the memory works */

/* Weights of up to two groups for some blocks, as VPDPBUSD and the float part want them.
 * Line j of w: byte 4r + b is the code of k = 4j + b of row r. d and m: of the two halves of a
 * block; the second is only used, and only takes room in the cache, by types that have it. */
struct panel {
    uint8_t w[PANEL_GROUPS][PANEL_BLOCKS][8 * LINE];
    float d[2][PANEL_GROUPS][PANEL_BLOCKS][KERN_ROWS];
    float m[2][PANEL_GROUPS][PANEL_BLOCKS][KERN_ROWS];
};

/* Where a tile's outputs go: y[row][16 group + lane], only the lanes of rows[group]. */
struct tile_out {
    float *y;
    size_t stride;
    __mmask16 rows[PANEL_GROUPS];
    int first;               /* start from 0, else go on from what y holds */
    struct columns *columns; /* of the groups, where outliers come now; else NULL */
};

/* What the next panel will be filled from: tiles ask for it meanwhile, in equal steps. */
struct ahead {
    const char *next[PANEL_GROUPS];
    uint32_t lines; /* of each group for each block of the tile */
};

/* Scales of the head that the blocks stand behind. */
struct head {
    __m512 d, minus_m;
};

struct block {
    __m512i line[8]; /* as in a panel */
    __m512 d[2], m[2];
};

/* The 8 lines of a plane, its bits of each code in the lowest bits. */
KERN_INLINE void unpack_plane(__m512i line[8], const uint8_t *plane, const uint32_t bits)
{
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1));

    KERN_UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        __m512i v = _mm512_loadu_si512(plane + j % bits * LINE);

        /* Shifts go across bytes, which the mask takes out. uint8_t suits gcc and clang. */
        line[j] = bits == 8
                      ? v
                      : _mm512_and_si512(_mm512_srli_epi16(v, (uint8_t)(j / bits * bits)), mask);
    }
}

/* Adds the second plane's bits above the first's. */
KERN_INLINE void add_plane(__m512i line[8], const uint8_t *plane, const uint32_t bits,
                           const uint32_t at)
{
    const __m512i mask = _mm512_set1_epi8((char)(((1 << bits) - 1) << at));

    KERN_UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        __m512i v = _mm512_loadu_si512(plane + j % bits * LINE);
        const uint32_t from = j / bits * bits;

        v = from < at ? _mm512_slli_epi16(v, (uint8_t)(at - from))
                      : _mm512_srli_epi16(v, (uint8_t)(from - at));
        line[j] = _mm512_ternarylogic_epi32(line[j], v, mask, 0xf8); /* a | (b & c) */
    }
}

KERN_INLINE void unpack_codes(__m512i line[8], const struct packed_layout l, const uint8_t *src)
{
    unpack_plane(line, src, l.low);
    if (l.high)
        add_plane(line, src + l.low * LINE, l.high, l.low);
    if (l.table) {
        __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)l.table));

        KERN_UNROLL
        for (uint32_t j = 0; j < 8; j++)
            line[j] = _mm512_shuffle_epi8(table, line[j]);
    }
}

/* 16 signed bytes as floats; unsigned ones below 128 are the same. */
KERN_INLINE __m512 bytes512(__m128i bytes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

/* 2^(e - 128) of 16 bytes e. */
KERN_INLINE __m512 e8m0_512(__m128i bytes)
{
    __m512i e = _mm512_cvtepu8_epi32(bytes);
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);

    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), subnormal));
}

KERN_INLINE void unpack_scales(struct block *block, const enum packed_scales scales,
                               const struct head *head, const uint8_t *src)
{
    const __m128i nibble = _mm_set1_epi8(15);

    if (scales == SCALES_F16 || scales == SCALES_F16_MIN)
        block->d[0] = halves512(src);
    if (scales == SCALES_F16_MIN)
        block->m[0] = halves512(src + 2 * KERN_ROWS);
    if (scales == SCALES_E8M0)
        block->d[0] = e8m0_512(_mm_loadu_si128((const void *)src));
    if (scales == SCALES_INT || scales == SCALES_INT_MIN)
        block->d[0] = _mm512_mul_ps(head->d, bytes512(_mm_loadu_si128((const void *)src)));
    if (scales == SCALES_INT_MIN)
        block->m[0] = _mm512_mul_ps(head->minus_m,
                                    bytes512(_mm_loadu_si128((const void *)(src + KERN_ROWS))));
    if (!packed_has_halves(scales))
        return;
    KERN_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        __m128i bytes = _mm_loadu_si128((const void *)(src + half * KERN_ROWS));
        __m128i low = scales == SCALES_HALF ? bytes : _mm_and_si128(bytes, nibble);

        block->d[half] = _mm512_mul_ps(head->d, bytes512(low));
        if (scales == SCALES_HALF_MIN)
            block->m[half] = _mm512_mul_ps(
                head->minus_m, bytes512(_mm_and_si128(_mm_srli_epi16(bytes, 4), nibble)));
    }
}

/* Unpacks block b of a group, which begins at src, its head's blocks having come before; returns
 * where the next one begins. */
KERN_INLINE const uint8_t *unpack_block(struct block *block, struct head *head,
                                        const enum dtype type, const uint8_t *src, size_t b)
{
    const struct packed_layout l = packed_layout(type);

    if (packed_head_bytes(l.scales) && b % (l.gguf_k / KERN_BLOCK) == 0) {
        head->d = halves512(src);
        if (packed_has_min(l.scales))
            head->minus_m = _mm512_xor_ps(halves512(src + 2 * KERN_ROWS), _mm512_set1_ps(-0.0f));
        src += packed_head_bytes(l.scales);
    }
    unpack_codes(block->line, l, src);
    unpack_scales(block, l.scales, head, src + packed_code_bytes(l));
    return src + packed_block_bytes(l);
}

/* Parts of a block that are summed apart: `form` is one of SCALES_F16, SCALES_F16_MIN, SCALES_HALF
 * and SCALES_HALF_MIN, and all that the arithmetic has to know of a type beside its zero. */
KERN_INLINE enum packed_scales form_of(const enum packed_scales scales)
{
    return packed_has_halves(scales) ? scales
           : packed_has_min(scales)  ? SCALES_F16_MIN
                                     : SCALES_F16;
}

KERN_INLINE uint32_t form_parts(const enum packed_scales form)
{
    return packed_has_halves(form) ? 2 : 1;
}

/* What an activation's two sums are multiplied with to take the zero off a part. */
KERN_INLINE __m512i part_zero(int32_t zero, const enum packed_scales form, const uint32_t part)
{
    const int32_t minus = -zero & 0xffff, shifted = (int32_t)((uint32_t)minus << 16);

    return _mm512_set1_epi32(form_parts(form) == 1 ? minus | shifted : part ? shifted : minus);
}

/* -zero * sum(q) of a part in every lane, all in the vector unit. */
KERN_INLINE __m512i isum_start(const struct tile_in *in, size_t at, __m512i zero,
                               const enum packed_scales form)
{
    int32_t both;

    if (packed_has_min(form))
        return _mm512_setzero_si512();
    memcpy(&both, in->isum + at, sizeof both);
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), zero, _mm512_set1_epi32(both));
}

/* The contract's float part of a block for 16 rows and one activation row, whose block is `at`. */
KERN_INLINE __m512 add_part(__m512 acc, __m512i isum, __m512 d, __m512 m, const struct tile_in *in,
                            size_t at, const enum packed_scales form, const uint32_t part)
{
    float sum = in->sum[at];

    acc =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(d, _mm512_set1_ps(in->d[at])), acc);
    if (!packed_has_min(form))
        return acc;
    if (packed_has_halves(form))
        sum = in->d[at] * (float)(part ? in->isum[at].high : in->isum[at].low);
    return _mm512_fmadd_ps(m, _mm512_set1_ps(sum), acc);
}

/* acc + the products of the outliers of activations i. */
KERN_INLINE __m512 add_outliers(__m512 acc, const struct tile_in *in, uint32_t i,
                                struct columns *columns)
{
    const struct outlier *o = in->out + i * in->n_blocks, *end = o + in->n_out[i];

    for (; o < end; o++)
        acc = _mm512_fmadd_ps(_mm512_load_ps(columns_at(columns, o->k)), _mm512_set1_ps(o->x), acc);
    return acc;
}

/* y[i][0 .. 15] = packed group . activations i for n rows, all blocks. */
KERN_INLINE void direct_tile(const struct tile_out *out, const uint8_t *group,
                             const struct tile_in *in, const enum dtype type, const uint32_t n)
{
    const struct packed_layout l = packed_layout(type);
    const enum packed_scales form = form_of(l.scales);
    const uint32_t n_parts = form_parts(form), n_lines = 8 / n_parts;
    __m512 acc[TILE_MAX];
    __m512i isum[TILE_MAX];
    struct block block;
    struct head head = {_mm512_setzero_ps(), _mm512_setzero_ps()};

    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++)
        acc[i] = _mm512_setzero_ps();
    for (size_t b = 0; b < in->n_blocks; b++) {
        prefetch_block(group, packed_block_bytes(l) + packed_head_bytes(l.scales), PREFETCH_BYTES);
        group = unpack_block(&block, &head, type, group, b);
        KERN_UNROLL
        for (uint32_t part = 0; part < n_parts; part++) {
            const __m512i zero = part_zero(l.zero, form, part);

            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++)
                isum[i] = isum_start(in, i * in->n_blocks + b, zero, form);
            KERN_UNROLL
            for (uint32_t j = part * n_lines; j < (part + 1) * n_lines; j++) {
                KERN_UNROLL
                for (uint32_t i = 0; i < n; i++)
                    isum[i] = _mm512_dpbusd_epi32(
                        isum[i], block.line[j],
                        broadcast4(in->q + i * in->n_cols + b * KERN_BLOCK + 4 * j));
            }
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++)
                acc[i] = add_part(acc[i], isum[i], block.d[part], block.m[part], in,
                                  i * in->n_blocks + b, form, part);
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        if (out->columns)
            acc[i] = add_outliers(acc[i], in, i, out->columns);
        _mm512_mask_storeu_ps(out->y + i * out->stride, out->rows[0], acc[i]);
    }
}

/* Types that most files are made of read in place up to a whole tile. */
KERN_INLINE uint32_t direct_max(const enum dtype type)
{
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_0:
    case DTYPE_Q6_K:
    case DTYPE_Q8_0:
        return DIRECT_MAX;
    default:
        return DIRECT_MAX_FEW;
    }
}

KERN_INLINE void direct_tile_n(const struct tile_out *out, const uint8_t *group,
                               const struct tile_in *in, const enum dtype type, uint32_t n)
{
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        if (N <= direct_max(type))                                                                 \
            direct_tile(out, group, in, type, N);                                                  \
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

/* The same for n_blocks blocks of a panel of n_groups groups, whose codes' zero is `zero`. */
KERN_INLINE void panel_tile(const struct tile_out *out, const struct panel *panel,
                            const struct tile_in *in, struct ahead *ahead, uint32_t n_blocks,
                            int32_t zero, const enum packed_scales form, const uint32_t n_groups,
                            const uint32_t n)
{
    const uint32_t n_parts = form_parts(form), n_lines = 8 / n_parts;
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
        for (uint32_t part = 0; part < n_parts; part++) {
            KERN_UNROLL
            for (uint32_t i = 0; i < n; i++) {
                isum[0][i] =
                    isum_start(in, i * in->n_blocks + b, part_zero(zero, form, part), form);
                if (n_groups == 2)
                    isum[1][i] = isum[0][i];
            }
            KERN_UNROLL
            for (uint32_t j = part * n_lines; j < (part + 1) * n_lines; j++) {
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
                __m512 d = _mm512_load_ps(panel->d[part][g][b]), m = _mm512_setzero_ps();

                if (packed_has_min(form))
                    m = _mm512_load_ps(panel->m[part][g][b]);
                KERN_UNROLL
                for (uint32_t i = 0; i < n; i++)
                    acc[g][i] =
                        add_part(acc[g][i], isum[g][i], d, m, in, i * in->n_blocks + b, form, part);
            }
        }
    }
    KERN_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        KERN_UNROLL
        for (uint32_t g = 0; g < n_groups; g++) {
            if (out->columns)
                acc[g][i] = add_outliers(acc[g][i], in, i, &out->columns[g]);
            _mm512_mask_storeu_ps(out->y + i * out->stride + g * KERN_ROWS, out->rows[g],
                                  acc[g][i]);
        }
    }
}

KERN_INLINE void panel_tile_n(const struct tile_out *out, const struct panel *panel,
                              const struct tile_in *in, struct ahead *ahead, uint32_t n_blocks,
                              int32_t zero, const enum packed_scales form, uint32_t n_groups,
                              uint32_t n)
{
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        if (n_groups == 2)                                                                         \
            panel_tile(out, panel, in, ahead, n_blocks, zero, form, 2, N);                         \
        else                                                                                       \
            panel_tile(out, panel, in, ahead, n_blocks, zero, form, 1, N);                         \
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
KERN_INLINE void panel_fill(struct panel *panel, uint32_t g, const enum dtype type,
                            const uint8_t *src, uint32_t n_blocks)
{
    const enum packed_scales form = form_of(packed_layout(type).scales);
    struct block block;
    struct head head = {_mm512_setzero_ps(), _mm512_setzero_ps()};

    for (uint32_t b = 0; b < n_blocks; b++) {
        src = unpack_block(&block, &head, type, src, b);
        KERN_UNROLL
        for (uint32_t j = 0; j < 8; j++)
            _mm512_store_si512(panel->w[g][b] + j * LINE, block.line[j]);
        KERN_UNROLL
        for (uint32_t part = 0; part < form_parts(form); part++) {
            _mm512_store_ps(panel->d[part][g][b], block.d[part]);
            if (packed_has_min(form))
                _mm512_store_ps(panel->m[part][g][b], block.m[part]);
        }
    }
}

static void panel_fill_type(struct panel *panel, uint32_t g, enum dtype type, const uint8_t *src,
                            uint32_t n_blocks)
{
#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        panel_fill(panel, g, TYPE, src, n_blocks);                                                 \
        break;
    switch (type) {
        PACKED_EACH_INT_TYPE(CASE)
    default:
        break;
    }
#undef CASE
}

/* Few activation rows, one tile of all: one group, its packed weights read once. */
static void direct_group(const struct tile_out *out, const uint8_t *group, enum dtype type,
                         const struct quant_rows *x, uint32_t n)
{
    struct tile_in in = tile_in_at(x, 0, 0);

#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        direct_tile_n(out, group, &in, TYPE, n);                                                   \
        break;
    switch (type) {
        PACKED_EACH_INT_TYPE(CASE)
    default:
        break;
    }
#undef CASE
}

/* Many activation rows: n_groups groups (1 or 2) through a panel. */
static void panel_groups(struct tile_out out, const uint8_t *group, enum dtype type,
                         uint32_t n_groups, const struct quant_rows *x, uint32_t n)
{
    const struct packed_layout l = packed_layout(type);
    size_t group_bytes = pack_group_bytes(type, x->n_cols);
    uint32_t n_blocks = x->n_cols / KERN_BLOCK, n_tiles = (n + PANEL_TILE_MAX - 1) / PANEL_TILE_MAX;
    struct columns *columns = out.columns;
    float *y = out.y;
    _Alignas(64) struct panel panel;

    for (uint32_t b = 0; b < n_blocks; b += PANEL_BLOCKS) {
        uint32_t part = n_blocks - b < PANEL_BLOCKS ? n_blocks - b : PANEL_BLOCKS;
        /* Next come these groups' next blocks or, after the last, the next groups' first ones. */
        size_t part_bytes = pack_group_bytes(type, part * KERN_BLOCK);
        const uint8_t *here = group + pack_group_bytes(type, b * KERN_BLOCK);
        const uint8_t *next =
            b + part < n_blocks ? here + part_bytes : group + n_groups * group_bytes;
        struct ahead ahead = {{(const char *)next, (const char *)next + group_bytes}, 0};
        uint32_t lines_left = (uint32_t)(part_bytes / LINE);

        for (uint32_t g = 0; g < n_groups; g++)
            panel_fill_type(&panel, g, type, here + g * group_bytes, part);
        out.first = b == 0;
        out.columns = b + part == n_blocks ? columns : NULL;
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t i0 = tile_bound(n, n_tiles, t), size = tile_bound(n, n_tiles, t + 1) - i0;
            struct tile_in in = tile_in_at(x, i0, b);

            ahead.lines = (lines_left + (n_tiles - t) * part - 1) / ((n_tiles - t) * part);
            lines_left -= lines_left < ahead.lines * part ? lines_left : ahead.lines * part;
            out.y = y + i0 * out.stride;
#define CASE(FORM)                                                                                 \
    case FORM:                                                                                     \
        panel_tile_n(&out, &panel, &in, &ahead, part, l.zero, FORM, n_groups, size);               \
        break
            switch (form_of(l.scales)) {
                CASE(SCALES_F16);
                CASE(SCALES_F16_MIN);
                CASE(SCALES_HALF);
                CASE(SCALES_HALF_MIN);
            default:
                break;
            }
#undef CASE
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
    int is_int = !dtype_is_float(w->type), panel = is_int && n > direct_max(w->type);
    uint32_t step = panel ? PANEL_GROUPS : 1;
    struct columns columns[PANEL_GROUPS];

    for (uint32_t g = group0; g < group1; g += step) {
        const uint8_t *group = w->data + g * group_bytes;
        uint32_t n_groups = group1 - g < step ? group1 - g : step;
        struct tile_out out = {y + g * KERN_ROWS, y_stride, {group_rows(w, g)}, 1, NULL};

        if (n_groups == 2)
            out.rows[1] = group_rows(w, g + 1);
        if (is_int && q->n_out) {
            for (uint32_t i = 0; i < n_groups; i++)
                columns_begin(&columns[i], group + i * group_bytes, w->type);
            out.columns = columns;
        }
        if (panel)
            panel_groups(out, group, w->type, n_groups, q, n);
        else if (is_int)
            direct_group(&out, group, w->type, q, n);
        else if (w->type == DTYPE_F32)
            float_group(out.y, y_stride, out.rows[0], group, DTYPE_F32, x, w->n_cols, n);
        else if (w->type == DTYPE_F16)
            float_group(out.y, y_stride, out.rows[0], group, DTYPE_F16, x, w->n_cols, n);
        else
            float_group(out.y, y_stride, out.rows[0], group, DTYPE_BF16, x, w->n_cols, n);
    }
}
