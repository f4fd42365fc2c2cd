/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/exact/exact.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "runtime/exec/cpu.h"
#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"

#define N_CTX          768u
#define PROMPT_MAX     640u
#define OUT_MAX        12u
#define TEXT_MAX       (OUT_MAX * 256u)
#define RUNS_MAX       128u
#define SOLO_CHUNK     64u
#define SHORT          8u /* a prompt that always fits */
#define LAG_TOKENS_MAX 3u
#define NEVER          UINT32_MAX
#define NOT_FINITE     1u /* in place of a hash: which NaN a row has is not promised */

struct plan {
    enum request_op op;
    uint32_t n_prompt, max_tokens;
    uint32_t prompt[PROMPT_MAX];
    struct sampling sampling;

    /* of the run alone */
    int known;
    enum end_status status;
    enum end_finish finish;
    uint64_t row[N_CTX]; /* hash of the logits at each position; 0: nobody asked for them */
    uint32_t n_out, out[OUT_MAX];
    uint32_t n_text;
    uint8_t text[TEXT_MAX];
    uint32_t n_logprobs;
    float logprobs[PROMPT_MAX];
};

/* One request of a schedule. */
struct run {
    const struct plan *plan;
    struct request *req; /* NULL: it waits, or has ended */
    struct sched_who who;
    uint32_t start, cancel; /* step */
    uint32_t n_resume;
    uint32_t reads; /* once in so many steps, on average */
};

struct engine {
    enum cpu_variant variant;
    unsigned threads;
    struct team *team;
    struct model *model;
    struct backend *backend;
    struct sampler *sampler;
};

static struct exact {
    struct exact_opt opt;
    char model[4096]; /* opt.model */
    struct plan *plans;
    struct engine solo, engine; /* threads 0: not open */
    uint64_t rng;
    struct exact_seen seen;

    /* the schedule in work */
    const struct setting *setting;
    const struct engine *runs_on;
    struct backend backend; /* the engine's, with forward watched */
    struct sched *sched;
    struct run run[RUNS_MAX];
    uint32_t n_runs;
    struct plan *learns; /* whose run alone this is; NULL: it is none */

    /* the first difference */
    char difference[512];
    const struct plan *differs; /* in its logits */
    uint32_t differs_at;
    float *here, *alone; /* [n_vocab] that row */
} x;

static uint32_t rnd(uint32_t below) /* splitmix64, Steele et al. 2014 */
{
    uint64_t z = x.rng += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(((z ^ z >> 31) >> 32) * below >> 32);
}

static uint64_t fake_now(void)
{
    static uint64_t ns;

    return ns += 1000;
}

/* ---- engines --------------------------------------------------------------------------------- */

static void engine_open(struct engine *e, enum cpu_variant variant, unsigned threads)
{
    /* Half of what a full batch of long prompts wants. */
    struct cpu_backend_opt opt = {.n_pages = EXACT_BATCH_MAX * 2,
                                  .rows_max = EXACT_CHUNK_MAX + EXACT_BATCH_MAX,
                                  .logits_max = EXACT_BATCH_MAX,
                                  .kv_type = x.opt.kv_type};
    const struct cpu_kernels *kernels = cpu_kernels_get(variant, NULL);
    struct diag diag = {""};

    ck_assert_int_eq(team_new(&e->team, threads), 0);
    ck_assert_msg(model_open(&e->model, x.model, N_CTX, NULL, e->team, &diag) == 0, "%s",
                  diag.text);
    ck_assert_msg(cpu_backend_new(&e->backend, e->model, kernels, e->team, &opt, &diag) == 0, "%s",
                  diag.text);
    ck_assert_int_eq(sampler_new(&e->sampler, e->backend->n_vocab, kernels, e->team), 0);
    e->variant = variant;
    e->threads = threads; /* last: now it is open */
}

