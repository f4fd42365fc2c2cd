/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - numbers on the command line.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include "clients/cli/cli.h"

uint64_t option_u64(struct argp_state *state, const char *name, const char *arg)
{
    unsigned long long value;
    char *end;

    errno = 0;
    value = strtoull(arg, &end, 10);
    if (*arg < '0' || *arg > '9' || *end || errno)
        argp_error(state, "%s is '%s'; expected a whole number from 0 to 18446744073709551615",
                   name, arg);
    return value;
}

uint32_t option_u32(struct argp_state *state, const char *name, const char *arg, uint32_t min)
{
    unsigned long long value;
    char *end;

    errno = 0;
    value = strtoull(arg, &end, 10);
    if (*arg < '0' || *arg > '9' || *end || errno || value < min || value >= UINT32_MAX)
        argp_error(state, "%s is '%s'; expected a whole number from %u to %u", name, arg, min,
                   UINT32_MAX - 1);
    return (uint32_t)value;
}

float option_float(struct argp_state *state, const char *name, const char *arg, float max)
{
    char *end;
    float value = strtof(arg, &end);

    if (!*arg || *end || !isfinite(value) || value < 0 || value > max)
        argp_error(state, "%s is '%s'; expected a number from 0 to %g", name, arg, (double)max);
    return value;
}
