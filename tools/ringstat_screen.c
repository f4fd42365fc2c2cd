/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ringstat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOP_CLIENTS 8 /* of those, the busiest, below the figures of the whole */

const char *const ringstat_screens[SCREENS] = {"top", "clients", "ring"};
const char *const ringstat_sorts[SORTS] = {"pid", "inflight", "tokens", "rate", "lag", "age"};

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

/* 9999, 12.3k, 4.1M, 2.0G: six characters at most */
static const char *count_text(char text[16], uint64_t n)
{
    static const char unit[] = "kMGTPE";
    double value = (double)n;
    int i = -1;

    while (value >= (i < 0 ? 10000 : 999.95)) {
        value /= 1000;
        i++;
    }
    if (i < 0)
        snprintf(text, 16, "%" PRIu64, n);
    else
        snprintf(text, 16, "%.1f%c", value, unit[i]);
    return text;
}

static double per(uint64_t sum, uint64_t n)
{
    return n ? (double)sum / (double)n : 0;
}

static void hash_head(char hex[13], const uint8_t *hash)
{
    for (int i = 0; i < 6; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
}

/* "no sign of life for 12.0s, since 23:10:05": only where that is news. */
static void silence_show(FILE *out, const struct view *view)
{
    const char *advice = view_advice(view);
    char silent[32], since[16] = "?";
    time_t then = time(NULL) - (time_t)view->silent_s;
    struct tm tm;

    if (!advice)
        return;
    fprintf(out, "           %s\n", advice);
    if (!strcmp(view->state, "stopped"))
        return;
    duration_text(silent, sizeof silent, view->silent_s);
    if (localtime_r(&then, &tm))
        strftime(since, sizeof since, "%H:%M:%S", &tm);
    fprintf(out, "           no sign of life for %s, since %s; %" PRIu64 " running then\n", silent,
            since, view->stats.running);
}

static void head_show(FILE *out, const struct view *view)
{
    const struct tkr_stats *s = &view->stats;
    char up[32], hex[13];

    duration_text(up, sizeof up, view->uptime_s);
    hash_head(hex, s->model_hash);
    fprintf(out, "tokenringd %s  pid %u  up %s  %s\n", s->version, s->pid, up, view->state);
    silence_show(out, view);
    fprintf(out, "socket     %s\n", view->socket);
    fprintf(out, "model      %s  %s\n", *s->model ? s->model : "-", hex);
    fprintf(out, "engine     %s, %" PRIu64 " threads, %s\n", *s->cpu_variant ? s->cpu_variant : "-",
            s->threads, io_name(s));
    fprintf(out,
            "clients    %" PRIu64 " now, %" PRIu64 " attached, %" PRIu64 " refused, %" PRIu64
            " not locked\n",
            s->clients, s->clients_attached, s->clients_refused, s->regions_unlocked);
    fprintf(out,
            "requests   running %" PRIu64 "  queued %" PRIu64 "  finished %" PRIu64
            "  cancelled %" PRIu64 "  failed %" PRIu64 "\n",
            s->running, s->queued, s->finished, s->cancelled, s->failed);
}

static void ended_show(FILE *out, const struct tkr_stats *s)
{
    bool none = true;

    fprintf(out, "ended     ");
    for (unsigned i = 0; i < TKR_STATS_STATUSES; i++) {
        if (s->ended[i] && status_name(i)) {
            fprintf(out, " %s %" PRIu64, status_name(i), s->ended[i]);
            none = false;
        }
    }
    fprintf(out, "%s\n", none ? " none" : "");
}

/* What held requests up, what clients did wrong, and wakes: each costs the daemon a call. */
static void troubles_show(FILE *out, const struct view *view)
{
    const struct tkr_stats *s = &view->stats;
    char a[16], b[16], c[16], d[16];

    if (!view_has_minor_2(view))
        return;
    fprintf(out, "held up    paused %s now  pauses %s  slow %s  displaced %s\n",
            count_text(a, s->paused), count_text(b, s->pauses), count_text(c, s->slow),
            count_text(d, s->displaced));
    fprintf(out, "transport  wakes %s  rejected slots %s  struck out %s  memory errors %s\n",
            count_text(a, s->wakes), count_text(b, s->rejected_slots), count_text(c, s->struck),
            count_text(d, s->memory_errors));
}

static void active_show(FILE *out, const struct view *view, const char *note, double awake)
{
    char silent[32];

    duration_text(silent, sizeof silent, view->silent_s);
    fprintf(out, "active     %s ago%s", silent, note);
    if (view_has_minor_2(view))
        fprintf(out, "  awake between steps %.1f %%", 100 * awake);
    fprintf(out, "\n");
}

void text_show(FILE *out, const struct view *view)
{
    const struct tkr_stats *s = &view->stats;

    head_show(out, view);
    ended_show(out, s);
    troubles_show(out, view);
    fprintf(out, "tokens     in %" PRIu64 "  out %" PRIu64 "\n", s->prompt_tokens,
            s->output_tokens);
    fprintf(out, "steps      %" PRIu64 "  mean %.2f ms  last %.2f ms  rows a step %.1f\n", s->steps,
            per(s->step_ns_sum, s->steps) / 1e6, (double)s->step_ns_last / 1e6,
            per(s->rows, s->steps));
    fprintf(out, "kv pages   %" PRIu64 " of %" PRIu64 " used (%.0f %%)\n", s->kv_pages_used,
            s->kv_pages_total, 100 * per(s->kv_pages_used, s->kv_pages_total));
    active_show(out, view, "", view_rates(view, NULL).awake);
}

/* ---- the order of clients -------------------------------------------------------------------- */

struct row {
    const struct tkr_stats_client *client;
    double rate, key;
};

static int row_compare(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->client->id > y->client->id) - (x->client->id < y->client->id);
}

