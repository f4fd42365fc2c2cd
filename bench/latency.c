/* SPDX-License-Identifier: Apache-2.0 */
/* latency.c - requests one at a time, timed in the client process. */
#include <errno.h>
#include <time.h>
#include "bench/latency.h"
#include "bench/median.h"
#include "clients/tokenring.h"
#include "runtime/base/clock.h"

#define PROMPT   32u
#define REQUESTS 40u
#define WARM     5u
#define PAUSE_NS 20000000 /* the daemon polls for less than that before it sleeps */

struct timing {
    double first_us, done_us; /* since submit */
    double step_us;           /* of the daemon: start of the step to the end of the forward pass */
};

/* Ids that no request before had, in this order: nothing can be kept from it. */
static void fill_prompt(uint32_t *tokens, uint32_t n, uint32_t n_vocab)
{
    static uint32_t state = 1;

    for (uint32_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = 100 + (state >> 8) % (n_vocab - 200);
    }
}

static int ask(tkr_conn *conn, uint32_t n_vocab, uint32_t n_prompt, struct timing *ret_timing)
{
    uint32_t tokens[PROMPT];
    tkr_event event = {0};
    uint64_t begin, first = 0, done;
    tkr_req req;

    fill_prompt(tokens, n_prompt, n_vocab);
    tkr_req_init(&req, TKR_OP_GENERATE);
    req.data_kind = TKR_DATA_TOKENS;
    req.tokens = tokens;
    req.n_tokens = n_prompt;
    req.max_tokens = 1;
    begin = clock_ns();
    if (tkr_submit(conn, &req, 1) != 1)
        return -EIO;
    do {
        if (tkr_wait(conn, &event, 1, TKR_S(10)) != 1)
            return -ETIMEDOUT;
        if (!first)
            first = clock_ns();
    } while (event.type != TKR_EV_DONE);
    done = clock_ns();
    tkr_release(conn, req.id);
    if (event.status || event.times.first_token == 0)
        return -EPROTO;
    ret_timing->first_us = (double)(first - begin) / 1e3;
    ret_timing->done_us = (double)(done - begin) / 1e3;
    ret_timing->step_us = (double)(event.times.first_token - event.times.prefill) / 1e3;
    return 0;
}

/* times[REQUESTS] of prompts of n_prompt, pause_ns after each end; 0 or -errno. */
static int ask_all(tkr_conn *conn, uint32_t n_vocab, uint32_t n_prompt, long pause_ns,
                   struct timing *times)
{
    struct timespec pause = {0, pause_ns};
    int err;

    for (uint32_t i = 0; i < WARM + REQUESTS; i++) {
        if (pause_ns)
            nanosleep(&pause, NULL);
        err = ask(conn, n_vocab, n_prompt, &times[i < WARM ? 0 : i - WARM]);
        if (err < 0)
            return err;
    }
    return 0;
}

static double median_overhead(const struct timing *times)
{
    double us[REQUESTS];

    for (uint32_t i = 0; i < REQUESTS; i++)
        us[i] = times[i].done_us - times[i].step_us;
    return median(us, REQUESTS);
}

static int measure(tkr_conn *conn, struct latency *ret_latency)
{
    tkr_limits limits = {.size = sizeof limits};
    struct timing times[REQUESTS];
    double first_us[REQUESTS];
    int err = tkr_get_limits(conn, &limits);

    if (err < 0 || (err = ask_all(conn, limits.n_vocab, PROMPT, PAUSE_NS, times)) < 0)
        return err;
    for (uint32_t i = 0; i < REQUESTS; i++)
        first_us[i] = times[i].first_us;
    ret_latency->ttft32_ms = median(first_us, REQUESTS) / 1e3;
    if ((err = ask_all(conn, limits.n_vocab, 1, PAUSE_NS, times)) < 0)
        return err;
    ret_latency->overhead_idle_us = median_overhead(times);
    if ((err = ask_all(conn, limits.n_vocab, 1, 0, times)) < 0)
        return err;
    ret_latency->overhead_us = median_overhead(times);
    return 0;
}

int latency_measure(struct latency *ret_latency, const char *socket_path)
{
    tkr_opt opt = {.size = sizeof opt, .path = socket_path};
    struct latency latency = {0};
    tkr_conn *conn;
    int err = tkr_open(&conn, &opt);

    if (err < 0)
        return err;
    err = measure(conn, &latency);
    tkr_close(conn);
    if (err == 0)
        *ret_latency = latency;
    return err;
}
