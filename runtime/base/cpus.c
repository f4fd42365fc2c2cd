/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/cpus.h"

#include <stdio.h>
#include <string.h>

void cpus_name(char *ret_name, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(ret_name, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value++;
        value += strspn(value, " ");
        value[strcspn(value, "\n")] = '\0';
        snprintf(ret_name, bytes, "%s", value);
        break;
    }
    if (file)
        fclose(file);
}
