/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll.c - several questions at once from a program with a poll loop of its own.
 *
 *   cc poll.c $(pkg-config --cflags --libs tokenring) -o poll && ./poll "One?" "Two?"
 *
 * The answers are printed in the order in which they end.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <tokenring/tokenring.h>

#define ANSWER_MAX 65536

struct answer {
    char text[ANSWER_MAX];
    size_t len;
};

/* Whatever is there; returns how many requests ended, or < 0 when the daemon is gone. */
static int events_read(tkr_conn *c, struct answer *answers)
{
    tkr_event events[32];
    int n, ended = 0;

    while ((n = tkr_peek(c, events, 32)) > 0) {
        for (int i = 0; i < n; i++) {
            struct answer *a = &answers[events[i].user_data];

            if (events[i].type == TKR_EV_TEXT)
                for (uint32_t j = 0; j < events[i].len && a->len < ANSWER_MAX; j++)
                    a->text[a->len++] = events[i].text[j];
            if (events[i].type != TKR_EV_DONE)
                continue;
            printf("%.*s\n", (int)a->len, a->text);
            if (events[i].status)
                fprintf(stderr, "poll: %s %s\n", tkr_strerror(events[i].status), events[i].message);
            tkr_release(c, events[i].id);
            ended++;
        }
    }
    return n < 0 && !ended ? n : ended;
}

int main(int argc, char **argv)
{
    struct answer *answers = calloc((size_t)argc, sizeof *answers);
    int sent = 0, ended = 0, n = argc - 1;
    tkr_conn *c;

    if (!answers || tkr_open(&c, NULL)) {
        fprintf(stderr, "poll: %s\n", answers ? tkr_open_error() : "out of memory");
        free(answers);
        return 3;
    }
    while (ended < n) {
        struct pollfd pfd = {.events = POLLIN};
        int got = events_read(c, answers);

        if (got < 0) {
            fprintf(stderr, "poll: %s\n", tkr_strerror(got));
            break;
        }
        ended += got;
        for (; sent < n; sent++) {
            tkr_req r = TKR_CHAT(argv[1 + sent]);

            r.user_data = (uint64_t)sent;
            if (tkr_submit(c, &r, 1) != 1)
                break; /* full: when one has ended there is room again */
        }
        if (ended < n && tkr_arm(c) == 0) {
            pfd.fd = tkr_fd(c);
            poll(&pfd, 1, -1); /* beside whatever else this program waits for */
        }
    }
    tkr_close(c);
    free(answers);
    return ended == n ? 0 : 1;
}
