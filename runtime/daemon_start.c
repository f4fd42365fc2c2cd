/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_start.c - from a configuration to a daemon that is ready, and its end. */
#include "runtime/daemon_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/cache_path.h"
#include "runtime/exec/cpu.h"
#include "runtime/kv/page.h"
#include "runtime/socket_path.h"

#define WARM_UP_ROWS 8u /* takes every path of the kernels that a chunk takes */

static void text_done(void *ctx)
{
    struct daemon *d = ctx;

    io_kick(d->io);
}

/* Of one job's prompt or ids: whole pages, which are given back. */
static size_t text_bytes(const struct daemon *d, size_t bytes_each)
{
    return (d->config.prompt_bytes_max * bytes_each + MEM_PAGE - 1) / MEM_PAGE * MEM_PAGE;
}

/* Of all jobs. */
static size_t texts_bytes(const struct daemon *d)
{
    return d->n_slots * (text_bytes(d, 1) + text_bytes(d, sizeof(uint32_t)));
}

static int jobs_new(struct daemon *d)
{
    uint8_t *text;

    d->n_slots = sched_slots(d->sched);
    d->jobs = calloc(d->n_slots, sizeof *d->jobs);
    d->alive = calloc(d->n_slots, sizeof *d->alive);
    d->staged = calloc(d->n_slots, sizeof *d->staged);
    /* Most prompts are short: a huge page for each of the jobs would be gigabytes. One map, because a
     * thousand of them take longer than anything else here. */
    d->texts = text = mem_map_small(texts_bytes(d));
    if (!d->jobs || !d->alive || !d->staged || !text)
        return -ENOMEM;
    for (uint32_t i = 0; i < d->n_slots; i++) {
        struct job *job = &d->jobs[i];

        job->text_max = d->config.prompt_bytes_max;
        job->text = (void *)text;
        text += text_bytes(d, 1);
        job->ids = (void *)text;
        text += text_bytes(d, sizeof *job->ids);
    }
    return 0;
}

/* No file and nothing to compute: the loop's own thread does it all. */
static int echo_start(struct daemon *d, struct diag *diag)
{
    uint32_t ctx = d->config.ctx;
    int err;

    if (ctx > ECHO_N_CTX) {
        diag_set(diag, "echo: a context of %u is asked for, at most %u", ctx, ECHO_N_CTX);
        return -EINVAL;
    }
    if (ctx == 0)
        ctx = d->config.kv_positions < ECHO_N_CTX ? d->config.kv_positions : ECHO_N_CTX;
    err = team_new(&d->team, 1);
    if (err == 0)
        err = model_open_echo(&d->model, ctx);
    if (err < 0)
        diag_set(diag, "echo: cannot start: %s", strerror(-err));
    return err;
}

/* What `ringctl tune` has measured for this machine, model and setting. */
static void profile_start(struct daemon *d, const char *folder)
{
    struct profile_key key;
    struct diag note = {""};

    profile_key_fill(&key, d->kernels->name, team_size(d->team), d->model->hash);
    d->tuned = profile_load(&d->profile, folder, &key, &note) == 0;
    if (note.text[0])
        log_line(LOG_WARN, "%s", note.text);
}

static int file_start(struct daemon *d, struct diag *diag)
{
    const char *cache = d->config.cache;
    char path[512];
    int err = team_open(&d->team, d->config.threads, diag);

    if (err < 0)
        return err;
    if (!cache) {
        if (cache_path_default(path, sizeof path) == 0)
            cache = path;
    } else if (strcmp(cache, "none") == 0) {
        cache = NULL;
    }
    err = model_open(&d->model, d->config.model, d->config.ctx, cache, d->team, diag);
    if (err < 0)
        return err;
    if (d->model->cache_note.text[0])
        log_line(LOG_WARN, "%s", d->model->cache_note.text);
    model_keep_kv(d->model, d->config.kv_kind);
    if (cache) /* of another form of KV a profile is another model's */
        profile_start(d, cache);
    return 0;
}

static int kernels_start(struct daemon *d, struct diag *diag)
{
    const char *missing = "a feature";

    d->kernels = cpu_kernels_get(d->config.cpu_variant, &missing);
    if (!d->kernels) {
        diag_set(diag, "cpu %s: this CPU lacks %s; use --cpu=auto", d->config.cpu, missing);
        return -ENOTSUP;
    }
    if (d->config.cpu_variant == CPU_AUTO && d->kernels == cpu_kernels_get(CPU_REF, NULL)) {
        (void)cpu_kernels_get(CPU_AVX2, &missing);
        log_line(LOG_WARN, "cpu=ref this CPU lacks %s: answers are the same and take far longer",
                 missing);
    }
    return 0;
}

