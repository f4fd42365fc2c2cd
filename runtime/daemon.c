/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <systemd/sd-daemon.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/base/team.h"
#include "runtime/cache_path.h"
#include "runtime/client_stats.h"
#include "runtime/exec/cpu.h"
#include "runtime/exec/echo.h"
#include "runtime/intake.h"
#include "runtime/io/io.h"
#include "runtime/job.h"
#include "runtime/keeper.h"
#include "runtime/kv/page.h"
#include "runtime/model/model.h"
#include "runtime/publish.h"
#include "runtime/sample/sampler.h"
#include "runtime/sched/sched.h"
#include "runtime/socket_path.h"
#include "runtime/textwork.h"
#include "shm/stats.h"

#define DRAIN_TICK_NS 1000000u /* of the last publishing */
#define QUIET_PASSES  16u
#define STATS_NS                                                                                   \
    50000000u /* while busy, figures are stored so often; and before the daemon falls asleep */
#define WARM_UP_ROWS 8u /* takes every path of the kernels that a chunk takes */
#define TEXT_KEEP_BYTES                                                                            \
    (256u << 10) /* prompt memory beyond this goes back to the system after tokenising */

struct daemon {
    struct config config;
    char socket_path[128];
    struct team *team;
    const struct cpu_kernels *kernels;
    struct model *model;
    int is_echo; /* no model: the echo backend */
    struct echo_opt echo;
    struct backend *backend;
    struct sampler *sampler;
    struct template *template;
    struct sched *sched;
    struct textwork *text;
    struct io *io;
    struct tkr_stats_file stats;
    struct client_stats *client_stats;
    struct keeper *keeper;
    struct tkr_model_entry entry;

    struct intake intake;
    struct job *jobs; /* [n_slots], by scheduler slot */
    void *texts;      /* [n_slots] prompt and ids of each */
    uint32_t n_slots;
    uint32_t *alive; /* slots of living jobs, dense */
    uint32_t n_alive;
    struct job **staged; /* arrived inside a step: handed to the scheduler at its end */
    uint32_t n_staged;
    int in_step;
    int lagging; /* some output waits for room in its ring */
    int draining;
    int aborting;   /* the drain limit has passed */
    uint32_t quiet; /* passes without traffic */
    uint64_t drain_until_ns;
    uint64_t stats_at_ns;
    uint64_t stats_clients; /* attaches, detaches and refusals at the last store */
    int stats_dirty;        /* requests came or went since */
    uint64_t rows, step_ns_sum, step_ns_last;
    uint64_t run_ns, sleep_ns; /* when the loop began; how long it slept since */
    uint64_t turned_away;      /* requests that found no place: the scheduler never saw them */
    volatile sig_atomic_t stop;
};

/* ---- jobs: the list of those alive ----------------------------------------------------------- */

static void job_begin(struct daemon *d, struct job *job, struct request *req,
                      struct io_client *client, const struct tkr_sqe *sqe)
{
    job->req = req;
    job->client = client;
    job->tag = sqe->tag;
    job->model = sqe->model;
    job->n_text = job->n_messages = job->n_ids = 0;
    job->text_error = 0;
    job->mark = job->ids_out = job->bytes_out = 0;
    job->bulk_out = 0;
    job->bulk_off = job->bulk_bytes = 0;
    job->bulk = NULL;
    io_client_ref(client);
    d->alive[d->n_alive++] = req->slot;
}

/* A big TOKENIZE's ids go back to the system; a small one's pages stay warm. */
static void ids_forget(struct job *job)
{
    if (job->req->op == REQUEST_TOKENIZE && job->n_ids > TEXT_KEEP_BYTES / 4)
        madvise(job->ids, (size_t)job->text_max * 4, MADV_DONTNEED);
}

