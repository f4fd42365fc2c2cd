/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - speed of the forward pass on a real model:
 * bench_engine [MODEL [THREADS [VARIANT [ROUNDS [CELLS]]]]]
 *
 * Without MODEL: TOKENRING_TEST_MODEL. Each round decodes one text, prefills 512 and 2048 tokens and
 * decodes batches, in turn, so that a noisy minute hits all of them; medians of the rounds (5) are
 * printed. Shares are of what this machine reads from memory, multiplies with 8-bit integers and
 * multiplies and adds as floats at most, measured just before. CELLS are names with commas: what to
 * measure, without it all. TOKENRING_KV_TYPE (f16, q8) says how keys and values are kept. The lines `cell NAME VALUE` are for race.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/median.h"
#include "runtime/base/clock.h"
#include "runtime/exec/cpu.h"
#include "runtime/kv/page.h"
#include "runtime/sample/sampler.h"
#include "runtime/tune/limits.h"

#define ROUNDS_MAX  5
#define ROWS_MAX    512u
#define PROMPT      32u   /* tokens before decoding starts */
#define DECODE      128u  /* tokens of the single text */
#define BATCH_HAS   64u   /* tokens of each text of a batch before decoding starts */
#define BATCHED     32u   /* tokens that are decoded for each */
#define LONG        8000u /* positions before the deepest decode */
#define DEEP        32u   /* tokens decoded there */
#define PREFILL     512u
#define FAR         2048u /* the long prefill */
#define TEXT_PAGES  ((LONG + DEEP) / KV_PAGE + 1)
#define BATCH_PAGES ((BATCH_HAS + BATCHED) / KV_PAGE + 1)
#define BATCH_MAX   64u

static const uint32_t batches[] = {1, 2, 8, 32, 64};
static const uint32_t chunks[] = {64, 128, 256, 512};
static const uint32_t depths[] = {4096, LONG};
#define N_BATCHES (sizeof batches / sizeof batches[0])
#define N_CHUNKS  (sizeof chunks / sizeof chunks[0])
#define N_DEPTHS  (sizeof depths / sizeof depths[0])

struct text {
    uint32_t pos, next; /* token at pos */
    uint32_t pages[TEXT_PAGES];
};

struct engine {
    struct model *model;
    struct team *team;
    struct backend *backend;
    struct sampler *sampler;
    struct text texts[BATCH_MAX];
};

/* Seconds, by round. */
struct results {
    int n_rounds;
    const char *cells; /* that are wanted, with commas; NULL: all */
    double decode[ROUNDS_MAX], deep[N_DEPTHS][ROUNDS_MAX], batch[N_BATCHES][ROUNDS_MAX];
    double prefill[N_CHUNKS][ROUNDS_MAX];
    double far[ROUNDS_MAX];  /* FAR tokens, PREFILL a step */
    double last[ROUNDS_MAX]; /* the last PREFILL of them alone */
};

