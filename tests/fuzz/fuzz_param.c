/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_param.c - a request's parameter block, tail and prompt, against every byte string in the
 * arena and a writer that changes it between any two loads.
 *
 * The real intake_read() over the real io_arena_copy(); the request's memory is as large as the
 * daemon's and no larger, so that what is written past an end is seen. What intake takes, it has
 * bounded; what it refuses, it names.
 */
#include <math.h>
#include <string.h>
#include "runtime/intake.h"
#include "runtime/io/state.h"
#include "tests/fuzz/steps.h"

#define ARENA    8192u
#define N_CTX    96u
#define TEXT_MAX 1024u
#define GEN      2u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static _Alignas(64) uint8_t arena[ARENA];
static struct io_client client = {.arena = arena, .arena_len = ARENA};
static struct model model = {.n_ctx = N_CTX};
static uint32_t resume_ids; /* of the last tail entry that has some */

void tkr_load_hook(const void *ptr, size_t bytes)
{
    uintptr_t off = (uintptr_t)ptr - (uintptr_t)arena;

    steps++;
    TRAP_UNLESS(off < ARENA && bytes <= ARENA - off);
    if (next_byte() < 16)
        arena[next_word() % ARENA] = next_byte();
}

/* A tail entry that may well be good, then spoilt like all else. */
static struct tkr_tail tail_make(void)
{
    uint8_t pick = next_byte();
    struct tkr_tail tail = {.kind = (uint16_t)(pick < 250 ? 1 + pick % 4 : pick - 249),
                            .off = next_word() % (ARENA / 2) & ~3u};

    switch (tail.kind) {
    case TKR_TAIL_MESSAGE:
        tail.flags = next_byte() % 5;
        tail.bytes = next_byte();
        break;
    case TKR_TAIL_STOP_TEXT:
        tail.bytes = next_byte() + 1u;
        break;
    default:
        tail.count = next_byte() % (pick < 200 ? 16 : N_CTX + 2);
        if (tail.kind == TKR_TAIL_RESUME_IDS)
            resume_ids = tail.count;
        tail.bytes = 4 * tail.count;
        break;
    }
    if (next_byte() < 16)
        ((uint8_t *)&tail)[next_byte() % sizeof tail] = next_byte();
    return tail;
}

static float value_make(void)
{
    static const float values[] = {0.0f, 0.5f, 1.0f, -1.0f, 101.0f, INFINITY, NAN, 1e-30f};

    return values[next_byte() % 8];
}

/* Writes a block into the arena; its length. */
static uint32_t block_make(uint32_t at)
{
    struct tkr_param param = {.head_len = sizeof param};
    uint8_t how = next_byte();
    uint32_t n = next_byte() % 8, len;

    if (n == 7)
        n = next_byte() % (TKR_TAIL_MAX + 2);
    param.n_tail = (uint16_t)n;
    if (how & 1)
        param.flags = next_byte() % 4, param.seed = next_word();
    if (how & 2)
        param.temperature = value_make(), param.top_k = next_byte();
    if (how & 4)
        param.top_p = value_make(), param.min_p = value_make();
    if (how & 8)
        param.resume_bytes = next_byte();
    if (how & 16)
        param.model_gen = next_byte() % 4;
    if (how >= 224)
        param.tenant = next_byte();
    if (how < 64)
        ((uint8_t *)&param)[next_byte() % sizeof param] = next_byte();
    len = (uint32_t)(sizeof param + n * sizeof(struct tkr_tail));
    if (at > ARENA - len)
        return len;
    memcpy(arena + at, &param, sizeof param);
    for (uint32_t i = 0; i < n; i++) {
        struct tkr_tail tail = tail_make();

        memcpy(arena + at + sizeof param + i * sizeof tail, &tail, sizeof tail);
    }
    return len;
}

static struct tkr_sqe slot_make(void)
{
    struct tkr_sqe sqe = {.op = (uint8_t)(TKR_OP_GENERATE + next_byte() % 3),
                          .user = 1,
                          .data_kind = (uint8_t)(1 + next_byte() % 3),
                          .max_tokens = next_byte(),
                          .param_off = next_byte() * 8u};
    uint8_t how = next_byte();