static void engine_close(struct engine *e)
{
    sampler_free(e->sampler);
    cpu_backend_free(e->backend);
    model_free(e->model);
    team_free(e->team);
    memset(e, 0, sizeof *e);
}

int exact_has(enum cpu_variant variant)
{
    return cpu_kernels_get(variant, NULL) != NULL;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Lengths stand on both sides of a block, of a page and of an attention split; most are short. */
static uint32_t prompt_length(uint32_t i)
{
    static const uint32_t lengths[] = {1,   33, 7,  64, 20,  530, 65, 3,
                                       129, 40, 16, 17, 200, 5,   90, 31};

    return i == 37 ? 513 : i == 53 ? 128 : lengths[i % 16] + i / 16 * (i % 16 != 5);
}

static void plan_make(struct plan *plan, uint32_t i)
{
    static const float temperatures[] = {0.5f, 0.8f, 1.0f, 1.5f};
    uint32_t n_vocab = x.solo.backend->n_vocab;

    plan->op = i % 8 == 6 ? REQUEST_LOGPROBS : REQUEST_GENERATE;
    plan->n_prompt = prompt_length(i);
    plan->max_tokens = plan->op == REQUEST_GENERATE ? 3 + rnd(OUT_MAX - 2) : 0;
    for (uint32_t k = 0; k < plan->n_prompt; k++) {
        plan->prompt[k] = rnd(n_vocab);
        if (plan->prompt[k] == x.opt.poison)
            plan->prompt[k] = 0;
    }
    if (x.opt.poison != UINT32_MAX && i % 5 == 2)
        plan->prompt[rnd(plan->n_prompt)] = x.opt.poison;
    if (i % 2 == 0) /* greedy */
        return;
    plan->sampling = (struct sampling){.seed = (uint64_t)rnd(UINT32_MAX) << 32 | i,
                                       .temperature = temperatures[rnd(4)],
                                       .top_p = rnd(2) ? 0.9f : 0,
                                       .min_p = rnd(3) ? 0 : 0.05f,
                                       .top_k = rnd(2) ? 40 : 0};
}

/* ---- comparing ------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void differ(const struct run *run, const char *format,
                                                         ...)
{
    const struct setting *set = x.setting;
    const struct plan *plan = run->plan;
    char what[160];
    va_list args;

    if (x.difference[0])
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(x.difference, sizeof x.difference,
             "cpu %s, %u threads, batch %u, chunk %u, seed %" PRIu64
             ": request %u of plan %td (%s, %u prompt tokens, %u received): %s",
             cpu_kernels_get(set->variant, NULL)->name, set->threads, set->batch, set->chunk,
             set->seed, (unsigned)(run - x.run), plan - x.plans,
             plan->op == REQUEST_LOGPROBS     ? "scored"
             : plan->sampling.temperature > 0 ? "sampled"
                                              : "greedy",
             plan->n_prompt, run->n_resume, what);
}

static uint64_t row_hash(const float *logits)
{
    uint32_t n_vocab = x.backend.n_vocab;
    uint64_t hash;

    for (uint32_t i = 0; i < n_vocab; i++)
        if (!isfinite(logits[i]))
            return NOT_FINITE;
    hash = XXH3_64bits(logits, n_vocab * sizeof *logits);
    return hash > NOT_FINITE ? hash : NOT_FINITE + 1;
}

static void see_row(const struct run *run, uint32_t pos, const float *logits)
{
    uint64_t hash = row_hash(logits);
    size_t bytes = x.backend.n_vocab * sizeof *logits;

    if (x.learns) {
        x.learns->row[pos] = hash;
        if (run->plan == x.differs && pos == x.differs_at)
            memcpy(x.alone, logits, bytes);
        return;
    }
    x.seen.rows++;
    if (hash == run->plan->row[pos] || x.difference[0])
        return;
    differ(run, "logits at position %u", pos);
    if (run->plan->row[pos] == 0)
        return;
    x.differs = run->plan;
    x.differs_at = pos;
    memcpy(x.here, logits, bytes);
}

static const struct run *run_of(const uint32_t *pages)
{
    for (uint32_t i = 0; i < x.n_runs; i++)
        if (x.run[i].req && x.run[i].req->pages == pages)
            return &x.run[i];
    ck_abort_msg("a sequence of the step is no request's");
    return NULL;
}

static void watched_forward(void *self, const struct step *step, const float **ret_logits)
{
    uint32_t i = 0;

    x.runs_on->backend->forward(self, step, ret_logits);
    for (uint32_t s = 0; s < step->n_seqs; s++) {
        const struct step_seq *seq = &step->seqs[s];
        const struct run *run = run_of(seq->pages);

        for (; i < step->n_logits && step->logit_rows[i] < seq->row0 + seq->n_rows; i++)
            see_row(run, seq->pos0 + step->logit_rows[i] - seq->row0,
                    *ret_logits + (size_t)i * x.backend.n_vocab);
    }
}

static void learn(struct plan *plan, const struct request *req)
{
    ck_assert(req->status == END_OK || req->status == END_NUMERIC);
    ck_assert_uint_le(req->n_out, OUT_MAX);
    ck_assert_uint_le(req->n_text, TEXT_MAX);
    plan->known = 1;
    plan->status = req->status;
    plan->finish = req->finish;
    plan->n_out = req->n_out;
    memcpy(plan->out, req->out_ids, req->n_out * sizeof *plan->out);
    plan->n_text = req->n_text;
    memcpy(plan->text, req->out_text, req->n_text);
    plan->n_logprobs = req->n_logprobs;
    memcpy(plan->logprobs, req->logprobs, req->n_logprobs * sizeof *plan->logprobs);
}

/* A cancelled request has a beginning of what it would have had. */
static void compare(const struct run *run)
{
    const struct request *req = run->req;
    const struct plan *plan = run->plan;
    int whole = req->status != END_CANCELLED;

    x.seen.numeric += req->status == END_NUMERIC;
    x.seen.cancelled += !whole;
    for (uint32_t i = 0; i < req->n_out && i < plan->n_out; i++)
        if (req->out_ids[i] != plan->out[i])
            differ(run, "output token %u is %u, alone %u", i, req->out_ids[i], plan->out[i]);
    for (uint32_t i = 0; i < req->n_logprobs && i < plan->n_logprobs; i++)
        if (memcmp(&req->logprobs[i], &plan->logprobs[i], sizeof(float)) != 0)
            differ(run, "log-probability %u is %a, alone %a", i, (double)req->logprobs[i],
                   (double)plan->logprobs[i]);
    if (req->n_out > plan->n_out || req->n_text > plan->n_text ||
        req->n_logprobs > plan->n_logprobs || memcmp(req->out_text, plan->text, req->n_text) != 0)
        differ(run, "%u tokens, %u bytes, %u scores; alone %u, %u, %u", req->n_out, req->n_text,
               req->n_logprobs, plan->n_out, plan->n_text, plan->n_logprobs);
    if (whole && (req->n_out != plan->n_out || req->n_text != plan->n_text ||
                  req->n_logprobs != plan->n_logprobs || req->status != plan->status ||
                  req->finish != plan->finish))
        differ(run, "ended %d/%d with %u tokens, alone %d/%d with %u", req->status, req->finish,
               req->n_out, plan->status, plan->finish, plan->n_out);
}

/* ---- a schedule ------------------------------------------------------------------------------ */

static void sched_open(const struct setting *setting, const struct engine *engine)
{
    struct sched_opt opt = {.running_max = setting->batch,
                            .queued_max = RUNS_MAX,
                            .n_pages = setting->batch * 2 > 12 ? setting->batch * 2 : 12,
                            .n_ctx = N_CTX,
                            .chunk_rows = setting->chunk,
                            .vocab = engine->model->vocab,
                            .lag_tokens_max = x.learns ? 0 : LAG_TOKENS_MAX,
                            .lag_timeout_ns = UINT64_MAX / 2};

    x.setting = setting;
    x.runs_on = engine;
    x.backend = *engine->backend;
    x.backend.forward = watched_forward;
    x.backend.rows_max = setting->chunk + setting->batch;
    ck_assert_int_eq(sched_new(&x.sched, &opt, &x.backend, engine->sampler), 0);
}

/* 0: no request is free for this client now. */
static int start_run(struct run *run)
{
    const struct plan *plan = run->plan;
    struct request *req = sched_request_take(x.sched, &run->who);

    if (!req)
        return 0;
    detok_init(&req->detok, x.runs_on->model->vocab);
    req->op = plan->op;
    req->max_tokens = plan->max_tokens;
    req->sampling = plan->sampling;
    req->n_prompt = plan->n_prompt;
    memcpy(req->tokens, plan->prompt, plan->n_prompt * sizeof *req->tokens);
    req->n_resume = req->n_out = req->n_published = run->n_resume;
    memcpy(req->out_ids, plan->out, run->n_resume * sizeof *req->out_ids);
    run->req = req;
    run->start = NEVER;
    sched_submit(x.sched, req, fake_now());
    return 1;
}

static void end_run(struct run *run)
{
    if (x.learns)
        learn(x.learns, run->req);
    else
        compare(run);
    sched_request_give(x.sched, run->req);
    run->req = NULL;
}

/* Starts, cancels, reads and ends what it is time for; how many are left. */
static uint32_t pass(uint32_t step, int idle)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < x.n_runs; i++) {
        struct run *run = &x.run[i];

        if (run->start != NEVER && (run->start <= step || idle))
            idle &= !start_run(run);
        if (run->req && run->cancel <= step)
            run->req->cancel = 1;
        if (run->req && (run->reads == 0 || idle || rnd(run->reads) == 0))
            run->req->n_published = run->req->n_out;
        if (run->req && run->req->state == REQUEST_ENDED)
            end_run(run);
        left += run->req || run->start != NEVER;
    }
    return left;
}