static int model_start(struct daemon *d, struct diag *diag)
{
    int err;

    if (!d->config.model) {
        diag_set(diag, "no model: give --model FILE or `model:` in the configuration");
        return -EINVAL;
    }
    err = kernels_start(d, diag);
    if (err < 0)
        return err;
    d->is_echo = echo_parse(&d->echo, d->config.model, diag);
    if (d->is_echo < 0)
        return d->is_echo;
    err = d->is_echo ? echo_start(d, diag) : file_start(d, diag);
    if (err < 0)
        return err;
    if (d->model->n_ctx > d->config.kv_positions) {
        log_line(LOG_WARN, "context=%u the model's %u do not fit kv_positions",
                 d->config.kv_positions, d->model->n_ctx);
        d->model->n_ctx = d->config.kv_positions;
    }
    if (d->model->chat_template) {
        err = template_new(&d->template, d->model->chat_template, d->model->vocab, diag);
        if (err < 0)
            return err;
    }
    return 0;
}

static int engine_start(struct daemon *d, struct diag *diag)
{
    uint32_t n_pages = pages_for(d->config.kv_positions);
    struct cpu_backend_opt opt = {
        .n_pages = n_pages,
        .rows_max = d->config.chunk_rows + d->config.running_max,
        .logits_max = d->config.running_max,
        .kv_prefault = d->config.kv_prefault,
        .kv_type = d->config.kv_kind,
    };
    struct sched_opt sched_opt = {
        .running_max = d->config.running_max,
        .queued_max = d->config.queued_max,
        .n_pages = n_pages,
        .n_ctx = d->model->n_ctx,
        .chunk_rows = d->config.chunk_rows,
        .vocab = d->model->vocab,
        .lag_tokens_max = d->config.lag_tokens_max,
        .lag_timeout_ns = (uint64_t)d->config.lag_timeout_ms * 1000000u,
        .user_limits = {.requests = d->config.user_requests_max,
                        .queued = d->config.user_queued_max,
                        .pages = pages_for(d->config.user_kv_positions_max),
                        .prompt_tokens = d->config.user_prompt_tokens_max},
        .client_limits = {.requests = d->config.client_requests_max,
                          .queued = d->config.client_queued_max,
                          .pages = pages_for(d->config.client_kv_positions_max),
                          .prompt_tokens = d->config.client_prompt_tokens_max},
    };
    int err;

    if (d->is_echo)
        err =
            echo_backend_new(&d->backend, &d->echo, n_pages, opt.rows_max, opt.logits_max, d->team);
    else
        err = cpu_backend_new(&d->backend, d->model, d->kernels, d->team, &opt, diag);
    if (err < 0)
        return err;
    err = sampler_new(&d->sampler, d->model->hp.n_vocab, d->kernels, d->team);
    if (err == 0)
        err = sched_new(&d->sched, &sched_opt, d->backend, d->sampler);
    if (err == 0)
        err = jobs_new(d);
    if (err < 0) {
        diag_set(diag, "cannot take the engine's memory: %s", strerror(-err));
        return err;
    }
    return textwork_new(&d->text, d->model->vocab, d->template, d->model->n_ctx,
                        d->config.prompt_bytes_max, d->n_slots, sched_shares(d->sched), text_done,
                        d, diag);
}

/* A small chunk of prefill, in page 0. */
static void warm_up_engine(struct daemon *d)
{
    uint32_t tokens[WARM_UP_ROWS] = {0}, page = 0, last;
    struct step_seq seq = {.n_rows = WARM_UP_ROWS, .pages = &page};
    struct step step = {
        .tokens = tokens, .n_seqs = 1, .seqs = &seq, .n_logits = 1, .logit_rows = &last};
    struct sampling sampling = {.temperature = 1.0f, .top_p = 0.9f};
    struct draw draw = {.how = &sampling};
    const float *logits;

    if (seq.n_rows > d->config.chunk_rows)
        seq.n_rows = d->config.chunk_rows;
    if (seq.n_rows > d->model->n_ctx)
        seq.n_rows = d->model->n_ctx;
    step.n_rows = seq.n_rows;
    last = seq.n_rows - 1;
    d->backend->forward(d->backend->self, &step, &logits);
    sampler_draw(d->sampler, logits, d->backend->block_max, &draw, 1);
}

