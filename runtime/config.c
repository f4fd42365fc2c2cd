/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config.h"

#include <ctype.h>
#include <cyaml/cyaml.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/access.h"
#include "shm/abi.h"

#define CONFIG_STRING_MAX     4096
#define CONFIG_FILE_BYTES_MAX (1 << 20)

/*
 * Every setting: name, kind, and for numbers the default and the range. libcyaml hands each value
 * over as text, since its own numbers take "2.5" for 2 and "1024k" for 1024; number_set() takes
 * whole decimal numbers only.
 */
#define SETTINGS(X)                                                                                \
    X(model, TEXT, 0, 0, 0)                                                                        \
    X(socket, TEXT, 0, 0, 0)                                                                       \
    X(cache, TEXT, 0, 0, 0)                                                                        \
    X(cpu, TEXT, 0, 0, 0)                                                                          \
    X(kv_type, TEXT, 0, 0, 0)                                                                      \
    X(socket_mode, TEXT, 0, 0, 0)                                                                  \
    X(io, TEXT, 0, 0, 0)                                                                           \
    X(doorbell, TEXT, 0, 0, 0)                                                                     \
    X(allow, TEXT, 0, 0, 0)                                                                        \
    X(trusted, TEXT, 0, 0, 0)                                                                      \
    X(user_clients_max, NUMBER, 1024, 0, 4096)                                                     \
    X(user_requests_max, NUMBER, 0, 0, 1u << 20)                                                   \
    X(user_queued_max, NUMBER, 0, 0, 65536)                                                        \
    X(user_kv_positions_max, NUMBER, 0, 0, 1u << 26)                                               \
    X(user_prompt_tokens_max, NUMBER, 0, 0, 1u << 30)                                              \
    X(user_memory_mib_max, NUMBER, 0, 0, 1u << 20)                                                 \
    X(user_attaches_per_s, NUMBER, 0, 0, 1u << 20)                                                 \
    X(user_class_max, TEXT, 0, 0, 0)                                                               \
    X(threads, NUMBER, 0, 0, 256)                                                                  \
    X(ctx, NUMBER, 0, 0, 1u << 20)                                                                 \
    X(running_max, NUMBER, 64, 1, 1024)                                                            \
    X(queued_max, NUMBER, 500, 1, 65536)                                                           \
    X(kv_positions, NUMBER, 32768, 64, 1u << 26)                                                   \
    X(kv_prefault, BOOL, 0, 0, 1)                                                                  \
    X(chunk_rows, NUMBER, 128, 1, 4096)                                                            \
    X(prompt_bytes_max, NUMBER, 2u << 20, 64, 64u << 20)                                           \
    X(clients_max, NUMBER, 4096, 1, 4096)                                                          \
    X(inflight_max, NUMBER, 256, 1, TKR_INFLIGHT_MAX)                                              \
    X(arena_mib_max, NUMBER, 16, 1, 1024)                                                          \
    X(bulk_mib_max, NUMBER, 16, 1, 1024)                                                           \
    X(require_mlock, BOOL, 0, 0, 1)                                                                \
    X(idle_park_us, NUMBER, 50, 1, 1000000)                                                        \
    X(client_requests_max, NUMBER, 0, 0, 65536)                                                    \
    X(client_queued_max, NUMBER, 0, 0, 65536)                                                      \
    X(client_kv_positions_max, NUMBER, 0, 0, 1u << 26)                                             \
    X(client_prompt_tokens_max, NUMBER, 0, 0, 1u << 30)                                            \
    X(lag_tokens_max, NUMBER, 256, 1, 1u << 20)                                                    \
    X(lag_timeout_ms, NUMBER, 10000, 1, 3600000)                                                   \
    X(drain_s, NUMBER, 10, 1, 3600)

enum kind {
    TEXT,   /* char * */
    NUMBER, /* uint32_t */
    BOOL    /* int: true or false */
};

struct setting {
    const char *name;
    enum kind kind;
    size_t offset; /* in struct config */
    uint32_t preset, min, max;
};