static void run_all(void)
{
    struct sched_counts counts;
    int idle = 0;

    for (uint32_t step = 0; pass(step, idle) > 0; step++) {
        ck_assert_uint_lt(step, 1000000);
        idle = sched_step(x.sched, fake_now) == 0;
    }
    sched_counts(x.sched, &counts);
    ck_assert_uint_eq(counts.pages_used + counts.pages_reserved, 0);
    x.seen.pauses += counts.pauses;
    x.seen.displaced += counts.displaced;
    sched_free(x.sched);
    x.sched = NULL;
}

static void run_alone(struct plan *plan)
{
    struct setting setting = {CPU_AUTO, x.solo.threads, 1, SOLO_CHUNK, 1, 0, 0};

    x.learns = plan;
    x.n_runs = 1;
    x.run[0] = (struct run){.plan = plan, .who.client = 1, .cancel = NEVER};
    sched_open(&setting, &x.solo);
    run_all();
    x.learns = NULL;
}

/* Draws the plans of the schedule, each once before one comes twice, and runs those alone that are
 * new. */
static void draw_plans(const struct setting *set)
{
    struct plan *chosen[RUNS_MAX];
    uint32_t rows = set->rows, order[EXACT_PLANS], n = 0;

    ck_assert_uint_le(set->n_requests, RUNS_MAX);
    for (uint32_t i = 0; i < x.opt.n_plans; i++) {
        uint32_t k = rnd(i + 1);

        order[i] = order[k];
        order[k] = i;
    }
    for (uint32_t i = 0; n < set->n_requests; i++) {
        struct plan *plan = &x.plans[order[i % x.opt.n_plans]];

        if (plan->n_prompt > rows && plan->n_prompt > SHORT)
            continue;
        rows -= plan->n_prompt < rows ? plan->n_prompt : rows;
        if (!plan->known)
            run_alone(plan);
        chosen[n++] = plan;
    }
    for (uint32_t i = 0; i < n; i++)
        x.run[i] = (struct run){.plan = chosen[i]};
    x.n_runs = n;
}

