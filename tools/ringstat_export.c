/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ringstat.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <time.h>

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

/* null: the daemon is older than this figure. */
static json_t *number_2(const struct view *view, uint64_t value)
{
    return view_has_minor_2(view) ? number(value) : json_null();
}

static json_t *ended_json(const struct tkr_stats *stats)
{
    json_t *ended = json_object();

    for (unsigned i = 0; i < TKR_STATS_STATUSES; i++) {
        if (stats->ended[i] && status_name(i))
            json_object_set_new(ended, status_name(i), number(stats->ended[i]));
    }
    return ended;
}

static const char *queue_state(const struct tkr_stats_client *client, unsigned queue)
{
    if (client->hot >> queue & 1)
        return "hot";
    if (client->parked >> queue & 1)
        return "parked";
    return client->blocked >> queue & 1 ? "blocked" : "none";
}

static json_t *queues_json(const struct tkr_stats_client *client)
{
    json_t *queues = json_array();

    for (unsigned i = 0; i < client->n_queues && i < TKR_NSQ_MAX; i++)
        json_array_append_new(
            queues, json_pack("{s:s, s:o, s:o, s:b, s:b}", "state", queue_state(client, i),
                              "sq_pos", number(client->sq_pos[i]), "sq_head",
                              number(client->sq_head[i]), "need_wakeup",
                              client->need_wakeup >> i & 1, "bell_armed", client->bells >> i & 1));
    return queues;
}

static json_t *tags_json(const struct tkr_stats_client *client)
{
    json_t *tags = json_array();

    for (unsigned i = 0; i < client->inflight && i < TKR_STATS_TAGS; i++)
        json_array_append_new(tags, number(client->tags[i]));
    return tags;
}

static json_t *client_json(const struct view *view, const struct tkr_stats_client *c)
{
    double age_s =
        c->attached_ns < view->read_ns ? (double)(view->read_ns - c->attached_ns) / 1e9 : 0;

    return json_pack(
        "{s:o, s:o, s:o, s:s, s:f, s:b, s:{s:o, s:o, s:o, s:o, s:o, s:o}, s:{s:o, s:o, s:o, s:o},"
        " s:{s:o, s:o, s:o, s:o, s:o, s:b, s:b}, s:b, s:b, s:b, s:b, s:o, s:o}",
        "id", number(c->id), "pid", number(c->pid), "uid", number(c->uid), "library", c->library,
        "age_s", age_s, "whole", c->seq % 2 == 0, "requests", "inflight", number(c->inflight),
        "inflight_max", number(c->inflight_max), "ended", number(c->ended), "cancelled",
        number(c->cancelled), "slots", number(c->slots), "rejected", number(c->rejected), "tokens",
        "generated", number(c->generated), "published", number(c->published), "lag",
        number(c->generated - c->published), "lag_max", number(c->lag_max), "cq", "pos",
        number(c->cq_pos), "head", number(c->cq_head), "slots", number(c->cq_slots), "reserved",
        number(c->reserved), "wait_pos", number((uint32_t)c->wait), "wait_asleep",
        (c->wait & TKR_WAIT_ASLEEP) != 0, "starved", (c->flags & TKR_STATS_CLIENT_STARVED) != 0,
        "paused", (c->flags & TKR_STATS_CLIENT_PAUSED) != 0, "unlocked",
        (c->flags & TKR_STATS_CLIENT_UNLOCKED) != 0, "socket_armed",
        (c->flags & TKR_STATS_CLIENT_SOCKET) != 0, "pidfd_armed",
        (c->flags & TKR_STATS_CLIENT_PIDFD) != 0, "queues", queues_json(c), "tags", tags_json(c));
}

static json_t *clients_json(const struct view *view)
{
    json_t *clients = json_array();

    for (uint32_t i = 0; i < view->n_clients; i++)
        json_array_append_new(clients, client_json(view, &view->clients[i]));
    return clients;
}

static void hash_hex(char hex[65], const uint8_t *hash)
{
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
}

