/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/fake_vocab.h"

#include <string.h>

uint32_t vocab_size(const struct vocab *v)
{
    (void)v;
    return FAKE_VOCAB;
}

const uint8_t *vocab_bytes(const struct vocab *v, uint32_t id, size_t *ret_n)
{
    static uint8_t bytes[256];
    static const char *const text[] = {
        "",   "",         "hello ",
        "ab", "\xe2\x82", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "",   ""};

    (void)v;
    if (id < 256) {
        bytes[id] = (uint8_t)id;
        *ret_n = 1;
        return &bytes[id];
    }
    *ret_n = strlen(text[id - 256]);
    return (const uint8_t *)text[id - 256];
}

int vocab_is_control(const struct vocab *v, uint32_t id)
{
    (void)v;
    return id == FAKE_EOS || id == FAKE_PAD;
}

int vocab_is_eog(const struct vocab *v, uint32_t id)
{
    (void)v;
    return id == FAKE_EOS;
}

uint32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}
