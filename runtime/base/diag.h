/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diag.h - one line that says what is wrong, where, and what was expected.
 *
 * Parsers take a struct diag * last, fill it and return -errno; who decides what to do prints it.
 */
#ifndef RUNTIME_BASE_DIAG_H
#define RUNTIME_BASE_DIAG_H

#define DIAG_BYTES 512

struct diag {
    char
        text[DIAG_BYTES]; /* NUL-terminated, cut at DIAG_BYTES - 1; control characters become '?' */
};

/* Overwrites the text. A NULL diag is allowed. */
__attribute__((format(printf, 2, 3))) void diag_set(struct diag *diag, const char *format, ...);

#endif