/* A few words through the tokenizer of the ring thread. */
static void warm_up_text(struct daemon *d)
{
    static const char words[] = "The quick brown fox, 123.";
    struct request req = {.op = REQUEST_TOKENIZE};
    struct job *job = &d->jobs[0];

    memcpy(job->text, words, sizeof words - 1);
    job->n_text = sizeof words - 1;
    job->data_kind = TKR_DATA_TEXT;
    job->req = &req;
    textwork_run(d->text, job);
    job->req = NULL;
}

/* Code, weights and tables are resident before READY: the first request costs what the tenth
 * does, but for the pages of KV and activations that a longer one is the first to touch. */
static void warm_up(struct daemon *d)
{
    warm_up_engine(d);
    warm_up_text(d);
}

static void entry_fill(struct daemon *d)
{
    struct tkr_model_entry *e = &d->entry;

    memcpy(e->hash, d->model->hash, sizeof e->hash);
    e->gen = 2; /* even: not changing; 0 would mean "any" in a request */
    e->n_ctx = d->model->n_ctx;
    e->n_vocab = d->model->hp.n_vocab;
    e->flags = TKR_MODEL_PRESENT | (d->template ? TKR_MODEL_CHAT : 0);
    snprintf(e->name, sizeof e->name, "%s", d->model->name);
    d->intake = (struct intake){
        .model = d->model, .model_gen = e->gen, .has_template = d->template != NULL};
    if (getrandom(&d->intake.seed_base, sizeof d->intake.seed_base, 0) < 0)
        d->intake.seed_base = clock_ns();
}

static int transport_start(struct daemon *d, struct diag *diag)
{
    struct io_opt opt = {
        .io = d->config.io_kind,
        .doorbell = d->config.doorbell_kind,
        .socket_path = d->socket_path,
        .socket_mode = (mode_t)d->config.socket_mode_bits,
        .clients_max = d->config.clients_max,
        .inflight_max = d->config.inflight_max,
        .arena_max = (uint64_t)d->config.arena_mib_max << 20,
        .bulk_max = (uint64_t)d->config.bulk_mib_max << 20,
        .idle_park_ns = (uint64_t)d->config.idle_park_us * 1000,
        .require_mlock = d->config.require_mlock,
        .takeover = d->config.takeover,
        .limits = d->config.user_limits,
        .n_rules = d->config.n_rules,
        .n_trusted = d->config.n_trusted,
        .op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_CANCEL | 1u << TKR_OP_GENERATE |
                      1u << TKR_OP_TOKENIZE | 1u << TKR_OP_LOGPROBS},
        .prompt_tokens_max = d->model->n_ctx,
        .output_tokens_max = d->model->n_ctx,
        .models = &d->entry,
        .n_models = 1,
    };
    struct io_ops ops = daemon_io_ops(d);

    _Static_assert(TEAM_CPU_WORDS == TKR_T_ENGINE_CPU_WORDS, "bitmaps of CPUs");
    team_pinned_cpus(d->team, opt.engine_cpus);
    memcpy(opt.rules, d->config.rules, sizeof opt.rules);
    memcpy(opt.trusted, d->config.trusted_rules, sizeof opt.trusted);
    opt.limits.denied = d->config.n_rules > 0; /* a list of who may is complete */
    return io_new(&d->io, &opt, &ops, diag);
}

static enum tkr_stats_io stats_io(const struct daemon *d)
{
    const char *mode = io_mode(d->io);

    if (strncmp(mode, "epoll", 5) == 0)
        return TKR_STATS_IO_EPOLL;
    return strstr(mode, "socket") ? TKR_STATS_IO_URING_SOCKET : TKR_STATS_IO_URING_FUTEX;
}

/* Before the model is loaded, so that ringstat sees a daemon that starts. */
static int stats_start(struct daemon *d, struct diag *diag)
{
    char path[sizeof d->socket_path + sizeof TKR_STATS_SUFFIX];
    int err;

    snprintf(path, sizeof path, "%s%s", d->socket_path, TKR_STATS_SUFFIX);
    err = tkr_stats_create(&d->stats, path, TKR_VERSION);
    if (err < 0)
        diag_set(diag, "%s: cannot make the stats file: %s", path, strerror(-err));
    return err;
}

static int stats_ready(struct daemon *d, struct diag *diag)
{
    int err = client_stats_new(&d->client_stats, d->io, &d->stats);

    if (err < 0) {
        diag_set(diag, "cannot add the table of clients to the stats file: %s", strerror(-err));
        return err;
    }
    tkr_stats_put(&d->stats.page->threads, team_size(d->team));
    tkr_stats_put(&d->stats.page->kv_pages_total, pages_for(d->config.kv_positions));
    tkr_stats_put(&d->stats.page->io, stats_io(d));
    tkr_stats_set_model(&d->stats, d->model->name, d->model->hash, d->kernels->name);
    daemon_stats_store(d, clock_ns());
    tkr_stats_set_state(&d->stats, TKR_STATS_READY);
    return 0;
}

