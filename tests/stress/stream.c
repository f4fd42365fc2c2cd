/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - an honest client that knows every byte it has to get.
 *
 *   stream SOCKET record FILE      asks each case once and keeps the answers (nobody else is there)
 *   stream SOCKET play FILE SEED   asks random cases until SIGTERM, over any number of daemons, and
 *                                  compares; one line of JSON at the end
 *   stream SOCKET gone FILE SEED   the same without reconnecting, until the daemon is gone; then
 *                                  the line says when that was noticed
 *
 * lost: ids that were skipped. repeated: ids that came again. foreign: ids or text that the solo
 * run did not have. All three have to be 0.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "clients/tokenring.h"

#define TOKENS_MAX 512u
#define TEXT_MAX   (64u * TOKENS_MAX)
#define LIVE_MAX   4u
#define WAIT_S     60

struct stream {
    uint32_t n_ids, n_text;
    uint32_t ids[TOKENS_MAX];
    char text[TEXT_MAX];
};

static const struct {
    const char *prompt;
    uint32_t max_tokens;
    float temperature;
    uint64_t seed;
} cases[] = {
    {"the quick brown fox", 300, 0, 0},    {"a", 400, 0, 0},
    {"0123456789 abcdefghij", 100, 0, 0},  {"the quick brown fox", 300, 0.9f, 11},
    {"hello world, hello", 200, 1.5f, 12}, {"b", 5, 0, 0},
};
#define CASES (sizeof cases / sizeof *cases)

struct live {
    tkr_id id; /* 0: free */
    size_t of;
    struct stream got;
};

static struct stream solo[CASES];
static struct live lives[LIVE_MAX];
static uint64_t streams, tokens, lost, repeated, foreign, ended, gone_ns, gone_live;
static volatile sig_atomic_t over;

static void on_term(int signal)
{
    (void)signal;
    over = 1;
}