#define SETTING(name, kind, preset, min, max)                                                      \
    {#name, kind, offsetof(struct config, name), preset, min, max},
static const struct setting settings[] = {SETTINGS(SETTING)};
#define N_SETTINGS (sizeof settings / sizeof settings[0])

/* What the file says, as text; NULL: nothing. In the order of `settings`. */
#define VALUE(name, kind, preset, min, max) char *name;
struct values {
    SETTINGS(VALUE)
};

#define FIELD(name, kind, preset, min, max)                                                        \
    CYAML_FIELD_STRING_PTR(#name, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct values, name,   \
                           0, CONFIG_STRING_MAX),
static const cyaml_schema_field_t value_fields[] = {SETTINGS(FIELD) CYAML_FIELD_END};

static const cyaml_schema_value_t values_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct values, value_fields),
};

void config_init(struct config *config)
{
    memset(config, 0, sizeof *config);
}

void config_fini(struct config *config)
{
    free(config->model);
    free(config->socket);
    free(config->cache);
    free(config->cpu);
    free(config->kv_type);
    free(config->socket_mode);
    free(config->io);
    free(config->doorbell);
    free(config->allow);
    free(config->trusted);
    free(config->user_class_max);
    memset(config, 0, sizeof *config);
}

/* ---- errors of the YAML reader: its first message, and the innermost place of its backtrace -- */

struct yaml_error {
    char what[256];
    unsigned line, column;
};

__attribute__((format(printf, 3, 0))) static void yaml_log(cyaml_log_t level, void *ctx,
                                                           const char *format, va_list args)
{
    struct yaml_error *error = ctx;
    char text[256];
    const char *at;
    unsigned line, column;

    (void)level;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    at = strstr(text, "(line: ");
    if (!at)
        at = strstr(text, "line ");
    if (at && !error->line) {
        if (sscanf(at, "(line: %u, column: %u)", &line, &column) == 2 ||
            sscanf(at, "line %u, column %u", &line, &column) == 2 ||
            sscanf(at, "line %u column %u", &line, &column) == 2) {
            error->line = line;
            error->column = column;
        }
    }
    if (!error->what[0] && !strstr(text, "Backtrace")) {
        const char *what = strncmp(text, "Load: ", 6) == 0 ? text + 6 : text;

        snprintf(error->what, sizeof error->what, "%s", what);
    }
}

/* Where a top-level key stands (from 1), the last time it does; line 0: nowhere. The file's
 * mapping is flat. */
struct place {
    unsigned line, column;
};

static struct place key_place(const char *path, const char *key)
{
    char line[CONFIG_STRING_MAX];
    size_t n = strlen(key);
    struct place place = {0};
    unsigned number = 0;
    FILE *file = path ? fopen(path, "re") : NULL;

    if (!file)
        return place;
    while (fgets(line, sizeof line, file)) {
        const char *text = line + strspn(line, " ");

        number++;
        if (strncmp(text, key, n) != 0 || text[n + strspn(text + n, " ")] != ':')
            continue;
        place.line = number;
        place.column = (unsigned)(text - line) + 1;
    }
    fclose(file);
    return place;
}

/* "FILE: line L, column C: KEY: what" when the file has the key, else "setting KEY: what" */
static int diag_at(struct diag *diag, const char *path, const char *key, const char *what)
{
    struct place place = key_place(path, key);

    if (path && place.line)
        diag_set(diag, "%s: line %u, column %u: %s: %s", path, place.line, place.column, key, what);
    else
        diag_set(diag, "setting %s: %s", key, what);
    return -EINVAL;
}

/* libcyaml's place for an unknown or repeated key is that of the key before it: look the key up. */
static void diag_yaml(struct diag *diag, const char *path, const struct yaml_error *error,
                      const char *fallback)
{
    static const char *const about_a_key[] = {"Unexpected key: ", "Mapping field already seen: "};
    const char *what = error->what[0] ? error->what : fallback;
    struct place place = {.line = error->line, .column = error->column};

    for (size_t i = 0; i < sizeof about_a_key / sizeof about_a_key[0]; i++) {
        size_t n = strlen(about_a_key[i]);

        if (strncmp(what, about_a_key[i], n) == 0 && key_place(path, what + n).line)
            place = key_place(path, what + n);
    }
    diag_set(diag, "%s: line %u, column %u: %s", path, place.line ? place.line : 1,
             place.column ? place.column : 1, what);
}

