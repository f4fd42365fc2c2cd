/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shares.c - who gets what of the scheduler: users (or tenants) among each other first, then
 * the clients of one. The backend computes nothing: every token is the same, and only numbers of
 * rows, places and pages count. What is expected is worked out by hand from runtime/sched/sched.h.
 */
#include <check.h>
#include <string.h>
#include "runtime/kv/page.h"
#include "runtime/sched/sched.h"
#include "tests/sim/fake_vocab.h"

#define ROWS_MAX   64
#define LOGITS_MAX 16

static struct sched_opt opt;
static struct backend backend;
static struct sampler *sampler;
static struct sched *sched;
static struct vocab vocab;
static float logits[LOGITS_MAX][FAKE_VOCAB];
static uint64_t now_ns;

static uint64_t fake_now(void)
{
    return ++now_ns;
}

static void fake_forward(void *self, const struct step *step, const float **ret_logits)
{
    (void)self;
    ck_assert_uint_le(step->n_rows, ROWS_MAX);
    ck_assert_uint_le(step->n_logits, LOGITS_MAX);
    *ret_logits = logits[0];
}

static void setup(void)
{
    vocab.bos = VOCAB_NONE;
    backend = (struct backend){.rows_max = ROWS_MAX,
                               .logits_max = LOGITS_MAX,
                               .n_vocab = FAKE_VOCAB,
                               .forward = fake_forward};
    opt = (struct sched_opt){.running_max = 16,
                             .queued_max = 8,
                             .n_pages = 256,
                             .n_ctx = 512,
                             .chunk_rows = 20,
                             .vocab = &vocab};
    ck_assert_int_eq(sampler_new(&sampler, FAKE_VOCAB, cpu_kernels_get(CPU_REF, NULL), NULL), 0);
    for (uint32_t i = 0; i < LOGITS_MAX; i++)
        logits[i]['a'] = 1;
}

static void begin(void)
{
    ck_assert_int_eq(sched_new(&sched, &opt, &backend, sampler), 0);
}

static void teardown(void)
{
    sched_free(sched);
    sampler_free(sampler);
    sched = NULL;
}

static struct request *ask_for(uint32_t uid, uint64_t tenant, uint64_t client, uint32_t n_prompt,
                               uint32_t max_tokens)
{
    struct sched_who who = {.uid = uid, .tenant = tenant, .client = client};
    struct request *req = sched_request_take(sched, &who);

    ck_assert_ptr_nonnull(req);
    detok_init(&req->detok, &vocab);
    req->max_tokens = max_tokens;
    req->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        req->tokens[i] = 'p';
    sched_submit(sched, req, now_ns);
    return req;
}

static struct request *ask(uint32_t uid, uint64_t client, uint32_t n_prompt, uint32_t max_tokens)
{
    return ask_for(uid, 0, client, n_prompt, max_tokens);
}

static void steps(uint32_t n)
{
    while (n-- > 0)
        sched_step(sched, fake_now);
}

static void run_all(void)
{
    for (uint32_t i = 0; sched_has_work(sched); i++) {
        ck_assert_uint_lt(i, 10000);
        steps(1);
    }
}

static void refused(struct request *req, uint64_t have, uint64_t want, const char *message)
{
    ck_assert_int_eq(req->state, REQUEST_ENDED);
    ck_assert_int_eq(req->status, END_OVERLOADED);
    ck_assert_str_eq(req->message, message);
    ck_assert_uint_eq(req->have, have);
    ck_assert_uint_eq(req->want, want);
    ck_assert_uint_gt(req->retry_after_ns, 0);
    sched_request_give(sched, req);
}

/* ---- rows ------------------------------------------------------------------------------------ */

START_TEST(ten_clients_of_one_user_get_the_rows_of_one_client_of_another)
{
    struct request *many[10], *one;

    begin();
    for (uint32_t i = 0; i < 10; i++)
        many[i] = ask(1, i, 100, 1);
    one = ask(2, 10, 100, 1);
    for (uint32_t step = 1; step <= 9; step++) {
        steps(1);
        ck_assert_uint_eq(one->n_computed, 10 * step); /* half of 20 */
        for (uint32_t i = 0; i < 10; i++)
            ck_assert_uint_eq(many[i]->n_computed, step);
    }
    run_all();
}
END_TEST