/* Is the cell wanted, and does the model's context hold its positions? */
static int wanted(const struct engine *e, const struct results *r, const char *cell,
                  uint32_t n_positions)
{
    size_t n = strlen(cell);
    const char *at = r->cells;

    while (at && *at && (strncmp(at, cell, n) != 0 || (at[n] && at[n] != ','))) {
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return n_positions <= e->model->n_ctx && (!at || *at);
}

static int wants_batch(const struct engine *e, const struct results *r, size_t i)
{
    char cell[32];

    snprintf(cell, sizeof cell, "batch%u", batches[i]);
    return wanted(e, r, cell, BATCH_HAS + BATCHED);
}

static int wants_depth(const struct engine *e, const struct results *r, size_t i)
{
    char cell[32];

    snprintf(cell, sizeof cell, "decode_%uk", depths[i] / 1000);
    return wanted(e, r, cell, depths[i] + DEEP);
}

static double seconds(uint64_t since_ns)
{
    return (double)(clock_ns() - since_ns) / 1e9;
}

/* Any ids will do: arithmetic takes as long for each. */
static uint32_t token_at(const struct engine *e, uint32_t i)
{
    return (i * 7919u + 13u) % e->backend->n_vocab;
}

/* The likeliest token after each row of logits, for texts from t on. */
static void draw(struct engine *e, struct text *t, const float *logits, uint32_t n)
{
    static const struct sampling greedy;
    struct draw draws[BATCH_MAX];

    for (uint32_t i = 0; i < n; i++)
        draws[i] = (struct draw){.how = &greedy};
    sampler_draw(e->sampler, logits, e->backend->block_max, draws, n);
    for (uint32_t i = 0; i < n; i++)
        t[i].next = draws[i].id;
}

static void prefill(struct engine *e, struct text *t, uint32_t n, uint32_t chunk)
{
    uint32_t tokens[ROWS_MAX], last, done = 0;

    while (done < n) {
        uint32_t rows = n - done < chunk ? n - done : chunk;
        struct step_seq seq = {0, rows, t->pos, t->pages};
        struct step step = {rows, tokens, 1, &seq, done + rows == n, &last, NULL};
        const float *logits;

        for (uint32_t i = 0; i < rows; i++)
            tokens[i] = token_at(e, t->pos + i);
        last = rows - 1;
        e->backend->forward(e->backend->self, &step, &logits);
        t->pos += rows;
        done += rows;
        if (done == n)
            draw(e, t, logits, 1);
    }
}

static void decode(struct engine *e, uint32_t n_texts, uint32_t n)
{
    uint32_t tokens[BATCH_MAX], wanted[BATCH_MAX];
    struct step_seq seqs[BATCH_MAX];
    struct step step = {n_texts, tokens, n_texts, seqs, n_texts, wanted, NULL};

    for (uint32_t i = 0; i < n; i++) {
        const float *logits;

        for (uint32_t s = 0; s < n_texts; s++) {
            struct text *t = &e->texts[s];

            tokens[s] = t->next;
            wanted[s] = s;
            seqs[s] = (struct step_seq){s, 1, t->pos++, t->pages};
        }
        e->backend->forward(e->backend->self, &step, &logits);
        draw(e, e->texts, logits, n_texts);
    }
}

/* Decodes n tokens for each of n_texts after prompts of n_prompt: the decoding only. */
static double time_batch(struct engine *e, uint32_t n_texts, uint32_t n_prompt, uint32_t n)
{
    uint64_t start;

    for (uint32_t s = 0; s < n_texts; s++) {
        e->texts[s].pos = 0;
        prefill(e, &e->texts[s], n_prompt, n_prompt);
    }
    start = clock_ns();
    decode(e, n_texts, n);
    return seconds(start);
}

static double time_prefill(struct engine *e, uint32_t pos, uint32_t n, uint32_t chunk)
{
    uint64_t start = clock_ns();

    e->texts[0].pos = pos;
    prefill(e, &e->texts[0], n, chunk);
    return seconds(start);
}

/* Numbers for all positions before LONG. What they are does not change the time of decoding there,
 * so each chunk is computed as the beginning of a text, which spares most of the attention. */
static void fill_deep(struct engine *e)
{
    struct text t;

    for (uint32_t at = 0; at < LONG; at += ROWS_MAX) {
        t.pos = 0;
        memcpy(t.pages, e->texts[0].pages + at / KV_PAGE, ROWS_MAX / KV_PAGE * sizeof t.pages[0]);
        prefill(e, &t, LONG - at < ROWS_MAX ? LONG - at : ROWS_MAX, ROWS_MAX);
    }
}

static double time_deep(struct engine *e, uint32_t depth)
{
    uint64_t start;

    e->texts[0].pos = depth;
    start = clock_ns();
    decode(e, 1, DEEP);
    return seconds(start);
}

/* A line of the table: n_steps steps of n_tokens took values[] s in n_rounds rounds. Median seconds
 * of a step. */
static double print_row(const char *what, double values[ROUNDS_MAX], int n_rounds,
                        uint32_t n_tokens, uint32_t n_steps)
{
    double s = median(values, (size_t)n_rounds) / n_steps;

    printf("%-30s %10.1f %10.3f\n", what, n_tokens / s, s * 1e3);
    return s;
}

/* Operations of all layers' matrices for one row: a multiplication and an addition for each
 * weight. */
static double layer_ops(const struct hparams *hp)
{
    double attn = (double)hp->head_dim * (2.0 * hp->n_head + 2.0 * hp->n_head_kv);

    return 2.0 * hp->n_layer * hp->n_embd * (attn + 3.0 * hp->n_ff);
}

/* Attention of a step of PREFILL rows that stand after FAR - PREFILL positions and one of them that
 * stand at the beginning differ only in those positions, which each row sees: 4 * head_dim
 * operations for each query head of a row and position. In the last layer only the row with logits
 * attends. */
static double far_attention_ops(const struct hparams *hp)
{
    double rows = (double)PREFILL * (hp->n_layer - 1) + 1;

    return 4.0 * hp->head_dim * hp->n_head * rows * (FAR - PREFILL);
}

static void open_engine(struct engine *e, const char *path, unsigned threads, const char *variant)
{
    struct cpu_backend_opt opt = {.n_pages = TEXT_PAGES + BATCH_MAX * BATCH_PAGES,
                                  .rows_max = ROWS_MAX};
    const struct cpu_kernels *kernels;
    const char *kv = getenv("TOKENRING_KV_TYPE");
    enum cpu_variant which;
    const char *missing = "unknown variant";
    struct diag diag = {""};
    uint64_t start = clock_ns();

    if (cpu_variant_parse(variant, &which) < 0 || !(kernels = cpu_kernels_get(which, &missing))) {
        fprintf(stderr, "bench_engine: %s: %s\n", variant, missing);
        exit(2);
    }
    if (kv && kv_type_parse(kv, &opt.kv_type) < 0) {
        fprintf(stderr, "bench_engine: TOKENRING_KV_TYPE: %s, expected f16 or q8\n", kv);
        exit(2);
    }
    if (team_new(&e->team, threads) < 0 ||
        model_open(&e->model, path, 0, NULL, e->team, &diag) < 0 ||
        cpu_backend_new(&e->backend, e->model, kernels, e->team, &opt, &diag) < 0 ||
        sampler_new(&e->sampler, e->backend->n_vocab, kernels, e->team) < 0) {
        fprintf(stderr, "bench_engine: %s\n", diag.text);
        exit(1);
    }
    printf("model %s, %.1f MB a token, loaded in %.0f ms; kernels %s, KV %s, %u threads\n",
           e->model->name, (double)e->model->weight_bytes / 1e6, seconds(start) * 1e3,
           kernels->name, kv_type_name(opt.kv_type), team_size(e->team));
    for (uint32_t s = 0; s < BATCH_MAX; s++)
        for (uint32_t i = 0; i < (s ? BATCH_PAGES : TEXT_PAGES); i++)
            e->texts[s].pages[i] = s ? TEXT_PAGES + s * BATCH_PAGES + i : i;
}

static void run_rounds(struct engine *e, struct results *r)
{
    e->texts[0].pos = 0;
    prefill(e, &e->texts[0], ROWS_MAX, ROWS_MAX); /* warms up */
    if (wants_depth(e, r, 0) || wants_depth(e, r, N_DEPTHS - 1))
        fill_deep(e);
    for (int round = 0; round < r->n_rounds; round++) {
        if (wanted(e, r, "decode", PROMPT + DECODE))
            r->decode[round] = time_batch(e, 1, PROMPT, DECODE);
        for (size_t i = 0; i < N_CHUNKS && wanted(e, r, "prefill512", PREFILL); i++)
            r->prefill[i][round] = time_prefill(e, 0, PREFILL, chunks[i]);
        if (wanted(e, r, "prefill2048", FAR)) {
            r->far[round] = time_prefill(e, 0, FAR, PREFILL);
            r->last[round] = time_prefill(e, FAR - PREFILL, PREFILL, PREFILL);
        }
        for (size_t i = 0; i < N_BATCHES; i++)
            if (wants_batch(e, r, i))
                r->batch[i][round] = time_batch(e, batches[i], BATCH_HAS, BATCHED);
        for (size_t i = 0; i < N_DEPTHS; i++)
            if (wants_depth(e, r, i))
                r->deep[i][round] = time_deep(e, depths[i]);
    }
}

static void print_decode(const struct engine *e, struct results *r, const struct limits *limits)
{
    char what[64];
    double s;

    if (r->decode[0] > 0) {
        s = print_row("decode after 32", r->decode, r->n_rounds, 1, DECODE);
        printf("cell decode %.2f\n", 1 / s);
        printf("cell decode_of_bandwidth %.4f\n",
               (double)e->model->weight_bytes / s / (limits->read_gbs * 1e9));
    }
    for (size_t i = 0; i < N_DEPTHS; i++) {
        if (!(r->deep[i][0] > 0))
            continue;
        snprintf(what, sizeof what, "decode after %u", depths[i]);
        s = print_row(what, r->deep[i], r->n_rounds, 1, DEEP);
        printf("cell decode_%uk %.2f\n", depths[i] / 1000, 1 / s);
    }
    for (size_t i = 0; i < N_BATCHES; i++) {
        if (!(r->batch[i][0] > 0))
            continue;
        snprintf(what, sizeof what, "batch of %u", batches[i]);
        s = print_row(what, r->batch[i], r->n_rounds, batches[i], BATCHED);
        printf("cell batch%u %.2f\n", batches[i], batches[i] / s);
    }
}

/* A share of what is not there is not printed: without VNNI the limit is another instruction's. */
static void print_prefill(const struct engine *e, struct results *r, const struct limits *limits)
{
    double s = 0, best = 0, far_s, last_s;
    char what[64];

    for (size_t i = 0; i < N_CHUNKS && r->prefill[i][0] > 0; i++) {
        snprintf(what, sizeof what, "prefill 512 in chunks of %u", chunks[i]);
        s = print_row(what, r->prefill[i], r->n_rounds, PREFILL, 1);
        best = PREFILL / s > best ? PREFILL / s : best;
    }
    if (best > 0)
        printf("cell prefill512 %.2f\n", best);
    if (best > 0 && limits->int8_gops > 0)
        printf("cell prefill512_of_%s %.4f\n",
               strcmp(limits->int8_method, "vpdpbusd") == 0 ? "vnni" : "maddubs",
               layer_ops(&e->model->hp) * best / (limits->int8_gops * 1e9));
    if (!(r->far[0] > 0))
        return;
    far_s = print_row("prefill 2048 in chunks of 512", r->far, r->n_rounds, FAR, 1);
    last_s = print_row("its last 512", r->last, r->n_rounds, PREFILL, 1);
    printf("cell prefill2048 %.2f\n", FAR / far_s);
    if (s > 0 && limits->fma_gflops > 0)
        printf("cell prefill_attn_of_fma %.4f\n",
               far_attention_ops(&e->model->hp) / (last_s - s) / (limits->fma_gflops * 1e9));
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : getenv("TOKENRING_TEST_MODEL");
    unsigned threads = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    static struct engine e;
    static struct results r;
    struct limits limits;

    r.n_rounds = argc > 4 ? atoi(argv[4]) : ROUNDS_MAX;
    r.cells = argc > 5 ? argv[5] : NULL;
    if (!path || r.n_rounds < 1 || r.n_rounds > ROUNDS_MAX) {
        fprintf(stderr,
                "usage: bench_engine MODEL [THREADS [VARIANT [ROUNDS [CELLS]]]], ROUNDS 1 .. %d\n",
                ROUNDS_MAX);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_engine(&e, path, threads, argc > 3 ? argv[3] : "auto");
    if (limits_measure(&limits, &(struct limits_opt){.n_threads = team_size(e.team)}) < 0) {
        fprintf(stderr, "bench_engine: cannot measure the machine\n");
        return 1;
    }
    printf("%s: reads %.1f GB/s, %s %.0f GOP/s, FMA %.0f GFLOP/s\n", limits.cpu, limits.read_gbs,
           limits.int8_method, limits.int8_gops, limits.fma_gflops);
    printf("limit read_gbs %.2f\nlimit int8_gops %.1f\nlimit fma_gflops %.1f\n", limits.read_gbs,
           limits.int8_gops, limits.fma_gflops);
    run_rounds(&e, &r);
    printf("\nmedian of %d rounds %21s %10s\n", r.n_rounds, "tok/s", "ms");
    print_decode(&e, &r, &limits);
    print_prefill(&e, &r, &limits);
    sampler_free(e.sampler);
    cpu_backend_free(e.backend);
    model_free(e.model);
    team_free(e.team);
    return 0;
}