static void draw_events(void)
{
    for (uint32_t i = 0; i < x.n_runs; i++) {
        struct run *run = &x.run[i];
        uint32_t owner = rnd(3), n_out = run->plan->n_out;

        run->who = (struct sched_who){.uid = 1000 + owner, .client = 2 * owner + rnd(2)};
        run->start = rnd(i / 2 + 4);
        run->cancel = rnd(10) ? NEVER : rnd(20);
        run->n_resume = n_out && rnd(5) == 0 ? rnd(n_out) : 0;
        run->reads = rnd(3) ? 0 : 6;
        x.seen.resumed += run->n_resume > 0;
    }
    x.seen.requests += x.n_runs;
}

/* Says which logit it was, from one more run alone. */
static void explain(void)
{
    uint32_t n_vocab = x.backend.n_vocab, first = n_vocab, n = 0;
    size_t end = strlen(x.difference);

    if (!x.differs)
        return;
    run_alone(&x.plans[x.differs - x.plans]);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (memcmp(&x.here[i], &x.alone[i], sizeof *x.here) == 0)
            continue;
        first = n == 0 ? i : first;
        n++;
    }
    if (n > 0)
        snprintf(x.difference + end, sizeof x.difference - end,
                 ": %u of %u differ, the first is %u: %a, alone %a", n, n_vocab, first,
                 (double)x.here[first], (double)x.alone[first]);
}

