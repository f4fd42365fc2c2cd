/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tune/tune.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/clock.h"
#include "runtime/exec/cpu.h"
#include "runtime/kv/page.h"

#define ROWS_MAX    256u  /* of a prompt in one step */
#define STREAMS_MAX 64u   /* that decode in one step */
#define CONTEXT_MAX 8000u /* costs beyond are on a straight line */

/* KV that is taken: what the daemon takes (kv_positions), or what fits so many bytes. */
#define POSITIONS_MAX 32768u
#define KV_BYTES_MAX  ((uint64_t)1 << 30)

/* A cell is measured until it has CELL_TRIES tries and CELL_NS, but no longer than CELL_NS_MAX. */
#define CELL_TRIES     3u
#define CELL_TRIES_MAX 15u
#define CELL_NS        60000000u
#define CELL_NS_MAX    600000000u

static const uint32_t all_rows[] = {1, 2, 4, 8, 16, 32, 64, 128, ROWS_MAX};
static const uint32_t quick_rows[] = {1, 8, 64, ROWS_MAX};
static const uint32_t all_contexts[] = {0, 1024, 4096, CONTEXT_MAX};
static const uint32_t quick_contexts[] = {0, CONTEXT_MAX};

struct tuner {
    const struct tune_opt *opt;
    const struct cpu_kernels *kernels;
    struct team *team;
    struct model *model;
    struct backend *backend;
    uint32_t n_pages;
    uint32_t *pages; /* [n_pages], in order: a sequence has a piece of it */
};

/* ---- what to measure ------------------------------------------------------------------------- */

/* Positions that fit the KV that is taken. */
static uint32_t positions_max(const struct hparams *hp)
{
    uint64_t each =
        (uint64_t)hp->n_layer * hp->n_head_kv * 2 * kv_page_bytes(KV_F16, hp->head_dim) / KERN_PAGE;
    uint64_t n = KV_BYTES_MAX / each;

    return n < POSITIONS_MAX ? (uint32_t)n : POSITIONS_MAX;
}

static void rows_fill(struct step_grid *grid, const struct tuner *t, uint32_t most)
{
    const uint32_t *rows = t->opt->quick ? quick_rows : all_rows;
    size_t n = t->opt->quick ? sizeof quick_rows / sizeof quick_rows[0]
                             : sizeof all_rows / sizeof all_rows[0];

    for (size_t i = 0; i < n; i++)
        if (rows[i] == 1 || (rows[i] <= most && rows[i] <= t->model->n_ctx / 2))
            grid->rows[grid->n_rows++] = rows[i];
}

/* Contexts after which `room` rows still fit the model and the KV; what is too far becomes the
 * furthest that fits. */
static void contexts_fill(struct step_grid *grid, const struct tuner *t, uint32_t room)
{
    const uint32_t *contexts = t->opt->quick ? quick_contexts : all_contexts;
    size_t n = t->opt->quick ? sizeof quick_contexts / sizeof quick_contexts[0]
                             : sizeof all_contexts / sizeof all_contexts[0];
    uint32_t has = t->model->n_ctx < grid->positions_max ? t->model->n_ctx : grid->positions_max;
    uint32_t most = has > room ? has - room : 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t context = contexts[i] < most ? contexts[i] : most;

        if (grid->n_contexts == 0 || context > grid->contexts[grid->n_contexts - 1])
            grid->contexts[grid->n_contexts++] = context;
    }
}

/* Both grids have the same contexts. */
static void grids_fill(struct profile *profile, const struct tuner *t)
{
    struct step_grid *decode = &profile->decode, *prefill = &profile->prefill;

    decode->positions_max = positions_max(&t->model->hp);
    /* One sequence always fits. */
    prefill->positions_max = UINT32_MAX;
    rows_fill(decode, t, STREAMS_MAX);
    rows_fill(prefill, t, ROWS_MAX);
    contexts_fill(decode, t, prefill->rows[prefill->n_rows - 1]);
    prefill->n_contexts = decode->n_contexts;
    memcpy(prefill->contexts, decode->contexts, sizeof prefill->contexts);
}

