/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - `tokenring run`: one prompt, its answer as it comes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "clients/cli/cli.h"

#define EVENTS           64u
#define MAX_TOKENS_USUAL 512u
#define TEMPERATURE_MAX  100.0f /* abi.h */

enum {
    OPTION_RAW = 0x200,
    OPTION_MESSAGES,
    OPTION_MAX_TOKENS,
    OPTION_TEMPERATURE,
    OPTION_TOP_K,
    OPTION_TOP_P,
    OPTION_MIN_P,
    OPTION_SEED,
    OPTION_STOP,
    OPTION_JSON,
    OPTION_STATS,
    OPTION_RECONNECT,
    OPTION_TENANT,
};

struct run {
    const char *socket, *messages, *prompt;
    int raw, json, stats, reconnect;
    tkr_req req;
    tkr_bytes stops[TKR_STOPS_MAX];

    struct buffer text, ids; /* for --json */
    char last;               /* byte of the streamed text */
    tkr_event done;
};

static const struct argp_option options[] = {
    OPTION_SOCKET_HELP,
    {"raw", OPTION_RAW, NULL, 0, "No chat template: the prompt's bytes as they are", 0},
    {"messages", OPTION_MESSAGES, "FILE.json", 0,
     "A chat [{\"role\",\"content\"},...] instead of PROMPT; - is standard input", 0},
    {"max-tokens", OPTION_MAX_TOKENS, "N", 0, "End after N tokens (512)", 0},
    {"temperature", OPTION_TEMPERATURE, "T", 0, "0 takes the likeliest token (default)", 0},
    {"top-k", OPTION_TOP_K, "K", 0, "Draw from the K likeliest tokens; 0 is off", 0},
    {"top-p", OPTION_TOP_P, "P", 0, "Draw from the likeliest tokens that sum up to P", 0},
    {"min-p", OPTION_MIN_P, "P", 0, "Leave out tokens below P times the likeliest", 0},
    {"seed", OPTION_SEED, "S", 0, "The same seed gives the same answer", 0},
    {"stop", OPTION_STOP, "TEXT", 0, "End before this text; may be given several times", 0},
    {"reconnect", OPTION_RECONNECT, NULL, 0,
     "When the daemon dies, wait for the next one and go on where the answer was", 0},
    {"tenant", OPTION_TENANT, "N", 0, "Ask for somebody else; for users that the daemon trusts", 0},
    {"json", OPTION_JSON, NULL, 0, "One line of JSON at the end instead of text as it comes", 0},
    {"stats", OPTION_STATS, NULL, 0, "Times of each stage on standard error", 0},
    {0},
};

static void stop_add(struct argp_state *state, struct run *run, const char *text)
{
    size_t len = strlen(text);

    if (!len || len > TKR_STOP_BYTES_MAX)
        argp_error(state, "--stop takes 1 to %u bytes, not %zu", TKR_STOP_BYTES_MAX, len);
    if (run->req.n_stops == TKR_STOPS_MAX)
        argp_error(state, "--stop may be given %u times at most", TKR_STOPS_MAX);
    run->stops[run->req.n_stops++] = (tkr_bytes){.text = text, .len = len};
}

