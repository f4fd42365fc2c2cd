/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile profiles. Besides the sanitizers it checks that what is accepted can be asked, and is
 * accepted again as it is written.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/tune/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds)
        abort();
}

static void ask(const struct step_grid *grid)
{
    static const uint32_t asked[] = {0, 1, 3, 64, 1000, 65536, UINT32_MAX};

    for (size_t r = 0; r < sizeof asked / sizeof asked[0]; r++)
        for (size_t c = 0; c < sizeof asked / sizeof asked[0]; c++)
            check(profile_step_ms(grid, asked[r], asked[c]) > 0); /* neither NaN nor below zero */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct profile profile, again;
    struct diag why = {""};
    char *text;

    if (profile_parse(&profile, (const char *)data, size, &why) < 0) {
        check(why.text[0] && !strpbrk(why.text, "\n\x1b"));
        return 0;
    }
    ask(&profile.decode);
    ask(&profile.prefill);
    text = profile_text(&profile);
    check(text && profile_parse(&again, text, strlen(text), &why) == 0);
    check(again.decode.n_rows == profile.decode.n_rows && again.key.threads == profile.key.threads);
    free(text);
    return 0;
}