static void die(const char *what, const char *why)
{
    printf("{\"failed\": \"%s: %s\"}\n", what, why);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static tkr_conn *opened(const char *path, int reconnect)
{
    const tkr_opt opt = {.size = sizeof opt,
                         .path = path,
                         .max_inflight = 2 * LIVE_MAX,
                         .reconnect = (uint32_t)reconnect,
                         .reconnect_timeout_ns = TKR_S(WAIT_S)};
    tkr_conn *conn = NULL;

    if (tkr_open(&conn, &opt) < 0)
        die("open", tkr_open_error());
    return conn;
}

/* 1: taken. */
static int asked(tkr_conn *conn, struct live *live, size_t of)
{
    tkr_req req = tkr_req_text(cases[of].prompt);
    int n;

    req.max_tokens = cases[of].max_tokens;
    req.temperature = cases[of].temperature;
    req.seed = cases[of].seed;
    req.flags = TKR_PARAM_IGNORE_EOS | (cases[of].seed ? TKR_PARAM_SEED : 0);
    n = tkr_submit(conn, &req, 1);
    if (n < 0 && n != -ESHUTDOWN)
        die("submit", tkr_strerror(n));
    if (n <= 0)
        return 0;
    live->id = req.id;
    live->of = of;
    live->got.n_ids = live->got.n_text = 0;
    return 1;
}

static struct live *live_of(tkr_id id)
{
    for (uint32_t i = 0; i < LIVE_MAX; i++)
        if (lives[i].id == id)
            return &lives[i];
    return NULL;
}

static void text_event(struct live *live, const tkr_event *e)
{
    struct stream *got = &live->got;

    if (e->n && e->pos > got->n_ids)
        lost += e->pos - got->n_ids;
    if (e->n && e->pos < got->n_ids)
        repeated += got->n_ids - e->pos;
    if (e->n > TOKENS_MAX - got->n_ids || e->len > TEXT_MAX - got->n_text) {
        foreign++;
        return;
    }
    memcpy(got->ids + got->n_ids, e->tokens, e->n * sizeof *e->tokens);
    got->n_ids += e->n;
    memcpy(got->text + got->n_text, e->text, e->len);
    got->n_text += e->len;
    tokens += e->n;
}

/* What came is a beginning of the solo run, or all of it. */
static void compare(const struct live *live, int whole)
{
    const struct stream *got = &live->got, *want = &solo[live->of];
    uint32_t n = got->n_ids < want->n_ids ? got->n_ids : want->n_ids;

    for (uint32_t i = 0; i < n; i++)
        foreign += got->ids[i] != want->ids[i];
    if (got->n_ids > want->n_ids)
        foreign += got->n_ids - want->n_ids;
    if (whole && got->n_ids < want->n_ids)
        lost += want->n_ids - got->n_ids;
    if (got->n_text > want->n_text || (whole && got->n_text != want->n_text) ||
        memcmp(got->text, want->text, got->n_text))
        foreign++;
}

static void done_event(tkr_conn *conn, struct live *live, const tkr_event *e)
{
    if (e->status == TKR_OK) {
        compare(live, 1);
        streams++;
    } else if (e->status == TKR_E_GONE) {
        compare(live, 0);
        gone_live++;
        if (!gone_ns)
            gone_ns = now_ns();
    } else {
        fprintf(stderr, "ended with %s: %s\n", tkr_strerror(e->status), e->message);
        compare(live, 0);
        ended++;
    }
    tkr_release(conn, e->id);
    live->id = 0;
}

/* 0: the connection is over. */
static int turn(tkr_conn *conn, uint64_t *x, int refill)
{
    tkr_event e;
    uint32_t n_live = 0;
    int n;

    for (uint32_t i = 0; i < LIVE_MAX; i++) {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        if (!lives[i].id && refill)
            asked(conn, &lives[i], (size_t)(*x % CASES));
        n_live += lives[i].id != 0;
    }
    if (!n_live && !refill)
        return 0;
    n = tkr_wait(conn, &e, 1, n_live ? TKR_S(WAIT_S) : TKR_MS(10));
    if (n == -ESHUTDOWN)
        return 0;
    if (n < 0 || (n == 0 && n_live))
        die("wait", n < 0 ? tkr_strerror(n) : "nothing came");
    if (n == 1) {
        struct live *live = live_of(e.id);

        if (!live)
            die("event", "of a request that does not live");
        if (e.type == TKR_EV_TEXT)
            text_event(live, &e);
        else if (e.type == TKR_EV_DONE)
            done_event(conn, live, &e);
    }
    return 1;
}

static void record(tkr_conn *conn, const char *file)
{
    FILE *out = fopen(file, "wb");
    tkr_event e;

    for (size_t i = 0; i < CASES; i++) {
        struct live *live = &lives[0];

        if (!out || !asked(conn, live, i))
            die("record", "refused");
        do {
            if (tkr_wait(conn, &e, 1, TKR_S(WAIT_S)) != 1)
                die("record", "nothing came");
            if (e.type == TKR_EV_TEXT)
                text_event(live, &e);
        } while (e.type != TKR_EV_DONE);
        if (e.status != TKR_OK || live->got.n_ids != cases[i].max_tokens)
            die("record", e.message ? e.message : "ended early");
        tkr_release(conn, e.id);
        fwrite(&live->got, sizeof live->got, 1, out);
    }
    if (fclose(out))
        die("record", "cannot write");
    puts("{}");
}

int main(int argc, char **argv)
{
    int playing = argc == 5 && !strcmp(argv[2], "play");
    uint64_t x = argc == 5 ? strtoull(argv[4], NULL, 10) * 2 + 88172645463325253u : 0;
    tkr_conn *conn;
    FILE *in;

    if (argc < 4)
        return 2;
    signal(SIGTERM, on_term);
    conn = opened(argv[1], playing);
    if (argc == 4) {
        record(conn, argv[3]);
        tkr_close(conn);
        return 0;
    }
    in = fopen(argv[3], "rb");
    if (!in || fread(solo, sizeof solo, 1, in) != 1)
        die("play", "cannot read the solo run");
    fclose(in);
    puts("{}"); /* attached */
    fflush(stdout);
    while (turn(conn, &x, !over))
        ;
    tkr_close(conn);
    printf("{\"streams\": %" PRIu64 ", \"tokens\": %" PRIu64 ", \"lost\": %" PRIu64
           ", \"repeated\": %" PRIu64 ", \"foreign\": %" PRIu64 ", \"ended\": %" PRIu64
           ", \"gone\": %" PRIu64 ", \"gone_ns\": %" PRIu64 "}\n",
           streams, tokens, lost, repeated, foreign, ended, gone_live, gone_ns);
    return 0;
}
