/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - a connection of the command line: opening, Ctrl-C, and how requests fail.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include "clients/cli/cli.h"

#define LOOK_NS TKR_MS(100) /* so long at most until a Ctrl-C is seen */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

int session_open(struct session *ret_session, const char *socket, size_t arena_bytes, size_t n_ids,
                 int reconnect)
{
    /* The second Ctrl-C ends the program at once. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    tkr_opt opt = {.size = sizeof opt, .path = socket, .reconnect = reconnect != 0};
    struct session session = {.limits.size = sizeof session.limits};

    /* 0 means the library's own size, which is enough for small things. */
    if (arena_bytes > 1 << 18)
        opt.arena_bytes = arena_bytes + (1 << 18);
    if (n_ids > 1 << 16)
        opt.bulk_bytes = 4 * (n_ids + (1 << 16));
    if (tkr_open(&session.conn, &opt) < 0) {
        complain("%s", tkr_open_error());
        return CLI_NO_DAEMON;
    }
    if (tkr_get_limits(session.conn, &session.limits) < 0) {
        complain("the daemon's table of models does not hold still");
        tkr_close(session.conn);
        return CLI_FAILED;
    }
    sigaction(SIGINT, &action, NULL);
    *ret_session = session;
    return CLI_OK;
}

void session_close(struct session *session)
{
    tkr_close(session->conn);
    session->conn = NULL;
}

int session_submit(struct session *session, tkr_req *req)
{
    int got = tkr_submit(session->conn, req, 1);

    if (got == 1)
        return CLI_OK;
    if (got == -EMSGSIZE || got == 0)
        complain("the prompt does not fit into the %zu bytes that the daemon grants for prompts "
                 "(setting arena_max); shorten it",
                 session->limits.arena_bytes);
    else if (got == -EINVAL)
        complain("messages, stop strings and stop ids together may be %u at most", TKR_TAIL_MAX);
    else
        complain("%s", tkr_strerror(got));
    return CLI_FAILED;
}

int session_wait(struct session *session, tkr_event *events, unsigned n)
{
    int got = tkr_wait(session->conn, events, n, LOOK_NS);

    if (got < 0)
        complain("%s", tkr_strerror(got));
    return got;
}

int session_interrupted(void)
{
    return interrupted;
}

static const char *status_name(uint16_t status)
{
    switch ((enum tkr_status)status) {
    case TKR_OK:
        return "OK";
    case TKR_E_INVALID:
        return "INVALID";
    case TKR_E_UNSUPPORTED:
        return "UNSUPPORTED";
    case TKR_E_CONTEXT:
        return "CONTEXT";
    case TKR_E_DEADLINE:
        return "DEADLINE";
    case TKR_E_OVERLOADED:
        return "OVERLOADED";
    case TKR_E_CANCELLED:
        return "CANCELLED";
    case TKR_E_ABORTED:
        return "ABORTED";
    case TKR_E_NUMERIC:
        return "NUMERIC";
    case TKR_E_SLOW:
        return "SLOW";
    case TKR_E_NO_MODEL:
        return "NO_MODEL";
    case TKR_E_MISMATCH:
        return "MISMATCH";
    case TKR_E_DENIED:
        return "DENIED";
    case TKR_E_DUPLICATE:
        return "DUPLICATE";
    case TKR_E_INTERNAL:
        return "INTERNAL";
    case TKR_E_GONE:
        return "GONE";
    case TKR_E_RESTARTED:
        return "RESTARTED";
    }
    return "UNKNOWN";
}

int session_failed(const tkr_event *done)
{
    char limit[80] = "", again[64] = "";

    if (done->have || done->want)
        snprintf(limit, sizeof limit, " (have %" PRIu64 ", want %" PRIu64 ")", done->have,
                 done->want);
    if (done->retry_after_ns)
        snprintf(again, sizeof again, "; try again in %" PRIu64 " ms",
                 done->retry_after_ns / 1000000 + 1);
    complain("the request ended %s (%u): %s%s%s", status_name(done->status), done->status,
             *done->message ? done->message : tkr_strerror(done->status), limit, again);
    return CLI_FAILED;
}

void session_prompt(tkr_req *req, const struct input *input, enum tkr_data_kind text_kind)
{
    req->data_kind = input->n_msgs ? TKR_DATA_MESSAGES : (uint8_t)text_kind;
    req->msgs = input->msgs;
    req->n_msgs = (uint16_t)input->n_msgs;
    req->text = input->text;
    req->len = input->len;
}
