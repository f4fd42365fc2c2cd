/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tune/profile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/team.h"

#define ROWS_MAX    65536
#define CONTEXT_MAX (1 << 30)
#define FIGURE_MAX  1e9 /* of a limit, in its own unit */

/* ---- steps ----------------------------------------------------------------------------------- */

/* Where x is on an axis of n points: between points *ret_low and *ret_low + 1, at that part of the
 * way, which is above 1 beyond the last. */
static double place(const uint32_t *axis, uint32_t n, uint32_t x, uint32_t *ret_low)
{
    uint32_t low = 0;

    *ret_low = 0;
    if (n < 2 || x <= axis[0])
        return 0;
    while (low + 2 < n && x >= axis[low + 1])
        low++;
    *ret_low = low;
    return ((double)x - axis[low]) / ((double)axis[low + 1] - axis[low]);
}

/* At `part` of the way from a to b. */
static double between(double a, double b, double part)
{
    double value = a + (b - a) * part;

    return part > 1 && value < b ? b : value;
}

double profile_step_ms(const struct step_grid *grid, uint32_t rows, uint32_t context)
{
    uint32_t r, c;
    double along_rows = place(grid->rows, grid->n_rows, rows, &r);
    double along_contexts = place(grid->contexts, grid->n_contexts, context, &c);
    uint32_t next_r = r + 1 < grid->n_rows ? r + 1 : r;
    uint32_t next_c = c + 1 < grid->n_contexts ? c + 1 : c;

    return between(between(grid->ms[r][c], grid->ms[r][next_c], along_contexts),
                   between(grid->ms[next_r][c], grid->ms[next_r][next_c], along_contexts),
                   along_rows);
}

int step_grid_measured(const struct step_grid *grid, uint32_t row, uint32_t context)
{
    return (uint64_t)grid->rows[row] * grid->contexts[context] <= grid->positions_max;
}