START_TEST(ten_connections_for_one_tenant_get_the_rows_of_one_for_another)
{
    struct request *many[10], *one;

    begin();
    for (uint32_t i = 0; i < 10; i++)
        many[i] = ask_for(1, 7, i, 100, 1);
    one = ask_for(1, 8, 10, 100, 1); /* the gateway is one user */
    steps(5);
    ck_assert_uint_eq(one->n_computed, 50);
    for (uint32_t i = 0; i < 10; i++)
        ck_assert_uint_eq(many[i]->n_computed, 5);
    run_all();
}
END_TEST

START_TEST(clients_share_their_users_part_equally_whatever_each_asks)
{
    struct request *greedy[3], *modest, *other;

    begin();
    for (uint32_t i = 0; i < 3; i++)
        greedy[i] = ask(1, 1, 100, 1);
    modest = ask(1, 2, 100, 1);
    other = ask(2, 3, 100, 1);
    steps(4); /* 20 rows: 10 for each user, 5 for each client of the first */
    ck_assert_uint_eq(other->n_computed, 40);
    ck_assert_uint_eq(modest->n_computed, 20);
    ck_assert_uint_eq(greedy[0]->n_computed + greedy[1]->n_computed + greedy[2]->n_computed, 20);
    run_all();
}
END_TEST

START_TEST(what_one_client_leaves_goes_to_its_own_users_others_first)
{
    struct request *small, *large, *other;

    begin();
    small = ask(1, 1, 2, 1);
    large = ask(1, 2, 100, 1);
    other = ask(2, 3, 100, 1);
    steps(1);
    ck_assert_uint_eq(small->n_computed, 2);
    ck_assert_uint_eq(large->n_computed, 8);
    ck_assert_uint_eq(other->n_computed, 10);
    steps(1); /* the small one decodes no more: max_tokens was 1 */
    ck_assert_uint_eq(large->n_computed, 18);
    ck_assert_uint_eq(other->n_computed, 20);
    run_all();
}
END_TEST

START_TEST(no_row_is_left_while_somebody_has_use_for_it)
{
    struct request *old, *young, *other;

    begin();
    old = ask(1, 1, 2, 1);
    young = ask(1, 1, 100, 1);
    other = ask(2, 2, 3, 1);
    steps(1); /* 10 rows for each user, then the 7 that the second leaves */
    ck_assert_uint_eq(old->n_computed, 2);
    ck_assert_uint_eq(other->n_computed, 3);
    ck_assert_uint_eq(young->n_computed, 15);
    run_all();
}
END_TEST

/* One row a step: whose prompt it is of is who had least. */
START_TEST(who_comes_late_begins_level_among_users_and_among_clients)
{
    struct request *first, *late;

    opt.chunk_rows = 1;
    begin();
    first = ask(1, 1, 200, 1);
    steps(50);
    ck_assert_uint_eq(first->n_computed, 50);
    late = _i == 0 ? ask(2, 2, 200, 1) : ask(1, 2, 200, 1);
    steps(20);
    ck_assert_uint_eq(first->n_computed,
                      60); /* in turns; from nothing it would be 20 for the other */
    ck_assert_uint_eq(late->n_computed, 10);
    run_all();
}
END_TEST

/* ---- places ---------------------------------------------------------------------------------- */

START_TEST(a_user_with_many_clients_gives_half_of_the_places_to_another_and_no_more)
{
    struct request *many[4], *other[3];

    opt.running_max = 4;
    begin();
    for (uint32_t i = 0; i < 4; i++)
        many[i] = ask(1, i, 4, 100);
    steps(2);
    for (uint32_t i = 0; i < 3; i++)
        other[i] = ask(2, 10, 4, 100);
    steps(1);
    ck_assert_int_eq(many[0]->state, REQUEST_RUNNING);
    ck_assert_int_eq(many[1]->state, REQUEST_RUNNING);
    ck_assert_int_eq(many[2]->state, REQUEST_QUEUED); /* the youngest two */
    ck_assert_int_eq(many[3]->state, REQUEST_QUEUED);
    ck_assert_int_eq(other[0]->state, REQUEST_RUNNING);
    ck_assert_int_eq(other[1]->state, REQUEST_RUNNING);
    ck_assert_int_eq(other[2]->state, REQUEST_QUEUED);
    run_all();
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(many[i]->n_out, 100);
}
END_TEST

