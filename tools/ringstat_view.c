/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ringstat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const status_names[TKR_STATS_STATUSES] = {
    "OK",        "INVALID",   "UNSUPPORTED", "CONTEXT", "DEADLINE",  "OVERLOADED",
    "CANCELLED", "ABORTED",   "NUMERIC",     "SLOW",    "NO_MODEL",  "MISMATCH",
    "DENIED",    "DUPLICATE", "INTERNAL",    "GONE",    "RESTARTED",
};

static const char *const io_names[] = {"unknown", "io_uring futex", "io_uring socket", "epoll"};

const char *status_name(unsigned number)
{
    return number < TKR_STATS_STATUSES ? status_names[number] : NULL;
}

const char *io_name(const struct tkr_stats *stats)
{
    return stats->io < sizeof io_names / sizeof io_names[0] ? io_names[stats->io] : "unknown";
}

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

/* A live process that a signal (or a tracer) has halted. Unseen in another pid namespace: then
 * false. */
static bool process_halted(const struct tkr_stats *stats)
{
    uint64_t ticks;
    char process_state;

    if (tkr_stats_process(stats->pid, &ticks, &process_state) < 0)
        return false;
    return ticks == stats->pid_start_ticks && (process_state == 'T' || process_state == 't');
}

static const char *state_name(const struct view *view, int alive)
{
    const struct tkr_stats *stats = &view->stats;

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
    case TKR_STATS_DRAIN:
        if (stats->running && view->silent_s > RINGSTAT_HUNG_S)
            return "hung";
        return stats->state == TKR_STATS_READY ? "ready" : "draining";
    default:
        return "unknown";
    }
}

/* Names end on a terminal: no control characters, and of bytes beyond ASCII only where UTF-8 is
 * right. */
static void name_clean(char *name, bool ascii)
{
    for (; *name; name++)
        if ((unsigned char)*name < ' ' || *name == 0x7f || (ascii && (unsigned char)*name > 0x7f))
            *name = '?';
}

static void names_clean(struct view *view)
{
    name_clean(view->stats.model, false);
    name_clean(view->stats.version, true);
    name_clean(view->stats.cpu_variant, true);
    for (uint32_t i = 0; i < view->n_clients; i++)
        name_clean(view->clients[i].library, true);
}

static int view_read(struct view *ret_view, const char *socket)
{
    struct view view = {0};
    char path[PATH_MAX];
    uint64_t end;
    int alive, err, n;

    n = snprintf(path, sizeof path, "%s%s", socket, TKR_STATS_SUFFIX);
    if (n < 0 || (size_t)n >= sizeof path)
        return -ENAMETOOLONG;
    memcpy(view.socket, socket,
           strlen(socket) + 1); /* shorter than path, which has the same size */
    err = tkr_stats_read_clients(path, &view.stats, &alive, &view.clients, &view.n_clients);
    if (err < 0)
        return err;
    names_clean(&view);
    view.read_ns = clock_now_ns();
    view.silent_s = seconds_since(view.stats.heartbeat_ns, view.read_ns);
    view.state = state_name(&view, alive);
    end = view.read_ns;
    if (view.stats.state == TKR_STATS_GONE)
        end = view.stats.stopped_ns;
    else if (!alive)
        end = view.stats.heartbeat_ns; /* the last that is known of its life */
    view.uptime_s = seconds_since(view.stats.start_ns, end);
    *ret_view = view;
    return 0;
}

void view_fini(struct view *view)
{
    free(view->clients);
    view->clients = NULL;
    view->n_clients = 0;
}

bool view_is_ready(const struct view *view)
{
    return strcmp(view->state, "ready") == 0;
}

bool view_has_minor_2(const struct view *view)
{
    return view->stats.minor >= 2;
}

static bool is_living(const struct view *view)
{
    return strcmp(view->state, "stopped") != 0 && strcmp(view->state, "dead") != 0;
}

const char *view_advice(const struct view *view)
{
    if (strcmp(view->state, "dead") == 0)
        return "it ended without a word (killed, crashed); these are its last figures";
    if (strcmp(view->state, "stopped") == 0)
        return "the daemon ended in order; these are its last figures";
    if (strcmp(view->state, "paused") == 0)
        return "halted by a signal or a debugger; kill -CONT lets it go on";
    if (strcmp(view->state, "hung") == 0)
        return "requests run, but no step ends: see its log and its threads' stacks";
    return NULL;
}

/* ---- rates ----------------------------------------------------------------------------------- */

static bool is_same_daemon(const struct view *view, const struct view *before)
{
    return before && before->stats.pid == view->stats.pid &&
           before->stats.start_ns == view->stats.start_ns && view->read_ns > before->read_ns;
}

static double per(uint64_t from, uint64_t to, double n)
{
    return n > 0 && to > from ? (double)(to - from) / n : 0;
}

struct rates view_rates(const struct view *view, const struct view *before)
{
    static const struct tkr_stats zero;
    const struct tkr_stats *s = &view->stats, *b = &zero;
    struct rates rates = {.seconds = view->uptime_s};
    uint64_t steps;

    if (is_same_daemon(view, before)) {
        b = &before->stats;
        rates.seconds = seconds_since(before->read_ns, view->read_ns);
    }
    steps = s->steps > b->steps ? s->steps - b->steps : 0;
    rates.prompt_tokens = per(b->prompt_tokens, s->prompt_tokens, rates.seconds);
    rates.output_tokens = per(b->output_tokens, s->output_tokens, rates.seconds);
    rates.requests = per(b->finished + b->cancelled + b->failed,
                         s->finished + s->cancelled + s->failed, rates.seconds);
    rates.steps = per(b->steps, s->steps, rates.seconds);
    rates.step_ms = per(b->step_ns_sum, s->step_ns_sum, (double)steps) / 1e6;
    rates.rows = per(b->rows, s->rows, (double)steps);
    rates.awake = per(b->awake_ns, s->awake_ns, rates.seconds) / 1e9;
    return rates;
}

double client_rate(const struct view *view, const struct view *before,
                   const struct tkr_stats_client *client)
{
    if (is_same_daemon(view, before)) {
        for (uint32_t i = 0; i < before->n_clients; i++) {
            if (before->clients[i].id == client->id)
                return per(before->clients[i].generated, client->generated,
                           seconds_since(before->read_ns, view->read_ns));
        }
    }
    return per(0, client->generated, seconds_since(client->attached_ns, view->read_ns));
}

/* ---- which daemon: the order in which a client looks, too ------------------------------------ */

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

int view_find(struct view *ret_view, const char *socket, bool quiet)
{
    char paths[SOCKETS_MAX][PATH_MAX];
    struct view view;
    int n = sockets_list(socket, paths), found = -ENOENT;

    for (int i = 0; i < n; i++) {
        int err = view_read(&view, paths[i]);

        if (err < 0) {
            if (err == -ENOENT || err == -ENOTDIR)
                continue;
            if (!quiet)
                fprintf(stderr, "ringstat: %s%s: %s\n", paths[i], TKR_STATS_SUFFIX,
                        err == -EPROTO ? "not a stats file of this version" : strerror(-err));
            if (found == -ENOENT)
                found = err;
            continue;
        }
        if (found == 0) {
            if (!is_living(&view)) {
                view_fini(&view);
                continue;
            }
            view_fini(ret_view);
        }
        *ret_view = view;
        found = 0;
        if (is_living(&view))
            break;
    }
    if (found == -ENOENT && !quiet) {
        for (int i = 0; i < n; i++)
            fprintf(stderr, "ringstat: no daemon has been at %s\n", paths[i]);
    }
    return found;
}