static void parse_end(struct argp_state *state, const struct run *run)
{
    if (!run->prompt && !run->messages)
        argp_error(state, "no prompt; give PROMPT, - for standard input, or --messages FILE.json");
    if (run->prompt && run->messages)
        argp_error(state, "give either PROMPT or --messages, not both");
    if (run->raw && run->messages)
        argp_error(state, "--raw takes a PROMPT; messages always go through the chat template");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run *run = state->input;

    switch (key) {
    case OPTION_SOCKET:
        run->socket = arg;
        return 0;
    case OPTION_RAW:
        run->raw = 1;
        return 0;
    case OPTION_MESSAGES:
        run->messages = arg;
        return 0;
    case OPTION_MAX_TOKENS:
        run->req.max_tokens = option_u32(state, "--max-tokens", arg, 0);
        return 0;
    case OPTION_TEMPERATURE:
        run->req.temperature = option_float(state, "--temperature", arg, TEMPERATURE_MAX);
        return 0;
    case OPTION_TOP_K:
        run->req.top_k = option_u32(state, "--top-k", arg, 0);
        return 0;
    case OPTION_TOP_P:
        run->req.top_p = option_float(state, "--top-p", arg, 1);
        return 0;
    case OPTION_MIN_P:
        run->req.min_p = option_float(state, "--min-p", arg, 1);
        return 0;
    case OPTION_SEED:
        run->req.seed = option_u64(state, "--seed", arg);
        run->req.flags |= TKR_PARAM_SEED;
        return 0;
    case OPTION_STOP:
        stop_add(state, run, arg);
        return 0;
    case OPTION_TENANT:
        run->req.tenant = option_u64(state, "--tenant", arg);
        return 0;
    case OPTION_RECONNECT:
        run->reconnect = 1;
        return 0;
    case OPTION_JSON:
        run->json = 1;
        return 0;
    case OPTION_STATS:
        run->stats = 1;
        return 0;
    case ARGP_KEY_ARG:
        if (run->prompt)
            argp_error(state, "one PROMPT only; quote it: \"%s %s ...\"", run->prompt, arg);
        run->prompt = arg;
        return 0;
    case ARGP_KEY_END:
        parse_end(state, run);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "[PROMPT|-]",
    .doc =
        "Answers a prompt; the text comes as it is made. Without --raw the prompt is one message "
        "of a user.",
};

static void event_take(struct run *run, const tkr_event *event)
{
    if (event->type == TKR_EV_DONE) {
        run->done = *event;
        return;
    }
    if (event->type != TKR_EV_TEXT)
        return;
    if (run->json) {
        buffer_add(&run->text, event->text, event->len);
        buffer_add(&run->ids, event->tokens, event->n * sizeof *event->tokens);
    } else if (event->len) {
        fwrite(event->text, 1, event->len, stdout);
        run->last = event->text[event->len - 1];
    }
}

/* Reads events until DONE. An exit code: how the waiting went, not how the request did. */
static int answer_read(struct run *run, struct session *session)
{
    int cancelled = 0;

    while (run->done.type != TKR_EV_DONE) {
        tkr_event events[EVENTS];
        int got = session_wait(session, events, EVENTS);

        if (got < 0)
            return CLI_FAILED;
        for (int i = 0; i < got; i++)
            event_take(run, &events[i]);
        if (got && output_end() != CLI_OK)
            return CLI_FAILED;
        if (session_interrupted() && !cancelled) {
            tkr_cancel(session->conn, run->req.id); /* the answer so far still comes */
            cancelled = 1;
        }
    }
    return CLI_OK;
}

static void print_json(const struct run *run, const struct session *session)
{
    const tkr_event *done = &run->done;
    const tkr_times *t = &done->times;

    fputs("{\"text\":", stdout);
    json_text(stdout, run->text.bytes, run->text.len);
    fputs(",\"token_ids\":", stdout);
    json_ids(stdout, (const uint32_t *)(const void *)run->ids.bytes,
             run->ids.len / sizeof(uint32_t));
    printf(",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"completion_tokens\":%u,"
           "\"finish_reason\":\"%s\",\"seed\":%" PRIu64 ",\"model\":",
           done->prompt_tokens, done->cached_tokens, done->output_tokens,
           done->finish == TKR_FINISH_LENGTH ? "length" : "stop", done->seed);
    json_text(stdout, session->limits.model, strlen(session->limits.model));
    printf(",\"times_ns\":{\"submit\":%" PRIu64 ",\"seen\":%" PRIu64 ",\"admitted\":%" PRIu64
           ",\"prefill\":%" PRIu64 ",\"first_token\":%" PRIu64 ",\"last_token\":%" PRIu64
           ",\"done\":%" PRIu64 "}}\n",
           t->submit, t->seen, t->admitted, t->prefill, t->first_token, t->last_token, t->done);
}

/* Milliseconds from one stamp to another; a stage that was not reached counts as nothing. */
static double ms(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) / 1e6 : 0;
}

static void print_stats(const struct run *run)
{
    const tkr_event *done = &run->done;
    const tkr_times *t = &done->times;
    double prefill = ms(t->prefill, t->first_token), decode = ms(t->first_token, t->last_token);
    uint32_t fed = done->prompt_tokens - done->cached_tokens;

    fprintf(stderr,
            "to the daemon %9.3f ms\n"
            "to a place    %9.3f ms\n"
            "waiting       %9.3f ms\n"
            "prompt        %9.3f ms  %u tokens, %u of them cached",
            ms(t->submit, t->seen), ms(t->seen, t->admitted), ms(t->admitted, t->prefill), prefill,
            done->prompt_tokens, done->cached_tokens);
    if (prefill > 0)
        fprintf(stderr, ", %.1f a second", fed / prefill * 1e3);
    fprintf(stderr, "\nanswer        %9.3f ms  %u tokens", decode, done->output_tokens);
    if (decode > 0 && done->output_tokens > 1)
        fprintf(stderr, ", %.1f a second", (done->output_tokens - 1) / decode * 1e3);
    fprintf(stderr, "\nfirst token   %9.3f ms  after the submit\nall           %9.3f ms\n",
            ms(t->submit, t->first_token), ms(t->submit, t->done));
}

static int answer_report(struct run *run, const struct session *session)
{
    const tkr_event *done = &run->done;

    if (!run->json && run->last && run->last != '\n')
        putchar('\n');
    if (session_interrupted() && done->status == TKR_E_CANCELLED)
        return output_end() == CLI_OK ? CLI_INTERRUPTED : CLI_FAILED;
    if (done->status != TKR_OK)
        return session_failed(done);
    if (run->json)
        print_json(run, session);
    if (run->stats)
        print_stats(run);
    return output_end();
}

int run_main(int argc, char **argv)
{
    struct run run = {0};
    struct session session;
    struct input input;
    size_t bytes;
    int code;

    tkr_req_init(&run.req, TKR_OP_GENERATE);
    run.req.max_tokens = MAX_TOKENS_USUAL;
    argp_parse(&argp, argc, argv, 0, NULL, &run);
    if ((run.messages ? input_messages(&input, run.messages) : input_argument(&input, run.prompt)) <
        0)
        return CLI_FAILED;
    session_prompt(&run.req, &input, run.raw ? TKR_DATA_TEXT : TKR_DATA_MESSAGES);
    run.req.stops = run.stops;
    bytes = input.bytes + (size_t)TKR_STOPS_MAX * TKR_STOP_BYTES_MAX;

    code = session_open(&session, run.socket, bytes, 0, run.reconnect);
    if (code == CLI_OK) {
        code = session_submit(&session, &run.req);
        if (code == CLI_OK)
            code = answer_read(&run, &session);
        if (code == CLI_OK)
            code = answer_report(&run, &session);
        session_close(&session);
    }
    input_free(&input);
    free(run.text.bytes);
    free(run.ids.bytes);
    return code;
}