START_TEST(inside_a_user_the_client_with_most_gives_way)
{
    struct request *most[3], *few, *newcomer;

    opt.running_max = 4;
    begin();
    for (uint32_t i = 0; i < 3; i++)
        most[i] = ask(1, 1, 4, 50);
    few = ask(1, 2, 4, 50); /* the youngest */
    steps(2);
    newcomer = ask(1, 3, 4, 50);
    steps(1);
    ck_assert_int_eq(newcomer->state, REQUEST_RUNNING);
    ck_assert_int_eq(few->state, REQUEST_RUNNING);
    ck_assert_int_eq(most[2]->state, REQUEST_QUEUED);
    run_all();
}
END_TEST

START_TEST(another_user_takes_from_the_client_with_most_of_the_user_with_most)
{
    struct request *most[2], *few, *own, *newcomer;

    opt.running_max = 4;
    begin();
    own = ask(2, 1, 4, 50);
    for (uint32_t i = 0; i < 2; i++)
        most[i] = ask(1, 2, 4, 50);
    few = ask(1, 3, 4, 50); /* the youngest */
    steps(2);
    newcomer = ask(3, 4, 4, 50);
    steps(1);
    ck_assert_int_eq(newcomer->state, REQUEST_RUNNING);
    ck_assert_int_eq(most[1]->state, REQUEST_QUEUED);
    ck_assert_int_eq(most[0]->state, REQUEST_RUNNING);
    ck_assert_int_eq(few->state, REQUEST_RUNNING);
    ck_assert_int_eq(own->state, REQUEST_RUNNING);
    run_all();
}
END_TEST

/* ---- pages ----------------------------------------------------------------------------------- */

START_TEST(pages_come_from_the_client_with_most_of_the_user_with_most)
{
    struct request *most[2], *few, *own, *newcomer;

    opt.n_pages = 8;
    begin();
    own = ask(2, 1, 10, 100); /* two pages each: all eight */
    for (uint32_t i = 0; i < 2; i++)
        most[i] = ask(1, 2, 10, 100);
    few = ask(1, 3, 10, 100);
    steps(2);
    newcomer = ask(3, 4, 10, 100);
    steps(1);
    ck_assert_int_eq(newcomer->state, REQUEST_RUNNING);
    ck_assert_int_eq(most[1]->state, REQUEST_QUEUED);
    ck_assert_int_eq(few->state, REQUEST_RUNNING);
    ck_assert_int_eq(own->state, REQUEST_RUNNING);
    run_all();
    ck_assert_uint_eq(most[1]->n_out, 100);
}
END_TEST

START_TEST(pages_of_several_clients_of_a_user_make_room_for_one_request_of_another)
{
    struct request *many[4], *newcomer;

    opt.n_pages = 8;
    begin();
    for (uint32_t i = 0; i < 4; i++)
        many[i] = ask(1, i, 10, 100);
    steps(2);
    newcomer = ask(2, 9, 10, 240); /* four pages: two of theirs go */
    steps(1);
    ck_assert_int_eq(newcomer->state, REQUEST_RUNNING);
    ck_assert_int_eq(many[0]->state, REQUEST_RUNNING);
    ck_assert_int_eq(many[1]->state, REQUEST_RUNNING);
    ck_assert_int_eq(many[2]->state, REQUEST_QUEUED);
    ck_assert_int_eq(many[3]->state, REQUEST_QUEUED);
    run_all();
}
END_TEST

START_TEST(nobody_is_displaced_for_pages_that_would_leave_its_user_less_than_the_newcomers)
{
    struct request *many[4], *newcomer;

    opt.n_pages = 8;
    begin();
    for (uint32_t i = 0; i < 4; i++)
        many[i] = ask(1, i, 10, 100);
    steps(2);
    newcomer = ask(2, 9, 10, 300); /* five pages: three would be left */
    steps(1);
    ck_assert_int_eq(newcomer->state, REQUEST_QUEUED);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_int_eq(many[i]->state, REQUEST_RUNNING);
    run_all();
    ck_assert_uint_eq(newcomer->n_out, 300);
}
END_TEST

