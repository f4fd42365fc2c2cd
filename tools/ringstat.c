/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringstat - shows the figures of a daemon from the file beside its socket.
 *
 * Asks the daemon nothing, so it works on a busy, hung or stopped one, and shows the last figures of a
 * dead one. Exit code: 0 the daemon is ready, 1 it is not, 2 there is nothing to read or wrong usage.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/stats.h"

enum {
    EXIT_READY = 0,
    EXIT_NOT_READY = 1,
    EXIT_TROUBLE = 2
};

const char *argp_program_version = "ringstat " TKR_VERSION;

struct options {
    const char *socket;
    bool once, json;
};

/* What is known about one daemon: its figures and what they mean now. */
struct view {
    char socket[PATH_MAX];
    struct tkr_stats stats;
    const char *state; /* absent, starting, ready, draining, paused, stopped, dead */
    double uptime_s;
    double silent_s; /* since the last pass or step; an idle daemon makes none */
};

static const char *const status_names[TKR_STATS_STATUSES] = {
    "OK",        "INVALID", "UNSUPPORTED", "CONTEXT", "DEADLINE",  "OVERLOADED",
    "CANCELLED", "ABORTED", "NUMERIC",     "SLOW",    "NO_MODEL",  "MISMATCH",
    "DENIED",    "DUPLICATE", "INTERNAL",  "GONE",    "RESTARTED",
};

static const char *const io_names[] = {"unknown", "io_uring futex", "io_uring socket", "epoll"};

