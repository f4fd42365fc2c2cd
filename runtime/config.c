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

#include "shm/abi.h"

#define CONFIG_STRING_MAX 4096
#define CONFIG_FILE_BYTES_MAX (1 << 20)

static const cyaml_schema_field_t config_fields[] = {
    CYAML_FIELD_STRING_PTR("model", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct config, model, 1,
                           CONFIG_STRING_MAX),
    CYAML_FIELD_STRING_PTR("socket", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct config, socket, 1,
                           CONFIG_STRING_MAX),
    CYAML_FIELD_STRING_PTR("cpu", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct config, cpu, 1, 16),
    CYAML_FIELD_STRING_PTR("socket_mode", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct config,
                           socket_mode, 1, 8),
    CYAML_FIELD_UINT("threads", CYAML_FLAG_OPTIONAL, struct config, threads),
    CYAML_FIELD_UINT("ctx", CYAML_FLAG_OPTIONAL, struct config, ctx),
    CYAML_FIELD_UINT("running_max", CYAML_FLAG_OPTIONAL, struct config, running_max),
    CYAML_FIELD_UINT("queued_max", CYAML_FLAG_OPTIONAL, struct config, queued_max),
    CYAML_FIELD_UINT("kv_positions", CYAML_FLAG_OPTIONAL, struct config, kv_positions),
    CYAML_FIELD_BOOL("kv_prefault", CYAML_FLAG_OPTIONAL, struct config, kv_prefault),
    CYAML_FIELD_UINT("chunk_rows", CYAML_FLAG_OPTIONAL, struct config, chunk_rows),
    CYAML_FIELD_UINT("prompt_bytes_max", CYAML_FLAG_OPTIONAL, struct config, prompt_bytes_max),
    CYAML_FIELD_UINT("clients_max", CYAML_FLAG_OPTIONAL, struct config, clients_max),
    CYAML_FIELD_UINT("inflight_max", CYAML_FLAG_OPTIONAL, struct config, inflight_max),
    CYAML_FIELD_UINT("arena_mib_max", CYAML_FLAG_OPTIONAL, struct config, arena_mib_max),
    CYAML_FIELD_UINT("bulk_mib_max", CYAML_FLAG_OPTIONAL, struct config, bulk_mib_max),
    CYAML_FIELD_BOOL("require_mlock", CYAML_FLAG_OPTIONAL, struct config, require_mlock),
    CYAML_FIELD_UINT("idle_park_us", CYAML_FLAG_OPTIONAL, struct config, idle_park_us),
    CYAML_FIELD_UINT("drain_s", CYAML_FLAG_OPTIONAL, struct config, drain_s),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t config_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct config, config_fields),
};

/* Each number, its default and its range. */
struct setting {
    const char *name;
    size_t offset;
    uint32_t preset, min, max;
};
#define SETTING(field, preset_, min_, max_) {#field, offsetof(struct config, field), preset_, min_, max_}
static const struct setting settings[] = {
    SETTING(threads, 0, 0, 256),
    SETTING(ctx, 0, 0, 1u << 20),
    SETTING(running_max, 64, 1, 1024),
    SETTING(queued_max, 500, 1, 65536),
    SETTING(kv_positions, 32768, 64, 1u << 26),
    SETTING(chunk_rows, 128, 1, 4096),
    SETTING(prompt_bytes_max, 2u << 20, 64, 64u << 20),
    SETTING(clients_max, 4096, 1, 65536),
    SETTING(inflight_max, 256, 1, TKR_INFLIGHT_MAX),
    SETTING(arena_mib_max, 16, 1, 1024),
    SETTING(bulk_mib_max, 16, 1, 1024),
    SETTING(idle_park_us, 50, 1, 1000000),
    SETTING(drain_s, 10, 1, 3600),
};

void config_init(struct config *config)
{
    memset(config, 0, sizeof *config);
}

void config_fini(struct config *config)
{
    free(config->model);
    free(config->socket);
    free(config->cpu);
    free(config->socket_mode);
    memset(config, 0, sizeof *config);
}