static double row_key(const struct row *row, enum sort sort)
{
    const struct tkr_stats_client *c = row->client;

    switch (sort) {
    case SORT_INFLIGHT:
        return -(double)c->inflight;
    case SORT_TOKENS:
        return -(double)c->generated;
    case SORT_RATE:
        return -row->rate;
    case SORT_LAG:
        return -(double)(c->generated - c->published);
    case SORT_AGE:
        return (double)c->attached_ns; /* the oldest first */
    default:
        return (double)c->pid;
    }
}

/* The caller frees it; NULL: no clients (or no memory). */
static struct row *rows_sorted(const struct view *view, const struct view *before, enum sort sort,
                               bool reverse)
{
    struct row *rows = view->n_clients ? calloc(view->n_clients, sizeof *rows) : NULL;

    if (!rows)
        return NULL;
    for (uint32_t i = 0; i < view->n_clients; i++) {
        rows[i].client = &view->clients[i];
        rows[i].rate = client_rate(view, before, rows[i].client);
        rows[i].key = (reverse ? -1 : 1) * row_key(&rows[i], sort);
    }
    qsort(rows, view->n_clients, sizeof *rows, row_compare);
    return rows;
}

/* ---- clients --------------------------------------------------------------------------------- */

static void clients_head(FILE *out)
{
    fprintf(out, "%7s %5s %-18s %4s %4s %6s %5s %6s %5s %4s %6s\n", "PID", "UID", "LIBRARY", "Q",
            "INFL", "TOKENS", "LAG", "TOK/S", "CANC", "REJ", "AGE");
}

/* Q: hot/parked queues, '!' when one waits for room. '~' after the pid: the record is
 * unfinished. 'p' after the lag: a request is paused because of it. */
static void client_row(FILE *out, const struct view *view, const struct row *row)
{
    const struct tkr_stats_client *c = row->client;
    char tokens[16], lag[16], cancelled[16], rejected[16], rate[16], age[32], queues[16];
    double age_s =
        c->attached_ns < view->read_ns ? (double)(view->read_ns - c->attached_ns) / 1e9 : 0;

    duration_text(age, sizeof age, age_s);
    snprintf(queues, sizeof queues, "%d/%d%s", __builtin_popcount(c->hot),
             __builtin_popcount(c->parked),
             c->blocked || (c->flags & TKR_STATS_CLIENT_STARVED) ? "!" : "");
    if (row->rate < 1000)
        snprintf(rate, sizeof rate, "%.1f", row->rate);
    else
        count_text(rate, (uint64_t)row->rate);
    fprintf(out, "%7u%c%5u %-18.18s %4s %4u %6s %5s%c%6s %5s %4s %6s\n", c->pid,
            c->seq % 2 ? '~' : ' ', c->uid, c->library, queues, c->inflight,
            count_text(tokens, c->published), count_text(lag, c->generated - c->published),
            c->flags & TKR_STATS_CLIENT_PAUSED ? 'p' : ' ', rate,
            count_text(cancelled, c->cancelled), count_text(rejected, c->rejected), age);
}

static void nobody_show(FILE *out, const struct view *view)
{
    if (!view->n_clients)
        fprintf(out, "%s\n",
                view->stats.client_slots ? "        nobody is attached"
                                         : "        this daemon stores no figures of its clients");
}

static int clients_show(FILE *out, const struct view *view, const struct view *before,
                        enum sort sort, bool reverse)
{
    struct row *rows = rows_sorted(view, before, sort, reverse);
    const struct tkr_stats *s = &view->stats;

    fprintf(out,
            "clients %" PRIu64 " now, %" PRIu64 " attached, %" PRIu64
            " refused  daemon %s  sorted by %s%s\n",
            s->clients, s->clients_attached, s->clients_refused, view->state, ringstat_sorts[sort],
            reverse ? ", turned" : "");
    clients_head(out);
    for (uint32_t i = 0; rows && i < view->n_clients; i++)
        client_row(out, view, &rows[i]);
    nobody_show(out, view);
    free(rows);
    return 2;
}

/* ---- ring ------------------------------------------------------------------------------------ */

static char queue_letter(const struct tkr_stats_client *c, unsigned queue)
{
    if (c->hot >> queue & 1)
        return 'H';
    if (c->parked >> queue & 1)
        return 'P';
    return c->blocked >> queue & 1 ? 'B' : '-';
}

