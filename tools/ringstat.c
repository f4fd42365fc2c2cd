/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringstat - shows the figures of a daemon from the file beside its socket.
 *
 * Asks the daemon nothing, so it works on a busy, hung or stopped one, and shows the last figures
 * of a dead one. Exit code: 0 the daemon is ready, 1 it is not, 2 there is nothing to read or wrong
 * usage.
 */
#include "tools/ringstat.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INTERVAL_S_MIN 0.05 /* the daemon stores its figures so often */
#define INTERVAL_S_MAX 3600.0

enum { EXIT_READY = 0, EXIT_NOT_READY = 1, EXIT_TROUBLE = 2 };

const char *argp_program_version = "ringstat " TKR_VERSION;

struct options {
    const char *socket;
    bool once, json, csv;
    bool screen_given;
    enum tab screen;
    double interval_s; /* 0: not given */
};

static const struct argp_option argp_options[] = {
    {"socket", 's', "PATH", 0,
     "The daemon's socket (default: TOKENRING_SOCKET, "
     "$XDG_RUNTIME_DIR/tokenring/socket, /run/tokenring/socket, /tmp/tokenring-UID/socket)",
     0},
    {"once", 'o', NULL, 0,
     "Show the figures once and end; exit code 0 only when the daemon is ready", 0},
    {"json", 'j', NULL, 0, "One line of JSON; with -i one an interval", 0},
    {"csv", 'c', NULL, 0, "A line of names, then one line an interval; with --once a single one",
     0},
    {"screen", 'S', "NAME", 0, "Begin with this screen: top, clients or ring; with --once print it",
     0},
    {"interval", 'i', "SECONDS", 0, "Look so often, 0.05 to 3600 (default 1)", 0},
    {0},
};

static void screen_take(struct options *options, const char *arg, struct argp_state *state)
{
    for (int i = 0; i < SCREENS; i++) {
        if (!strcmp(arg, ringstat_screens[i])) {
            options->screen = (enum tab)i;
            options->screen_given = true;
            return;
        }
    }
    argp_error(state, "--screen is top, clients or ring, not '%s'", arg);
}

static void interval_take(struct options *options, const char *arg, struct argp_state *state)
{
    char *end;

    options->interval_s = strtod(arg, &end);
    if (end == arg || *end ||
        !(options->interval_s >= INTERVAL_S_MIN && options->interval_s <= INTERVAL_S_MAX))
        argp_error(state, "--interval is %g to %g seconds, not '%s'", INTERVAL_S_MIN,
                   INTERVAL_S_MAX, arg);
}

static error_t option_take(int key, char *arg, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 's':
        options->socket = arg;
        return 0;
    case 'o':
        options->once = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case 'c':
        options->csv = true;
        return 0;
    case 'S':
        screen_take(options, arg, state);
        return 0;
    case 'i':
        interval_take(options, arg, state);
        return 0;
    case ARGP_KEY_END:
        if (options->json && options->csv)
            argp_error(state, "--json or --csv, not both");
        if (options->screen_given && (options->json || options->csv))
            argp_error(state, "--screen is for people; --json and --csv have their own form");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = argp_options,
    .parser = option_take,
    .doc = "Shows the figures of tokenringd without asking it: live on a terminal, h for help.\v"
           "Exit code: 0 ready, 1 not ready (starting, draining, hung, paused, stopped, dead), "
           "2 nothing to read or wrong usage.",
};

static int output_failed(void)
{
    fprintf(stderr, "ringstat: cannot write the figures\n");
    return EXIT_TROUBLE;
}

static int once_run(const struct options *options)
{
    struct view view = {0};
    int err = view_find(&view, options->socket, false), ready;

    if (err < 0) {
        if (options->json)
            printf("{\"state\":\"absent\"}\n");
        return EXIT_TROUBLE;
    }
    if (options->json) {
        err = json_show(stdout, &view);
    } else if (options->csv) {
        csv_head(stdout);
        csv_show(stdout, &view, NULL);
    } else if (options->screen_given) {
        screen_show(stdout, options->screen, &view, NULL, SORT_PID, false);
    } else {
        text_show(stdout, &view);
    }
    ready = view_is_ready(&view);
    view_fini(&view);
    if (err < 0 || fflush(stdout) != 0 || ferror(stdout))
        return output_failed();
    return ready ? EXIT_READY : EXIT_NOT_READY;
}

/* Lines for a program, until it goes away or a signal comes. An interval without a file has no
 * line of CSV. */
static int lines_run(const struct options *options)
{
    double interval_s = options->interval_s > 0 ? options->interval_s : 1;
    struct timespec interval = {.tv_sec = (time_t)interval_s,
                                .tv_nsec = (long)((interval_s - floor(interval_s)) * 1e9)};
    struct view now = {0}, before = {0};
    int err = view_find(&now, options->socket, false);

    if (err < 0)
        return EXIT_TROUBLE;
    if (options->csv)
        csv_head(stdout);
    for (;;) {
        if (err < 0 && options->json)
            printf("{\"state\":\"absent\"}\n");
        else if (options->json)
            json_show(stdout, &now);
        else if (err == 0)
            csv_show(stdout, &now, before.state ? &before : NULL);
        if (fflush(stdout) != 0 || ferror(stdout))
            break;
        nanosleep(&interval, NULL);
        if (err == 0) {
            view_fini(&before);
            before = now;
            now = (struct view){0};
        }
        err = view_find(&now, options->socket, true);
    }
    view_fini(&before);
    view_fini(&now);
    return output_failed();
}

int main(int argc, char **argv)
{
    struct options options = {0};

    argp_err_exit_status = EXIT_TROUBLE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &options))
        return EXIT_TROUBLE;
    if (!options.once && (options.csv || (options.json && options.interval_s > 0)))
        return lines_run(&options);
    if (options.once || options.json)
        return once_run(&options);
    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)) {
        fprintf(stderr, "ringstat: this is no terminal, showing the figures --once\n");
        return once_run(&options);
    }
    if (live_run(options.socket, options.screen, options.interval_s > 0 ? options.interval_s : 1) <
        0) {
        fprintf(stderr,
                "ringstat: this terminal (TERM=%s) cannot show it, showing the figures --once\n",
                getenv("TERM") ? getenv("TERM") : "");
        return once_run(&options);
    }
    return EXIT_READY;
}
