/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.c - a daemon without a model, for tests of programs: what it answers follows from the
 * prompt.
 *
 *   peer SOCKET        one client after the other, until it is killed
 *
 * GENERATE answers with the text of the prompt (messages as "role:text;"), one id (100, 101, ...) a
 * word, unless the prompt has one of these orders:
 *   status N    ends with that status and the message "as ordered"
 *   forever     goes on until it is cancelled
 *   vanish      the peer exits without an answer
 *   params      the answer is the parameters
 *   crash N     hangs up after N words of the answer, and takes the next client; a request that
 *               resumes gets the other words
 * TOKENIZE gives each byte as an id; LOGPROBS gives -id / 100 for each id but the first.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "tests/unit/fake_daemon.h"

#define PROMPT_MAX (1u << 20)

static struct fake fake;
static char prompt[PROMPT_MAX];
static uint32_t prompt_bytes;
static uint32_t bulk_used;
static int crashed;

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* 1: the client is there. Waits a moment. */
static int client_there(int ms)
{
    struct pollfd pfd = {.fd = fake.sock, .events = POLLRDHUP};

    return !(poll(&pfd, 1, ms) == 1 && pfd.revents);
}

static int cancelled(const struct tkr_sqe *sqe)
{
    const uint8_t *words = (const uint8_t *)fake.r.base + fake.rh.cancel_off;

    return TKR_LOAD_RELAXED((const uint32_t *)(const void *)words + sqe->tag) ==
           (uint32_t)sqe->user;
}

/* Waits for a free line. 0: the client left. */
static int line_free(void)
{
    while (!tkr_ring_credit(&fake.cq, TKR_LOAD_ACQUIRE(fake_r_word(&fake, TKR_R_CQ_HEAD))))
        if (!client_there(1))
            return 0;
    return 1;
}

static void prompt_add(const void *bytes, size_t n)
{
    if (n > PROMPT_MAX - 1 - prompt_bytes)
        n = PROMPT_MAX - 1 - prompt_bytes;
    memcpy(prompt + prompt_bytes, bytes, n);
    prompt_bytes += (uint32_t)n;
    prompt[prompt_bytes] = '\0';
}

static const struct tkr_tail *tail_of(const struct tkr_sqe *sqe, uint32_t *ret_n)
{
    const struct tkr_param *param = fake_arena(&fake, sqe->param_off);

    *ret_n = sqe->param_len ? param->n_tail : 0;
    return (const struct tkr_tail *)(param + 1);
}

static void prompt_read(const struct tkr_sqe *sqe)
{
    static const char *const roles[] = {"system:", "user:", "assistant:", "tool:"};
    uint32_t n_tail;
    const struct tkr_tail *tail = tail_of(sqe, &n_tail);

    prompt_bytes = 0;
    prompt[0] = '\0';
    if (sqe->data_kind != TKR_DATA_MESSAGES)
        prompt_add(fake_arena(&fake, sqe->data_off), sqe->data_len);
    for (uint32_t i = 0; i < n_tail; i++) {
        if (tail[i].kind != TKR_TAIL_MESSAGE)
            continue;
        prompt_add(roles[tail[i].flags], strlen(roles[tail[i].flags]));
        prompt_add(fake_arena(&fake, tail[i].off), tail[i].bytes);
        prompt_add(";", 1);
    }
}

/* Replaces the prompt by a description of the request. */
static void prompt_params(const struct tkr_sqe *sqe)
{
    const struct tkr_param *param = fake_arena(&fake, sqe->param_off);
    char text[512];
    uint32_t n_tail;
    const struct tkr_tail *tail = tail_of(sqe, &n_tail);

    snprintf(
        text, sizeof text,
        "kind=%u max_tokens=%u flags=%u tenant=%llu seed=%llu temperature=%g top_k=%u top_p=%g "
        "min_p=%g stops=",
        sqe->data_kind, sqe->max_tokens, param->flags, (unsigned long long)param->tenant,
        (unsigned long long)param->seed, (double)param->temperature, param->top_k,
        (double)param->top_p, (double)param->min_p);
    prompt_bytes = 0;
    prompt_add(text, strlen(text));
    for (uint32_t i = 0; i < n_tail; i++) {
        if (tail[i].kind != TKR_TAIL_STOP_TEXT)
            continue;
        prompt_add("[", 1);
        prompt_add(fake_arena(&fake, tail[i].off), tail[i].bytes);
        prompt_add("]", 1);
    }
}

/* The next word with the white space before it, 24 bytes at most. */
static uint32_t word_bytes(const char *text)
{
    uint32_t n = 0;

    while (text[n] == ' ' && n < TKR_LINE_TEXT)
        n++;
    while (text[n] && text[n] != ' ' && n < TKR_LINE_TEXT)
        n++;
    return n;
}

static void put_word(const struct tkr_sqe *sqe, uint32_t pos, const char *text, uint32_t bytes)
{
    char word[TKR_LINE_TEXT + 1];

    memcpy(word, text, bytes);
    word[bytes] = '\0';
    fake_put_text(&fake, sqe, pos, 100 + pos, word);
    fake_wake(&fake);
}