/* ---- measuring ------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void say(const struct tune_opt *opt,
                                                      const char *format, ...)
{
    char line[256];
    va_list args;

    if (!opt->progress)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    opt->progress(opt->arg, line);
}

static void on_limit(void *arg, const char *what, double value, const char *unit)
{
    say(arg, "%s: %.1f %s", what, value, unit);
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One step as the daemon runs it, but for the choice of each row's token: a greedy one takes half a
 * microsecond. */
static double step_once_ns(const struct tuner *t, const struct step *step)
{
    uint64_t begin = clock_ns();
    const float *logits;

    t->backend->forward(t->backend->self, step, &logits);
    return (double)(clock_ns() - begin);
}

/* The median of some tries. */
static double step_ms(const struct tuner *t, const struct step *step)
{
    double values[CELL_TRIES_MAX], spent = 0;
    uint32_t n = 0;

    do {
        values[n] = step_once_ns(t, step);
        spent += values[n++];
    } while (!t->opt->quick && n < CELL_TRIES_MAX && spent < CELL_NS_MAX &&
             (n < CELL_TRIES || spent < CELL_NS));
    qsort(values, n, sizeof values[0], order);
    return values[(n - 1) / 2] / 1e6;
}

/* Each of n streams gets its next token, after `context` others. */
static double decode_ms(const struct tuner *t, uint32_t n, uint32_t context)
{
    uint32_t tokens[STREAMS_MAX], wanted[STREAMS_MAX];
    struct step_seq seqs[STREAMS_MAX];
    struct step step = {n, tokens, n, seqs, n, wanted, NULL};

    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = i % t->backend->n_vocab;
        wanted[i] = i;
        seqs[i] = (struct step_seq){i, 1, context, t->pages + (size_t)i * pages_for(context + 1)};
    }
    return step_ms(t, &step);
}

/* n rows in the middle of one prompt. */
static double prefill_ms(const struct tuner *t, uint32_t n, uint32_t context)
{
    uint32_t tokens[ROWS_MAX];
    struct step_seq seq = {0, n, context, t->pages};
    struct step step = {.n_rows = n, .tokens = tokens, .n_seqs = 1, .seqs = &seq};

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i % t->backend->n_vocab;
    return step_ms(t, &step);
}

static void grid_measure(struct step_grid *grid, const struct tuner *t, const char *what,
                         double (*cell_ms)(const struct tuner *t, uint32_t n, uint32_t context))
{
    for (uint32_t r = 0; r < grid->n_rows; r++) {
        char line[32 * PROFILE_GRID_MAX];
        int at = 0;

        for (uint32_t c = 0; c < grid->n_contexts; c++) {
            if (!step_grid_measured(grid, r, c))
                continue;
            if (r == 0 && c == 0) /* the first touches code and memory */
                (void)cell_ms(t, grid->rows[r], grid->contexts[c]);
            grid->ms[r][c] = cell_ms(t, grid->rows[r], grid->contexts[c]);
            at += snprintf(line + at, sizeof line - (size_t)at, " %.2f", grid->ms[r][c]);
        }
        say(t->opt, "%s, %" PRIu32 "%s:%s ms", what, grid->rows[r],
            grid->rows[r] == 1 ? " row" : " rows", line);
    }
    step_grid_extend(grid);
}

/* ---- from options to a profile --------------------------------------------------------------- */

static int kernels_take(struct tuner *t, struct diag *diag)
{
    const char *missing = "a feature";

    t->kernels = cpu_kernels_get(t->opt->variant, &missing);
    if (t->kernels)
        return 0;
    diag_set(diag, "this CPU lacks %s for these kernels; use --cpu=auto", missing);
    return -ENOTSUP;
}

static int team_take(struct tuner *t, struct diag *diag)
{
    int err = kernels_take(t, diag);

    return err < 0 ? err : team_open(&t->team, t->opt->threads, diag);
}