/* i: index in d->alive. The job's request is ENDED and published, or its client is gone. */
static void job_end(struct daemon *d, uint32_t i)
{
    struct job *job = &d->jobs[d->alive[i]];

    tkr_stats_count_end(&d->stats, (enum tkr_status)job->req->status);
    client_stats_end(d->client_stats, job);
    ids_forget(job);
    sched_request_give(d->sched, job->req);
    io_client_unref(job->client);
    job->client = NULL;
    job->req = NULL;
    d->alive[i] = d->alive[--d->n_alive];
    d->stats_dirty = 1;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Publishes what is final. Between steps only: inside one the scheduler may be about to change a
 * request. */
static void publish_all(struct daemon *d)
{
    d->lagging = 0;
    for (uint32_t i = 0; i < d->n_alive; i++)
        publish_soon(&d->jobs[d->alive[i]]);
    for (uint32_t i = 0; i < d->n_alive;) {
        struct job *job = &d->jobs[d->alive[i]];

        if (io_client_dead(job->client)) {
            if (job->req->state == REQUEST_ENDED) {
                job_end(d, i);
                continue;
            }
        } else {
            switch (publish_job(job, d->model->hash)) {
            case PUBLISH_DONE:
                job_end(d, i);
                continue;
            case PUBLISH_LAGGING:
                d->lagging = 1;
                break;
            case PUBLISH_IDLE:
                break;
            }
        }
        i++;
    }
}

/* ---- input ----------------------------------------------------------------------------------- */

/* No slot is free: answered at once, with when to come back. */
static void answer_overloaded(struct daemon *d, struct io_client *client, const struct tkr_sqe *sqe,
                              uint64_t seen_ns)
{
    struct tkr_result result = {
        .user = sqe->user,
        .status = TKR_E_OVERLOADED,
        .retry_after_ns = sched_retry_after_ns(d->sched),
        .have = d->config.queued_max,
        .want = (uint64_t)d->config.queued_max + 1,
    };

    snprintf(result.message, sizeof result.message,
             "the queue is full (%u wait), retry after retry_after_ns", d->config.queued_max);
    result.stamp[TKR_STAMP_SEEN] = seen_ns;
    result.stamp[TKR_STAMP_DONE] = clock_ns();
    memcpy(result.model_hash, d->model->hash, sizeof result.model_hash);
    tkr_stats_count_end(&d->stats, TKR_E_OVERLOADED);
    d->turned_away++;
    d->stats_dirty = 1;
    io_done(client, sqe->tag, sqe->user, TKR_E_OVERLOADED, &result);
}

/* A tenant counts only where its client may speak for others; intake refuses it elsewhere. */
static struct sched_who who_of(const struct io_client *client, const struct tkr_param *head)
{
    return (struct sched_who){
        .uid = io_client_uid(client),
        .tenant = head && io_client_trusted(client) ? head->tenant : 0,
        .client = io_client_id(client),
    };
}

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    struct daemon *d = ctx;
    struct tkr_param param;
    const struct tkr_param *head = intake_head(client, sqe, &param);
    struct sched_who who = who_of(client, head);
    struct request *req = sched_request_take(d->sched, &who);
    struct job *job;

    if (!req) {
        answer_overloaded(d, client, sqe, seen_ns);
        return;
    }
    job = &d->jobs[req->slot];
    job_begin(d, job, req, client, sqe);
    req->stamp[TKR_STAMP_SEEN] = seen_ns;
    if (intake_read(&d->intake, job, sqe, head) < 0) {
        job->text_error = -ECANCELED; /* refused: status and message are set */
        d->staged[d->n_staged++] = job;
    } else if (job->data_kind == TKR_DATA_TOKENS ||
               (!d->in_step && job->n_text <= TEXTWORK_INLINE_BYTES && !sched_has_work(d->sched))) {
        if (job->data_kind != TKR_DATA_TOKENS)
            textwork_run(d->text, job);
        d->staged[d->n_staged++] = job;
    } else {
        textwork_put(d->text, job);
    }
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    struct daemon *d = ctx;

    for (uint32_t i = 0; i < d->n_alive; i++) {
        struct job *job = &d->jobs[d->alive[i]];

        if (job->client == client && job->tag == tag && job->req->user == user)
            job->req->cancel = 1;
    }
}

static void on_detach(void *ctx, struct io_client *client)
{
    struct daemon *d = ctx;

    for (uint32_t i = 0; i < d->n_alive; i++) {
        struct job *job = &d->jobs[d->alive[i]];

        if (job->client == client)
            job->req->cancel = 1;
    }
}

/* A big prompt's pages go back; a small one's stay warm. */
static void text_forget(struct job *job)
{
    if (job->n_text <= TEXT_KEEP_BYTES)
        return;
    madvise(job->text, job->text_max, MADV_DONTNEED);
}