static int file_check(const char *path, struct diag *diag)
{
    struct stat st;

    if (stat(path, &st) < 0) {
        int err = -errno;

        diag_set(diag, "%s: cannot open the configuration: %s", path, strerror(-err));
        return err;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > CONFIG_FILE_BYTES_MAX) {
        diag_set(diag, "%s: a configuration is a regular file of at most %d bytes", path,
                 CONFIG_FILE_BYTES_MAX);
        return -EINVAL;
    }
    return 0;
}

/* libcyaml reads the first document and forgets the rest. */
static int one_document(const char *path, struct diag *diag)
{
    char line[CONFIG_STRING_MAX];
    unsigned number = 0, found = 0;
    int begun = 0;
    FILE *file = fopen(path, "re");

    if (!file)
        return -errno;
    while (!found && fgets(line, sizeof line, file)) {
        int marker = strncmp(line, "---", 3) == 0 || strncmp(line, "...", 3) == 0;

        number++;
        if (marker && begun)
            found = number;
        else if (!marker && line[strspn(line, " \t\r\n")] != '\0' && line[strspn(line, " ")] != '#')
            begun = 1;
    }
    fclose(file);
    if (!found)
        return 0;
    diag_set(diag, "%s: line %u, column 1: one document only", path, found);
    return -EINVAL;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int number_set(const struct setting *s, const char *text, uint32_t *ret, const char *path,
                      struct diag *diag)
{
    char what[256], *end = NULL;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end)
        snprintf(what, sizeof what, "'%.64s' is not a whole number", text);
    else if (errno || value < s->min || value > s->max)
        snprintf(what, sizeof what, "%.64s is outside %u .. %u", text, s->min, s->max);
    else {
        *ret = (uint32_t)value;
        return 0;
    }
    return diag_at(diag, path, s->name, what);
}

static int text_set(char **field, const char *value)
{
    char *copy = strdup(value);

    if (!copy)
        return -ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

static int value_set(struct config *config, const struct setting *s, const char *text,
                     const char *path, struct diag *diag)
{
    void *field = (char *)config + s->offset;

    switch (s->kind) {
    case TEXT:
        return text[0] ? text_set(field, text) : 0; /* an empty one is not set */
    case NUMBER:
        config->given |= 1ull << (s - settings);
        return number_set(s, text, field, path, diag);
    default:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return diag_at(diag, path, s->name, "expected true or false");
        *(int *)field = text[0] == 't';
        return 0;
    }
}

int config_set(struct config *config, const char *name, const char *value, struct diag *diag)
{
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (strcmp(settings[i].name, name) == 0)
            return value_set(config, &settings[i], value, NULL, diag);
    diag_set(diag, "no setting is called %s", name);
    return -EINVAL;
}

_Static_assert(N_SETTINGS <= 64, "config.given has a bit for each");

int config_read(struct config *config, const char *path, struct diag *diag)
{
    struct yaml_error error = {0};
    cyaml_config_t cyaml = {
        .log_fn = yaml_log,
        .log_ctx = &error,
        .log_level = CYAML_LOG_ERROR,
        .mem_fn = cyaml_mem,
    };
    struct values *values = NULL;
    cyaml_err_t status;
    int err = file_check(path, diag);

    if (err == 0)
        err = one_document(path, diag);
    if (err < 0)
        return err;
    status = cyaml_load_file(path, &cyaml, &values_schema, (cyaml_data_t **)&values, NULL);
    if (status != CYAML_OK) {
        diag_yaml(diag, path, &error, cyaml_strerror(status));
        return -EINVAL;
    }
    for (size_t i = 0; values && i < N_SETTINGS && err == 0; i++) {
        const char *text = ((char *const *)(const void *)values)[i];

        if (text)
            err = value_set(config, &settings[i], text, path, diag);
    }
    cyaml_free(&cyaml, &values_schema, values, 0);
    return err;
}

/* ---- defaults -------------------------------------------------------------------------------- */

static int mode_finish(struct config *config, const char *path, struct diag *diag)
{
    const char *text = config->socket_mode ? config->socket_mode : "0600";
    char *end;
    unsigned long mode = strtoul(text, &end, 8);

    if (!isdigit((unsigned char)text[0]) || *end || mode > 0777)
        return diag_at(diag, path, "socket_mode", "expected an octal mode such as \"0660\"");
    config->socket_mode_bits = (uint32_t)mode;
    return 0;
}

/* 0 is no ceiling. */
static int class_parse(const char *name, uint8_t *ret_class)
{
    static const struct {
        const char *name;
        enum tkr_class class_;
    } classes[] = {{"", TKR_CLASS_DEFAULT},
                   {"realtime", TKR_CLASS_REALTIME},
                   {"interactive", TKR_CLASS_INTERACTIVE},
                   {"batch", TKR_CLASS_BATCH}};

    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (strcmp(name, classes[i].name) == 0) {
            *ret_class = (uint8_t)classes[i].class_;
            return 0;
        }
    }
    return -EINVAL;
}

