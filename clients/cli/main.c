/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - `tokenring`: finds the command and hands the rest of the line to it.
 */
#include <stdlib.h>
#include <string.h>
#include "clients/cli/cli.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"run", run_main},
    {"tokenize", tokenize_main},
    {"perplexity", perplexity_main},
    {"models", models_main},
};

struct line {
    char *socket;
    int command_at; /* index in argv; 0: none */
};

static const struct argp_option options[] = {
    OPTION_SOCKET_HELP,
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct line *line = state->input;

    switch (key) {
    case OPTION_SOCKET:
        line->socket = arg;
        return 0;
    case ARGP_KEY_ARG:
        line->command_at = state->next - 1;
        state->next = state->argc; /* the rest is the command's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no command; expected run, tokenize, perplexity or models");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "COMMAND [OPTION...]",
    .doc = "Talks to tokenringd, a language model server, through shared memory.\v"
           "Commands:\n"
           "  run         answers a prompt\n"
           "  tokenize    prints the token ids of a text\n"
           "  perplexity  says how probable the model finds a text\n"
           "  models      lists what the daemon serves\n"
           "`tokenring COMMAND --help` tells the options of one.\n\n"
           "Exit codes: 0 done, 1 the request or its input failed, 2 wrong command line, "
           "3 no daemon, 130 interrupted.",
};

int main(int argc, char **argv)
{
    struct line line = {0};
    char name[64];

    argp_program_version = "tokenring " TKR_VERSION;
    argp_err_exit_status = CLI_USAGE;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &line);
    if (line.socket && setenv("TOKENRING_SOCKET", line.socket, 1))
        return CLI_FAILED;

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char **rest = argv + line.command_at;

        if (strcmp(rest[0], commands[i].name))
            continue;
        snprintf(name, sizeof name, "tokenring %s", commands[i].name);
        rest[0] = name;
        return commands[i].main(argc - line.command_at, rest);
    }
    complain("unknown command '%s'; expected run, tokenize, perplexity or models",
             argv[line.command_at]);
    return CLI_USAGE;
}