static double seconds_since(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

static uint64_t clock_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A live process that a signal (or a tracer) has halted. Unseen in another pid namespace: then false. */
static bool process_halted(const struct tkr_stats *stats)
{
    uint64_t ticks;
    char process_state;

    if (tkr_stats_process(stats->pid, &ticks, &process_state) < 0)
        return false;
    return ticks == stats->pid_start_ticks && (process_state == 'T' || process_state == 't');
}

static const char *state_name(const struct tkr_stats *stats, int alive)
{
    if (stats->state == TKR_STATS_GONE)
        return "stopped";
    if (!alive)
        return "dead";
    if (process_halted(stats))
        return "paused";
    switch (stats->state) {
    case TKR_STATS_STARTING:
        return "starting";
    case TKR_STATS_READY:
        return "ready";
    case TKR_STATS_DRAIN:
        return "draining";
    default:
        return "unknown";
    }
}

static int view_read(struct view *view, const char *socket)
{
    char path[PATH_MAX];
    uint64_t now, end;
    int alive, err, n;

    n = snprintf(path, sizeof path, "%s%s", socket, TKR_STATS_SUFFIX);
    if (n < 0 || (size_t)n >= sizeof path)
        return -ENAMETOOLONG;
    memcpy(view->socket, socket, strlen(socket) + 1); /* shorter than path, which has the same size */
    err = tkr_stats_read(path, &view->stats, &alive);
    if (err < 0)
        return err;
    view->state = state_name(&view->stats, alive);
    now = clock_now_ns();
    end = now;
    if (view->stats.state == TKR_STATS_GONE)
        end = view->stats.stopped_ns;
    else if (!alive)
        end = view->stats.heartbeat_ns; /* the last that is known of its life */
    view->uptime_s = seconds_since(view->stats.start_ns, end);
    view->silent_s = seconds_since(view->stats.heartbeat_ns, now);
    return 0;
}

/* ---- which daemon: the order in which a client looks, too --------------------------------------- */

#define SOCKETS_MAX 3

/* Fills paths with the places to look; those in order when nobody named one. Returns how many. */
static int sockets_list(const char *named, char paths[SOCKETS_MAX][PATH_MAX])
{
    const char *env = getenv("TOKENRING_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    char folder[64];
    int n = 0;

    if (!named && env && *env)
        named = env;
    if (named) {
        snprintf(paths[0], PATH_MAX, "%s", named);
        return 1;
    }
    if (runtime && *runtime)
        snprintf(paths[n++], PATH_MAX, "%s/tokenring/socket", runtime);
    snprintf(paths[n++], PATH_MAX, "/run/tokenring/socket");
    /* Anybody can make a folder in /tmp: only our own counts. */
    snprintf(folder, sizeof folder, "/tmp/tokenring-%u", getuid());
    if (lstat(folder, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid())
        snprintf(paths[n++], PATH_MAX, "%s/socket", folder);
    return n;
}

static bool is_living(const struct view *view)
{
    return strcmp(view->state, "stopped") != 0 && strcmp(view->state, "dead") != 0;
}

/* The first living daemon, else the first one that left figures. -ENOENT: none did. */
static int view_find(struct view *ret_view, const struct options *options)
{
    char paths[SOCKETS_MAX][PATH_MAX];
    struct view view;
    int n = sockets_list(options->socket, paths), found = -ENOENT;

    for (int i = 0; i < n; i++) {
        int err = view_read(&view, paths[i]);

        if (err < 0 && err != -ENOENT && err != -ENOTDIR) {
            fprintf(stderr, "ringstat: %s%s: %s\n", paths[i], TKR_STATS_SUFFIX,
                    err == -EPROTO ? "not a stats file of this version" : strerror(-err));
            if (found == -ENOENT)
                found = err;
        }
        if (err < 0 || (found == 0 && !is_living(&view)))
            continue;
        *ret_view = view;
        found = 0;
        if (is_living(&view))
            break;
    }
    if (found == -ENOENT) {
        for (int i = 0; i < n; i++)
            fprintf(stderr, "ringstat: no daemon has been at %s\n", paths[i]);
    }
    return found;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *ended_json(const struct tkr_stats *stats)
{
    json_t *ended = json_object();

    for (unsigned i = 0; i < TKR_STATS_STATUSES; i++) {
        if (stats->ended[i] && status_names[i])
            json_object_set_new(ended, status_names[i], number(stats->ended[i]));
    }
    return ended;
}

static void hash_hex(char hex[65], const uint8_t *hash)
{
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
}

static const char *io_name(const struct tkr_stats *stats)
{
    return stats->io < sizeof io_names / sizeof io_names[0] ? io_names[stats->io] : "unknown";
}

static int json_show(const struct view *view)
{
    const struct tkr_stats *s = &view->stats;
    char hex[65];
    json_t *root;
    int err;

    hash_hex(hex, s->model_hash);
    root = json_pack(
        "{s:s, s:o, s:f, s:o, s:{s:o, s:o, s:o, s:o, s:o}, s:{s:o, s:o}, s:s, s:s, s:s, s:o,"
        " s:s, s:s, s:s, s:f, s:{s:o, s:o}, s:{s:o, s:o, s:o, s:o}, s:{s:o, s:o, s:o}, s:o}",
        "state", view->state, "pid", number(s->pid), "uptime_s", view->uptime_s,
        "clients", number(s->clients),
        "requests", "running", number(s->running), "queued", number(s->queued),
        "finished", number(s->finished), "cancelled", number(s->cancelled), "failed", number(s->failed),
        "kv_pages", "total", number(s->kv_pages_total), "used", number(s->kv_pages_used),
        "model", s->model, "model_hash", hex, "cpu_variant", s->cpu_variant, "threads", number(s->threads),
        "version", s->version, "socket", view->socket, "io", io_name(s), "silent_s", view->silent_s,
        "tokens", "prompt", number(s->prompt_tokens), "output", number(s->output_tokens),
        "steps", "count", number(s->steps), "rows", number(s->rows), "ns_sum", number(s->step_ns_sum),
        "ns_last", number(s->step_ns_last),
        "attach", "attached", number(s->clients_attached), "refused", number(s->clients_refused),
        "unlocked", number(s->regions_unlocked),
        "ended", ended_json(s));
    if (!root) {
        fprintf(stderr, "ringstat: the figures do not fit JSON (a name that is not UTF-8?)\n");
        return -EINVAL;
    }
    err = json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(root);
    putchar('\n');
    return err ? -EIO : 0;
}

/* ---- for people ----------------------------------------------------------------------------------- */

/* 3d02h, 4h07m, 12m30s, 5.2s */
static void duration_text(char *text, size_t bytes, double seconds)
{
    unsigned long s = (unsigned long)seconds;

    if (s >= 86400)
        snprintf(text, bytes, "%lud%02luh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(text, bytes, "%luh%02lum", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(text, bytes, "%lum%02lus", s / 60, s % 60);
    else
        snprintf(text, bytes, "%.1fs", seconds);
}

/* What the state means, for those states that need a word; NULL for the others. */
static const char *state_advice(const char *state)
{
    if (strcmp(state, "dead") == 0)
        return "the process ended without a word (killed or crashed); these are its last figures";
    if (strcmp(state, "stopped") == 0)
        return "the daemon ended in order; these are its last figures";
    if (strcmp(state, "paused") == 0)
        return "the process is halted by a signal or a debugger; kill -CONT lets it go on";
    return NULL;
}

static double per(uint64_t sum, uint64_t n)
{
    return n ? (double)sum / (double)n : 0;
}

static void text_show(const struct view *view)
{
    const struct tkr_stats *s = &view->stats;
    const char *advice = state_advice(view->state);
    char up[32], silent[32], hex[65];
    bool none = true;

    duration_text(up, sizeof up, view->uptime_s);
    duration_text(silent, sizeof silent, view->silent_s);
    hash_hex(hex, s->model_hash);
    printf("tokenringd %s  pid %u  up %s  %s\n", s->version, s->pid, up, view->state);
    if (advice)
        printf("           %s\n", advice);
    printf("socket     %s\n", view->socket);
    printf("model      %s  %.12s\n", *s->model ? s->model : "-", hex);
    printf("engine     %s, %" PRIu64 " threads, %s\n", *s->cpu_variant ? s->cpu_variant : "-", s->threads,
           io_name(s));
    printf("clients    %" PRIu64 " now, %" PRIu64 " attached, %" PRIu64 " refused, %" PRIu64 " not locked\n",
           s->clients, s->clients_attached, s->clients_refused, s->regions_unlocked);
    printf("requests   running %" PRIu64 "  queued %" PRIu64 "  finished %" PRIu64 "  cancelled %" PRIu64
           "  failed %" PRIu64 "\n", s->running, s->queued, s->finished, s->cancelled, s->failed);
    printf("ended     ");
    for (unsigned i = 0; i < TKR_STATS_STATUSES; i++) {
        if (s->ended[i] && status_names[i]) {
            printf(" %s %" PRIu64, status_names[i], s->ended[i]);
            none = false;
        }
    }
    printf("%s\n", none ? " none" : "");
    printf("tokens     in %" PRIu64 "  out %" PRIu64 "\n", s->prompt_tokens, s->output_tokens);
    printf("steps      %" PRIu64 "  mean %.2f ms  last %.2f ms  rows a step %.1f\n", s->steps,
           per(s->step_ns_sum, s->steps) / 1e6, (double)s->step_ns_last / 1e6, per(s->rows, s->steps));
    printf("kv pages   %" PRIu64 " of %" PRIu64 " used (%.0f %%)\n", s->kv_pages_used, s->kv_pages_total,
           100 * per(s->kv_pages_used, s->kv_pages_total));
    printf("active     %s ago\n", silent);
}

/* ---- options -------------------------------------------------------------------------------------- */

static const struct argp_option argp_options[] = {
    {"socket", 's', "PATH", 0, "The daemon's socket (default: TOKENRING_SOCKET, "
     "$XDG_RUNTIME_DIR/tokenring/socket, /run/tokenring/socket, /tmp/tokenring-UID/socket)", 0},
    {"once", 'o', NULL, 0, "Show the figures once and end; exit code 0 only when the daemon is ready", 0},
    {"json", 'j', NULL, 0, "One line of JSON", 0},
    {0},
};

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
    case ARGP_KEY_END:
        if (!options->once)
            argp_error(state, "--once is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = argp_options,
    .parser = option_take,
    .doc = "Shows the figures of tokenringd without asking it.\v"
           "Exit code: 0 ready, 1 not ready (starting, draining, paused, stopped, dead), "
           "2 nothing to read or wrong usage.",
};

int main(int argc, char **argv)
{
    struct options options = {0};
    struct view view = {0};
    int err;

    argp_err_exit_status = EXIT_TROUBLE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &options))
        return EXIT_TROUBLE;
    err = view_find(&view, &options);
    if (err < 0) {
        if (options.json)
            printf("{\"state\":\"absent\"}\n");
        return EXIT_TROUBLE;
    }
    if (options.json)
        err = json_show(&view);
    else
        text_show(&view);
    if (err < 0 || fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "ringstat: cannot write the figures\n");
        return EXIT_TROUBLE;
    }
    return strcmp(view.state, "ready") == 0 ? EXIT_READY : EXIT_NOT_READY;
}