START_TEST(who_waits_for_pages_is_overtaken_by_users_that_have_less_and_not_by_its_own_clients)
{
    struct request *running, *waits, *same, *less;

    opt.n_pages = 8;
    begin();
    running = ask(1, 1, 10, 240); /* four of eight pages */
    steps(1);
    waits = ask(1, 1, 10, 350); /* six, and four are free */
    same = ask(1, 2, 10, 350);
    less = ask(2, 3, 10, 100);
    steps(1);
    ck_assert_int_eq(running->state, REQUEST_RUNNING);
    ck_assert_int_eq(waits->state, REQUEST_QUEUED);
    ck_assert_int_eq(same->state, REQUEST_QUEUED);
    ck_assert_int_eq(less->state, REQUEST_RUNNING);
    run_all();
    ck_assert_uint_eq(waits->n_out, 350);
    ck_assert_uint_eq(same->n_out, 350);
}
END_TEST

/* ---- the queue ------------------------------------------------------------------------------- */

START_TEST(a_user_that_fills_the_queue_with_many_clients_makes_room_for_another)
{
    struct request *many[24], *one;

    begin(); /* 16 run, 8 wait */
    for (uint32_t i = 0; i < 24; i++)
        many[i] = ask(1, i, 4, 10);
    one = ask(2, 99, 4, 10);
    ck_assert_int_eq(one->state, REQUEST_QUEUED);
    refused(many[23], 8, 9, "the queue is full, and 24 of it were this user's");
    for (uint32_t i = 0; i < 23; i++)
        ck_assert_int_eq(many[i]->state, REQUEST_QUEUED);
    run_all();
}
END_TEST

START_TEST(inside_a_user_the_client_that_fills_the_queue_makes_room)
{
    struct request *many[24], *one;

    begin();
    many[0] = ask(1, 2, 4, 10);
    for (uint32_t i = 1; i < 24; i++)
        many[i] = ask(1, 1, 4, 10);
    one = ask(1, 3, 4, 10);
    ck_assert_int_eq(one->state, REQUEST_QUEUED);
    refused(many[23], 8, 9, "the queue is full, and 23 of it were this client's");
    run_all();
}
END_TEST

/* By hand: 8 + 4 * 16 requests; the last 16 are for users that have next to none (2), the 16 before
 * for clients that have. */
