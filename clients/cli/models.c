/* SPDX-License-Identifier: Apache-2.0 */
/*
 * models.c - `tokenring models`: what the daemon serves.
 */
#include "clients/cli/cli.h"

static const struct argp_option options[] = {
    OPTION_SOCKET_HELP,
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    const char **socket = state->input;

    switch (key) {
    case OPTION_SOCKET:
        *socket = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .doc = "Prints a table of the models that the daemon serves.",
};

int models_main(int argc, char **argv)
{
    const char *socket = NULL;
    struct session session;
    const tkr_limits *limits = &session.limits;
    int code;

    argp_parse(&argp, argc, argv, 0, NULL, &socket);
    code = session_open(&session, socket, 0, 0, 0);
    if (code != CLI_OK)
        return code;
    printf("%-40s %8s %8s %-5s %s\n", "MODEL", "CONTEXT", "TOKENS", "CHAT", "HASH");
    if (limits->n_models) {
        printf("%-40s %8u %8u %-5s ", limits->model, limits->n_ctx, limits->n_vocab,
               limits->model_flags & TKR_MODEL_CHAT ? "yes" : "no");
        for (size_t i = 0; i < sizeof limits->model_hash; i++)
            printf("%02x", limits->model_hash[i]);
        putchar('\n');
    }
    session_close(&session);
    return output_end();
}
