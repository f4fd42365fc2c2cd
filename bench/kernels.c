/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c - speed of the CPU kernels at the default model's shapes.
 *
 * bench_kernels [THREADS] [VARIANT]
 *
 * One pass is every matrix of the model once (SmolLM2-135M: 30 layers Q4_1, head Q8_0, 96 MB), each
 * thread its share of the row groups, as a step of the engine would do it but without the rest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu_kernels.h"
#include "runtime/base/mem.h"
#include "runtime/tune/crew.h"
#include "runtime/tune/limits.h"

#define N_LAYERS   30
#define N_MATRICES (4 * N_LAYERS + 1)
#define N_MAX      512
#define COLS_MAX   1536
#define HEAD_ROWS  49152

#define KV_HEADS 3
#define HEADS    3 /* query heads of a kv head */
#define HEAD_DIM 64
#define SEQUENCE 8192 /* positions */
#define KV_PAGES (N_LAYERS * KV_HEADS * SEQUENCE / KERN_PAGE)

/* Prefill attends in tiles of rows, as the engine's (ATTEND_ROWS of exec/cpu_state.h). */
#define PREFILL_MAX  2048
#define TILE_ROWS    32
#define TILE_QUERIES (TILE_ROWS * HEADS)
#define SPLITS_MAX   (PREFILL_MAX / KERN_SPLIT)

/* Matrices of a layer: q, k and v in one; o; gate and up in one; down. Rows and columns. */
static const uint32_t layer_shapes[4][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};

struct bench {
    const struct cpu_kernels *kernels;
    struct packed_matrix matrices[N_MATRICES];
    unsigned first, n_matrices; /* those of a pass */
    size_t weight_bytes, pages_bytes;
    uint8_t *weights;
    uint8_t *pages; /* K and V pages of one sequence in all layers, in either form */
    enum kv_type kv;
    struct quant_rows x576, x1536;
    float *x;   /* [N_MAX][COLS_MAX], for the float types */
    float *y;   /* [N_MAX][HEAD_ROWS] */
    uint32_t n; /* activation rows */
};

static size_t matrix_bytes(const struct packed_matrix *w)
{
    return (w->n_rows + KERN_ROWS - 1) / KERN_ROWS * pack_group_bytes(w->type, w->n_cols);
}

static void *allocated(void *memory)
{
    if (!memory) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    return memory;
}

static void quant_rows_init(struct quant_rows *q, uint32_t n_cols)
{
    size_t n_blocks = (size_t)N_MAX * n_cols / KERN_BLOCK;
    float *row = allocated(malloc(n_cols * sizeof *row));

    q->n_cols = n_cols;
    q->q = allocated(aligned_alloc(64, n_blocks * KERN_BLOCK));
    q->d = allocated(malloc(n_blocks * 4));
    q->sum = allocated(malloc(n_blocks * 4));
    q->isum = allocated(malloc(n_blocks * 4));
    for (uint32_t r = 0; r < N_MAX; r++) {
        for (uint32_t i = 0; i < n_cols; i++)
            row[i] = (float)((r * 31 + i * 17) % 201) * 0.01f - 1;
        cpu_kernels_get(CPU_REF, NULL)->quantize(q, r, row, n_cols);
    }
    free(row);
}

static void bench_init(struct bench *b)
{
    uint8_t *next;

    memset(b, 0, sizeof *b);
    for (unsigned i = 0; i < N_MATRICES; i++) {
        const uint32_t *shape = layer_shapes[i % 4];

        b->matrices[i] = (struct packed_matrix){DTYPE_Q4_1, shape[0], shape[1], NULL};
        if (i == N_MATRICES - 1)
            b->matrices[i] = (struct packed_matrix){DTYPE_Q8_0, HEAD_ROWS, 576, NULL};
        b->weight_bytes += matrix_bytes(&b->matrices[i]);
    }
    b->weights = next = allocated(mem_map(b->weight_bytes));
    /* As a half 0.065: values do not change the speed, unless they are subnormal. */
    memset(b->weights, 0x2c, b->weight_bytes);
    for (unsigned i = 0; i < N_MATRICES; i++) {
        b->matrices[i].data = next;
        next += matrix_bytes(&b->matrices[i]);
    }
    b->pages_bytes = (size_t)2 * KV_PAGES * KERN_PAGE * HEAD_DIM * 2;
    b->pages = allocated(mem_map(b->pages_bytes));
    memset(b->pages, 0x2c, b->pages_bytes);
    quant_rows_init(&b->x576, 576);
    quant_rows_init(&b->x1536, COLS_MAX);
    b->x = allocated(malloc((size_t)N_MAX * COLS_MAX * sizeof *b->x));
    for (size_t i = 0; i < (size_t)N_MAX * COLS_MAX; i++)
        b->x[i] = (float)(i % 201) * 0.01f - 1;
    b->y = allocated(mem_map((size_t)N_MAX * HEAD_ROWS * sizeof *b->y));
}