/* --socket or the file, else TOKENRING_SOCKET, else the default places. */
static int path_start(struct daemon *d, struct diag *diag)
{
    const char *path = d->config.socket ? d->config.socket : getenv("TOKENRING_SOCKET");

    if (!path || !path[0]) {
        int err = socket_path_default(d->socket_path, sizeof d->socket_path, diag);

        if (err < 0)
            return err;
    } else if (strlen(path) >= sizeof d->socket_path - sizeof TKR_STATS_SUFFIX) {
        diag_set(diag, "%s: socket path is too long", path);
        return -ENAMETOOLONG;
    } else {
        strcpy(d->socket_path, path);
    }
    /* Before the model is loaded, which takes a while; io_listen() looks again. */
    if (!d->config.takeover && socket_path_in_use(d->socket_path)) {
        diag_set(
            diag,
            "%s: another tokenringd serves this socket; stop it, or use --takeover or --socket",
            d->socket_path);
        return -EADDRINUSE;
    }
    return 0;
}

static int start(struct daemon *d, struct diag *diag)
{
    int err = path_start(d, diag);

    if (err < 0)
        return err;
    if (!d->config.takeover)
        err = stats_start(d, diag);
    if (err < 0)
        return err;
    err = model_start(d, diag);
    if (err < 0)
        return err;
    err = engine_start(d, diag);
    if (err < 0)
        return err;
    warm_up(d);
    entry_fill(d);
    err = transport_start(d, diag);
    if (err < 0)
        return err;
    err = io_listen(d->io, diag);
    if (err < 0)
        return err;
    if (d->config.takeover) /* the file is the old one's while it serves */
        err = stats_start(d, diag);
    if (err < 0)
        return err;
    team_set_hook(d->team, daemon_on_barrier, d);
    return stats_ready(d, diag);
}

static const char *weights_from(const struct daemon *d)
{
    if (d->is_echo)
        return "none";
    return d->model->packed ? "mapped" : "packed";
}

int daemon_new(struct daemon **ret_daemon, const struct config *config, struct diag *diag)
{
    struct daemon *d = calloc(1, sizeof *d);
    uint64_t begin = clock_ns();
    int err;

    if (!d)
        return -ENOMEM;
    d->config = *config; /* the strings stay the caller's */
    d->stats.fd = -1;
    err = start(d, diag);
    if (err < 0) {
        daemon_free(d);
        return err;
    }
    if (io_note(d->io)[0])
        log_line(LOG_WARN, "%s", io_note(d->io));
    log_line(LOG_INFO,
             "ready socket=%s model=\"%s\" ctx=%u cpu=%s threads=%u kv_positions=%u kv=%s io=%s "
             "weights=%s profile=%s start_ms=%llu",
             d->socket_path, d->model->name, d->model->n_ctx, d->kernels->name, team_size(d->team),
             d->config.kv_positions, d->is_echo ? "none" : kv_type_name(d->config.kv_kind),
             io_mode(d->io), weights_from(d), d->tuned ? "tuned" : "none",
             (unsigned long long)((clock_ns() - begin) / 1000000));
    err = keeper_start(&d->keeper, d->model);
    if (err < 0)
        log_line(LOG_WARN, "cache is not written: %s", strerror(-err));
    *ret_daemon = d;
    return 0;
}

static void jobs_free(struct daemon *d)
{
    mem_unmap(d->texts, d->texts ? texts_bytes(d) : 0);
    free(d->jobs);
    free(d->alive);
    free(d->staged);
}

void daemon_free(struct daemon *d)
{
    if (!d)
        return;
    keeper_stop(d->keeper);
    textwork_free(d->text);
    for (uint32_t i = 0; i < d->n_alive; i++)
        io_client_unref(d->jobs[d->alive[i]].client);
    io_free(d->io);
    jobs_free(d);
    sched_free(d->sched);
    sampler_free(d->sampler);
    if (d->is_echo)
        echo_backend_free(d->backend);
    else
        cpu_backend_free(d->backend);
    client_stats_free(d->client_stats);
    template_free(d->template);
    model_free(d->model);
    team_free(d->team);
    tkr_stats_close(&d->stats);
    free(d);
}