/* Text errors in the words of the wire. */
static void text_failed(struct daemon *d, struct job *job)
{
    struct request *req = job->req;
    enum end_status status = END_INVALID;

    switch (job->text_error) {
    case -ECANCELED:
        status = req->status;
        break;
    case -E2BIG:
        req->have = req->op == REQUEST_TOKENIZE ? job->text_max : d->model->n_ctx;
        req->want = job->n_ids;
        status = END_CONTEXT;
        snprintf(req->message, sizeof req->message, "prompt of %u tokens, the limit is %u",
                 job->n_ids, (unsigned)req->have);
        break;
    case -EILSEQ:
        snprintf(req->message, sizeof req->message,
                 "prompt: the model's vocabulary has no token for byte 0x%02x", job->text_byte);
        break;
    case -EINVAL:
        snprintf(req->message, sizeof req->message,
                 "messages: a role that the model's chat template does not know");
        break;
    default:
        req->have = job->text_max;
        req->want = job->n_text;
        snprintf(req->message, sizeof req->message, "prompt bytes: more than %u", job->text_max);
    }
    sched_end(d->sched, req, status, clock_ns());
}

/* The prompt is in: what needs bulk memory gets it now, before anything is computed. */
static void prompt_ready(struct daemon *d, struct job *job, uint64_t now)
{
    struct request *req = job->req;
    uint32_t n_results = 0;

    if (req->op == REQUEST_TOKENIZE)
        n_results = req->n_prompt = job->n_ids;
    else if (req->op == REQUEST_LOGPROBS && req->n_prompt)
        n_results = req->n_prompt - 1;
    if (publish_reserve(job, n_results) < 0)
        sched_end(d->sched, req, END_OVERLOADED, now);
    else
        sched_submit(d->sched, req, now);
}

static void abort_one(struct daemon *d, struct request *req, uint64_t now)
{
    snprintf(req->message, sizeof req->message, "the daemon stops, submit again to the next one");
    sched_end(d->sched, req, END_ABORTED, now);
}

