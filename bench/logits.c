/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logits.c - every row of logits of a text, for quality.py:
 * bench_logits MODEL WINDOW THREADS VARIANT <IDS >ROWS
 *
 * IDS are uint32_t, ROWS floats [ids][n_vocab], both as this machine stores them. The ids are cut into
 * windows, each a sequence of its own. TOKENRING_KV_TYPE (f16, q8) says how keys and values are kept.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/exec/cpu.h"
#include "runtime/kv/page.h"

#define ROWS_MAX   256u
#define WINDOW_MAX 8192u
#define N_PAGES    (WINDOW_MAX / KV_PAGE)

struct engine {
    struct team *team;
    struct model *model;
    struct backend *backend;
};

static void engine_open(struct engine *e, const char *path, const char *threads,
                        const char *variant)
{
    struct cpu_backend_opt opt = {.n_pages = N_PAGES, .rows_max = ROWS_MAX, .logits_max = ROWS_MAX};
    const struct cpu_kernels *kernels;
    const char *kv = getenv("TOKENRING_KV_TYPE");
    enum cpu_variant which;
    const char *missing = "unknown variant";
    struct diag diag = {""};

    if (cpu_variant_parse(variant, &which) < 0 || !(kernels = cpu_kernels_get(which, &missing))) {
        fprintf(stderr, "bench_logits: %s: %s\n", variant, missing);
        exit(2);
    }
    if (kv && kv_type_parse(kv, &opt.kv_type) < 0) {
        fprintf(stderr, "bench_logits: TOKENRING_KV_TYPE: %s, expected f16 or q8\n", kv);
        exit(2);
    }
    if (team_new(&e->team, (unsigned)strtoul(threads, NULL, 10)) < 0 ||
        model_open(&e->model, path, 0, NULL, e->team, &diag) < 0 ||
        cpu_backend_new(&e->backend, e->model, kernels, e->team, &opt, &diag) < 0) {
        fprintf(stderr, "bench_logits: %s\n", diag.text);
        exit(1);
    }
}

/* Rows of one window, at most ROWS_MAX of them a step. 0, or -EIO when nobody reads them any more. */
static int window_write(const struct engine *e, const uint32_t *ids, uint32_t n)
{
    static uint32_t pages[N_PAGES], rows[ROWS_MAX];

    for (uint32_t i = 0; i < N_PAGES; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        rows[i] = i;
    for (uint32_t pos = 0; pos < n; pos += ROWS_MAX) {
        uint32_t n_rows = n - pos < ROWS_MAX ? n - pos : ROWS_MAX;
        struct step_seq seq = {0, n_rows, pos, pages};
        struct step step = {n_rows, ids + pos, 1, &seq, n_rows, rows, NULL};
        size_t n_values = (size_t)n_rows * e->backend->n_vocab;
        const float *logits;

        e->backend->forward(e->backend->self, &step, &logits);
        if (fwrite(logits, sizeof *logits, n_values, stdout) != n_values)
            return -EIO;
    }
    return 0;
}

static int ids_known(const uint32_t *ids, size_t n, uint32_t n_vocab)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_vocab)
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    uint32_t window = argc == 5 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    static uint32_t ids[WINDOW_MAX];
    struct engine e;
    size_t n;
    int err = 0;

    if (window < 1 || window > WINDOW_MAX) {
        fprintf(stderr,
                "usage: bench_logits MODEL WINDOW THREADS VARIANT <IDS >ROWS, WINDOW 1 .. %u\n",
                WINDOW_MAX);
        return 2;
    }
    engine_open(&e, argv[1], argv[3], argv[4]);
    while (err == 0 && (n = fread(ids, sizeof *ids, window, stdin)) > 0)
        err = ids_known(ids, n, e.backend->n_vocab) ? window_write(&e, ids, (uint32_t)n) : -EINVAL;
    if (err == 0 && fflush(stdout) != 0)
        err = -EIO;
    if (err < 0)
        fprintf(stderr, "bench_logits: %s\n", strerror(-err));
    cpu_backend_free(e.backend);
    model_free(e.model);
    team_free(e.team);
    return err < 0;
}