static void end(const struct tkr_sqe *sqe, uint16_t status, uint8_t finish, uint32_t output)
{
    struct tkr_result result = {.user = sqe->user,
                                .status = status,
                                .finish = finish,
                                .prompt = prompt_bytes,
                                .output = output,
                                .seed = 7};
    uint64_t now = now_ns();

    for (int i = 0; i < TKR_STAMPS; i++)
        result.stamp[i] = now + (uint64_t)i * 1000;
    if (status)
        strcpy(result.message, "as ordered");
    if (!line_free())
        return;
    fake_put_done(&fake, sqe, status, &result);
    fake_wake(&fake);
}

/* Where the answer goes on: behind the words that the client says it has. NULL: it has others. */
static const char *resume_at(const struct tkr_sqe *sqe)
{
    const struct tkr_param *param = fake_arena(&fake, sqe->param_off);
    const char *at = prompt;
    uint32_t n_tail;
    const struct tkr_tail *tail = tail_of(sqe, &n_tail);
    const uint32_t *ids;

    if (!sqe->resume_pos)
        return prompt;
    if (!n_tail || tail[n_tail - 1].kind != TKR_TAIL_RESUME_IDS ||
        tail[n_tail - 1].count != sqe->resume_pos)
        return NULL;
    ids = fake_arena(&fake, tail[n_tail - 1].off);
    for (uint32_t i = 0; i < sqe->resume_pos; i++) {
        if (ids[i] != 100 + i)
            return NULL;
        at += word_bytes(at);
    }
    return at - prompt == param->resume_bytes ? at : NULL;
}

static void generate(const struct tkr_sqe *sqe)
{
    const char *order, *at;
    uint32_t pos = sqe->resume_pos, crash_at = UINT32_MAX;

    prompt_read(sqe);
    order = strstr(prompt, "status ");
    if (order) {
        end(sqe, (uint16_t)atoi(order + 7), 0, 0);
        return;
    }
    if (strstr(prompt, "vanish"))
        _exit(0);
    if (strstr(prompt, "forever")) {
        while (!cancelled(sqe) && line_free())
            put_word(sqe, pos++, "on ", 3);
        end(sqe, TKR_E_CANCELLED, 0, pos);
        return;
    }
    if (strstr(prompt, "params"))
        prompt_params(sqe);
    order = strstr(prompt, "crash ");
    if (order && !pos)
        crash_at = (uint32_t)atoi(order + 6);
    at = resume_at(sqe);
    if (!at) {
        end(sqe, TKR_E_INVALID, 0, 0);
        return;
    }
    for (; *at && pos < sqe->max_tokens; pos++) {
        uint32_t bytes = word_bytes(at);

        crashed = pos == crash_at;
        if (crashed)
            return;
        if (!line_free())
            return;
        put_word(sqe, pos, at, bytes);
        at += bytes;
        if (!*at) {
            end(sqe, TKR_OK, TKR_FINISH_STOP, pos + 1);
            return;
        }
    }
    end(sqe, TKR_OK, TKR_FINISH_LENGTH, pos);
}

/* Bulk memory is used from end to end and begins anew when it is full: good enough for one reader
 * in turn. */
static void put_bulk(const struct tkr_sqe *sqe, enum tkr_bulk_type type, const void *values,
                     uint32_t n)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_BULK, .user = sqe->user, .tag = sqe->tag};

    if (4 * n > fake.th.bulk_len - bulk_used)
        bulk_used = 0;
    memcpy((uint8_t *)fake.t.base + fake.th.bulk_off + bulk_used, values, 4 * (size_t)n);
    cqe.u.bulk.off = bulk_used;
    cqe.u.bulk.bytes = 4 * n;
    cqe.u.bulk.count = n;
    cqe.u.bulk.type = (uint16_t)type;
    bulk_used += 4 * n;
    if (line_free())
        fake_put(&fake, &cqe);
}

static void tokenize(const struct tkr_sqe *sqe)
{
    static uint32_t ids[PROMPT_MAX];

    prompt_read(sqe);
    for (uint32_t i = 0; i < prompt_bytes; i++)
        ids[i] = (uint8_t)prompt[i];
    put_bulk(sqe, TKR_BULK_U32, ids, prompt_bytes);
    end(sqe, TKR_OK, TKR_FINISH_NONE, 0);
}

static void logprobs(const struct tkr_sqe *sqe)
{
    static float values[PROMPT_MAX];
    const uint32_t *ids = fake_arena(&fake, sqe->data_off);
    uint32_t n = sqe->data_len / 4;

    for (uint32_t i = 1; i < n; i++)
        values[i - 1] = -(float)ids[i] / 100;
    prompt_bytes = n;
    put_bulk(sqe, TKR_BULK_F32, values, n ? n - 1 : 0);
    end(sqe, TKR_OK, TKR_FINISH_NONE, 0);
}

static void serve(void)
{
    struct tkr_sqe sqe;

    bulk_used = 0;
    crashed = 0;
    for (;;) {
        if (fake_take(&fake, &sqe) < 0) {
            if (!client_there(1))
                return;
            continue;
        }
        switch (sqe.op) {
        case TKR_OP_GENERATE:
            generate(&sqe);
            if (crashed)
                return;
            break;
        case TKR_OP_TOKENIZE:
            tokenize(&sqe);
            break;
        case TKR_OP_LOGPROBS:
            logprobs(&sqe);
            break;
        default:
            if (line_free())
                fake_put_done(&fake, &sqe, TKR_OK, NULL);
            fake_wake(&fake);
            break;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    snprintf(fake.path, sizeof fake.path, "%s", argv[1]);
    fake_listen(&fake);
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (!fake_accept(&fake))
            serve();
        fake_hang_up(&fake);
    }
}