int json_show(FILE *out, const struct view *view)
{
    const struct tkr_stats *s = &view->stats;
    char hex[65];
    json_t *root;
    int err;

    hash_hex(hex, s->model_hash);
    root = json_pack(
        "{s:s, s:o, s:f, s:o, s:{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}, s:{s:o, s:o}, s:s,"
        " s:s, s:s, s:o, s:s, s:s, s:s, s:f, s:{s:o, s:o}, s:{s:o, s:o, s:o, s:o},"
        " s:{s:o, s:o, s:o}, s:{s:o, s:o, s:o, s:o, s:o}, s:o, s:o}",
        "state", view->state, "pid", number(s->pid), "uptime_s", view->uptime_s, "clients",
        number(s->clients), "requests", "running", number(s->running), "queued", number(s->queued),
        "finished", number(s->finished), "cancelled", number(s->cancelled), "failed",
        number(s->failed), "paused", number_2(view, s->paused), "pauses", number_2(view, s->pauses),
        "slow", number_2(view, s->slow), "displaced", number_2(view, s->displaced), "kv_pages",
        "total", number(s->kv_pages_total), "used", number(s->kv_pages_used), "model", s->model,
        "model_hash", hex, "cpu_variant", s->cpu_variant, "threads", number(s->threads), "version",
        s->version, "socket", view->socket, "io", io_name(s), "silent_s", view->silent_s, "tokens",
        "prompt", number(s->prompt_tokens), "output", number(s->output_tokens), "steps", "count",
        number(s->steps), "rows", number(s->rows), "ns_sum", number(s->step_ns_sum), "ns_last",
        number(s->step_ns_last), "attach", "attached", number(s->clients_attached), "refused",
        number(s->clients_refused), "unlocked", number(s->regions_unlocked), "transport", "wakes",
        number_2(view, s->wakes), "rejected", number_2(view, s->rejected_slots), "struck",
        number_2(view, s->struck), "memory_errors", number_2(view, s->memory_errors), "awake_ns",
        number_2(view, s->awake_ns), "ended", ended_json(s), "client_list", clients_json(view));
    if (!root) {
        fprintf(stderr, "ringstat: the figures do not fit JSON (a name that is not UTF-8?)\n");
        return -EINVAL;
    }
    err = json_dumpf(root, out, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(root);
    fputc('\n', out);
    return err ? -EIO : 0;
}

/* ---- CSV ------------------------------------------------------------------------------------- */

void csv_head(FILE *out)
{
    fprintf(out,
            "unix_s,state,uptime_s,silent_s,clients,attached,refused,running,queued,finished,"
            "cancelled,failed,"
            "prompt_tokens,output_tokens,prompt_tokens_per_s,output_tokens_per_s,requests_per_s,"
            "steps,steps_per_s,step_ms,rows_per_step,kv_pages_used,kv_pages_total,"
            "paused,pauses,slow,displaced,wakes,rejected_slots,struck,memory_errors,awake_s\n");
}

void csv_show(FILE *out, const struct view *view, const struct view *before)
{
    const struct tkr_stats *s = &view->stats;
    struct rates r = view_rates(view, before);
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(out, "%lld.%03ld,%s,%.3f,%.3f,%" PRIu64 ",%" PRIu64 ",%" PRIu64, (long long)now.tv_sec,
            now.tv_nsec / 1000000, view->state, view->uptime_s, view->silent_s, s->clients,
            s->clients_attached, s->clients_refused);
    fprintf(out,
            ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
            s->running, s->queued, s->finished, s->cancelled, s->failed, s->prompt_tokens,
            s->output_tokens);
    fprintf(out, ",%.1f,%.1f,%.2f,%" PRIu64 ",%.1f,%.3f,%.2f,%" PRIu64 ",%" PRIu64, r.prompt_tokens,
            r.output_tokens, r.requests, s->steps, r.steps, r.step_ms, r.rows, s->kv_pages_used,
            s->kv_pages_total);
    if (!view_has_minor_2(view)) { /* not known is no 0 */
        fprintf(out, ",,,,,,,,,\n");
        return;
    }
    fprintf(out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, s->paused, s->pauses,
            s->slow, s->displaced, s->wakes);
    fprintf(out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.3f\n", s->rejected_slots, s->struck,
            s->memory_errors, (double)s->awake_ns / 1e9);
}