START_TEST(requests_are_kept_for_clients_and_for_users_that_have_next_to_none)
{
    struct sched_who flood = {.uid = 1, .client = 1}, sibling = {.uid = 1, .client = 2};
    struct sched_who other = {.uid = 2, .client = 3};
    uint32_t n = 0;

    begin();
    ck_assert_uint_eq(sched_slots(sched), 72);
    while (sched_request_take(sched, &flood))
        n++;
    ck_assert_uint_eq(n, 40);
    for (n = 0; sched_request_take(sched, &sibling); n++)
        ;
    ck_assert_uint_eq(n, 3);
    for (n = 0; n < 13; n++) { /* a client more for each of them: 56 are the user's */
        sibling.client++;
        ck_assert_ptr_nonnull(sched_request_take(sched, &sibling));
    }
    sibling.client++;
    ck_assert_ptr_null(sched_request_take(sched, &sibling));
    for (n = 0; sched_request_take(sched, &other); n++)
        ;
    ck_assert_uint_eq(n, 3);
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

START_TEST(a_limit_says_whether_it_is_the_clients_or_the_users)
{
    opt.client_limits = (struct sched_limits){.requests = 2, .pages = 2, .prompt_tokens = 100};
    opt.user_limits = (struct sched_limits){.requests = 3, .pages = 4, .prompt_tokens = 120};
    begin();
    ask(1, 1, 50, 1);
    refused(ask(1, 1, 51, 1), 100, 101, "one client may have 100 prompt tokens in its requests");
    refused(ask(1, 2, 71, 1), 120, 121, "one user may have 120 prompt tokens in its requests");
    refused(ask(1, 2, 10, 119), 2, 3, "one client may have 2 KV pages of 64 positions");
    ask(1, 1, 1, 1);
    refused(ask(1, 1, 1, 1), 2, 3, "one client may have 2 requests");
    ask(1, 2, 1, 1);
    refused(ask(1, 2, 1, 1), 3, 4, "one user may have 3 requests");
    refused(ask(1, 3, 1, 1), 3, 4, "one user may have 3 requests");
    ck_assert_int_eq(ask(2, 4, 60, 1)->state, REQUEST_QUEUED);        /* another has its own */
    ck_assert_int_eq(ask_for(1, 5, 1, 60, 1)->state, REQUEST_QUEUED); /* and so has a tenant */
    run_all();
}
END_TEST

START_TEST(a_request_larger_than_its_users_pages_is_refused)
{
    opt.user_limits.pages = 4;
    begin();
    refused(ask(1, 1, 10, 300), 4, 5, "one user may have 4 KV pages of 64 positions");
    ck_assert_int_eq(ask(1, 1, 10, 240)->state, REQUEST_QUEUED);
    run_all();
}
END_TEST

START_TEST(waiting_requests_have_a_limit_of_the_client_and_one_of_the_user)
{
    opt.running_max = 4;
    opt.client_limits.queued = 2;
    opt.user_limits.queued = 3;
    begin();
    for (uint32_t i = 0; i < 4; i++) /* free places are not waited for */
        ck_assert_int_eq(ask(1, 1, 4, 50)->state, REQUEST_QUEUED);
    steps(1);
    ask(1, 1, 4, 5);
    ask(1, 1, 4, 5);
    refused(ask(1, 1, 4, 5), 2, 3, "one client may have 2 requests that wait");
    ask(1, 2, 4, 5);
    refused(ask(1, 2, 4, 5), 3, 4, "one user may have 3 requests that wait");
    ck_assert_int_eq(ask(2, 3, 4, 5)->state, REQUEST_QUEUED);
    run_all();
}
END_TEST

START_TEST(a_user_at_its_page_limit_waits_for_itself_and_for_nobody_else)
{
    struct request *first, *second, *other;

    opt.user_limits.pages = 4;
    begin();
    first = ask(1, 1, 10, 200);
    second = ask(1, 2, 10, 200);
    other = ask(2, 3, 10, 200);
    steps(1);
    ck_assert_int_eq(first->state, REQUEST_RUNNING);
    ck_assert_int_eq(second->state, REQUEST_QUEUED);
    ck_assert_int_eq(other->state, REQUEST_RUNNING);
    run_all();
    ck_assert_uint_eq(second->n_out, 200);
}
END_TEST

START_TEST(at_the_page_limit_of_a_user_its_client_with_most_pages_ends_one_and_nobody_else)
{
    struct request *grows[2], *other;

    opt.user_limits.pages = 3;
    begin();
    grows[0] = ask(1, 1, 60, REQUEST_MAX_TOKENS_NONE);
    grows[1] = ask(1, 2, 60, REQUEST_MAX_TOKENS_NONE);
    other = ask(2, 3, 60, REQUEST_MAX_TOKENS_NONE);
    while (grows[0]->state != REQUEST_ENDED)
        steps(1);
    /* It had just got its second page when the other wanted one. */
    ck_assert_int_eq(grows[0]->status, END_OVERLOADED);
    ck_assert_int_eq(grows[1]->state, REQUEST_RUNNING);
    ck_assert_int_eq(other->state, REQUEST_RUNNING);
    run_all();
    ck_assert_uint_eq(grows[1]->n_tokens, 3 * 64 + 1); /* and alone it gets no further */
    ck_assert_uint_eq(other->n_tokens, 3 * 64 + 1);
}
END_TEST

/* ---- who is who ------------------------------------------------------------------------------ */

static void pass_by(uint32_t uid, uint64_t tenant, uint64_t client, uint32_t *ret_owner,
                    uint32_t *ret_client)
{
    struct sched_who who = {.uid = uid, .tenant = tenant, .client = client};
    struct request *req = sched_request_take(sched, &who);

    ck_assert_ptr_nonnull(req);
    *ret_owner = req->owner;
    *ret_client = req->client;
    sched_end(sched, req, END_CANCELLED, now_ns);
    sched_request_give(sched, req);
}

START_TEST(a_tenant_is_somebody_of_one_user_and_a_client_is_one_of_each_tenant)
{
    uint32_t owner[5], client[5];

    begin();
    pass_by(1, 0, 9, &owner[0], &client[0]);
    pass_by(1, 5, 9, &owner[1], &client[1]);
    pass_by(2, 5, 9, &owner[2], &client[2]);
    pass_by(1, 5, 10, &owner[3], &client[3]);
    pass_by(1, 5, 9, &owner[4], &client[4]);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < i; k++) {
            ck_assert_uint_ne(owner[i], owner[k]);
            ck_assert_uint_ne(client[i], client[k]);
        }
    }
    ck_assert_uint_eq(owner[3], owner[1]);
    ck_assert_uint_ne(client[3], client[1]);
    ck_assert_uint_eq(owner[4], owner[1]);
    ck_assert_uint_eq(client[4], client[1]);
}
END_TEST

