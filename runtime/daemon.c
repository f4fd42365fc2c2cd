/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.c - the loop: requests come in, steps run, output goes out, until the daemon drains. */
#include "runtime/daemon_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <systemd/sd-daemon.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/publish.h"

#define DRAIN_TICK_NS 1000000u /* of the last publishing */
#define QUIET_PASSES  16u
#define STATS_NS                                                                                   \
    50000000u /* while busy, figures are stored so often; and before the daemon falls asleep */
#define TEXT_KEEP_BYTES                                                                            \
    (256u << 10) /* prompt memory beyond this goes back to the system after tokenising */

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

struct io_ops daemon_io_ops(struct daemon *d)
{
    return (struct io_ops){.ctx = d, .submit = on_submit, .cancel = on_cancel, .detach = on_detach};
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
void daemon_on_barrier(void *arg)
{
    struct daemon *d = arg;

    if (!d->in_step)
        return;
    io_pass(d->io);
    tkr_stats_put(&d->stats.page->heartbeat_ns, clock_ns()); /* a long step is no hung one */
}

void daemon_stats_store(struct daemon *d, uint64_t now)
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
        daemon_stats_store(d, end);
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
        daemon_stats_store(d, now);
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
    daemon_stats_store(d, clock_ns());
    io_gone(d->io);
    log_line(LOG_INFO, "stopped aborted=%u", aborted);
}

void daemon_stop(struct daemon *d)
{
    d->stop = 1;
    io_kick(d->io);
}
