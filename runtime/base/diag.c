/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/diag.h"

#include <stdarg.h>
#include <stdio.h>

void diag_set(struct diag *diag, const char *format, ...)
{
    va_list args;

    if (!diag)
        return;
    va_start(args, format);
    vsnprintf(diag->text, sizeof diag->text, format, args);
    va_end(args);
    /* Names in the text come from files: nothing that a terminal would obey. */
    for (char *c = diag->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}
