/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringctl_tune.c - `ringctl tune`: measures, keeps and shows profiles (runtime/tune/profile.h).
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/team.h"
#include "runtime/cache_path.h"
#include "runtime/tune/tune.h"
#include "tools/ringctl.h"

#define STREAMS_MAX 64u /* of the table of tokens a second */
#define PATH_BYTES  4096u

enum { KEY_MODEL = 0x100, KEY_THREADS, KEY_CPU, KEY_CACHE, KEY_OUT, KEY_QUICK, KEY_JSON, KEY_SHOW };

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "FILE", 0,
     "GGUF file whose steps are measured; without it the machine's limits alone", 0},
    {"threads", KEY_THREADS, "N", 0,
     "Engine threads (default: one a core of those allowed, as tokenringd)", 0},
    {"cpu", KEY_CPU, "VARIANT", 0, "Kernels: auto, ref, avx2, avxvnni or avx512", 0},
    {"cache", KEY_CACHE, "FOLDER", 0,
     "Where profiles and packed weights are kept, as tokenringd's --cache (default: "
     "$XDG_CACHE_HOME/tokenring, "
     "else ~/.cache/tokenring)",
     0},
    {"out", KEY_OUT, "FILE", 0, "Keep the profile there instead", 0},
    {"quick", KEY_QUICK, NULL, 0, "In seconds, and rough: fewer sizes, each once", 0},
    {"json", KEY_JSON, NULL, 0, "Print the profile as one line of JSON", 0},
    {"show", KEY_SHOW, "FILE", OPTION_ARG_OPTIONAL,
     "Measure nothing: print the profile that is kept for --model, --threads and --cpu, or "
     "--show=FILE",
     0},
    {0},
};

struct line {
    struct tune_opt tune;
    const char *cache, *out, *shown; /* shown: a file, or NULL: the one that is kept */
    int json, show;
};

static void threads_take(struct line *line, const char *arg, struct argp_state *state)
{
    char *end;
    unsigned long n = strtoul(arg, &end, 10);

    if (arg[0] < '0' || arg[0] > '9' || *end || n < 1 || n > TEAM_MAX)
        argp_error(state, "--threads is 1 to %d, not '%s'", TEAM_MAX, arg);
    line->tune.threads = (uint32_t)n;
}