/* Between steps: jobs whose prompt is ready go to the scheduler. Returns how many. */
static uint32_t hand_over(struct daemon *d)
{
    uint32_t n = 0;

    for (;; n++) {
        struct job *job = n < d->n_staged ? d->staged[n] : textwork_take(d->text);
        uint64_t now;

        if (!job)
            break;
        now = clock_ns();
        if (d->aborting)
            abort_one(d, job->req, now);
        else if (job->req->cancel)
            sched_end(d->sched, job->req, END_CANCELLED, now);
        else if (job->text_error)
            text_failed(d, job);
        else
            prompt_ready(d, job, now);
        text_forget(job);
    }
    d->n_staged = 0;
    d->stats_dirty |= n > 0;
    return n;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The leader comes by here after every region of a step. */
static void on_barrier(void *arg)
{
    struct daemon *d = arg;

    if (!d->in_step)
        return;
    io_pass(d->io);
    tkr_stats_put(&d->stats.page->heartbeat_ns, clock_ns()); /* a long step is no hung one */
}

static void stats_store(struct daemon *d, uint64_t now)
{
    struct tkr_stats *page = d->stats.page;
    struct sched_counts counts;
    struct io_counts ioc;

    sched_counts(d->sched, &counts);
    io_counts(d->io, &ioc);
    tkr_stats_put(&page->heartbeat_ns, now);
    tkr_stats_put(&page->clients, ioc.clients);
    tkr_stats_put(&page->clients_attached, ioc.attached);
    tkr_stats_put(&page->clients_refused, ioc.refused);
    tkr_stats_put(&page->regions_unlocked, ioc.mlock_failed);
    tkr_stats_put(&page->running, counts.running);
    tkr_stats_put(&page->queued, counts.queued + counts.text);
    tkr_stats_put(&page->finished, counts.finished);
    tkr_stats_put(&page->cancelled, counts.cancelled);
    tkr_stats_put(&page->failed, counts.failed + d->turned_away);
    tkr_stats_put(&page->prompt_tokens, counts.prompt_tokens);
    tkr_stats_put(&page->output_tokens, counts.output_tokens);
    tkr_stats_put(&page->kv_pages_used, counts.pages_used);
    tkr_stats_put(&page->steps, counts.steps);
    tkr_stats_put(&page->rows, d->rows);
    tkr_stats_put(&page->step_ns_sum, d->step_ns_sum);
    tkr_stats_put(&page->step_ns_last, d->step_ns_last);
    tkr_stats_put(&page->paused, counts.paused);
    tkr_stats_put(&page->pauses, counts.pauses);
    tkr_stats_put(&page->slow, counts.slow);
    tkr_stats_put(&page->displaced, counts.displaced);
    tkr_stats_put(&page->rejected_slots, ioc.rejected);
    tkr_stats_put(&page->struck, ioc.struck);
    tkr_stats_put(&page->memory_errors, ioc.memory_errors);
    tkr_stats_put(&page->wakes, ioc.wakes);
    if (d->run_ns)
        tkr_stats_put(&page->awake_ns, now - d->run_ns - d->sleep_ns - d->step_ns_sum);
    client_stats_store(d->client_stats, d->jobs, d->alive, d->n_alive, now);
    d->stats_at_ns = now;
    d->stats_dirty = 0;
    d->stats_clients = io_comings_and_goings(&ioc);
}

/* A daemon may sleep for hours: what it last stored must be the truth. */
static int stats_are_old(struct daemon *d, uint64_t now)
{
    uint64_t due = client_stats_due(d->client_stats);
    struct io_counts ioc;

    io_counts(d->io, &ioc);
    return d->stats_dirty || (due && due <= now) || io_comings_and_goings(&ioc) != d->stats_clients;
}

static void step(struct daemon *d)
{
    uint64_t begin = clock_ns(), end;

    io_busy(d->io, 1);
    d->in_step = 1;
    d->rows += sched_step(d->sched, clock_ns);
    d->in_step = 0;
    publish_all(d);
    end = clock_ns();
    d->step_ns_last = end - begin;
    d->step_ns_sum += d->step_ns_last;
    d->stats_dirty = 1;
    if (end - d->stats_at_ns > STATS_NS)
        stats_store(d, end);
}

/* Until when the loop may sleep: the next deadline, the end of the drain. 0 = for ever. io looks
 * after full rings. */
static uint64_t sleep_until(struct daemon *d, uint64_t now)
{
    uint64_t until = sched_expire(d->sched, now), figures = client_stats_due(d->client_stats);

    if (figures && (!until || figures < until))
        until = figures;
    if (d->draining && (!until || d->drain_until_ns < until))
        until = d->drain_until_ns;
    return until;
}

static void drain_begin(struct daemon *d)
{
    d->draining = 1;
    d->drain_until_ns = clock_ns() + (uint64_t)d->config.drain_s * 1000000000u;
    io_drain(d->io);
    sd_notify(0, "STOPPING=1");
    tkr_stats_set_state(&d->stats, TKR_STATS_DRAIN);
    log_line(LOG_INFO, "draining requests=%u limit_s=%u", d->n_alive, d->config.drain_s);
}

/* The drain limit: whoever still runs gets a final ABORTED; who is with the text worker, when he
 * comes back from it. */
static uint32_t drain_abort(struct daemon *d)
{
    uint32_t aborted = 0;
    uint64_t now = clock_ns();

    d->aborting = 1;
    for (uint32_t i = 0; i < d->n_alive; i++) {
        struct request *req = d->jobs[d->alive[i]].req;

        if (req->state == REQUEST_QUEUED || req->state == REQUEST_RUNNING ||
            req->state == REQUEST_PAUSED)
            abort_one(d, req, now);
        aborted += req->state != REQUEST_ENDED || req->status == END_ABORTED;
    }
    return aborted;
}

/* The last outputs: until everything is published, or clients did not read for a second. */
static void drain_publish(struct daemon *d)
{
    uint64_t until = clock_ns() + 1000000000u;

    while (d->n_alive && clock_ns() < until) {
        io_pass(d->io);
        hand_over(d);
        publish_all(d);
        if (d->n_alive)
            io_sleep(d->io, clock_ns() + DRAIN_TICK_NS);
    }
    io_pass(d->io);
}

/* One turn. Returns 0 when the drain is over. */
static int turn(struct daemon *d)
{
    uint32_t arrived, handed;
    uint64_t now;

    /* With no step due, who sleeps is woken here and not by way of the waker thread. */
    io_busy(d->io, sched_has_work(d->sched));
    io_control(d->io);
    arrived = io_pass(d->io);
    handed = hand_over(d);
    if (d->stop && !d->draining)
        drain_begin(d);
    if (sched_has_work(d->sched))
        step(d);
    else if (handed || d->lagging)
        publish_all(d);
    if (d->draining && (!d->n_alive || clock_ns() >= d->drain_until_ns))
        return 0;
    if (arrived || handed || sched_has_work(d->sched)) {
        d->quiet = 0;
        return 1;
    }
    /* Who just served a slot waits for the next one here: passes only, and a look at the clock
     * now and then. */
    if (++d->quiet % QUIET_PASSES)
        return 1;
    now = clock_ns();
    if (stats_are_old(d, now))
        stats_store(d, now);
    io_sleep(d->io, sleep_until(d, now));
    d->sleep_ns += clock_ns() - now;
    publish_all(d);
    return 1;
}

void daemon_run(struct daemon *d)
{
    uint32_t aborted;

    d->run_ns = clock_ns();
    while (turn(d))
        ;
    aborted = drain_abort(d);
    drain_publish(d);
    stats_store(d, clock_ns());
    io_gone(d->io);
    log_line(LOG_INFO, "stopped aborted=%u", aborted);
}

void daemon_stop(struct daemon *d)
{
    d->stop = 1;
    io_kick(d->io);
}

/* ---- start ----------------------------------------------------------------------------------- */

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

static int file_start(struct daemon *d, struct diag *diag)
{
    uint32_t allowed = team_cpus_allowed();
    const char *cache = d->config.cache;
    char path[512];
    int err;

    /* More of them wait for each other instead of computing. */
    if (d->config.threads > allowed) {
        diag_set(diag,
                 "threads: %u are asked for, this process may use %u CPUs (its affinity and its "
                 "control group's quota)",
                 d->config.threads, allowed);
        return -EINVAL;
    }
    err = team_new(&d->team, d->config.threads);
    if (err < 0) {
        diag_set(diag, "cannot start %u engine threads: %s", d->config.threads, strerror(-err));
        return err;
    }
    if (!cache) {
        if (cache_path_default(path, sizeof path) == 0)
            cache = path;
    } else if (strcmp(cache, "none") == 0) {
        cache = NULL;
    }
    err = model_open(&d->model, d->config.model, d->config.ctx, cache, d->team, diag);
    if (err == 0 && d->model->cache_note.text[0])
        log_line(LOG_WARN, "%s", d->model->cache_note.text);
    return err;
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
    err = sampler_new(&d->sampler, d->model->hp.n_vocab, d->kernels);
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
    uint32_t tokens[WARM_UP_ROWS] = {0}, page = 0, last, id;
    struct step_seq seq = {.n_rows = WARM_UP_ROWS, .pages = &page};
    struct step step = {
        .tokens = tokens, .n_seqs = 1, .seqs = &seq, .n_logits = 1, .logit_rows = &last};
    struct sampling sampling = {.temperature = 1.0f, .top_p = 0.9f};
    const float *logits;
    int bad;

    if (seq.n_rows > d->config.chunk_rows)
        seq.n_rows = d->config.chunk_rows;
    if (seq.n_rows > d->model->n_ctx)
        seq.n_rows = d->model->n_ctx;
    step.n_rows = seq.n_rows;
    last = seq.n_rows - 1;
    d->backend->forward(d->backend->self, &step, &logits);
    d->backend->argmax(d->backend->self, logits, &bad);
    sampler_pick(d->sampler, logits, &sampling, 0, &id);
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
    struct io_ops ops = {.ctx = d, .submit = on_submit, .cancel = on_cancel, .detach = on_detach};

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
    stats_store(d, clock_ns());
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
    team_set_hook(d->team, on_barrier, d);
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
             "ready socket=%s model=\"%s\" ctx=%u cpu=%s threads=%u kv_positions=%u io=%s "
             "weights=%s start_ms=%llu",
             d->socket_path, d->model->name, d->model->n_ctx, d->kernels->name, team_size(d->team),
             d->config.kv_positions, io_mode(d->io), weights_from(d),
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