/* By hand: 1 + 4 * 1 requests, so ten places, for five users of one client each. */
START_TEST(who_has_no_request_for_longest_is_forgotten_first_and_who_has_one_never)
{
    uint32_t owner[7], client[7], o, c;
    struct request *held;

    opt.running_max = opt.queued_max = 1;
    begin();
    for (uint32_t uid = 1; uid <= 5; uid++)
        pass_by(uid, 0, uid, &owner[uid], &client[uid]);
    pass_by(1, 0, 1, &o, &c);
    ck_assert(o == owner[1] && c == client[1]);
    pass_by(6, 0, 6, &o, &c); /* in the places of 2 */
    ck_assert((o == owner[2] && c == client[2]) || (o == client[2] && c == owner[2]));
    held = sched_request_take(sched, &(struct sched_who){.uid = 3, .client = 3});
    ck_assert(held->owner == owner[3] && held->client == client[3]);
    for (uint32_t uid = 100; uid < 200; uid++) {
        pass_by(uid, 0, uid, &o, &c);
        ck_assert(o != owner[3] && o != client[3] && c != owner[3] && c != client[3]);
        ck_assert(o != 0 && o < sched_shares(sched) && c != 0 && c < sched_shares(sched));
        ck_assert(o != c);
    }
    sched_end(sched, held, END_CANCELLED, now_ns);
    sched_request_give(sched, held);
    pass_by(3, 0, 3, &o, &c);
    ck_assert(o == owner[3] && c == client[3]);
}
END_TEST

START_TEST(one_user_with_ever_new_clients_is_forgotten_after_them)
{
    uint32_t first, owner, client;

    opt.running_max = opt.queued_max = 1;
    begin();
    pass_by(1, 0, 0, &first, &client);
    for (uint64_t id = 1; id < 1000; id++) {
        pass_by(1, 0, id, &owner, &client);
        ck_assert_uint_eq(owner, first);
    }
    for (uint32_t uid = 2; uid < 1000; uid++)
        pass_by(uid, uid, uid, &owner, &client);
    pass_by(1, 0, 0, &owner, &client);
}
END_TEST

START_TEST(all_requests_may_be_of_users_of_their_own)
{
    struct request *req[20];

    opt.running_max = 4;
    opt.queued_max = 4;
    begin();
    for (int lap = 0; lap < 3; lap++) {
        for (uint32_t i = 0; i < 20; i++) {
            struct sched_who who = {
                .uid = i + 20u * (uint32_t)lap, .tenant = i % 3, .client = i % 7};

            req[i] = sched_request_take(sched, &who);
            ck_assert_ptr_nonnull(req[i]);
            for (uint32_t k = 0; k < i; k++) {
                ck_assert_uint_ne(req[k]->owner, req[i]->owner);
                ck_assert_uint_ne(req[k]->client, req[i]->client);
            }
        }
        for (uint32_t i = 0; i < 20; i++) {
            sched_end(sched, req[i], END_CANCELLED, now_ns);
            sched_request_give(sched, req[i]);
        }
    }
}
END_TEST

/* ---- the queue's own length ------------------------------------------------------------------ */

/* Its reader goes on. */
static void read_all(struct request *req)
{
    req->n_published = req->n_out;
}

/* Until nobody runs: two tokens are unread, one is allowed. */
static void pause_all(uint32_t paused)
{
    struct sched_counts counts;

    steps(3);
    sched_counts(sched, &counts);
    ck_assert_uint_eq(counts.running, 0);
    ck_assert_uint_eq(counts.paused, paused);
}

/* Who is paused leaves its place for others to be submitted, and comes back: 7 of 9 requests wait,
 * where 3 are the most that submitting makes wait. */