static void bench_fini(struct bench *b)
{
    struct quant_rows *both[2] = {&b->x576, &b->x1536};

    for (unsigned i = 0; i < 2; i++) {
        free(both[i]->q);
        free(both[i]->d);
        free(both[i]->sum);
        free(both[i]->isum);
    }
    free(b->x);
    mem_unmap(b->weights, b->weight_bytes);
    mem_unmap(b->pages, b->pages_bytes);
    mem_unmap(b->y, (size_t)N_MAX * HEAD_ROWS * sizeof *b->y);
}

static void matmul_pass(void *arg, unsigned thread, unsigned n_threads)
{
    struct bench *b = arg;

    for (unsigned i = b->first; i < b->first + b->n_matrices; i++) {
        const struct packed_matrix *w = &b->matrices[i];
        uint32_t n_groups = w->n_rows / KERN_ROWS;

        b->kernels->matmul(b->y, w->n_rows, w, thread * n_groups / n_threads,
                           (thread + 1) * n_groups / n_threads,
                           w->n_cols == 576 ? &b->x576 : &b->x1536, b->x, b->n);
    }
}

/* Times passes over n_matrices matrices from `first` on, with n activation rows; prints a line. */
static void bench_matmul(struct bench *b, const char *what, unsigned first, unsigned n_matrices,
                         uint32_t n, unsigned n_tries, const struct limits *l)
{
    double bytes = 0, ops = 0, s;

    for (unsigned i = first; i < first + n_matrices; i++) {
        bytes += (double)matrix_bytes(&b->matrices[i]);
        ops += 2.0 * b->matrices[i].n_rows * b->matrices[i].n_cols * n;
    }
    b->first = first;
    b->n_matrices = n_matrices;
    b->n = n;
    s = crew_best_s(l->n_threads, n_tries, matmul_pass, b);
    printf("%-7s %-10s n %3u  %8.3f ms  %6.1f GB/s %5.2f of read  %7.1f GOP/s %5.2f of int8\n",
           b->kernels->name, what, n, s * 1e3, bytes / s * 1e-9, bytes / s * 1e-9 / l->read_gbs,
           ops / s * 1e-9, ops / s * 1e-9 / l->int8_gops);
}

/* Pages of a split, in no order in memory. */
static void find_pages(const struct bench *b, uint32_t split, const void **k, const void **v)
{
    const size_t page = kv_page_bytes(b->kv, HEAD_DIM);
    const uint32_t n = KERN_SPLIT / KERN_PAGE;

    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *keys = b->pages + 2 * (((size_t)split * n + i) * 7919 % KV_PAGES) * page;

        k[i] = keys;
        v[i] = keys + page;
    }
}

/* The same for one matrix of each type: 9.4 million weights, of which no thread's share stays in its
 * own cache. */
static void bench_types(struct bench *b, const struct limits *l)
{
    static const struct {
        const char *name;
        enum dtype type;
    } types[] = {
        {"Q4_0", DTYPE_Q4_0},   {"Q4_1", DTYPE_Q4_1},     {"Q5_0", DTYPE_Q5_0},
        {"Q5_1", DTYPE_Q5_1},   {"Q8_0", DTYPE_Q8_0},     {"Q2_K", DTYPE_Q2_K},
        {"Q3_K", DTYPE_Q3_K},   {"Q4_K", DTYPE_Q4_K},     {"Q5_K", DTYPE_Q5_K},
        {"Q6_K", DTYPE_Q6_K},   {"IQ4_NL", DTYPE_IQ4_NL}, {"IQ4_XS", DTYPE_IQ4_XS},
        {"MXFP4", DTYPE_MXFP4}, {"F16", DTYPE_F16},       {"BF16", DTYPE_BF16},
    };
    const struct packed_matrix kept = b->matrices[0];

    for (unsigned i = 0; i < sizeof types / sizeof types[0]; i++) {
        b->matrices[0] = (struct packed_matrix){types[i].type, 6144, COLS_MAX, b->weights};
        bench_matmul(b, types[i].name, 0, 1, 1, 20, l);
        bench_matmul(b, types[i].name, 0, 1, 8, 10, l);
        bench_matmul(b, types[i].name, 0, 1, 64, 6, l);
    }
    b->matrices[0] = kept;
}