/* What does not go together. */
static void line_check(const struct line *line, struct argp_state *state)
{
    if (line->show && (line->out || line->tune.quick))
        argp_error(state, "--show measures nothing: leave --out and --quick away");
    if (line->show && !line->shown && !line->tune.model)
        argp_error(state, "--show of which model? Add --model FILE, or say --show=FILE");
    if (line->shown && line->tune.model)
        argp_error(state, "--show=FILE or --model FILE, not both");
    if (!line->show && !line->tune.model && (line->out || line->json))
        argp_error(state, "a profile is of a model: add --model FILE");
    if (line->tune.model && strncmp(line->tune.model, "echo:", 5) == 0)
        argp_error(state, "--model %s computes nothing: there is nothing to measure",
                   line->tune.model);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct line *line = state->input;

    switch (key) {
    case KEY_MODEL:
        line->tune.model = arg;
        return 0;
    case KEY_THREADS:
        threads_take(line, arg, state);
        return 0;
    case KEY_CPU:
        if (cpu_variant_parse(arg, &line->tune.variant) < 0)
            argp_error(state, "--cpu is auto, ref, avx2, avxvnni or avx512, not '%s'", arg);
        return 0;
    case KEY_CACHE:
        if (arg[0] != '/')
            argp_error(state, "--cache is an absolute path, not '%s'", arg);
        line->cache = arg;
        return 0;
    case KEY_OUT:
        line->out = arg;
        return 0;
    case KEY_QUICK:
        line->tune.quick = 1;
        return 0;
    case KEY_JSON:
        line->json = 1;
        return 0;
    case KEY_SHOW:
        line->show = 1;
        line->shown = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (line->show)
            argp_error(state, "unexpected argument '%s'; a file is --show=%s", arg, arg);
        argp_error(state, "unexpected argument '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        line_check(line, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .doc = "Measures what this machine can do (reading memory, 8-bit and float arithmetic, a "
           "barrier) and, with "
           "--model, what a step of the engine costs by rows and by the positions before them. "
           "That takes under a "
           "minute with a small model; nothing else should run meanwhile.\v"
           "The profile is kept for this CPU, these kernels, this number of threads and this "
           "model; tokenringd "
           "says at start whether it has one (profile=tuned). Progress goes to standard error.\n\n"
           "Examples:\n"
           "  ringctl tune                                       limits of this machine\n"
           "  ringctl tune --model M.gguf                        measures and keeps a profile\n"
           "  ringctl tune --model M.gguf --show                 prints it again\n"
           "  sudo ringctl tune --model M.gguf --cache /var/cache/tokenring    for the service\n\n"
           "Exit codes: 0 done, 1 it could not be measured, kept or read (why was said), 2 wrong "
           "command line.",
};

/* ---- the table ------------------------------------------------------------------------------- */

static void contexts_print(const char *what, const struct step_grid *grid)
{
    printf("\n%-25s", what);
    for (uint32_t c = 0; c < grid->n_contexts; c++) {
        char head[16];

        snprintf(head, sizeof head, "at %" PRIu32, grid->contexts[c]);
        printf(" %9s", head);
    }
    printf("\n");
}

static void grid_print(const char *what, const struct step_grid *grid)
{
    int computed = 0;

    contexts_print(what, grid);
    for (uint32_t r = 0; r < grid->n_rows; r++) {
        printf("%25" PRIu32, grid->rows[r]);
        for (uint32_t c = 0; c < grid->n_contexts; c++) {
            int measured = step_grid_measured(grid, r, c);

            printf(" %c%8.2f", measured ? ' ' : '~', grid->ms[r][c]);
            computed |= !measured;
        }
        printf("\n");
    }
    if (computed)
        printf("~ computed: so many positions are not held at once\n");
}

static void streams_print(const struct step_grid *decode)
{
    contexts_print("decode, N streams: tok/s", decode);
    for (uint32_t n = 1; n <= STREAMS_MAX; n *= 2) {
        printf("%25" PRIu32, n);
        for (uint32_t c = 0; c < decode->n_contexts; c++)
            printf(" %9.1f", n * 1e3 / profile_step_ms(decode, n, decode->contexts[c]));
        printf("\n");
    }
}

static void limits_print(const struct limits *l)
{
    printf("read      %.1f GB/s by one thread, %.1f by all\n", l->read_one_gbs, l->read_gbs);
    if (l->int8_gops > 0)
        printf("int8      %.0f GOP/s (%s)\n", l->int8_gops, l->int8_method);
    if (l->fma_gflops > 0)
        printf("float     %.0f GFLOP/s (fused multiply-add)\n", l->fma_gflops);
    if (l->barrier_ns > 0)
        printf("barrier   %.0f ns\n", l->barrier_ns);
}

static void profile_print(const struct profile *p)
{
    printf("model     %s  ", p->model_name);
    for (int i = 0; i < 6; i++)
        printf("%02x", p->key.model[i]);
    printf("\ncpu       %s, %s, %" PRIu32 " %s\n", p->key.cpu, p->key.variant, p->key.threads,
           p->key.threads == 1 ? "thread" : "threads");
    limits_print(&p->limits);
    printf("measured  in %.1f s\n", p->took_s);
    grid_print("decode, N streams: ms", &p->decode);
    grid_print("prefill, N rows: ms", &p->prefill);
    streams_print(&p->decode);
}

/* An exit code. */
static int output_end(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return RINGCTL_OK;
    complain("cannot write to standard output");
    return RINGCTL_FAILED;
}

static int profile_show(const struct profile *profile, int json)
{
    char *text = json ? profile_text(profile) : NULL;

    if (json && !text) {
        complain("out of memory");
        return RINGCTL_FAILED;
    }
    if (json)
        fputs(text, stdout);
    else
        profile_print(profile);
    free(text);
    return output_end();
}

/* ---- the commands ---------------------------------------------------------------------------- */

static void on_progress(void *arg, const char *text)
{
    (void)arg;
    complain("%s", text);
}

static int show_run(const struct line *line)
{
    struct profile_key key;
    struct profile profile;
    struct diag diag = {""};
    int err;

    if (line->shown) {
        err = profile_read(&profile, line->shown, &diag);
        if (err == -ENOENT)
            diag_set(&diag, "%s: no such file", line->shown);
    } else {
        err = tune_key(&key, &line->tune, &diag);
        if (err == 0) {
            err = profile_load(&profile, line->cache, &key, &diag);
            if (err == -ENOENT)
                diag_set(&diag,
                         "%s has no profile of this model with %s and %" PRIu32
                         " threads on this CPU; measure one: ringctl tune --model %s",
                         line->cache, key.variant, key.threads, line->tune.model);
        }
    }
    if (err == 0)
        return profile_show(&profile, line->json);
    complain("%s", diag.text[0] ? diag.text : strerror(-err));
    return RINGCTL_FAILED;
}

static int measure_run(struct line *line)
{
    char path[PATH_BYTES];
    struct profile profile;
    struct diag diag = {""};
    int err, code;

    line->tune.progress = on_progress;
    err = tune_run(&profile, &line->tune, &diag);
    if (err < 0) {
        complain("%s", diag.text[0] ? diag.text : strerror(-err));
        return RINGCTL_FAILED;
    }
    complain("measured in %.1f s", profile.took_s);
    if (!line->tune.model) {
        printf("cpu       %s, %u %s\n", profile.limits.cpu, profile.limits.n_threads,
               profile.limits.n_threads == 1 ? "thread" : "threads");
        limits_print(&profile.limits);
        return output_end();
    }
    code = profile_show(&profile, line->json);
    snprintf(path, sizeof path, "%s", line->out ? line->out : "");
    err = line->out ? profile_write(&profile, path, &diag)
                    : profile_save(&profile, line->cache, path, sizeof path, &diag);
    if (err < 0) {
        complain("%s", diag.text);
        return RINGCTL_FAILED;
    }
    complain("the profile is in %s", path);
    return code;
}

int tune_main(int argc, char **argv)
{
    struct line line = {.show = 0};
    char cache[PATH_BYTES];

    argp_parse(&argp, argc, argv, 0, NULL, &line);
    if (!line.cache && cache_path_default(cache, sizeof cache) == 0)
        line.cache = cache;
    if (!line.cache && line.tune.model && !line.out) {
        complain(
            "there is no place for profiles: set HOME or XDG_CACHE_HOME, or add --cache FOLDER");
        return RINGCTL_FAILED;
    }
    line.tune.cache = line.cache;
    return line.show ? show_run(&line) : measure_run(&line);
}
