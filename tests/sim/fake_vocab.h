/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_vocab.h - a vocabulary without a file, for programs that test the scheduler. Its source is
 * linked in place of runtime/text/vocab.c: the linker takes what it has and never looks for that
 * one.
 *
 * Ids 0..255 are the bytes themselves; the rest are named below.
 */
#ifndef TESTS_SIM_FAKE_VOCAB_H
#define TESTS_SIM_FAKE_VOCAB_H

#include "runtime/text/vocab.h"

enum {
    FAKE_EOS = 256,   /* control, ends a generation */
    FAKE_PAD = 257,   /* control */
    FAKE_HELLO = 258, /* "hello " */
    FAKE_AB = 259,    /* "ab" */
    FAKE_EURO = 260,  /* e2 82, the first two of the three bytes of U+20AC */
    FAKE_LONG = 261,  /* 64 times 'x' */
    FAKE_VOCAB = 264
};

struct vocab {
    uint32_t bos; /* VOCAB_NONE: adds none */
};

#endif
