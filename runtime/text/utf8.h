/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8.h - the one place that says what well-formed UTF-8 is.
 *
 * Source: The Unicode Standard, table 3-7 "Well-Formed UTF-8 Byte Sequences" (no overlong forms, no
 * surrogates, nothing above U+10FFFF), the same set that PCRE2 accepts.
 */
#ifndef RUNTIME_TEXT_UTF8_H
#define RUNTIME_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_CHAR_MAX 4 /* bytes */
#define UTF8_CUT      (-1)

/*
 * The character at s[0..n), n > 0: its bytes (1..4); 0: s[0] begins no character, whatever follows;
 * UTF8_CUT: s[0..n) is the beginning of one, more bytes decide.
 */
static inline int utf8_char(const uint8_t *s, size_t n)
{
    uint8_t lead = s[0], low = 0x80, high = 0xbf; /* bounds of the second byte */
    int want;

    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    want = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    for (int i = 1; i < want; i++) {
        if ((size_t)i == n)
            return UTF8_CUT;
        if (s[i] < low || s[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return want;
}

/* Bytes of the longest prefix of s[0..n) that is whole characters. */
static inline size_t utf8_span(const uint8_t *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        int bytes = utf8_char(s + i, n - i);

        if (bytes <= 0)
            break;
        i += (size_t)bytes;
    }
    return i;
}

#endif
