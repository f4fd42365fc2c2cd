/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/echo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "runtime/base/clock.h"
#include "runtime/kv/page.h"

#define PREFIX  "echo:"
#define LOOK_NS 200000u /* a waiting step looks at the rings so often */
#define CERTAIN                                                                                    \
    40.0f /* the logit of what comes next; others have 0: e^-40 is nothing, also times 259 */

struct echo {
    struct backend backend;
    struct echo_opt opt;
    struct team *team;
    uint32_t *kv;    /* [n_pages][KV_PAGE] the tokens themselves */
    float *logits;   /* [logits_max][ECHO_VOCAB] */
    uint32_t *set;   /* [logits_max] which one of a row is not 0 */
    uint64_t due_ns; /* when the next paced step may end */
};

/* ---- the name ------------------------------------------------------------------------------- */

static int number(const char *text, size_t n, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;

    if (n == 0)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return -EINVAL;
    }
    *ret = value;
    return value <= max ? 0 : -EINVAL;
}

/* One KEY=VALUE of n bytes. */
static int option(struct echo_opt *opt, const char *text, size_t n, struct diag *diag)
{
    static const char rate[] = "tokens_per_s=", seed[] = "seed=";
    uint64_t value;

    if (n >= sizeof rate - 1 && memcmp(text, rate, sizeof rate - 1) == 0) {
        if (number(text + sizeof rate - 1, n - (sizeof rate - 1), ECHO_RATE_MAX, &value) < 0) {
            diag_set(diag, "echo: '%.*s': expected tokens_per_s=0 to %u", (int)n, text,
                     ECHO_RATE_MAX);
            return -EINVAL;
        }
        opt->tokens_per_s = (uint32_t)value;
        return 0;
    }
    if (n >= sizeof seed - 1 && memcmp(text, seed, sizeof seed - 1) == 0) {
        if (number(text + sizeof seed - 1, n - (sizeof seed - 1), UINT64_MAX, &opt->seed) == 0)
            return 0;
        diag_set(diag, "echo: '%.*s': expected seed= and a number below 2^64", (int)n, text);
        return -EINVAL;
    }
    diag_set(diag, "echo: '%.*s' is unknown; there are tokens_per_s=N and seed=N", (int)n, text);
    return -EINVAL;
}

int echo_parse(struct echo_opt *ret_opt, const char *model, struct diag *diag)
{
    const char *text = model + sizeof PREFIX - 1;

    *ret_opt = (struct echo_opt){0};
    if (strncmp(model, PREFIX, sizeof PREFIX - 1) != 0)
        return 0;
    while (*text) {
        size_t n = strcspn(text, ",");
        int err = option(ret_opt, text, n, diag);

        if (err < 0)
            return err;
        text += n;
        if (*text == ',' && text[1]) /* a comma at the very end is an option without a name */
            text++;
        else if (*text == ',')
            return option(ret_opt, "", 0, diag);
    }
    return 1;
}

/* ---- what comes next ------------------------------------------------------------------------ */

static uint32_t token_at(const struct echo *echo, const struct step_seq *seq, uint32_t pos)
{
    return echo->kv[(size_t)seq->pages[pos / KV_PAGE] * KV_PAGE + pos % KV_PAGE];
}

/* The last position below `end` with this token; end when there is none. */
static uint32_t last_of(const struct echo *echo, const struct step_seq *seq, uint32_t token,
                        uint32_t end)
{
    for (uint32_t pos = end; pos-- > 0;) {
        if (token_at(echo, seq, pos) == token)
            return pos;
    }
    return end;
}

/* What is answered: positions [*ret_begin, *ret_end) of the prompt. */
static void find_content(const struct echo *echo, const struct step_seq *seq, uint32_t n_prompt,
                         uint32_t *ret_begin, uint32_t *ret_end)
{
    uint32_t end = last_of(echo, seq, ECHO_IM_END, n_prompt), begin;

    *ret_begin = 0;
    *ret_end = n_prompt;
    if (end == n_prompt)
        return;
    begin = last_of(echo, seq, ECHO_IM_START, end);
    while (begin < end &&
           token_at(echo, seq, begin) != '\n') /* the role stands on a line of its own */
        begin++;
    if (begin == end)
        return;
    *ret_begin = begin + 1;
    *ret_end = end;
}

