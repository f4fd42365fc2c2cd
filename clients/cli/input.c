/* SPDX-License-Identifier: Apache-2.0 */
/*
 * input.c - prompts: an argument, standard input, a file of text or of messages.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "clients/cli/cli.h"

#define READ_BYTES 65536u
#define TEXT_BYTES_MAX                                                                             \
    ((size_t)1 << 30) /* the arena's offsets have 32 bits; a model's context is far below */

static int read_all(struct input *ret_input, FILE *file, const char *name)
{
    struct buffer text = {0};
    char *part = malloc(READ_BYTES);
    size_t n;

    if (!part) {
        complain("out of memory");
        return -1;
    }
    while ((n = fread(part, 1, READ_BYTES, file)) > 0 && text.len <= TEXT_BYTES_MAX)
        buffer_add(&text, part, n);
    free(part);
    if (ferror(file) || text.len > TEXT_BYTES_MAX) {
        complain("%s: %s", name, ferror(file) ? strerror(errno) : "larger than 1 GiB");
        free(text.bytes);
        return -1;
    }
    buffer_add(&text, "", 1);
    *ret_input = (struct input){.text = text.bytes, .len = text.len - 1, .bytes = text.len - 1};
    return 0;
}

int input_file(struct input *ret_input, const char *path)
{
    FILE *file;
    int err;

    if (!strcmp(path, "-"))
        return read_all(ret_input, stdin, "standard input");
    file = fopen(path, "re");
    if (!file) {
        complain("%s: %s", path, strerror(errno));
        return -1;
    }
    err = read_all(ret_input, file, path);
    fclose(file);
    return err;
}

int input_argument(struct input *ret_input, const char *argument)
{
    size_t len = strlen(argument);

    if (!strcmp(argument, "-"))
        return read_all(ret_input, stdin, "standard input");
    *ret_input = (struct input){.text = strdup(argument), .len = len, .bytes = len};
    if (ret_input->text)
        return 0;
    complain("out of memory");
    return -1;
}

static const char *const roles[] = {
    [TKR_ROLE_SYSTEM] = "system",
    [TKR_ROLE_USER] = "user",
    [TKR_ROLE_ASSISTANT] = "assistant",
    [TKR_ROLE_TOOL] = "tool",
};

/* Fills in one message; 0, or -1 with a complaint that names the place. */
static int message_read(tkr_msg *ret_msg, json_t *entry, const char *path, size_t index)
{
    json_t *role = json_object_get(entry, "role"), *content = json_object_get(entry, "content");
    const char *key;
    json_t *value;
    size_t i;

    if (!json_is_object(entry)) {
        complain("%s: message %zu is not an object {\"role\", \"content\"}", path, index + 1);
        return -1;
    }
    json_object_foreach(entry, key, value)
    {
        if (strcmp(key, "role") && strcmp(key, "content")) {
            complain("%s: message %zu has the key '%s'; only role and content are known", path,
                     index + 1, key);
            return -1;
        }
    }
    if (!json_is_string(role) || !json_is_string(content)) {
        complain("%s: message %zu needs the strings role and content", path, index + 1);
        return -1;
    }
    for (i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (!strcmp(json_string_value(role), roles[i]))
            break;
    if (i == sizeof roles / sizeof roles[0]) {
        complain("%s: message %zu has the role '%s'; expected system, user, assistant or tool",
                 path, index + 1, json_string_value(role));
        return -1;
    }
    *ret_msg = (tkr_msg){.role = (uint32_t)i,
                         .text = json_string_value(content),
                         .len = json_string_length(content)};
    return 0;
}

int input_messages(struct input *ret_input, const char *path)
{
    struct input text, input = {0};
    json_error_t error;
    json_t *root;
    size_t n;

    if (input_file(&text, path) < 0)
        return -1;
    root = json_loadb(text.text, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    input_free(&text);
    if (!root) {
        complain("%s:%d:%d: %s", path, error.line, error.column, error.text);
        return -1;
    }
    input.json = root;
    n = json_array_size(root);
    if (!n || n > TKR_TAIL_MAX) {
        complain("%s: expected an array of 1 to %u messages [{\"role\", \"content\"}, ...]%s", path,
                 TKR_TAIL_MAX, n ? ", this one is longer" : "");
        goto fail;
    }
    input.msgs = calloc(n, sizeof *input.msgs);
    if (!input.msgs) {
        complain("out of memory");
        goto fail;
    }
    for (; input.n_msgs < n; input.n_msgs++) {
        tkr_msg *msg = &input.msgs[input.n_msgs];

        if (message_read(msg, json_array_get(root, input.n_msgs), path, input.n_msgs) < 0)
            goto fail;
        input.bytes += msg->len;
    }
    *ret_input = input;
    return 0;

fail:
    input_free(&input);
    return -1;
}

void input_free(struct input *input)
{
    free(input->text);
    free(input->msgs);
    json_decref(input->json);
    *input = (struct input){0};
}