static int users_finish(struct config *config, const char *path, struct diag *diag)
{
    struct diag what = {{0}};

    config->user_limits = (struct io_limits){
        .clients = config->user_clients_max,
        .inflight = config->user_requests_max,
        .bytes = (uint64_t)config->user_memory_mib_max << 20,
        .attach_rate = config->user_attaches_per_s,
    };
    if (class_parse(config->user_class_max ? config->user_class_max : "",
                    &config->user_limits.class_max) < 0)
        return diag_at(diag, path, "user_class_max", "expected batch, interactive or realtime");
    config->n_rules = config->n_trusted = 0;
    if (access_parse(config->allow ? config->allow : "", &config->user_limits, config->rules,
                     &config->n_rules, &what) < 0)
        return diag_at(diag, path, "allow", what.text);
    if (access_parse(config->trusted ? config->trusted : "", &config->user_limits,
                     config->trusted_rules, &config->n_trusted, &what) < 0)
        return diag_at(diag, path, "trusted", what.text);
    return 0;
}

int config_finish(struct config *config, const char *path, struct diag *diag)
{
    int err;

    for (size_t i = 0; i < N_SETTINGS; i++) {
        uint32_t *value = (uint32_t *)(void *)((char *)config + settings[i].offset);

        /* What the command line set is not zero. */
        if (settings[i].kind == NUMBER && *value == 0 && !(config->given & 1ull << i))
            *value = settings[i].preset;
    }
    err = mode_finish(config, path, diag);
    if (err < 0)
        return err;
    if (config->cache && config->cache[0] != '/' && strcmp(config->cache, "none") != 0)
        return diag_at(diag, path, "cache", "expected an absolute path, or none");
    if (cpu_variant_parse(config->cpu ? config->cpu : "auto", &config->cpu_variant) < 0)
        return diag_at(diag, path, "cpu", "expected auto, ref, avx2, avxvnni or avx512");
    if (kv_type_parse(config->kv_type ? config->kv_type : "f16", &config->kv_kind) < 0)
        return diag_at(diag, path, "kv_type", "expected f16 or q8");
    if (io_kind_parse(config->io ? config->io : "auto", &config->io_kind) < 0)
        return diag_at(diag, path, "io", "expected auto, uring or epoll");
    if (io_doorbell_parse(config->doorbell ? config->doorbell : "auto", &config->doorbell_kind) < 0)
        return diag_at(diag, path, "doorbell", "expected auto, futex or socket");
    err = users_finish(config, path, diag);
    if (err < 0)
        return err;
    if (config->ctx > config->kv_positions)
        return diag_at(diag, path, "ctx",
                       "larger than kv_positions: one request would not fit the pool");
    return 0;
}
