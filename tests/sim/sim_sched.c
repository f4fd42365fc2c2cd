/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_sched.c - the scheduler, its pages and the detokeniser under a seeded simulation.
 *
 * Clock and executor are fake. The executor keeps for each (page, slot) a hash of the sequence up
 * to there, made from the hash it reads through the page table at the position before; what comes
 * next is a function of that hash. So a wrong page table, a stale page or a page held twice gives
 * wrong tokens. Beside it an oracle runs every request alone, without pages, steps or chunks, and
 * what ends must equal what it says. Arrivals of several owners and their clients, resumed
 * streams, slow readers, cancels, deadlines, stops, NaNs and ends from inside a step are random; the invariants are
 * checked after every step. An episode is a seed, so a failure can be repeated: it is in the
 * message.
 *
 * TOKENRING_LONG=1 runs a hundred times as many episodes.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"
#include "tests/sim/fake_vocab.h"

#define EPISODES    16   /* of one test; each has its own limits */
#define STEPS       2500 /* with arrivals; then it drains */
#define SEEDS       8
#define PAGES_MAX   64
#define ROWS_MAX    96
#define LOGITS_MAX  24
#define SLOTS_MAX   64
#define CLIENTS_MAX 4
#define N_CTX_MAX   700
#define TEXT_MAX    (64 * (N_CTX_MAX + 1))

/* What we know of the request in a slot beside what the scheduler knows. */
struct spec {
    int alive;
    struct sampling sampling;
    int ended_by_us; /* sched_end from the hook: its status */
    int ended_seen;
    uint64_t ended_order; /* for "exactly once" */
    uint32_t n_out_seen;  /* output never shrinks */
    uint32_t rows_seen;   /* prompt rows computed, the first time */
    uint32_t client;      /* whose it is */
    int reads;            /* 0: its client never reads */
};

static struct sim {
    uint64_t seed, rng, now_ns;
    struct sched_opt opt;
    uint32_t n_clients, n_owners; /* client k is of owner k % n_owners */
    struct backend backend;
    struct sampler *sampler, *oracle_sampler;
    struct sched *sched;
    struct vocab vocab;
    uint64_t kv[PAGES_MAX][KV_PAGE];
    float logits[LOGITS_MAX][FAKE_VOCAB];
    struct pair {
        uint32_t a, b;
        int bad;
    } row[LOGITS_MAX]; /* what logits[i] has set */
    struct spec spec[SLOTS_MAX];
    struct sched_counts last;
    int draining;
    uint64_t n_taken, n_ended, output_of_ended, prompt_of_ended;
    uint64_t submitted, resumed, by_status[16];
} sim;