void exact_run(const struct setting *set)
{
    struct engine *e = &x.engine;

    if (e->variant != set->variant || e->threads != set->threads) {
        engine_close(e);
        engine_open(e, set->variant, set->threads);
    }
    x.difference[0] = 0;
    x.differs = NULL;
    x.rng = set->seed;
    draw_plans(set);
    draw_events();
    sched_open(set, e);
    run_all();
    if (!x.difference[0])
        return;
    explain();
    ck_abort_msg("%s", x.difference);
}

/* ---- all of it ------------------------------------------------------------------------------- */

void exact_open(const struct exact_opt *opt)
{
    memset(&x, 0, sizeof x);
    x.opt = *opt;
    snprintf(x.model, sizeof x.model, "%s", opt->model);
    engine_open(&x.solo, CPU_AUTO, 2);
    x.plans = calloc(EXACT_PLANS, sizeof *x.plans);
    x.here = calloc(x.solo.backend->n_vocab, sizeof *x.here);
    x.alone = calloc(x.solo.backend->n_vocab, sizeof *x.alone);
    ck_assert(x.plans && x.here && x.alone);
    for (uint32_t i = 0; i < opt->n_plans; i++) {
        x.rng = i;
        plan_make(&x.plans[i], i);
    }
}

void exact_close(void)
{
    engine_close(&x.engine);
    engine_close(&x.solo);
    free(x.plans);
    free(x.here);
    free(x.alone);
}

static int has_poison(const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == x.opt.poison)
            return 1;
    return 0;
}

void exact_check_poison(void)
{
    for (uint32_t i = 0; i < x.opt.n_plans; i++) {
        struct plan *plan = &x.plans[i];
        /* What a scored prompt ends with is not computed, and neither is the last token drawn. */
        uint32_t rows = plan->n_prompt - (plan->op == REQUEST_LOGPROBS);
        int bad;

        if (!plan->known)
            run_alone(plan);
        bad = has_poison(plan->prompt, rows) ||
              (plan->n_out > 0 && has_poison(plan->out, plan->n_out - (plan->status == END_OK)));
        ck_assert_msg(plan->status == (bad ? END_NUMERIC : END_OK), "plan %u ended %d", i,
                      plan->status);
    }
}

const struct exact_seen *exact_seen(void)
{
    return &x.seen;
}
