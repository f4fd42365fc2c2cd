/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perplexity.c - `tokenring perplexity`: how probable the model finds a text.
 *
 * The text's ids are cut into windows that follow each other; each is scored by itself, but for its
 * first id, which nothing comes before. Several windows are in flight, so that the engine can batch
 * them.
 */
#include <math.h>
#include <stdlib.h>
#include "clients/cli/cli.h"

#define EVENTS       16u
#define WINDOW_USUAL 512u
#define IN_FLIGHT    4u

enum { OPTION_WINDOW = 0x200, OPTION_MAX_TOKENS };

struct perplexity {
    const char *socket, *file;
    uint32_t window, max_tokens; /* 0 = default, all */

    const uint32_t *ids;
    size_t n_ids;
    size_t n_windows, n_sent, n_done;
    double *nll; /* sum of each window: added up in order, so that the result does not depend on
                    timing */
};

static const struct argp_option options[] = {
    OPTION_SOCKET_HELP,
    {"window", OPTION_WINDOW, "N", 0, "Tokens of one window (512, or the context if that is less)",
     0},
    {"max-tokens", OPTION_MAX_TOKENS, "N", 0, "Only the first N tokens of the file", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct perplexity *p = state->input;

    switch (key) {
    case OPTION_SOCKET:
        p->socket = arg;
        return 0;
    case OPTION_WINDOW:
        p->window = option_u32(state, "--window", arg, 2);
        return 0;
    case OPTION_MAX_TOKENS:
        p->max_tokens = option_u32(state, "--max-tokens", arg, 2);
        return 0;
    case ARGP_KEY_ARG:
        if (p->file)
            argp_error(state, "one FILE only");
        p->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!p->file)
            argp_error(state, "no FILE; - is standard input");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "FILE",
    .doc =
        "Prints {\"tokens\",\"nll_mean\",\"perplexity\"}; tokens are those that were scored. The "
        "first token of each window is not.",
};

/* The window's request; user_data is its number. */
static tkr_req window_req(const struct perplexity *p, size_t window)
{
    size_t at = window * p->window, left = p->n_ids - at;
    tkr_req req;

    tkr_req_init(&req, TKR_OP_LOGPROBS);
    req.data_kind = TKR_DATA_TOKENS;
    req.tokens = p->ids + at;
    req.n_tokens = left < p->window ? (uint32_t)left : p->window;
    req.user_data = window;
    return req;
}

static int event_take(struct perplexity *p, struct session *session, const tkr_event *event)
{
    if (event->type == TKR_EV_BULK && event->values)
        for (uint32_t i = 0; i < event->n; i++)
            p->nll[event->user_data] -= (double)event->values[i];
    if (event->type != TKR_EV_DONE)
        return CLI_OK;
    if (event->status != TKR_OK)
        return session_failed(event);
    p->n_done++;
    tkr_release(session->conn, event->id);
    return CLI_OK;
}

static int windows_score(struct perplexity *p, struct session *session)
{
    int code = CLI_OK;

    while (code == CLI_OK && p->n_done < p->n_windows) {
        tkr_event events[EVENTS];
        int got;

        while (code == CLI_OK && p->n_sent < p->n_windows && p->n_sent - p->n_done < IN_FLIGHT) {
            tkr_req req = window_req(p, p->n_sent);

            code = session_submit(session, &req);
            p->n_sent++;
        }
        if (code != CLI_OK)
            break;
        got = session_wait(session, events, EVENTS);
        if (got < 0)
            return CLI_FAILED;
        if (session_interrupted())
            return CLI_INTERRUPTED;
        for (int i = 0; i < got && code == CLI_OK; i++)
            code = event_take(p, session, &events[i]);
    }
    return code;
}

static int perplexity_print(const struct perplexity *p)
{
    size_t scored = p->n_ids - p->n_windows;
    double sum = 0;

    for (size_t i = 0; i < p->n_windows; i++)
        sum += p->nll[i];
    /* A last window of one token has nothing to score: n_windows leaves it out, and so does this. */
    if (p->n_ids > p->n_windows * p->window)
        scored--;
    printf("{\"tokens\":%zu,\"nll_mean\":%.9g,\"perplexity\":%.9g}\n", scored, sum / (double)scored,
           exp(sum / (double)scored));
    return output_end();
}

static int perplexity_measure(struct perplexity *p, struct session *session,
                              const struct input *input, struct buffer *ids)
{
    int code = session_tokenize(session, input, ids);

    if (code != CLI_OK)
        return code;
    p->ids = (const uint32_t *)(const void *)ids->bytes;
    p->n_ids = ids->len / sizeof *p->ids;
    if (p->max_tokens && p->n_ids > p->max_tokens)
        p->n_ids = p->max_tokens;
    if (!p->window)
        p->window = session->limits.n_ctx && session->limits.n_ctx < WINDOW_USUAL
                        ? session->limits.n_ctx
                        : WINDOW_USUAL;
    if (p->n_ids < 2) {
        complain("%s: %zu tokens; at least 2 are needed, since the first is not scored", p->file,
                 p->n_ids);
        return CLI_FAILED;
    }
    p->n_windows = p->n_ids / p->window + (p->n_ids % p->window >= 2);
    p->nll = calloc(p->n_windows, sizeof *p->nll);
    if (!p->nll) {
        complain("out of memory");
        return CLI_FAILED;
    }
    code = windows_score(p, session);
    return code == CLI_OK ? perplexity_print(p) : code;
}

int perplexity_main(int argc, char **argv)
{
    struct perplexity p = {0};
    struct buffer ids = {0};
    struct session session;
    struct input input;
    size_t in_flight;
    int code;

    argp_parse(&argp, argc, argv, 0, NULL, &p);
    if (input_file(&input, p.file) < 0)
        return CLI_FAILED;

    in_flight = IN_FLIGHT * (size_t)(p.window ? p.window : WINDOW_USUAL);
    code =
        session_open(&session, p.socket, input.bytes > 4 * in_flight ? input.bytes : 4 * in_flight,
                     input.bytes > in_flight ? input.bytes : in_flight, 0);
    if (code == CLI_OK) {
        code = perplexity_measure(&p, &session, &input, &ids);
        session_close(&session);
    }
    input_free(&input);
    free(ids.bytes);
    free(p.nll);
    return code;
}