int config_set(char **field, const char *value)
{
    char *copy = strdup(value);

    if (!copy)
        return -ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

/* ---- errors of the YAML reader: its first message, and the innermost place of its backtrace ------ */

struct yaml_error {
    char what[256];
    unsigned line, column;
};

__attribute__((format(printf, 3, 0)))
static void yaml_log(cyaml_log_t level, void *ctx, const char *format, va_list args)
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

/* The line (from 1) on which a top-level key stands, 0 when it does not. The file's mapping is flat. */
static unsigned key_line(const char *path, const char *key)
{
    char line[CONFIG_STRING_MAX];
    size_t n = strlen(key);
    unsigned number = 0, found = 0;
    FILE *file = path ? fopen(path, "re") : NULL;

    if (!file)
        return 0;
    while (!found && fgets(line, sizeof line, file)) {
        const char *text = line + strspn(line, " ");

        number++;
        if (strncmp(text, key, n) == 0 && text[n + strspn(text + n, " ")] == ':')
            found = number;
    }
    fclose(file);
    return found;
}

/* "FILE: line L, column 1: " when the file sets the key, else "setting " */
static void diag_at(struct diag *diag, const char *path, const char *key, const char *what)
{
    unsigned line = key_line(path, key);

    if (line)
        diag_set(diag, "%s: line %u, column 1: %s: %s", path, line, key, what);
    else
        diag_set(diag, "setting %s: %s", key, what);
}

/* libcyaml's place for an unknown key is that of the key before it: look the key up. */
static void diag_yaml(struct diag *diag, const char *path, const struct yaml_error *error, const char *fallback)
{
    static const char unknown[] = "Unexpected key: ";
    const char *what = error->what[0] ? error->what : fallback;
    unsigned line = error->line, column = error->column;

    if (strncmp(what, unknown, sizeof unknown - 1) == 0 && key_line(path, what + sizeof unknown - 1)) {
        line = key_line(path, what + sizeof unknown - 1);
        column = 1;
    }
    diag_set(diag, "%s: line %u, column %u: %s", path, line ? line : 1, column ? column : 1, what);
}

static int file_check(const char *path, struct diag *diag)
{
    struct stat st;

    if (stat(path, &st) < 0) {
        diag_set(diag, "%s: cannot open the configuration: %s", path, strerror(errno));
        return -errno;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > CONFIG_FILE_BYTES_MAX) {
        diag_set(diag, "%s: a configuration is a regular file of at most %d bytes", path,
                 CONFIG_FILE_BYTES_MAX);
        return -EINVAL;
    }
    return 0;
}

static void config_move(struct config *to, struct config *from)
{
    config_fini(to);
    *to = *from;
    memset(from, 0, sizeof *from);
}

int config_read(struct config *config, const char *path, struct diag *diag)
{
    struct yaml_error error = {0};
    cyaml_config_t cyaml = {
        .log_fn = yaml_log,
        .log_ctx = &error,
        .log_level = CYAML_LOG_ERROR,
        .mem_fn = cyaml_mem,
    };
    struct config *read = NULL;
    cyaml_err_t err;
    int rc = file_check(path, diag);

    if (rc < 0)
        return rc;
    err = cyaml_load_file(path, &cyaml, &config_schema, (cyaml_data_t **)&read, NULL);
    if (err != CYAML_OK) {
        diag_yaml(diag, path, &error, cyaml_strerror(err));
        return -EINVAL;
    }
    if (!read)
        return 0; /* an empty file sets nothing */
    config_move(config, read);
    free(read);
    return 0;
}

/* ---- defaults and ranges ------------------------------------------------------------------------ */

static int numbers_finish(struct config *config, const char *path, struct diag *diag)
{
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const struct setting *s = &settings[i];
        uint32_t *value = (uint32_t *)((char *)config + s->offset);
        char what[128];

        if (!*value && !key_line(path, s->name))
            *value = s->preset;
        if (*value >= s->min && *value <= s->max)
            continue;
        snprintf(what, sizeof what, "%u is outside %u .. %u", *value, s->min, s->max);
        diag_at(diag, path, s->name, what);
        return -EINVAL;
    }
    return 0;
}

static int mode_finish(struct config *config, const char *path, struct diag *diag)
{
    const char *text = config->socket_mode ? config->socket_mode : "0600";
    char *end;
    unsigned long mode = strtoul(text, &end, 8);

    if (!isdigit((unsigned char)text[0]) || *end || mode > 0777) {
        diag_at(diag, path, "socket_mode", "expected an octal mode such as \"0660\"");
        return -EINVAL;
    }
    config->socket_mode_bits = (uint32_t)mode;
    return 0;
}

int config_finish(struct config *config, const char *path, struct diag *diag)
{
    int err = numbers_finish(config, path, diag);

    if (err < 0)
        return err;
    err = mode_finish(config, path, diag);
    if (err < 0)
        return err;
    if (cpu_variant_parse(config->cpu ? config->cpu : "auto", &config->cpu_variant) < 0) {
        diag_at(diag, path, "cpu", "expected auto, ref, avx2 or avx512");
        return -EINVAL;
    }
    if (config->ctx > config->kv_positions) {
        diag_at(diag, path, "ctx", "larger than kv_positions: one request would not fit the pool");
        return -EINVAL;
    }
    return 0;
}