START_TEST(all_that_leave_the_batch_and_come_back_have_a_place_in_the_queue)
{
    struct request *many[5], *one, *waits[3];
    struct sched_counts counts;

    opt.running_max = 2;
    opt.queued_max = 1;
    opt.n_pages = 9;
    opt.lag_tokens_max = 1;
    opt.lag_timeout_ns = 1ull << 62;
    begin();
    for (uint32_t i = 0; i < 4; i += 2) {
        many[i] = ask(1, 1, 1, 60); /* a page each */
        many[i + 1] = ask(1, 1, 1, 60);
        pause_all(i + 2);
    }
    many[4] = ask(1, 1, 1, 60);
    one = ask(2, 2, 1, 60);
    pause_all(6);
    for (uint32_t i = 0; i < 3; i++)
        waits[i] = ask(3 + i, 3 + i, 1, 500); /* 8 pages: of the 9, so many are never free */
    for (uint32_t i = 1; i < 5; i++) {
        read_all(many[0]);
        read_all(many[i]);
        steps(1);
        ck_assert_int_eq(many[0]->state, REQUEST_RUNNING);
        ck_assert_int_eq(many[i]->state, REQUEST_RUNNING);
        read_all(one);
        steps(1);
        ck_assert_int_eq(one->state, REQUEST_RUNNING);
        ck_assert_int_eq(many[i]->state, REQUEST_QUEUED);
        pause_all(6 - i);
    }
    sched_counts(sched, &counts);
    ck_assert_uint_eq(counts.queued, 7);
    for (uint32_t step = 0; step < 2000; step++) {
        for (uint32_t i = 0; i < sched_slots(sched); i++)
            read_all(sched_slot(sched, i));
        steps(1);
    }
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(many[i]->n_out, 60);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(waits[i]->n_out, 500);
    ck_assert_uint_eq(one->n_out, 60);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shares");
    TCase *tc = tcase_create("shares");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, ten_clients_of_one_user_get_the_rows_of_one_client_of_another);
    tcase_add_test(tc, ten_connections_for_one_tenant_get_the_rows_of_one_for_another);
    tcase_add_test(tc, clients_share_their_users_part_equally_whatever_each_asks);
    tcase_add_test(tc, what_one_client_leaves_goes_to_its_own_users_others_first);
    tcase_add_test(tc, no_row_is_left_while_somebody_has_use_for_it);
    tcase_add_loop_test(tc, who_comes_late_begins_level_among_users_and_among_clients, 0, 2);
    tcase_add_test(tc, a_user_with_many_clients_gives_half_of_the_places_to_another_and_no_more);
    tcase_add_test(tc, inside_a_user_the_client_with_most_gives_way);
    tcase_add_test(tc, another_user_takes_from_the_client_with_most_of_the_user_with_most);
    tcase_add_test(tc, pages_come_from_the_client_with_most_of_the_user_with_most);
    tcase_add_test(tc, pages_of_several_clients_of_a_user_make_room_for_one_request_of_another);
    tcase_add_test(tc,
                   nobody_is_displaced_for_pages_that_would_leave_its_user_less_than_the_newcomers);
    tcase_add_test(
        tc, who_waits_for_pages_is_overtaken_by_users_that_have_less_and_not_by_its_own_clients);
    tcase_add_test(tc, a_user_that_fills_the_queue_with_many_clients_makes_room_for_another);
    tcase_add_test(tc, inside_a_user_the_client_that_fills_the_queue_makes_room);
    tcase_add_test(tc, requests_are_kept_for_clients_and_for_users_that_have_next_to_none);
    tcase_add_test(tc, a_limit_says_whether_it_is_the_clients_or_the_users);
    tcase_add_test(tc, a_request_larger_than_its_users_pages_is_refused);
    tcase_add_test(tc, waiting_requests_have_a_limit_of_the_client_and_one_of_the_user);
    tcase_add_test(tc, a_user_at_its_page_limit_waits_for_itself_and_for_nobody_else);
    tcase_add_test(tc,
                   at_the_page_limit_of_a_user_its_client_with_most_pages_ends_one_and_nobody_else);
    tcase_add_test(tc, a_tenant_is_somebody_of_one_user_and_a_client_is_one_of_each_tenant);
    tcase_add_test(tc, who_has_no_request_for_longest_is_forgotten_first_and_who_has_one_never);
    tcase_add_test(tc, one_user_with_ever_new_clients_is_forgotten_after_them);
    tcase_add_test(tc, all_requests_may_be_of_users_of_their_own);
    tcase_add_test(tc, all_that_leave_the_batch_and_come_back_have_a_place_in_the_queue);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
