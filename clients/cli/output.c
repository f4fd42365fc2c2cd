/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.c - text and JSON on standard output, complaints on standard error.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "clients/cli/cli.h"

void complain(const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fputs("tokenring: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void buffer_add(struct buffer *buffer, const void *bytes, size_t n)
{
    if (n > buffer->room - buffer->len) {
        size_t room = buffer->room ? buffer->room : 4096;
        char *more;

        while (room - buffer->len < n)
            room *= 2;
        more = realloc(buffer->bytes, room);
        if (!more) {
            complain("out of memory");
            exit(CLI_FAILED);
        }
        buffer->bytes = more;
        buffer->room = room;
    }
    if (n)
        memcpy(buffer->bytes + buffer->len, bytes, n);
    buffer->len += n;
}

/*
 * Length of the UTF-8 sequence at text, or 0 with *ret_bad bytes that form no character (Unicode
 * 15, table 3-7 and "substitution of maximal subparts").
 */
static size_t utf8_length(const uint8_t *text, size_t len, size_t *ret_bad)
{
    uint8_t first = text[0], low = 0x80, high = 0xbf;
    size_t n = first < 0x80   ? 1
               : first < 0xc2 ? 0
               : first < 0xe0 ? 2
               : first < 0xf0 ? 3
               : first < 0xf5 ? 4
                              : 0;

    *ret_bad = 1;
    if (first == 0xe0)
        low = 0xa0; /* no overlong forms */
    else if (first == 0xed)
        high = 0x9f; /* no surrogates */
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f; /* up to U+10FFFF */
    for (size_t i = 1; i < n; i++) {
        if (i == len || text[i] < low || text[i] > high) {
            *ret_bad = i;
            return 0;
        }
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

void json_text(FILE *out, const char *text, size_t len)
{
    /* An empty text may be NULL. */
    const uint8_t *at = (const uint8_t *)(len ? text : ""), *end = at + len;

    fputc('"', out);
    while (at < end) {
        size_t bad, n = utf8_length(at, (size_t)(end - at), &bad);

        if (!n) {
            fputs("\\ufffd", out);
            at += bad;
            continue;
        }
        if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (*at == '\n')
            fputs("\\n", out);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else
            fwrite(at, 1, n, out);
        at += n;
    }
    fputc('"', out);
}

void json_ids(FILE *out, const uint32_t *ids, size_t n)
{
    fputc('[', out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, i ? ",%u" : "%u", ids[i]);
    fputc(']', out);
}

int output_end(void)
{
    if (!fflush(stdout) && !ferror(stdout))
        return CLI_OK;
    complain("cannot write to standard output: %s", strerror(errno));
    return CLI_FAILED;
}