    if (sqe.data_kind != TKR_DATA_MESSAGES)
        sqe.data_off = next_word() % ARENA & ~3u, sqe.data_len = next_word() % 512 & ~3u;
    resume_ids = 0;
    if (how & 3)
        sqe.param_len = block_make(sqe.param_off);
    if (how < 240)
        sqe.resume_pos = resume_ids;
    else
        sqe.resume_pos = next_byte();
    if (how < 32) /* also what the transport would have refused: intake does not lean on it */
        ((uint8_t *)&sqe)[8 + next_byte() % 56] = next_byte();
    return sqe;
}

static void taken_check(const struct job *job, const struct tkr_sqe *sqe)
{
    const struct request *req = job->req;
    const struct sampling *s = &req->sampling;

    TRAP_UNLESS(job->n_text <= TEXT_MAX && job->n_messages <= TKR_TAIL_MAX);
    for (uint32_t i = 0; i < job->n_messages; i++)
        TRAP_UNLESS((const uint8_t *)job->messages[i].text >= job->text &&
                    (const uint8_t *)job->messages[i].text + job->messages[i].n <=
                        job->text + job->n_text);
    TRAP_UNLESS(req->n_prompt <= N_CTX && req->n_resume <= N_CTX && req->n_out == req->n_resume);
    TRAP_UNLESS(req->n_resume == sqe->resume_pos && job->ids_out == req->n_resume);
    TRAP_UNLESS(req->n_resume || !req->resume_bytes);
    TRAP_UNLESS(req->n_stop_ids <= REQUEST_STOP_IDS && req->detok.n_stops <= DETOK_STOPS);
    TRAP_UNLESS(s->temperature >= 0 && s->temperature <= 100 && s->top_p >= 0 && s->top_p <= 1);
    TRAP_UNLESS(s->min_p >= 0 && s->min_p <= 1);
}

static void refused_check(const struct request *req)
{
    TRAP_UNLESS(req->status != END_OK && req->message[0]);
    TRAP_UNLESS(memchr(req->message, 0, sizeof req->message) != NULL);
}

static void one_request(struct intake *intake, struct job *job, struct request *req)
{
    uint32_t *tokens = req->tokens, *out_ids = req->out_ids;
    uint8_t *text = job->text;
    struct tkr_sqe sqe = slot_make();
    struct tkr_param head;
    const struct tkr_param *read;
    int err;

    memset(req, 0, offsetof(struct request, detok));
    memset(job, 0, sizeof *job);
    req->tokens = tokens;
    req->out_ids = out_ids;
    *job = (struct job){.req = req, .client = &client, .text = text, .text_max = TEXT_MAX};
    client.trusted = next_byte() & 1;
    read = intake_head(&client, &sqe, &head);
    err = intake_read(intake, job, &sqe, read);
    TRAP_UNLESS(err == 0 || err == -EINVAL);
    TRAP_UNLESS(err < 0 || !read || !read->tenant || client.trusted);
    if (err == 0)
        taken_check(job, &sqe);
    else
        refused_check(req);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct request *req;
    static struct job *job;
    struct intake intake = {.model = &model, .model_gen = GEN, .seed_base = 1};

    if (!req) {
        req = calloc(1, sizeof *req);
        job = calloc(1, sizeof *job);
        TRAP_UNLESS(req && job);
        req->tokens = malloc((N_CTX + 1) * sizeof(uint32_t));
        req->out_ids = malloc((N_CTX + 1) * sizeof(uint32_t));
        job->text = malloc(TEXT_MAX);
    }
    input_begin(data, size);
    intake.has_template = next_byte() & 3 ? 1 : 0;
    for (size_t i = 0; i < ARENA; i++)
        arena[i] = (uint8_t)i;
    while (!input_is_over()) {
        one_request(&intake, job, req);
        steps++; /* so that an input of nothing but early refusals ends, too */
    }
    input_end();
    return 0;
}