/* The queue's own columns, then those of the client in its first line. */
static void queue_row(FILE *out, const struct tkr_stats_client *c, unsigned queue)
{
    char wait[24] = "-", armed[4] = "---", flags[5] = "----";

    fprintf(out, "%7u %u%c %8u %8u %2d", c->pid, queue, queue_letter(c, queue), c->sq_pos[queue],
            c->sq_head[queue], c->need_wakeup >> queue & 1);
    armed[0] = c->bells >> queue & 1 ? 'b' : '-';
    if (queue) {
        fprintf(out, " %8s %8s %3s %8s %s\n", "", "", "", "", armed);
        return;
    }
    if (c->wait & TKR_WAIT_ASLEEP)
        snprintf(wait, sizeof wait, "%u", (uint32_t)c->wait);
    armed[1] = c->flags & TKR_STATS_CLIENT_SOCKET ? 's' : '-';
    armed[2] = c->flags & TKR_STATS_CLIENT_PIDFD ? 'p' : '-';
    flags[0] = c->flags & TKR_STATS_CLIENT_STARVED ? 'F' : '-';
    flags[1] = c->flags & TKR_STATS_CLIENT_DUE ? 'W' : '-';
    flags[2] = c->flags & TKR_STATS_CLIENT_PAUSED ? 'P' : '-';
    flags[3] = c->seq % 2 ? '~' : '-';
    fprintf(out, " %8u %8u %3u %8s %s %s ", c->cq_pos, c->cq_head, c->reserved, wait, armed, flags);
    for (unsigned i = 0; i < c->inflight && i < TKR_STATS_TAGS; i++)
        fprintf(out, "%s%u", i ? "," : "", c->tags[i]);
    fprintf(out, "%s\n", c->inflight > TKR_STATS_TAGS ? ",.." : "");
}

static int ring_show(FILE *out, const struct view *view, const struct view *before, enum sort sort,
                     bool reverse)
{
    struct row *rows = rows_sorted(view, before, sort, reverse);

    fprintf(out,
            "ring  Q hot, Parked, Blocked   NW need_wakeup   ARM bell, socket, pidfd awaited\n");
    fprintf(out, "      FLG Full (no room), to be Woken, Paused, ~ unfinished   daemon %s\n",
            view->state);
    fprintf(out, "%7s %-2s %8s %8s %2s %8s %8s %3s %8s %-3s %-4s %s\n", "PID", "Q", "SQ_POS",
            "SQ_HEAD", "NW", "CQ_POS", "CQ_HEAD", "RSV", "WAIT_POS", "ARM", "FLG", "TAGS");
    for (uint32_t i = 0; rows && i < view->n_clients; i++)
        for (unsigned queue = 0; queue < rows[i].client->n_queues && queue < TKR_NSQ_MAX; queue++)
            queue_row(out, rows[i].client, queue);
    nobody_show(out, view);
    free(rows);
    return 3;
}

/* ---- top ------------------------------------------------------------------------------------- */

static void bar_show(FILE *out, uint64_t used, uint64_t total)
{
    int full = (int)(20 * per(used, total) + 0.5);

    for (int i = 0; i < 20; i++)
        fputc(i < full ? '#' : '.', out);
}

static int top_show(FILE *out, const struct view *view, const struct view *before, enum sort sort,
                    bool reverse)
{
    const struct tkr_stats *s = &view->stats;
    struct rates r = view_rates(view, before);
    struct row *rows = rows_sorted(view, before, sort == SORT_PID ? SORT_RATE : sort, reverse);
    char in[16], made[16];

    head_show(out, view);
    ended_show(out, s);
    troubles_show(out, view);
    fprintf(out, "tokens     in %s  out %s   now in %.1f/s  out %.1f/s\n",
            count_text(in, s->prompt_tokens), count_text(made, s->output_tokens), r.prompt_tokens,
            r.output_tokens);
    fprintf(out,
            "through    %.2f requests/s  %.1f steps/s  %.2f ms a step (last %.2f)  %.1f rows\n",
            r.requests, r.steps, r.step_ms, (double)s->step_ns_last / 1e6, r.rows);
    fprintf(out, "kv pages   ");
    bar_show(out, s->kv_pages_used, s->kv_pages_total);
    fprintf(out, " %" PRIu64 " of %" PRIu64 " (%.0f %%)\n", s->kv_pages_used, s->kv_pages_total,
            100 * per(s->kv_pages_used, s->kv_pages_total));
    active_show(out, view, s->running ? "" : " (idle: it makes no pass)", r.awake);
    fprintf(out, "\n");
    clients_head(out);
    for (uint32_t i = 0; rows && i < view->n_clients && i < TOP_CLIENTS; i++)
        client_row(out, view, &rows[i]);
    nobody_show(out, view);
    free(rows);
    return 0;
}

int screen_show(FILE *out, enum tab screen, const struct view *view, const struct view *before,
                enum sort sort, bool reverse)
{
    switch (screen) {
    case SCREEN_CLIENTS:
        return clients_show(out, view, before, sort, reverse);
    case SCREEN_RING:
        return ring_show(out, view, before, sort, reverse);
    default:
        return top_show(out, view, before, sort, reverse);
    }
}
