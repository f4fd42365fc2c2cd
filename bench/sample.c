/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.c - what drawing tokens costs beside the forward pass: bench_sample MODEL [THREADS [VARIANT]]
 *
 * Rows of logits are those of a text of the model's own, 64 positions of it. A line for each way of
 * sampling and number of rows: microseconds a row, and that as a share of a decode step of so many
 * streams, measured here too. Medians.
 */
#include <stdio.h>
#include <stdlib.h>
#include "bench/median.h"
#include "runtime/base/clock.h"
#include "runtime/exec/cpu.h"
#include "runtime/kv/page.h"
#include "runtime/sample/sampler.h"

#define ROWS  64u
#define TRIES 31
#define STEPS 9

static const struct {
    const char *name;
    struct sampling how;
} ways[] = {
    {"greedy", {0}},
    {"top_k 40, top_p 0.95, T 0.8", {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f}},
    {"top_p 0.95, T 0.8", {.temperature = 0.8f, .top_p = 0.95f}},
    {"top_p 0.99, T 1.5", {.temperature = 1.5f, .top_p = 0.99f}},
    {"T 1", {.temperature = 1}},
};
#define N_WAYS (sizeof ways / sizeof ways[0])

static const uint32_t counts[] = {1, 32, 64};
#define N_COUNTS (sizeof counts / sizeof counts[0])

struct bench {
    struct model *model;
    struct team *team;
    struct backend *backend;
    struct sampler *sampler;
    const float *logits; /* [ROWS][n_vocab] */
};

static void open_engine(struct bench *b, const char *path, unsigned threads, const char *variant)
{
    struct cpu_backend_opt opt = {.n_pages = 1 + ROWS, .rows_max = 2 * ROWS, .logits_max = ROWS};
    const char *missing = "unknown variant";
    const struct cpu_kernels *kernels;
    enum cpu_variant which;
    struct diag diag = {""};

    if (cpu_variant_parse(variant, &which) < 0 || !(kernels = cpu_kernels_get(which, &missing))) {
        fprintf(stderr, "bench_sample: %s: %s\n", variant, missing);
        exit(2);
    }
    if (team_new(&b->team, threads) < 0 ||
        model_open(&b->model, path, 0, NULL, b->team, &diag) < 0 ||
        cpu_backend_new(&b->backend, b->model, kernels, b->team, &opt, &diag) < 0 ||
        sampler_new(&b->sampler, b->backend->n_vocab, kernels, b->team) < 0) {
        fprintf(stderr, "bench_sample: %s\n", diag.text);
        exit(1);
    }
    printf("model %s, vocabulary %u, kernels %s, %u threads\n", b->model->name, b->backend->n_vocab,
           kernels->name, team_size(b->team));
}

/* The logits of a text that the model writes. */
static void make_rows(struct bench *b)
{
    static const struct sampling how = {.temperature = 0.8f, .top_p = 0.95f};
    uint32_t ids[ROWS + 1] = {1}, wanted[ROWS], page = 0;
    struct step_seq seq = {.n_rows = 1, .pages = &page};
    struct step step = {1, ids, 1, &seq, 1, wanted, NULL};

    for (uint32_t i = 0; i < ROWS; i++) {
        struct draw draw = {.how = &how, .pos = i};

        wanted[i] = 0;
        step.tokens = &ids[i];
        seq.pos0 = i;
        b->backend->forward(b->backend->self, &step, &b->logits);
        sampler_draw(b->sampler, b->logits, b->backend->block_max, &draw, 1);
        ids[i + 1] = draw.id;
    }
    for (uint32_t i = 0; i < ROWS; i++)
        wanted[i] = i;
    seq = (struct step_seq){.n_rows = ROWS, .pages = &page};
    step = (struct step){ROWS, ids, 1, &seq, ROWS, wanted, NULL};
    b->backend->forward(b->backend->self, &step, &b->logits);
}

/* Microseconds of a step in which n streams decode their second token. */
static double step_us(const struct bench *b, uint32_t n)
{
    uint32_t ids[ROWS] = {0}, wanted[ROWS], pages[ROWS];
    struct step_seq seqs[ROWS];
    struct step step = {n, ids, n, seqs, n, wanted, NULL};
    const float *logits;
    double values[STEPS];

    for (uint32_t i = 0; i < n; i++) {
        wanted[i] = i;
        pages[i] = 1 + i;
        seqs[i] = (struct step_seq){i, 1, 1, &pages[i]};
    }
    for (int t = 0; t < STEPS; t++) {
        uint64_t begin = clock_ns();

        b->backend->forward(b->backend->self, &step, &logits);
        values[t] = (double)(clock_ns() - begin) / 1e3;
    }
    return median(values, STEPS);
}

/* Microseconds in which n rows at a time are drawn, until all of them were. */
static double draw_us(const struct bench *b, const struct sampling *how, uint32_t n)
{
    size_t n_max = (b->backend->n_vocab + KERN_TOP - 1) / KERN_TOP;
    struct draw draws[ROWS];
    double values[TRIES];

    for (int t = 0; t < TRIES; t++) {
        uint64_t begin = clock_ns();

        for (uint32_t at = 0; at < ROWS; at += n) {
            for (uint32_t i = 0; i < n; i++)
                draws[i] = (struct draw){.how = how, .pos = at + i};
            sampler_draw(b->sampler, b->logits + (size_t)at * b->backend->n_vocab,
                         b->backend->block_max + at * n_max, draws, n);
        }
        values[t] = (double)(clock_ns() - begin) / 1e3;
    }
    return median(values, TRIES) * n / ROWS;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    double steps[N_COUNTS];

    if (argc < 2) {
        fprintf(stderr, "usage: bench_sample MODEL [THREADS [VARIANT]]\n");
        return 2;
    }
    open_engine(&b, argv[1], argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0,
                argc > 3 ? argv[3] : "auto");
    for (size_t i = 0; i < N_COUNTS; i++) {
        steps[i] = step_us(&b, counts[i]);
        printf("decode step of %2u rows %29.1f us\n", counts[i], steps[i]);
    }
    make_rows(&b);
    for (size_t w = 0; w < N_WAYS; w++)
        for (size_t i = 0; i < N_COUNTS; i++) {
            double us = draw_us(&b, &ways[w].how, counts[i]);

            printf("%-30s %2u rows %8.2f us a row, %5.2f %% of a step\n", ways[w].name, counts[i],
                   us / counts[i], 100 * us / steps[i]);
        }
    sampler_free(b.sampler);
    cpu_backend_free(b.backend);
    model_free(b.model);
    team_free(b.team);
    return 0;
}
