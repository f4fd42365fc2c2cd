/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.c - four threads submit on queues of their own, one reads; for test_queues.py.
 *
 *   queues SOCKET N wait | moderate | poll | reconnect
 *
 * N requests a thread; the last word says how the reading thread waits. With reconnect the daemon may
 * die as often as it likes.
 *
 * Every tenth request generates, always the same greedy answer, the others are NOOPs. Exit code 0:
 * each ended once and OK, and all answers were equal.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tokenring/tokenring.h>

#define THREADS      4
#define EVENTS       16
#define INFLIGHT     32
#define ANSWER       12 /* ids */
#define PATIENCE_NS  TKR_S(60)
#define GENERATES(i) ((i) % 10 == 0)

struct stream {
    uint32_t ids[ANSWER];
    uint32_t n;
};

static tkr_conn *conn;
static uint32_t per_thread;
static uint8_t *ended[THREADS]; /* [per_thread] */
static struct stream *streams[THREADS];

static void fail(const char *what, int value)
{
    fprintf(stderr, "queues: %s: %d\n", what, value);
    exit(1);
}

static void *submitter(void *arg)
{
    unsigned queue = (unsigned)(uintptr_t)arg;

    for (uint32_t i = 0; i < per_thread; i++) {
        tkr_req req = TKR_TEXT("One two");
        int got;

        if (!GENERATES(i))
            tkr_req_init(&req, TKR_OP_NOOP);
        else
            req.max_tokens = ANSWER;
        req.flags = GENERATES(i) ? TKR_PARAM_IGNORE_EOS : 0;
        req.user_data = (uint64_t)queue << 32 | i;
        got = tkr_submit_wait_on(conn, queue, &req, 1, PATIENCE_NS);
        if (got != 1)
            fail("submit", got);
    }
    return NULL;
}

/* 1: a request ended. */
static uint32_t event_take(const tkr_event *event)
{
    uint32_t queue = (uint32_t)(event->user_data >> 32), i = (uint32_t)event->user_data;
    struct stream *stream = &streams[queue][i];

    if (event->type == TKR_EV_TEXT) {
        if (event->n && (event->pos != stream->n || event->n > ANSWER - stream->n))
            fail("position", (int)event->pos);
        memcpy(stream->ids + stream->n, event->tokens, event->n * sizeof *stream->ids);
        stream->n += event->n;
        return 0;
    }
    if (event->status) {
        fprintf(stderr, "queues: %s\n", event->message);
        fail("status", event->status);
    }
    if (ended[queue][i]++)
        fail("ended twice", (int)i);
    tkr_release(conn, event->id);
    return 1;
}

static int events_get(tkr_event *events, int by_poll)
{
    struct pollfd pfd = {.fd = tkr_fd(conn), .events = POLLIN};
    int got;

    if (!by_poll)
        return tkr_wait(conn, events, EVENTS, PATIENCE_NS);
    while (!(got = tkr_peek(conn, events, EVENTS)))
        if (!tkr_arm(conn) && poll(&pfd, 1, (int)(PATIENCE_NS / TKR_MS(1))) != 1)
            return 0;
    return got;
}

static void answers_check(void)
{
    for (int t = 0; t < THREADS; t++)
        for (uint32_t i = 0; i < per_thread; i++)
            if (GENERATES(i) && (streams[t][i].n != ANSWER ||
                                 memcmp(&streams[t][i], &streams[0][0], sizeof streams[0][0]) != 0))
                fail("another answer", (int)i);
}

int main(int argc, char **argv)
{
    tkr_opt opt = {.size = sizeof opt, .n_queues = THREADS, .max_inflight = INFLIGHT};
    pthread_t threads[THREADS];
    uint32_t done = 0;

    if (argc != 4)
        return 2;
    opt.path = argv[1];
    per_thread = (uint32_t)atoi(argv[2]);
    opt.reconnect = !strcmp(argv[3], "reconnect");
    if (!strcmp(argv[3], "moderate")) {
        opt.wake_every = 4;
        opt.spin_ns = -1;
    }
    for (int i = 0; i < THREADS; i++) {
        ended[i] = calloc(per_thread, sizeof *ended[i]);
        streams[i] = calloc(per_thread, sizeof *streams[i]);
        if (!ended[i] || !streams[i])
            return 1;
    }
    if (tkr_open(&conn, &opt)) {
        fprintf(stderr, "queues: %s\n", tkr_open_error());
        return 3;
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, submitter, (void *)i))
            return 1;
    while (done < THREADS * per_thread) {
        tkr_event events[EVENTS];
        int got = events_get(events, !strcmp(argv[3], "poll"));

        if (got <= 0)
            fail("wait", got);
        for (int i = 0; i < got; i++)
            done += event_take(&events[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tkr_close(conn);
    answers_check();
    for (int i = 0; i < THREADS; i++) {
        free(ended[i]);
        free(streams[i]);
    }
    printf("%u requests\n", done);
    return 0;
}