static void attend(const struct bench *b, const struct attention *a)
{
    if (b->kv == KV_Q8)
        b->kernels->attention_q8(a);
    else
        b->kernels->attention(a);
}

/* Decode attention of one sequence in all layers: a thread's splits. */
static void attention_pass(void *arg, unsigned thread, unsigned n_threads)
{
    const struct bench *b = arg;
    const uint32_t n_splits = KV_PAGES * KERN_PAGE / KERN_SPLIT;
    const void *k[KERN_SPLIT / KERN_PAGE], *v[KERN_SPLIT / KERN_PAGE];
    float o[HEADS * HEAD_DIM], m[HEADS], sum[HEADS], q[HEADS * HEAD_DIM];
    struct attention a = {o, m, sum, q, k, v, NULL, KERN_SPLIT, 1, HEADS, HEAD_DIM, 0.125f};

    for (uint32_t i = 0; i < HEADS * HEAD_DIM; i++)
        q[i] = (float)(i % 7) * 0.1f;
    for (uint32_t s = thread * n_splits / n_threads; s < (thread + 1) * n_splits / n_threads; s++) {
        find_pages(b, (s + 1) % n_splits, k, v);
        a.next_k = k[0];
        find_pages(b, s, k, v);
        attend(b, &a);
    }
}

static void bench_attention(struct bench *b, const struct limits *l)
{
    double s = crew_best_s(l->n_threads, 8, attention_pass, b),
           bytes = 2.0 * KV_PAGES * (double)kv_page_bytes(b->kv, HEAD_DIM);

    printf("%-7s attention %s ctx %u  %8.3f ms  %6.1f GB/s %5.2f of read\n", b->kernels->name,
           kv_type_name(b->kv), SEQUENCE, s * 1e3, bytes / s * 1e-9,
           bytes / s * 1e-9 / l->read_gbs);
}

/* A tile of rows from row0 on, all splits, merged. */
static void prefill_tile(const struct bench *b, const float *q, uint32_t row0, uint32_t sequence)
{
    static _Thread_local float o[SPLITS_MAX][TILE_QUERIES * HEAD_DIM], m[SPLITS_MAX][TILE_QUERIES],
        sum[SPLITS_MAX][TILE_QUERIES], out[HEADS * HEAD_DIM];
    const void *k[KERN_SPLIT / KERN_PAGE], *v[KERN_SPLIT / KERN_PAGE];
    uint32_t n_splits = row0 / KERN_SPLIT + 1;

    for (uint32_t s = 0; s < n_splits; s++) {
        uint32_t n_pos = s + 1 < n_splits ? KERN_SPLIT : row0 % KERN_SPLIT + 1;
        struct attention a = {o[s], m[s],  sum[s],    q,     k,        v,
                              NULL, n_pos, TILE_ROWS, HEADS, HEAD_DIM, 0.125f};

        find_pages(b, sequence * SPLITS_MAX + s, k, v);
        attend(b, &a);
    }
    for (uint32_t r = 0; r < TILE_ROWS; r++)
        b->kernels->attention_merge(out, o[0] + r * HEADS * HEAD_DIM, m[0] + r * HEADS,
                                    sum[0] + r * HEADS, n_splits, TILE_QUERIES, HEADS, HEAD_DIM);
}

static void prefill_pass(void *arg, unsigned thread, unsigned n_threads)
{
    const struct bench *b = arg;
    float q[TILE_QUERIES * HEAD_DIM];

    for (uint32_t i = 0; i < TILE_QUERIES * HEAD_DIM; i++)
        q[i] = (float)(i % 7) * 0.1f;
    for (uint32_t i = 0; i < KV_HEADS; i++)
        for (uint32_t tile = thread; tile < b->n / TILE_ROWS; tile += n_threads)
            prefill_tile(b, q, tile * TILE_ROWS, i);
}

