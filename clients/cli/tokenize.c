/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenize.c - `tokenring tokenize`: the token ids of a text or of a chat.
 */
#include <stdlib.h>
#include "clients/cli/cli.h"

#define EVENTS       16u
#define TEMPLATE_IDS 4096u /* what a chat template adds: some ids a message, 64 messages at most */

enum { OPTION_MESSAGES = 0x200 };

struct tokenize {
    const char *socket, *messages, *text;
};

static const struct argp_option options[] = {
    OPTION_SOCKET_HELP,
    {"messages", OPTION_MESSAGES, "FILE.json", 0,
     "A chat [{\"role\",\"content\"},...] through the model's template; - is standard input", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct tokenize *tokenize = state->input;

    switch (key) {
    case OPTION_SOCKET:
        tokenize->socket = arg;
        return 0;
    case OPTION_MESSAGES:
        tokenize->messages = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (tokenize->text)
            argp_error(state, "one TEXT only; quote it: \"%s %s ...\"", tokenize->text, arg);
        tokenize->text = arg;
        return 0;
    case ARGP_KEY_END:
        if (!tokenize->text == !tokenize->messages)
            argp_error(state, "give either TEXT (- is standard input) or --messages FILE.json");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "[TEXT|-]",
    .doc = "Prints {\"ids\":[...]}. Text that looks like a control token is plain text.",
};

int session_tokenize(struct session *session, const struct input *input, struct buffer *ret_ids)
{
    tkr_req req;
    int code;

    tkr_req_init(&req, TKR_OP_TOKENIZE);
    session_prompt(&req, input, TKR_DATA_TEXT);
    code = session_submit(session, &req);
    while (code == CLI_OK) {
        tkr_event events[EVENTS];
        int got = session_wait(session, events, EVENTS);

        if (got < 0)
            return CLI_FAILED;
        if (session_interrupted())
            return CLI_INTERRUPTED;
        for (int i = 0; i < got; i++) {
            if (events[i].type == TKR_EV_BULK && events[i].ids)
                buffer_add(ret_ids, events[i].ids, events[i].n * sizeof *events[i].ids);
            if (events[i].type != TKR_EV_DONE)
                continue;
            if (events[i].status != TKR_OK)
                return session_failed(&events[i]);
            tkr_release(session->conn, req.id);
            return CLI_OK;
        }
    }
    return code;
}

int tokenize_main(int argc, char **argv)
{
    struct tokenize tokenize = {0};
    struct buffer ids = {0};
    struct session session;
    struct input input;
    int code;

    argp_parse(&argp, argc, argv, 0, NULL, &tokenize);
    if ((tokenize.messages ? input_messages(&input, tokenize.messages)
                           : input_argument(&input, tokenize.text)) < 0)
        return CLI_FAILED;

    /* A byte gives one id at most. */
    code = session_open(&session, tokenize.socket, input.bytes, input.bytes + TEMPLATE_IDS, 0);
    if (code == CLI_OK) {
        code = session_tokenize(&session, &input, &ids);
        session_close(&session);
    }
    if (code == CLI_OK) {
        fputs("{\"ids\":", stdout);
        json_ids(stdout, (const uint32_t *)(const void *)ids.bytes, ids.len / sizeof(uint32_t));
        fputs("}\n", stdout);
        code = output_end();
    }
    input_free(&input);
    free(ids.bytes);
    return code;
}
