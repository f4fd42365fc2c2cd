/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cache_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int cache_path_default(char *ret_path, size_t bytes)
{
    static const char *const places[][2] = {
        {"CACHE_DIRECTORY", ""}, {"XDG_CACHE_HOME", "/tokenring"}, {"HOME", "/.cache/tokenring"}};

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const char *folder = getenv(places[i][0]);
        int n;

        if (!folder || folder[0] != '/')
            continue;
        n = snprintf(ret_path, bytes, "%s%s", folder, places[i][1]);
        return n >= 0 && (size_t)n < bytes ? 0 : -ENAMETOOLONG;
    }
    return -ENOENT;
}