static int model_take(struct tuner *t, struct profile_key *key, struct diag *diag)
{
    int err = model_open(&t->model, t->opt->model, 0, t->opt->cache, t->team, diag);

    if (err == 0)
        profile_key_fill(key, t->kernels->name, team_size(t->team), t->model->hash);
    return err;
}

static int backend_take(struct tuner *t, const struct profile *profile, struct diag *diag)
{
    const struct step_grid *decode = &profile->decode, *prefill = &profile->prefill;
    uint32_t furthest = decode->contexts[decode->n_contexts - 1];
    uint32_t rows_max = prefill->rows[prefill->n_rows - 1];
    struct cpu_backend_opt opt = {
        .rows_max = rows_max > STREAMS_MAX ? rows_max : STREAMS_MAX,
        .logits_max = STREAMS_MAX,
        .kv_touch = 1,
    };

    opt.n_pages = pages_for(furthest + rows_max);
    for (uint32_t r = 0; r < decode->n_rows; r++) {
        for (uint32_t c = 0; c < decode->n_contexts; c++) {
            uint32_t pages = decode->rows[r] * pages_for(decode->contexts[c] + 1);

            if (step_grid_measured(decode, r, c) && pages > opt.n_pages)
                opt.n_pages = pages;
        }
    }
    t->pages = calloc(opt.n_pages, sizeof *t->pages);
    if (!t->pages)
        return -ENOMEM;
    for (uint32_t i = 0; i < opt.n_pages; i++)
        t->pages[i] = i;
    return cpu_backend_new(&t->backend, t->model, t->kernels, t->team, &opt, diag);
}

static int steps_measure(struct profile *profile, struct tuner *t, struct diag *diag)
{
    int err = model_take(t, &profile->key, diag);

    if (err < 0)
        return err;
    snprintf(profile->model_name, sizeof profile->model_name, "%s", t->model->name);
    grids_fill(profile, t);
    err = backend_take(t, profile, diag);
    if (err < 0)
        return err;
    say(t->opt, "steps of %s by context (%" PRIu32 " to %" PRIu32 " positions)", t->model->name,
        profile->decode.contexts[0], profile->decode.contexts[profile->decode.n_contexts - 1]);
    grid_measure(&profile->decode, t, "decode", decode_ms);
    grid_measure(&profile->prefill, t, "prefill", prefill_ms);
    return 0;
}

static int limits_take(struct profile *profile, const struct tuner *t, struct diag *diag)
{
    struct limits_opt opt = {
        .n_threads = team_size(t->team),
        .quick = t->opt->quick,
        .progress = on_limit,
        .arg = (void *)(uintptr_t)t->opt,
    };
    int err = cpu_variant_parse(t->kernels->name, &opt.variant);

    if (err == 0)
        err = limits_measure(&profile->limits, &opt);
    if (err == -ENOMEM)
        diag_set(diag, "not enough memory to measure how fast it is read");
    return err;
}

static void tuner_fini(struct tuner *t)
{
    cpu_backend_free(t->backend);
    free(t->pages);
    model_free(t->model);
    team_free(t->team);
}

int tune_run(struct profile *ret_profile, const struct tune_opt *opt, struct diag *diag)
{
    struct profile profile = {.took_s = 0};
    struct tuner t = {.opt = opt};
    uint64_t begin = clock_ns();
    int err = team_take(&t, diag);

    /* Before the model is there: both want memory. */
    if (err == 0)
        err = limits_take(&profile, &t, diag);
    if (err == 0 && opt->model)
        err = steps_measure(&profile, &t, diag);
    tuner_fini(&t);
    if (err < 0)
        return err;
    profile.took_s = (double)(clock_ns() - begin) / 1e9;
    *ret_profile = profile;
    return 0;
}

int tune_key(struct profile_key *ret_key, const struct tune_opt *opt, struct diag *diag)
{
    struct profile_key key = {.threads = 0};
    struct tuner t = {.opt = opt};
    int err = team_take(&t, diag);

    if (err == 0)
        err = model_take(&t, &key, diag);
    tuner_fini(&t);
    if (err == 0)
        *ret_key = key;
    return err;
}