void step_grid_extend(struct step_grid *grid)
{
    for (uint32_t c = 0; c < grid->n_contexts; c++) {
        uint32_t last = 0;

        for (uint32_t r = 0; r < grid->n_rows; r++) {
            double attention = grid->ms[last][c] - grid->ms[last][0];

            if (step_grid_measured(grid, r, c))
                last = r;
            else
                grid->ms[r][c] = grid->ms[r][0] +
                                 (attention > 0 ? attention : 0) * grid->rows[r] / grid->rows[last];
        }
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

static void hex_write(char *ret, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

void profile_key_fill(struct profile_key *ret_key, const char *variant, uint32_t threads,
                      const uint8_t model[32])
{
    memset(ret_key, 0, sizeof *ret_key);
    cpus_name(ret_key->cpu, sizeof ret_key->cpu);
    snprintf(ret_key->variant, sizeof ret_key->variant, "%s", variant);
    ret_key->threads = threads;
    memcpy(ret_key->model, model, sizeof ret_key->model);
}

void profile_name(char ret[PROFILE_NAME_BYTES], const struct profile_key *key)
{
    char all[sizeof key->cpu + sizeof key->variant + 2 * sizeof key->model + 32];
    char hash[2 * sizeof key->model + 1], hex[2 * DIGEST_BYTES + 1];
    uint8_t digest[DIGEST_BYTES];
    int n;

    hex_write(hash, key->model, sizeof key->model);
    n = snprintf(all, sizeof all, "%s\n%s\n%" PRIu32 "\n%s", key->cpu, key->variant, key->threads,
                 hash);
    digest_bytes(digest, all, (size_t)n);
    hex_write(hex, digest, sizeof digest);
    snprintf(ret, PROFILE_NAME_BYTES, "tune-%s.json", hex);
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *axis_json(const uint32_t *axis, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(axis[i]));
    return list;
}

static json_t *grid_json(const struct step_grid *grid)
{
    json_t *ms = json_array();

    for (uint32_t r = 0; r < grid->n_rows; r++) {
        json_t *line = json_array();

        for (uint32_t c = 0; c < grid->n_contexts; c++)
            json_array_append_new(line, json_real(grid->ms[r][c]));
        json_array_append_new(ms, line);
    }
    return json_pack("{s:o, s:o, s:I, s:o}", "rows", axis_json(grid->rows, grid->n_rows),
                     "contexts", axis_json(grid->contexts, grid->n_contexts), "positions_max",
                     (json_int_t)grid->positions_max, "ms", ms);
}

static json_t *limits_json(const struct limits *l)
{
    return json_pack("{s:f, s:f, s:s, s:f, s:f, s:f}", "read_one_gbs", l->read_one_gbs, "read_gbs",
                     l->read_gbs, "int8_method", l->int8_method, "int8_gops", l->int8_gops,
                     "fma_gflops", l->fma_gflops, "barrier_ns", l->barrier_ns);
}

/* A name from a model file need not be UTF-8, which JSON is. */
static json_t *name_json(const char *name)
{
    char ascii[sizeof((struct profile *)0)->model_name];
    json_t *text = json_string(name);

    if (text)
        return text;
    snprintf(ascii, sizeof ascii, "%s", name);
    for (char *c = ascii; *c; c++)
        if ((unsigned char)*c > 0x7f)
            *c = '?';
    return json_string(ascii);
}

char *profile_text(const struct profile *profile)
{
    const struct profile_key *key = &profile->key;
    char hash[2 * sizeof key->model + 1], *text, *line = NULL;
    json_t *root;

    hex_write(hash, key->model, sizeof key->model);
    root =
        json_pack("{s:I, s:s, s:s, s:I, s:o, s:s, s:f, s:o, s:o, s:o}", "version",
                  (json_int_t)PROFILE_VERSION, "cpu", key->cpu, "variant", key->variant, "threads",
                  (json_int_t)key->threads, "model", name_json(profile->model_name), "model_hash",
                  hash, "took_s", profile->took_s, "limits", limits_json(&profile->limits),
                  "decode", grid_json(&profile->decode), "prefill", grid_json(&profile->prefill));
    text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(root);
    if (text && asprintf(&line, "%s\n", text) < 0)
        line = NULL;
    free(text);
    return line;
}

/* ---- reading --------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static int wrong(struct diag *ret_why, const char *format,
                                                       ...)
{
    char text[128];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    diag_set(ret_why, "%s", text);
    return -EINVAL;
}

static int text_take(char *ret, size_t bytes, const char *text, const char *name,
                     struct diag *ret_why)
{
    if (strlen(text) >= bytes)
        return wrong(ret_why, "has a %s of %zu bytes, at most %zu are expected", name, strlen(text),
                     bytes - 1);
    strcpy(ret, text);
    return 0;
}

static int hash_take(uint8_t ret[32], const char *text, struct diag *ret_why)
{
    if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)
        return wrong(ret_why, "has a model_hash that is not 64 hexadecimal digits");
    for (int i = 0; i < 32; i++)
        (void)sscanf(text + 2 * i, "%2" SCNx8, &ret[i]);
    return 0;
}

/* Whole numbers of [least, most], ascending. */
static int axis_take(uint32_t *ret_axis, uint32_t *ret_n, const json_t *list, json_int_t least,
                     json_int_t most, const char *name, struct diag *ret_why)
{
    size_t n = json_array_size(list);

    if (n < 1 || n > PROFILE_GRID_MAX)
        return wrong(ret_why, "has %s that are no list of 1 .. %u numbers", name, PROFILE_GRID_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t value = json_integer_value(item);

        if (!json_is_integer(item) || value < least || value > most)
            return wrong(ret_why, "has %s outside %lld .. %lld", name, (long long)least,
                         (long long)most);
        ret_axis[i] = (uint32_t)value;
        least = value + 1;
    }
    *ret_n = (uint32_t)n;
    return 0;
}

static int cells_take(struct step_grid *grid, const json_t *ms, const char *name,
                      struct diag *ret_why)
{
    if (json_array_size(ms) != grid->n_rows)
        return wrong(ret_why, "has %zu lines of %s for %u rows", json_array_size(ms), name,
                     grid->n_rows);
    for (uint32_t r = 0; r < grid->n_rows; r++) {
        const json_t *line = json_array_get(ms, r);

        if (json_array_size(line) != grid->n_contexts)
            return wrong(ret_why, "has %zu numbers in a line of %s for %u contexts",
                         json_array_size(line), name, grid->n_contexts);
        for (uint32_t c = 0; c < grid->n_contexts; c++) {
            const json_t *cell = json_array_get(line, c);
            double value = json_number_value(cell);

            /* Also false for what is not a number. */
            if (!(json_is_number(cell) && value > 0 && value <= PROFILE_MS_MAX))
                return wrong(ret_why, "has a step of %s outside 0 .. %g ms", name, PROFILE_MS_MAX);
            grid->ms[r][c] = value;
        }
    }
    return 0;
}

static int grid_take(struct step_grid *grid, json_t *object, const char *name, struct diag *ret_why)
{
    const json_t *rows, *contexts, *ms;
    json_int_t positions_max;
    json_error_t error;
    int err;

    if (json_unpack_ex(object, &error, JSON_STRICT, "{s:o, s:o, s:I, s:o}", "rows", &rows,
                       "contexts", &contexts, "positions_max", &positions_max, "ms", &ms) < 0)
        return wrong(ret_why, "has in %s: %.80s", name, error.text);
    if (positions_max < 0 || positions_max > UINT32_MAX)
        return wrong(ret_why, "has positions_max outside 0 .. %" PRIu32, UINT32_MAX);
    grid->positions_max = (uint32_t)positions_max;
    err = axis_take(grid->rows, &grid->n_rows, rows, 1, ROWS_MAX, "rows", ret_why);
    if (err == 0)
        err = axis_take(grid->contexts, &grid->n_contexts, contexts, 0, CONTEXT_MAX, "contexts",
                        ret_why);
    return err < 0 ? err : cells_take(grid, ms, name, ret_why);
}

static int limits_take(struct limits *l, json_t *object, struct diag *ret_why)
{
    const double *const figures[] = {&l->read_one_gbs, &l->read_gbs, &l->int8_gops, &l->fma_gflops,
                                     &l->barrier_ns};
    const char *method;
    json_error_t error;

    if (json_unpack_ex(object, &error, JSON_STRICT, "{s:F, s:F, s:s, s:F, s:F, s:F}",
                       "read_one_gbs", &l->read_one_gbs, "read_gbs", &l->read_gbs, "int8_method",
                       &method, "int8_gops", &l->int8_gops, "fma_gflops", &l->fma_gflops,
                       "barrier_ns", &l->barrier_ns) < 0)
        return wrong(ret_why, "has in limits: %.80s", error.text);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        if (!(*figures[i] >= 0 && *figures[i] <= FIGURE_MAX))
            return wrong(ret_why, "has a limit outside 0 .. %g", FIGURE_MAX);
    return text_take(l->int8_method, sizeof l->int8_method, method, "int8_method", ret_why);
}

static int fields_take(struct profile *p, json_t *root, struct diag *ret_why)
{
    const char *cpu, *variant, *model, *hash;
    json_t *limits, *decode, *prefill;
    json_int_t version, threads;
    json_error_t error;
    int err;

    /* Alone and first: what else a file of another version has is not ours to judge. */
    if (json_unpack_ex(root, &error, 0, "{s:I}", "version", &version) < 0)
        return wrong(ret_why, "is not a profile: %.80s", error.text);
    if (version != PROFILE_VERSION)
        return wrong(ret_why, "has version %lld, this program reads %u", (long long)version,
                     PROFILE_VERSION);
    if (json_unpack_ex(root, &error, JSON_STRICT,
                       "{s:I, s:s, s:s, s:I, s:s, s:s, s:F, s:o, s:o, s:o}", "version", &version,
                       "cpu", &cpu, "variant", &variant, "threads", &threads, "model", &model,
                       "model_hash", &hash, "took_s", &p->took_s, "limits", &limits, "decode",
                       &decode, "prefill", &prefill) < 0)
        return wrong(ret_why, "is not a profile: %.80s", error.text);
    if (threads < 1 || threads > TEAM_MAX)
        return wrong(ret_why, "has %lld threads, expected 1 .. %d", (long long)threads, TEAM_MAX);
    p->key.threads = p->limits.n_threads = (uint32_t)threads;
    if (!(p->took_s >= 0 && p->took_s <= FIGURE_MAX))
        return wrong(ret_why, "has took_s outside 0 .. %g", FIGURE_MAX);
    err = text_take(p->key.cpu, sizeof p->key.cpu, cpu, "cpu", ret_why);
    if (err == 0)
        err = text_take(p->key.variant, sizeof p->key.variant, variant, "variant", ret_why);
    if (err == 0)
        err = text_take(p->model_name, sizeof p->model_name, model, "model", ret_why);
    if (err == 0)
        err = hash_take(p->key.model, hash, ret_why);
    if (err == 0)
        err = limits_take(&p->limits, limits, ret_why);
    if (err == 0)
        err = grid_take(&p->decode, decode, "decode", ret_why);
    if (err == 0)
        err = grid_take(&p->prefill, prefill, "prefill", ret_why);
    strcpy(p->limits.cpu, p->key.cpu);
    return err;
}

int profile_parse(struct profile *ret_profile, const char *text, size_t n, struct diag *ret_why)
{
    struct profile profile = {.took_s = 0};
    json_error_t error;
    json_t *root;
    int err;

    if (n > PROFILE_BYTES_MAX)
        return wrong(ret_why, "has %zu bytes, a profile has at most %u", n, PROFILE_BYTES_MAX);
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return wrong(ret_why, "is not JSON: line %d: %.80s", error.line, error.text);
    err = fields_take(&profile, root, ret_why);
    json_decref(root);
    if (err == 0)
        *ret_profile = profile;
    return err;
}
