/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void log_line(enum log_level level, const char *format, ...)
{
    char line[1024];
    size_t n = 0;
    va_list args;
    int len;

    if (getenv("JOURNAL_STREAM"))
        n = (size_t)snprintf(line, sizeof line, "<%d>", (int)level);
    else if (level <= LOG_WARN)
        n = (size_t)snprintf(line, sizeof line, "%s: ", level == LOG_ERROR ? "error" : "warning");
    va_start(args, format);
    len = vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    if (len < 0)
        return;
    n += (size_t)len;
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    /* One write: lines of several threads never mix. A closed standard error is not worth dying
     * for. */
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}