static uint32_t letter(uint64_t seed, uint32_t i)
{
    uint64_t x = seed + (uint64_t)i * 0x9e3779b97f4a7c15ull; /* splitmix64, Steele et al. 2014 */

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return 'a' + (uint32_t)((x ^ x >> 31) % 26);
}

static uint32_t next_token(const struct echo *echo, const struct step_seq *seq, uint32_t n_prompt,
                           uint32_t pos)
{
    uint32_t begin, end, i;

    find_content(echo, seq, n_prompt, &begin, &end);
    i = (pos + 1 - n_prompt) % (end - begin + 1);
    if (i == end - begin)
        return ECHO_IM_END;
    return echo->opt.seed ? letter(echo->opt.seed, i) : token_at(echo, seq, begin + i);
}

/* ---- a step --------------------------------------------------------------------------------- */

static void nothing(void *arg, unsigned member, unsigned n)
{
    (void)arg;
    (void)member;
    (void)n;
}

static void wait_until_due(struct echo *echo)
{
    uint64_t now = clock_ns();

    if (echo->due_ns < now)
        echo->due_ns = now;
    while (now < echo->due_ns) {
        uint64_t left = echo->due_ns - now;
        struct timespec slice = {.tv_nsec = (long)(left < LOOK_NS ? left : LOOK_NS)};

        team_run(echo->team, nothing, NULL);
        nanosleep(&slice, NULL);
        now = clock_ns();
    }
    echo->due_ns += 1000000000u / echo->opt.tokens_per_s;
}

static void echo_forward(void *self, const struct step *step, const float **ret_logits)
{
    struct echo *echo = self;
    uint32_t logit = 0, row = 0;
    int generates = 0;

    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];

        for (uint32_t pos = seq->pos0; pos < seq->pos0 + seq->n_rows; pos++, row++) {
            uint32_t *set = &echo->set[logit];
            float *logits = echo->logits + (size_t)logit * ECHO_VOCAB;

            echo->kv[(size_t)seq->pages[pos / KV_PAGE] * KV_PAGE + pos % KV_PAGE] =
                step->tokens[row];
            if (logit == step->n_logits || step->logit_rows[logit] != row)
                continue;
            logits[*set] = 0;
            if (step->n_prompt && pos + 1 >= step->n_prompt[i]) { /* the warm-up names none */
                *set = next_token(echo, seq, step->n_prompt[i], pos);
                logits[*set] = CERTAIN;
                generates = 1;
            }
            logit++;
        }
    }
    team_run(echo->team, nothing, NULL);
    if (generates && echo->opt.tokens_per_s)
        wait_until_due(echo);
    *ret_logits = echo->logits;
}

int echo_backend_new(struct backend **ret_backend, const struct echo_opt *opt, uint32_t n_pages,
                     uint32_t rows_max, uint32_t logits_max, struct team *team)
{
    struct echo *echo = calloc(1, sizeof *echo);

    if (!echo)
        return -ENOMEM;
    echo->backend = (struct backend){
        .self = echo,
        .rows_max = rows_max,
        .logits_max = logits_max,
        .n_vocab = ECHO_VOCAB,
        .forward = echo_forward,
    };
    echo->opt = *opt;
    echo->team = team;
    echo->kv = calloc((size_t)n_pages * KV_PAGE, sizeof *echo->kv);
    echo->logits = calloc((size_t)logits_max * ECHO_VOCAB, sizeof *echo->logits);
    echo->set = calloc((size_t)logits_max + 1, sizeof *echo->set);
    if (!echo->kv || !echo->logits || !echo->set) {
        echo_backend_free(&echo->backend);
        return -ENOMEM;
    }
    *ret_backend = &echo->backend;
    return 0;
}

void echo_backend_free(struct backend *backend)
{
    struct echo *echo = backend ? backend->self : NULL;

    if (!echo)
        return;
    free(echo->kv);
    free(echo->logits);
    free(echo->set);
    free(echo);
}