/* A layer's attention: for each query head of a row and position that it sees 4 * HEAD_DIM
 * operations. */
static void bench_prefill(struct bench *b, uint32_t rows, const struct limits *l)
{
    double pairs = 0.5 * rows * (rows + 1) * HEADS * KV_HEADS, gflops;

    b->n = rows;
    gflops = 4 * HEAD_DIM * pairs / crew_best_s(l->n_threads, 16, prefill_pass, b) * 1e-9;
    printf("%-7s attention %s prefill %4u  %6.1f GFLOP/s %5.2f of fma\n", b->kernels->name,
           kv_type_name(b->kv), rows, gflops, gflops / l->fma_gflops);
}

/* What lies beside the matrix products in a layer, for 64 rows. */
static void rows_pass(void *arg, unsigned thread, unsigned n_threads)
{
    struct bench *b = arg;
    float *x = b->y + (size_t)thread * 8192, *y = x + 2048;

    (void)n_threads;
    for (uint32_t i = 0; i < 2048; i++)
        x[i] = (float)(i % 13) * 0.1f - 0.5f;
    for (uint32_t r = 0; r < 64; r++) {
        b->kernels->rmsnorm(y, x, x, 576, 1e-5f);
        b->kernels->quantize(&b->x576, thread, y, 576);
        b->kernels->swiglu(y, x, x, 1536);
        b->kernels->quantize(&b->x1536, thread, y, 1536);
        b->kernels->add(y, x, 576);
    }
}

static void bench_variant(struct bench *b, const struct limits *l)
{
    static const uint32_t stream[] = {1, 2, 4, 8, 16}, many[] = {32, 64, 512};
    const unsigned gate_up = 2, down = 3;

    if (strcmp(b->kernels->name, "ref") == 0) {
        bench_matmul(b, "gate+up", gate_up, 1, 4, 3, l);
        return;
    }
    for (unsigned i = 0; i < sizeof stream / sizeof stream[0]; i++)
        bench_matmul(b, "model", 0, N_MATRICES, stream[i], 12, l);
    for (unsigned i = 0; i < sizeof many / sizeof many[0]; i++)
        bench_matmul(b, "layers", 0, 4 * 6, many[i], 8, l);
    bench_matmul(b, "head", N_MATRICES - 1, 1, 1, 20, l);
    bench_matmul(b, "head", N_MATRICES - 1, 1, 8, 8, l);
    bench_matmul(b, "head", N_MATRICES - 1, 1, 64, 6, l);
    bench_matmul(b, "gate+up", gate_up, 1, 1, 40, l);
    bench_matmul(b, "gate+up", gate_up, 1, 512, 20, l);
    bench_matmul(b, "down", down, 1, 512, 20, l);
    bench_types(b, l);
    for (b->kv = KV_F16; b->kv <= KV_Q8; b->kv++) {
        bench_attention(b, l);
        bench_prefill(b, 512, l);
        bench_prefill(b, PREFILL_MAX, l);
    }
    printf("%-7s norm, swiglu, add, 2 quantise of a layer  %8.3f us a row\n", b->kernels->name,
           crew_best_s(1, 40, rows_pass, b) / 64 * 1e6);
}

int main(int argc, char **argv)
{
    unsigned n_threads =
        argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    static const enum cpu_variant variants[] = {CPU_REF, CPU_AVX2, CPU_AVXVNNI, CPU_AVX512};
    static struct bench b;
    struct limits l;
    int err = limits_measure(&l, &(struct limits_opt){.n_threads = n_threads});

    if (err < 0) {
        fprintf(stderr, "bench_kernels: %s\n", strerror(-err));
        return 1;
    }
    bench_init(&b);
    printf("cpu %s, %u threads, read %.1f GB/s, %s %.0f GOP/s\n", l.cpu, l.n_threads, l.read_gbs,
           l.int8_method, l.int8_gops);
    for (unsigned i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const char *missing;

        b.kernels = cpu_kernels_get(variants[i], &missing);
        if (!b.kernels)
            printf("variant %u skipped: this machine lacks %s\n", variants[i], missing);
        else if (argc < 3 || strcmp(argv[2], b.kernels->name) == 0)
            bench_variant(&b, &l);
    }
    bench_fini(&b);
    return 0;
}