/* ck_assert writes to a file also when all is well, which is most of the time here. */
#define SIM(cond)                                                                                  \
    do {                                                                                           \
        if (!(cond))                                                                               \
            ck_abort_msg("seed %llu step %llu: %s", (unsigned long long)sim.seed,                  \
                         (unsigned long long)sim.last.steps, #cond);                               \
    } while (0)

static uint64_t mix(uint64_t h, uint64_t x) /* the finaliser of MurmurHash3 over both */
{
    h ^= x * 0x9e3779b97f4a7c15ull;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

static uint32_t rnd(uint32_t below)
{
    sim.rng = mix(sim.rng, 1);
    return (uint32_t)((sim.rng >> 32) * below >> 32);
}

static uint32_t between(uint32_t low, uint32_t high)
{
    return low + rnd(high - low + 1);
}

static uint64_t sim_now(void)
{
    return sim.now_ns;
}

/* ---- the model: two equal candidates that a sequence's hash names ---------------------------- */

static struct pair model_next(uint64_t h)
{
    struct pair next = {.bad = h % 3001 == 0};

    next.a = (uint32_t)(h >> 32) % 48;
    if (next.a < 8)
        next.a = FAKE_EOS + next.a; /* also control ids, long tokens, parts of characters */
    else
        next.a += 'a' - 8; /* letters, so that stop strings match, and a few bytes that are none */
    next.b = h % 7 == 0 ? 0xac : 'a' + (uint32_t)(h >> 20) % 4;
    if (next.a == FAKE_EOS && h % 3 != 0)
        next.a = 'e';
    return next;
}

static void model_row(float *logits, struct pair *set, uint64_t h)
{
    logits[set->a] = logits[set->b] = 0;
    *set = model_next(h);
    logits[set->a] = logits[set->b] = set->bad ? NAN : 40;
}

static void hook(void);

static void sim_forward(void *self, const struct step *step, const float **ret_logits)
{
    uint32_t logit = 0, row = 0;

    (void)self;
    SIM(step->n_rows >= 1 && step->n_rows <= sim.backend.rows_max);
    SIM(step->n_logits <= sim.backend.logits_max);
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];

        SIM(seq->row0 == row && seq->n_rows > 0);
        for (uint32_t r = 0; r < seq->n_rows; r++, row++) {
            uint32_t pos = seq->pos0 + r;
            uint64_t before = 17;

            SIM(pos < sim.opt.n_ctx);
            if (pos > 0)
                before = sim.kv[seq->pages[(pos - 1) / KV_PAGE]][(pos - 1) % KV_PAGE];
            sim.kv[seq->pages[pos / KV_PAGE]][pos % KV_PAGE] = mix(before, step->tokens[row]);
            if (logit < step->n_logits && step->logit_rows[logit] == row) {
                model_row(sim.logits[logit], &sim.row[logit],
                          sim.kv[seq->pages[pos / KV_PAGE]][pos % KV_PAGE]);
                logit++;
            }
        }
    }
    SIM(row == step->n_rows && logit == step->n_logits);
    sim.now_ns += between(100000, 2000000);
    hook();
    *ret_logits = sim.logits[0];
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static struct {
    enum end_status status;
    enum end_finish finish;
    uint32_t ids[N_CTX_MAX + 1], n_ids; /* delivered */
    uint8_t text[TEXT_MAX];
    uint32_t n_text;
    uint32_t all[N_CTX_MAX + 1], n_all; /* generated, also what a stop took away */
    uint8_t all_text[TEXT_MAX];
    uint32_t n_all_text;
    float logprobs[N_CTX_MAX];
    uint32_t n_logprobs;
} oracle;

static int oracle_take(struct detok *d, int found, struct detok_piece *piece)
{
    while (found) {
        memcpy(oracle.ids + oracle.n_ids, piece->ids, piece->n_ids * sizeof *piece->ids);
        oracle.n_ids += piece->n_ids;
        memcpy(oracle.text + oracle.n_text, piece->text, piece->n_bytes);
        oracle.n_text += piece->n_bytes;
        if (found == DETOK_STOPPED)
            return 1;
        found = detok_more(d, piece);
    }
    return 0;
}

static int oracle_stops(const struct request *req, uint32_t id)
{
    for (uint32_t i = 0; i < req->n_stop_ids; i++) {
        if (req->stop_ids[i] == id)
            return 1;
    }
    return !req->ignore_eos && id == FAKE_EOS;
}

static void oracle_generate(const struct request *req, uint64_t h)
{
    static float logits[FAKE_VOCAB];
    static struct pair set;
    static struct detok d;
    struct detok_piece piece;
    int cut = 1;

    detok_init(&d, &sim.vocab);
    for (uint32_t i = 0; i < req->detok.n_stops; i++)
        SIM(detok_add_stop(&d, req->detok.stop[i], req->detok.stop_bytes[i]) == 0);
    oracle.finish = FINISH_LENGTH;
    while (oracle.n_all < req->max_tokens && req->n_prompt + oracle.n_all < sim.opt.n_ctx) {
        const uint8_t *text;
        struct draw draw;
        size_t n;

        model_row(logits, &set, h);
        draw = (struct draw){.how = &req->sampling, .pos = req->n_prompt + oracle.n_all};
        sampler_draw(sim.oracle_sampler, logits, NULL, &draw, 1);
        if (draw.err < 0) {
            oracle.status = END_NUMERIC;
            oracle.finish = FINISH_NONE;
            break;
        }
        if (oracle_stops(req, draw.id)) {
            oracle.finish = FINISH_STOP;
            cut = 0;
            break;
        }
        h = mix(h, draw.id);
        oracle.all[oracle.n_all++] = draw.id;
        text = vocab_bytes(&sim.vocab, draw.id, &n);
        memcpy(oracle.all_text + oracle.n_all_text, text, n);
        oracle.n_all_text += (uint32_t)n;
        if (oracle_take(&d, detok_feed(&d, draw.id, &piece), &piece)) {
            oracle.finish = FINISH_STOP;
            return;
        }
    }
    oracle_take(&d, detok_flush(&d, cut, &piece), &piece);
}

/* What the request gives alone. */
static void oracle_run(const struct request *req)
{
    static float logits[FAKE_VOCAB];
    static struct pair set;
    struct draw draw;
    uint64_t h = 17;

    oracle.status = END_OK;
    oracle.finish = FINISH_NONE;
    oracle.n_ids = oracle.n_text = oracle.n_all = oracle.n_all_text = oracle.n_logprobs = 0;
    for (uint32_t i = 0; i < req->n_prompt; i++) {
        h = mix(h, req->tokens[i]);
        if (req->op != REQUEST_LOGPROBS || i + 1 == req->n_prompt || oracle.status != END_OK)
            continue;
        model_row(logits, &set, h);
        draw = (struct draw){.id = req->tokens[i + 1]};
        sampler_draw(sim.oracle_sampler, logits, NULL, &draw, 1);
        if (draw.err < 0)
            oracle.status = END_NUMERIC;
        else
            oracle.logprobs[oracle.n_logprobs++] = draw.logprob;
    }
    if (req->op == REQUEST_GENERATE)
        oracle_generate(req, h);
}

/* Its client has some of the output already, from a daemon that is gone. */
static void received(struct request *req)
{
    if (req->op != REQUEST_GENERATE || req->n_prompt > sim.opt.n_ctx || rnd(5))
        return;
    oracle_run(req);
    req->n_resume = req->n_out = req->n_published = rnd(oracle.n_ids + 1);
    memcpy(req->out_ids, oracle.ids, req->n_resume * sizeof *req->out_ids);
    sim.resumed += req->n_resume > 0;
}

/* Rows before the first new token. */
static uint32_t prompt_rows(const struct request *req)
{
    return req->op == REQUEST_LOGPROBS ? req->n_prompt - 1 : req->n_prompt + req->n_resume;
}

/* Of these, computed so far; who was displaced computes some of them again. */
static uint32_t rows_seen(const struct request *req)
{
    struct spec *spec = &sim.spec[req->slot];
    uint32_t rows = prompt_rows(req);

    rows = req->n_computed < rows ? req->n_computed : rows;
    if (rows > spec->rows_seen)
        spec->rows_seen = rows;
    return spec->rows_seen;
}

/* ---- what has ended -------------------------------------------------------------------------- */

static void check_ended(const struct request *req, const struct spec *spec)
{
    int early = req->status == END_CANCELLED || req->status == END_DEADLINE ||
                req->status == END_OVERLOADED || req->status == END_SLOW;

    oracle_run(req);
    SIM(req->stamp[STAMP_DONE] == sim.now_ns || req->stamp[STAMP_DONE] < sim.now_ns);
    SIM(req->n_pages == 0 && req->n_reserved == 0);
    SIM(req->status != END_DEADLINE ||
        (req->deadline_ns && req->stamp[STAMP_DONE] >= req->deadline_ns));
    SIM(req->status != END_CANCELLED || req->cancel);
    SIM(req->status != END_SLOW || spec->ended_by_us ||
        (req->want > sim.opt.lag_tokens_max / 2 && req->have == sim.opt.lag_tokens_max &&
         req->stamp[STAMP_DONE] >= req->paused_ns + sim.opt.lag_timeout_ns));
    SIM(req->status != END_OVERLOADED || req->retry_after_ns > 0);
    SIM(req->status != END_OVERLOADED || req->stamp[STAMP_PREFILL] == 0 ||
        req->max_tokens == REQUEST_MAX_TOKENS_NONE);
    if (req->status == END_CONTEXT) {
        SIM(req->n_prompt > sim.opt.n_ctx && req->have == sim.opt.n_ctx &&
            req->want == req->n_prompt);
        return;
    }
    if (early) {
        SIM(req->n_out <= oracle.n_all && req->n_text <= oracle.n_all_text &&
            req->n_out >= req->n_resume);
        SIM(memcmp(req->out_ids, oracle.all, req->n_out * sizeof *req->out_ids) == 0);
        SIM(memcmp(req->out_text, oracle.all_text, req->n_text) == 0);
        SIM(req->n_logprobs <= oracle.n_logprobs);
    } else {
        SIM(req->status == oracle.status && req->finish == oracle.finish);
        SIM(req->n_out == oracle.n_ids && req->n_text == oracle.n_text);
        SIM(memcmp(req->out_ids, oracle.ids, req->n_out * sizeof *req->out_ids) == 0);
        SIM(memcmp(req->out_text, oracle.text, req->n_text) == 0);
        SIM(req->n_logprobs == oracle.n_logprobs);
        SIM(req->n_discarded == oracle.n_all - oracle.n_ids);
    }
    SIM(memcmp(req->logprobs, oracle.logprobs, req->n_logprobs * sizeof *req->logprobs) == 0);
}

/* Looks at what has ended; gives some of it back, the rest stays as if a reader were slow. */
static void collect(int all)
{
    for (uint32_t i = 0; i < sched_slots(sim.sched); i++) {
        struct request *req = sched_slot(sim.sched, i);
        struct spec *spec = &sim.spec[i];

        if (req->state != REQUEST_ENDED)
            continue;
        SIM(spec->alive);
        if (!spec->ended_seen) {
            spec->ended_seen = 1;
            sim.n_ended++;
            sim.output_of_ended += req->n_out - req->n_resume;
            sim.by_status[req->status & 15]++;
            if (req->op != REQUEST_TOKENIZE) {
                sim.prompt_of_ended += rows_seen(req);
                check_ended(req, spec);
            }
        }
        if (all || rnd(4) == 0) {
            spec->alive = 0;
            sched_request_give(sim.sched, req);
        }
    }
}

/* ---- invariants ------------------------------------------------------------------------------ */

static void check_counts(const struct sched_counts *c, uint64_t output_running,
                         uint64_t prompt_running)
{
    uint64_t ended = 0;

    SIM(c->finished >= sim.last.finished && c->cancelled >= sim.last.cancelled &&
        c->failed >= sim.last.failed);
    SIM(c->output_tokens >= sim.last.output_tokens && c->prompt_tokens >= sim.last.prompt_tokens);
    SIM(c->steps >= sim.last.steps);
    for (uint32_t i = 0; i < sched_slots(sim.sched); i++)
        ended += sched_slot(sim.sched, i)->state == REQUEST_ENDED && !sim.spec[i].ended_seen;
    SIM(c->finished + c->cancelled + c->failed == sim.n_ended + ended);
    SIM(sim.n_taken == sim.n_ended + ended + c->running + c->queued + c->paused + c->text);
    if (ended == 0) {
        SIM(c->output_tokens == sim.output_of_ended + output_running);
        SIM(c->prompt_tokens == sim.prompt_of_ended + prompt_running);
    }
    sim.last = *c;
}

static void check_active(const struct request *req, uint64_t *held, int after_step)
{
    struct spec *spec = &sim.spec[req->slot];

    SIM(req->n_pages >= pages_for(req->n_computed));
    for (uint32_t p = 0; p < req->n_pages; p++) {
        SIM(req->pages[p] < sim.opt.n_pages);
        SIM((*held >> req->pages[p] & 1) == 0); /* in one table only */
        *held |= 1ull << req->pages[p];
    }
    SIM(req->state != REQUEST_QUEUED ||
        (req->n_pages == 0 && req->n_reserved == 0 && req->n_computed == 0));
    SIM(req->n_out >= spec->n_out_seen && req->n_published <= req->n_out);
    SIM(req->n_out <= sim.opt.n_ctx &&
        (req->max_tokens == REQUEST_MAX_TOKENS_NONE || req->n_out <= req->max_tokens));
    spec->n_out_seen = req->n_out;
    if (!after_step)
        return;
    SIM(!req->cancel && !spec->ended_by_us);
    SIM(req->deadline_ns == 0 || sim.now_ns < req->deadline_ns);
    if (req->state == REQUEST_PAUSED) { /* or it would run, or have ended */
        SIM(sim.opt.lag_tokens_max > 0);
        SIM(req->n_out - req->n_published <= sim.opt.lag_tokens_max / 2 ||
            sim.now_ns < req->paused_ns + sim.opt.lag_timeout_ns);
    } else if (req->state == REQUEST_RUNNING &&
               sim.opt.lag_tokens_max > 0) { /* what one step can make final */
        SIM(req->n_out <= req->n_published + sim.opt.lag_tokens_max + DETOK_IDS);
    }
}

/* Within a client, first come is first served; limits hold, its own and its owner's. */
static void check_shares(void)
{
    uint64_t newest_running[CLIENTS_MAX] = {0}, oldest_queued[CLIENTS_MAX];
    uint32_t pages[CLIENTS_MAX] = {0}, running[CLIENTS_MAX] = {0}, queued[CLIENTS_MAX] = {0};
    uint32_t pages_of_owner[CLIENTS_MAX] = {0};

    memset(oldest_queued, 0xff, sizeof oldest_queued);
    for (uint32_t i = 0; i < sched_slots(sim.sched); i++) {
        const struct request *req = sched_slot(sim.sched, i);
        uint32_t k = sim.spec[i].client;

        if (req->state == REQUEST_QUEUED) {
            oldest_queued[k] = req->order < oldest_queued[k] ? req->order : oldest_queued[k];
            queued[k]++;
        } else if (req->state == REQUEST_RUNNING &&
                   req->paused_ns == 0) { /* who paused comes back with its pages */
            newest_running[k] = req->order > newest_running[k] ? req->order : newest_running[k];
            running[k]++;
        }
        if (req->state == REQUEST_RUNNING || req->state == REQUEST_PAUSED)
            pages[k] += req->n_pages + req->n_reserved;
    }
    for (uint32_t k = 0; k < sim.n_clients; k++)
        pages_of_owner[k % sim.n_owners] += pages[k];
    for (uint32_t k = 0; k < CLIENTS_MAX; k++) {
        SIM(running[k] == 0 || queued[k] == 0 || newest_running[k] < oldest_queued[k]);
        SIM(sim.opt.client_limits.pages == 0 || pages[k] <= sim.opt.client_limits.pages);
        SIM(sim.opt.user_limits.pages == 0 || pages_of_owner[k] <= sim.opt.user_limits.pages);
    }
}

static void check_invariants(int after_step)
{
    uint32_t used = 0, reserved = 0, states[REQUEST_ENDED + 1] = {0};
    uint64_t held = 0, output = 0, prompt = 0;
    struct sched_counts c;

    for (uint32_t i = 0; i < sched_slots(sim.sched); i++) {
        const struct request *req = sched_slot(sim.sched, i);

        SIM(req->slot == i);
        states[req->state]++;
        if (req->state != REQUEST_RUNNING && req->state != REQUEST_QUEUED &&
            req->state != REQUEST_PAUSED)
            continue;
        used += req->n_pages;
        reserved += req->n_reserved;
        output += req->n_out - req->n_resume;
        prompt += rows_seen(req);
        check_active(req, &held, after_step);
    }
    check_shares();
    sched_counts(sim.sched, &c);
    SIM(states[REQUEST_RUNNING] == c.running && states[REQUEST_QUEUED] == c.queued);
    SIM(states[REQUEST_TEXT] == c.text && states[REQUEST_PAUSED] == c.paused);
    SIM(c.pages_used == used && c.pages_reserved == reserved && c.pages_total == sim.opt.n_pages);
    SIM(used + reserved <= sim.opt.n_pages);
    SIM(c.running <= sim.opt.running_max);
    check_counts(&c, output, prompt);
}

/* ---- events ---------------------------------------------------------------------------------- */

static uint32_t random_length(uint32_t n_ctx)
{
    switch (rnd(20)) {
    case 0:
        return n_ctx - 1 + rnd(4);
    case 1:
    case 2:
        return between(1, n_ctx);
    default:
        return between(1, n_ctx < 30 ? n_ctx : 30);
    }
}

static void random_stops(struct request *req)
{
    static const char *const stops[] = {"a",      "ab", "abc",   "ca",
                                        "hello ", "bb", "xxxxa", "\x82\xac"};

    for (uint32_t n = rnd(4) == 0 ? between(1, 3) : 0; n > 0; n--) {
        const char *stop = stops[rnd(sizeof stops / sizeof stops[0])];

        SIM(detok_add_stop(&req->detok, (const uint8_t *)stop, (uint32_t)strlen(stop)) == 0);
    }
    for (uint32_t n = rnd(8) == 0 ? between(1, 2) : 0; n > 0; n--)
        req->stop_ids[req->n_stop_ids++] = 'a' + rnd(40);
}

/* Most owners are tenants of one user, so that clients have names in common. */
static struct request *take(uint32_t client)
{
    struct sched_who who = {.uid = 1000 + client % sim.n_owners / 3,
                            .tenant = client % sim.n_owners,
                            .client = client / sim.n_owners};
    struct request *req = sched_request_take(sim.sched, &who);

    if (!req)
        return NULL;
    SIM(req->owner != 0 && req->owner < sched_shares(sim.sched));
    SIM(req->client != 0 && req->client < sched_shares(sim.sched) && req->client != req->owner);
    for (uint32_t i = 0; i < sched_slots(sim.sched); i++) {
        const struct request *other = sched_slot(sim.sched, i);
        uint32_t k = sim.spec[i].client;

        if (other->state == REQUEST_FREE || other == req)
            continue;
        SIM((other->owner == req->owner) == (k % sim.n_owners == client % sim.n_owners));
        SIM((other->client == req->client) == (k == client));
    }
    return req;
}

static void arrive(void)
{
    uint32_t client = rnd(3) == 0 ? 0 : rnd(sim.n_clients);
    struct request *req = take(client);
    struct spec *spec;

    if (!req) {
        SIM(sched_slots(sim.sched) == sim.opt.queued_max + 4 * sim.opt.running_max);
        return;
    }
    spec = &sim.spec[req->slot];
    SIM(!spec->alive);
    *spec = (struct spec){.alive = 1, .client = client, .reads = rnd(8) != 0};
    sim.n_taken++;
    detok_init(&req->detok, &sim.vocab);
    req->op = rnd(12) == 0 ? REQUEST_LOGPROBS : rnd(40) == 0 ? REQUEST_TOKENIZE : REQUEST_GENERATE;
    req->max_tokens = rnd(5) == 0 ? REQUEST_MAX_TOKENS_NONE : rnd(rnd(3) == 0 ? 400 : 40);
    req->sampling = (struct sampling){.seed = rnd(1000), .temperature = rnd(3) == 0 ? 0.7f : 0};
    if (rnd(2))
        req->sampling.top_p = 0.9f;
    req->ignore_eos = rnd(6) == 0;
    random_stops(req);
    if (rnd(6) == 0)
        req->deadline_ns = sim.now_ns + (uint64_t)rnd(60) * 1000000;
    req->n_prompt = random_length(sim.opt.n_ctx);
    for (uint32_t i = 0; i < req->n_prompt && i <= sim.opt.n_ctx; i++)
        req->tokens[i] = rnd(FAKE_VOCAB);
    received(req);
    if (rnd(30) == 0)
        req->cancel = 1;
    if (req->op == REQUEST_TOKENIZE || rnd(50) == 0) { /* never submitted */
        req->op = REQUEST_TOKENIZE;
        sched_end(sim.sched, req, rnd(2) ? END_OK : END_INVALID, sim.now_ns);
        SIM(req->state == REQUEST_ENDED);
        return;
    }
    sim.submitted++;
    sched_submit(sim.sched, req, sim.now_ns);
    SIM(req->state == REQUEST_QUEUED || req->state == REQUEST_ENDED);
}

/* Cancels or ends somebody, also who has ended already. */
static void harm(void)
{
    struct request *req = sched_slot(sim.sched, rnd(sched_slots(sim.sched)));

    if (req->state == REQUEST_FREE)
        return;
    if (rnd(2)) {
        req->cancel = 1;
    } else {
        if (req->state != REQUEST_ENDED)
            sim.spec[req->slot].ended_by_us = 1;
        sched_end(sim.sched, req, END_SLOW, sim.now_ns);
    }
}

/* Some of what is final reaches its reader. */
static void publish(int all)
{
    for (uint32_t i = 0; i < sched_slots(sim.sched); i++) {
        struct request *req = sched_slot(sim.sched, i);

        if (all)
            req->n_published = req->n_out;
        else if (sim.spec[i].reads && rnd(4) == 0)
            req->n_published += rnd(req->n_out - req->n_published + 1);
    }
}

static void events(uint32_t busy)
{
    if (rnd(2) == 0)
        publish(0);
    while (rnd(100) < busy)
        arrive();
    if (rnd(12) == 0)
        harm();
    if (rnd(3) == 0)
        collect(0);
}

static void hook(void)
{
    if (!sim.draining && rnd(3) == 0) {
        events(20);
        sched_expire(sim.sched, sim.now_ns);
    }
}

/* For each client the oldest prompt in prefill, and how far it is. */
static void oldest_prefills(struct request *oldest[CLIENTS_MAX])
{
    memset(oldest, 0, CLIENTS_MAX * sizeof *oldest);
    for (uint32_t i = 0; i < sched_slots(sim.sched); i++) {
        struct request *req = sched_slot(sim.sched, i);
        uint32_t k = sim.spec[i].client;

        if (req->state == REQUEST_RUNNING && req->n_computed < req->n_known &&
            (!oldest[k] || req->order < oldest[k]->order))
            oldest[k] = req;
    }
}

static void step(void)
{
    struct request *oldest[CLIENTS_MAX];
    uint32_t computed[CLIENTS_MAX] = {0}, rows, budget;
    uint64_t order[CLIENTS_MAX] = {0}, displaced = sim.last.displaced, failed = sim.last.failed;
    int all_advance;

    budget = sim.backend.rows_max - sim.opt.running_max;
    budget = budget < sim.opt.chunk_rows ? budget : sim.opt.chunk_rows;
    all_advance = budget / sim.n_owners >= (sim.n_clients + sim.n_owners - 1) / sim.n_owners;
    oldest_prefills(oldest);
    for (uint32_t k = 0; k < CLIENTS_MAX; k++) {
        computed[k] = oldest[k] ? oldest[k]->n_computed : 0;
        order[k] = oldest[k] ? oldest[k]->order : 0;
    }
    rows = sched_step(sim.sched, sim_now);
    check_invariants(1);
    for (uint32_t k = 0; k < CLIENTS_MAX && all_advance && sim.last.displaced == displaced; k++) {
        if (oldest[k] && oldest[k]->state == REQUEST_RUNNING && oldest[k]->order == order[k] &&
            (sim.n_clients == 1 ||
             oldest[k]->op != REQUEST_LOGPROBS)) /* several share the rows of logits */
            SIM(oldest[k]->n_computed > computed[k]);
    }
    SIM(rows > 0 || sim.last.failed > failed ||
        !sched_has_work(sim.sched)); /* failed: its growth, which makes room */
}

static void limits_of_party(struct sched_limits *limits)
{
    if (rnd(4) == 0)
        limits->requests = between(1, 20);
    if (rnd(4) == 0)
        limits->pages = between(1, sim.opt.n_pages);
    if (rnd(4) == 0)
        limits->prompt_tokens = between(1, 4 * N_CTX_MAX);
    if (rnd(4) == 0)
        limits->queued = between(1, 12);
}

static void limits_choose(void)
{
    uint32_t running = between(1, rnd(2) ? 4 : 12);

    sim.opt = (struct sched_opt){
        .running_max = running,
        .queued_max = rnd(12),
        .n_pages = between(1, rnd(2) ? 8 : PAGES_MAX),
        .n_ctx = between(2, N_CTX_MAX),
        .chunk_rows = between(1, 60),
        .out_bytes_max = TEXT_MAX,
        .vocab = &sim.vocab,
        .lag_tokens_max = rnd(2) ? between(1, 40) : 0,
        .lag_timeout_ns = between(1, 50) * 1000000ull,
    };
    sim.n_clients = rnd(3) == 0 ? 1 : between(1, CLIENTS_MAX);
    sim.n_owners = between(1, sim.n_clients);
    limits_of_party(&sim.opt.client_limits);
    limits_of_party(&sim.opt.user_limits);
    sim.vocab.bos = VOCAB_NONE;
    sim.backend = (struct backend){
        .rows_max = between(running + 1, ROWS_MAX),
        .logits_max = between(running, LOGITS_MAX),
        .n_vocab = FAKE_VOCAB,
        .forward = sim_forward,
    };
}

static void world_new(void)
{
    const struct cpu_kernels *kernels = cpu_kernels_get(CPU_AUTO, NULL);

    ck_assert_int_eq(sampler_new(&sim.sampler, FAKE_VOCAB, kernels, NULL), 0);
    ck_assert_int_eq(sampler_new(&sim.oracle_sampler, FAKE_VOCAB, kernels, NULL), 0);
    ck_assert_int_eq(sched_new(&sim.sched, &sim.opt, &sim.backend, sim.sampler), 0);
    sim.opt.n_ctx = sched_n_ctx(sim.sched);
    SIM(sched_slots(sim.sched) <= SLOTS_MAX);
}

/* Everybody reads; nothing may be left. */
static void world_end(void)
{
    sim.draining = 1;
    for (uint32_t i = 0; sched_has_work(sim.sched) || sim.last.paused > 0; i++) {
        SIM(i < 200000); /* it ends */
        publish(1);
        step();
        collect(1);
    }
    collect(1);
    check_invariants(1);
    SIM(sim.last.pages_used == 0 && sim.last.pages_reserved == 0);
    SIM(sim.last.running + sim.last.queued + sim.last.text + sim.last.paused == 0);
    SIM(sim.last.finished + sim.last.cancelled + sim.last.failed == sim.n_taken);
    sched_free(sim.sched);
    sampler_free(sim.sampler);
    sampler_free(sim.oracle_sampler);
}

static void episode(uint64_t seed)
{
    uint32_t busy;

    memset(&sim, 0, sizeof sim);
    sim.seed = sim.rng = seed;
    sim.now_ns = 1;
    limits_choose();
    busy = between(2, 60);
    world_new();
    for (uint32_t i = 0; i < STEPS; i++) {
        events(busy);
        check_invariants(0);
        step();
        if (rnd(10) == 0)
            sim.now_ns += rnd(20000000);
    }
    world_end();
}

START_TEST(random_requests_end_once_as_they_would_alone_and_leave_no_page_behind)
{
    uint64_t seen[16] = {0}, submitted = 0, resumed = 0, pauses = 0, slow = 0, displaced = 0;
    int is_long = getenv("TOKENRING_LONG") != NULL;

    for (uint64_t i = 0; i < EPISODES * (is_long ? 100u : 1u); i++) {
        episode((uint64_t)(1 + _i) + i * SEEDS);
        for (int k = 0; k < 16; k++)
            seen[k] += sim.by_status[k];
        submitted += sim.submitted;
        resumed += sim.resumed;
        pauses += sim.last.pauses;
        slow += sim.last.slow;
        displaced += sim.last.displaced;
    }
    /* The simulation reached every way to end. */
    ck_assert_uint_gt(submitted, EPISODES * 100);
    ck_assert_uint_gt(resumed, 0);
    ck_assert_uint_gt(pauses, slow);
    ck_assert_uint_gt(slow, 0);
    ck_assert_uint_gt(displaced, 0);
    ck_assert_uint_gt(seen[END_OK], 0);
    ck_assert_uint_gt(seen[END_CONTEXT], 0);
    ck_assert_uint_gt(seen[END_DEADLINE], 0);
    ck_assert_uint_gt(seen[END_OVERLOADED & 15], 0);
    ck_assert_uint_gt(seen[END_CANCELLED], 0);
    ck_assert_uint_gt(seen[END_NUMERIC], 0);
    ck_assert_uint_gt(seen[END_SLOW], 0);
}
END_TEST

/* ---- one that floods, one that does not ------------------------------------------------------ */

#define HONEST 1 /* the other clients flood, but its owner's */

static struct request *ask(uint32_t client, uint32_t n_prompt, uint32_t max_tokens)
{
    struct request *req = take(client);

    if (!req)
        return NULL;
    sim.spec[req->slot] = (struct spec){.alive = 1, .client = client, .reads = 1};
    sim.n_taken++;
    detok_init(&req->detok, &sim.vocab);
    req->max_tokens = max_tokens;
    req->ignore_eos = 1;
    req->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        req->tokens[i] = rnd(FAKE_VOCAB);
    sched_submit(sim.sched, req, sim.now_ns);
    return req;
}

/* Who floods fills everything that there is. */
static void flood(void)
{
    for (uint32_t k = 0; k < sim.n_clients; k++) {
        if (k == HONEST || (sim.n_owners > 1 && k % sim.n_owners == HONEST))
            continue;
        while (ask(k, between(1, 600), 600 + rnd(100)))
            ;
    }
}

/* Steps until the honest one's first token, with a flood before each. */
static uint32_t wait_of_honest(uint32_t n_prompt)
{
    struct request *req;
    uint32_t steps = 0;

    flood();
    req = ask(HONEST, n_prompt, 1 + rnd(30));
    SIM(req && req->state == REQUEST_QUEUED);
    for (; req->stamp[STAMP_FIRST] == 0 && req->state != REQUEST_ENDED; steps++) {
        flood();
        step();
        publish(1);
    }
    while (req->state != REQUEST_ENDED) {
        step();
        publish(1);
    }
    SIM(req->status == END_OK || req->status == END_NUMERIC);
    collect(1);
    return steps;
}

/* Another owner's client; another client of the same owner; two clients of another owner. */
static const struct {
    uint32_t n_clients, n_owners;
} crowds[] = {{2, 2}, {2, 1}, {4, 2}};

START_TEST(who_asks_little_waits_for_its_own_rows_only_however_much_another_asks)
{
    for (uint32_t round = 0; round < 20; round++) {
        memset(&sim, 0, sizeof sim);
        sim.seed = sim.rng = 1000 + round;
        sim.now_ns = 1;
        limits_choose();
        sim.opt = (struct sched_opt){.running_max = 8,
                                     .queued_max = 8,
                                     .n_pages = PAGES_MAX,
                                     .n_ctx = N_CTX_MAX,
                                     .chunk_rows = 32,
                                     .out_bytes_max = TEXT_MAX,
                                     .vocab = &sim.vocab};
        sim.n_clients = crowds[_i].n_clients;
        sim.n_owners = crowds[_i].n_owners;
        sim.backend.rows_max = 64;
        sim.backend.logits_max = 16;
        world_new();
        sim.draining = 1; /* the hook brings no others */
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t n_prompt = between(1, 100);

            /* Half of the 32 rows are its own, from the first step on. */
            SIM(wait_of_honest(n_prompt) <= (n_prompt + 15) / 16);
        }
        for (uint32_t i = 0; i < sched_slots(sim.sched); i++)
            sched_slot(sim.sched, i)->cancel = 1;
        world_end();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sim_sched");
    TCase *tc = tcase_create("sim_sched");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 3600);
    tcase_add_loop_test(tc, random_requests_end_once_as_they_would_alone_and_leave_no_page_behind,
                        0, SEEDS);
    tcase_add_loop_test(tc, who_asks_little_waits_for_its_own_rows_only_however_much_another_asks,
                        0, sizeof crowds / sizeof crowds[0]);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
