/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringctl - finds the operator's command and hands the rest of the line to it.
 */
#include "tools/ringctl.h"

#include <argp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"tune", tune_main},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    int *command_at = state->input; /* index in argv */

    (void)arg;
    switch (key) {
    case ARGP_KEY_ARG:
        *command_at = state->next - 1;
        state->next = state->argc; /* the rest is the command's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no command; expected tune");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .parser = parse,
    .args_doc = "COMMAND [OPTION...]",
    .doc = "Commands for who operates tokenringd.\v"
           "Commands:\n"
           "  tune        measures this machine and what a model costs on it\n"
           "`ringctl COMMAND --help` tells the options of one.\n\n"
           "Exit codes: 0 done, 1 it failed and why was said, 2 wrong command line.",
};

void complain(const char *format, ...)
{
    va_list args;

    fputs("ringctl: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

int main(int argc, char **argv)
{
    char name[64];
    int at = 0;

    argp_program_version = "ringctl " TKR_VERSION;
    argp_err_exit_status = RINGCTL_USAGE;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &at);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char **rest = argv + at;

        if (strcmp(rest[0], commands[i].name) != 0)
            continue;
        snprintf(name, sizeof name, "ringctl %s", commands[i].name);
        rest[0] = name;
        return commands[i].main(argc - at, rest);
    }
    complain("unknown command '%s'; expected tune", argv[at]);
    return RINGCTL_USAGE;
}
