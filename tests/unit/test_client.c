/* SPDX-License-Identifier: Apache-2.0 */
/* The library's way out: attach, what a request looks like on the wire, limits of tags, queue and
 * arena. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/unit/fake_daemon.h"

static struct fake fake;
static tkr_conn *conn;
static tkr_event event;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    conn = NULL;
}

static void teardown(void)
{
    tkr_close(conn);
    fake_close(&fake);
}

static void open_with(uint32_t max_inflight, size_t arena_bytes)
{
    tkr_opt opt = {.size = sizeof opt, .max_inflight = max_inflight, .arena_bytes = arena_bytes};

    ck_assert_int_eq(fake_open(&fake, &conn, &opt), 0);
}

/* The daemon's answer to the oldest slot, read and released by the client. */
static void answer_and_release(void)
{
    struct tkr_sqe sqe;

    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    fake_put_done(&fake, &sqe, TKR_OK, NULL);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_int_eq(tkr_release(conn, event.id), 0);
}

/* ---- attach ---------------------------------------------------------------------------------- */

START_TEST(limits_are_what_the_daemon_granted)
{
    tkr_limits limits = {.size = sizeof limits};

    fake.arena_max = 4096;
    fake.inflight_max = 3;
    open_with(7, 100000);
    ck_assert_int_eq(tkr_get_limits(conn, &limits), 0);
    ck_assert_uint_eq(limits.arena_bytes, 4096);
    ck_assert_uint_eq(limits.max_inflight, 3);
    ck_assert_uint_eq(limits.n_ctx, 2048);
    ck_assert_uint_eq(limits.n_vocab, 49152);
    ck_assert_uint_eq(limits.prompt_tokens_max, 2047);
    ck_assert_str_eq(limits.model, "fake");
    ck_assert_uint_eq(limits.model_hash[31], 0xab);
    ck_assert_uint_eq(limits.model_flags, TKR_MODEL_PRESENT | TKR_MODEL_CHAT);
    ck_assert_int_eq(limits.daemon_pid, getpid());
    ck_assert_str_eq(fake.hello.library, "libtokenring " TKR_VERSION);
}
END_TEST

START_TEST(a_shorter_limits_struct_is_filled_no_further_than_its_size)
{
    tkr_limits limits;

    open_with(0, 0);
    memset(&limits, 0x55, sizeof limits);
    limits.size = offsetof(tkr_limits, n_ctx);
    ck_assert_int_eq(tkr_get_limits(conn, &limits), 0);
    ck_assert_uint_eq(limits.max_inflight, 64);
    ck_assert_uint_eq(limits.n_ctx, 0x55555555);
    limits.size = 0;
    ck_assert_int_eq(tkr_get_limits(conn, &limits), -EINVAL);
}
END_TEST

START_TEST(no_socket_is_enoent_and_no_listener_is_econnrefused)
{
    tkr_opt opt = {.size = sizeof opt, .path = "/tmp/tokenring-test-nothing-here/socket"};

    errno = 0;
    ck_assert_int_eq(tkr_open(&conn, &opt), -ENOENT);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_ptr_nonnull(strstr(tkr_open_error(), opt.path));
    fake_listen(&fake);
    close(fake.listener);
    opt.path = fake.path;
    ck_assert_int_eq(tkr_open(&conn, &opt), -ECONNREFUSED);
    ck_assert_ptr_null(conn);
    fake.listener = -1;
}
END_TEST

START_TEST(a_refusal_has_its_own_errno_and_its_text)
{
    static const struct {
        uint16_t reason;
        int err;
    } cases[] = {{TKR_REFUSED_VERSION, -EPROTO},     {TKR_REFUSED_MESSAGE, -EPROTO},
                 {TKR_REFUSED_PEER, -EACCES},        {TKR_REFUSED_LIMIT, -EDQUOT},
                 {TKR_REFUSED_DRAIN, -ECONNREFUSED}, {TKR_REFUSED_INTERNAL, -EIO},
                 {TKR_REFUSED_STRIKES, -EDQUOT}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int late = 0; late < 2; late++) {
            setup();
            if (late)
                fake.refuse_attach = cases[i].reason;
            else
                fake.refuse_hello = cases[i].reason;
            ck_assert_int_eq(fake_open(&fake, &conn, NULL), cases[i].err);
            ck_assert_ptr_nonnull(strstr(tkr_open_error(), "because of the test"));
            ck_assert_ptr_nonnull(strstr(tkr_open_error(), "have 3, want 4"));
            fake_close(&fake);
        }
    }
    setup();
    fake_listen(&fake);
}
END_TEST

static void welcome_more_arena(struct tkr_welcome *w)
{
    w->arena_len += 64;
}
static void welcome_no_inflight(struct tkr_welcome *w)
{
    w->max_inflight = 0;
}
static void welcome_two_queues(struct tkr_welcome *w)
{
    w->nsq = 2;
}
static void welcome_huge_region(struct tkr_welcome *w)
{
    w->t_region_len = UINT64_MAX;
}
static void welcome_other_major(struct tkr_welcome *w)
{
    w->head.major++;
}
static void welcome_other_magic(struct tkr_welcome *w)
{
    w->head.magic++;
}
static void welcome_other_doorbell(struct tkr_welcome *w)
{
    w->doorbell = 7;
}

START_TEST(a_welcome_that_lies_is_eproto)
{
    static void (*const lies[])(struct tkr_welcome *) = {
        welcome_more_arena,  welcome_no_inflight, welcome_two_queues,    welcome_huge_region,
        welcome_other_major, welcome_other_magic, welcome_other_doorbell};

    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        setup();
        fake.spoil_welcome = lies[i];
        ck_assert_int_eq(fake_open(&fake, &conn, NULL), -EPROTO);
        fake_close(&fake);
    }
    setup();
    fake_listen(&fake);
}
END_TEST

static void t_magic(struct tkr_t_header *h)
{
    h->magic++;
}
static void t_cq_outside(struct tkr_t_header *h)
{
    h->cq_off = (uint32_t)h->region_len - 64;
}
static void t_res_unaligned(struct tkr_t_header *h)
{
    h->res_off++;
}
static void t_bulk_wraps(struct tkr_t_header *h)
{
    h->bulk_off = UINT64_MAX - 63;
}
static void t_too_many_models(struct tkr_t_header *h)
{
    h->n_models = TKR_MODELS + 1;
}

START_TEST(a_token_region_that_lies_is_eproto)
{
    static void (*const lies[])(struct tkr_t_header *) = {t_magic, t_cq_outside, t_res_unaligned,
                                                          t_bulk_wraps, t_too_many_models};

    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        setup();
        fake.spoil_t = lies[i];
        ck_assert_int_eq(fake_open(&fake, &conn, NULL), -EPROTO);
        fake_close(&fake);
    }
    setup();
    fake.unsealed = 1;
    ck_assert_int_eq(fake_open(&fake, &conn, NULL), -EPROTO);
    ck_assert_ptr_nonnull(strstr(tkr_open_error(), "unsafe"));
}
END_TEST

static int n_descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

START_TEST(surplus_descriptors_are_closed_and_refused)
{
    int before = n_descriptors();

    fake.extra_fds = 3;
    ck_assert_int_eq(fake_open(&fake, &conn, NULL), -EPROTO);
    fake_close(&fake);
    ck_assert_int_eq(n_descriptors(), before);
    setup();
    open_with(0, 0);
    tkr_close(conn);
    fake_close(&fake);
    ck_assert_int_eq(n_descriptors(), before);
    setup();
    fake_listen(&fake);
}
END_TEST

START_TEST(a_daemon_that_hangs_up_or_says_nothing_is_reported)
{
    tkr_opt opt = {.size = sizeof opt, .timeout_ns = TKR_MS(50)};

    fake.hang_up = 1;
    ck_assert_int_eq(fake_open(&fake, &conn, NULL), -ECONNREFUSED);
    fake_close(&fake);
    setup();
    fake.silent = 1;
    ck_assert_int_eq(fake_open(&fake, &conn, &opt), -ETIMEDOUT);
}
END_TEST

START_TEST(wrong_options_are_einval_and_unknown_zero_ones_are_not)
{
    struct {
        tkr_opt opt;
        uint64_t later;
    } longer = {.opt = {.size = sizeof longer}};
    tkr_opt opt = {.size = 2};

    ck_assert_int_eq(tkr_open(&conn, &opt), -EINVAL);
    opt = (tkr_opt){.size = sizeof opt, .max_inflight = TKR_INFLIGHT_MAX + 1};
    ck_assert_int_eq(tkr_open(&conn, &opt), -EINVAL);
    ck_assert_ptr_nonnull(strstr(tkr_open_error(), "4097, at most 4096"));
    opt = (tkr_opt){.size = sizeof opt, .arena_bytes = (size_t)1 << 32};
    ck_assert_int_eq(tkr_open(&conn, &opt), -EINVAL);
    opt = (tkr_opt){.size = sizeof opt, .timeout_ns = -1};
    ck_assert_int_eq(tkr_open(&conn, &opt), -EINVAL);
    longer.later = 1;
    ck_assert_int_eq(tkr_open(&conn, &longer.opt), -EINVAL);
    longer.later = 0;
    ck_assert_int_eq(fake_open(&fake, &conn, &longer.opt), 0);
}
END_TEST

START_TEST(a_default_path_in_a_folder_that_is_not_ours_is_not_used)
{
    char folder[64], path[80];

    /* Only without the other two places, and only where /tmp has no real daemon. */
    snprintf(folder, sizeof folder, "/tmp/tokenring-%u", (unsigned)geteuid());
    snprintf(path, sizeof path, "%s/socket", folder);
    unsetenv("TOKENRING_SOCKET");
    setenv("XDG_RUNTIME_DIR", "/tmp/tokenring-test-nothing-here", 1);
    if (!access("/run/tokenring/socket", F_OK) || mkdir(folder, 0777)) {
        fake_listen(&fake);
        return;
    }
    snprintf(fake.path, sizeof fake.path, "%s", path);
    fake_listen(&fake);
    ck_assert_int_eq(chmod(folder, 0777), 0); /* anybody could have put the socket there */
    ck_assert_int_eq(tkr_open(&conn, NULL), -ENOENT);
    ck_assert_ptr_nonnull(strstr(tkr_open_error(), path));
    unlink(path);
    rmdir(folder);
}
END_TEST

START_TEST(the_environment_names_the_socket)
{
    setenv("TOKENRING_SOCKET", "/tmp/tokenring-test-nothing-here/by-environment", 1);
    ck_assert_int_eq(tkr_open(&conn, NULL), -ENOENT);
    ck_assert_ptr_nonnull(strstr(tkr_open_error(), "by-environment"));
    fake_listen(&fake);
}
END_TEST

/* ---- requests -------------------------------------------------------------------------------- */

START_TEST(a_request_arrives_with_every_field)
{
    static const uint32_t stop_ids[] = {7, 8, 9};
    tkr_msg msgs[] = {{.role = TKR_ROLE_SYSTEM, .text = "Be brief.", .len = 9},
                      {.role = TKR_ROLE_USER, .text = "Hello", .len = 5}};
    tkr_bytes stop = {.text = "END", .len = 3};
    tkr_req req = {.size = sizeof req,
                   .op = TKR_OP_GENERATE,
                   .data_kind = TKR_DATA_MESSAGES,
                   .on_late = TKR_LATE_DROP,
                   .class_ = TKR_CLASS_BATCH,
                   .msgs = msgs,
                   .n_msgs = 2,
                   .stops = &stop,
                   .n_stops = 1,
                   .stop_ids = stop_ids,
                   .n_stop_ids = 3,
                   .max_tokens = 11,
                   .flags = TKR_PARAM_SEED,
                   .seed = 99,
                   .deadline_ns = 12345,
                   .temperature = 0.5f,
                   .top_p = 0.25f,
                   .min_p = 0.125f,
                   .top_k = 40,
                   .model_gen = 2,
                   .tenant = 0x123456789abcdef0};
    const struct tkr_param *param;
    const struct tkr_tail *tail;
    struct tkr_sqe sqe;

    open_with(0, 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.op, TKR_OP_GENERATE);
    ck_assert_uint_eq(sqe.user, req.id);
    ck_assert_uint_ne((uint32_t)sqe.user, 0);
    ck_assert_uint_eq(sqe.data_kind, TKR_DATA_MESSAGES);
    ck_assert_uint_eq(sqe.data_off, 0); /* abi.h: zero with MESSAGES */
    ck_assert_uint_eq(sqe.data_len, 0);
    ck_assert_uint_eq(sqe.class_, TKR_CLASS_BATCH);
    ck_assert_uint_eq(sqe.max_tokens, 11);
    ck_assert_uint_eq(sqe.deadline_ns, 12345);
    ck_assert_uint_eq(sqe.param_len, 128 + 16 * 4); /* abi.h: 128 + 16 * n_tail */
    ck_assert_uint_eq(sqe.param_off % 8, 0);
    ck_assert_uint_eq(sqe.flags | sqe.resume_pos | sqe.session | sqe.reserved, 0);

    param = fake_arena(&fake, sqe.param_off);
    ck_assert_uint_eq(param->head_len, 128);
    ck_assert_uint_eq(param->n_tail, 4);
    ck_assert_uint_eq(param->flags, TKR_PARAM_SEED);
    ck_assert_uint_eq(param->seed, 99);
    ck_assert_uint_eq(param->model_gen, 2);
    ck_assert_uint_eq(param->tenant, 0x123456789abcdef0);
    ck_assert_uint_eq(param->top_k, 40);
    ck_assert(param->temperature == 0.5f && param->top_p == 0.25f && param->min_p == 0.125f);
    ck_assert_uint_ne(param->submit_ns, 0);

    tail = (const struct tkr_tail *)(param + 1);
    ck_assert_uint_eq(tail[0].kind, TKR_TAIL_STOP_IDS);
    ck_assert_uint_eq(tail[0].off % 4, 0);
    ck_assert_uint_eq(tail[0].bytes, 12);
    ck_assert_uint_eq(tail[0].count, 3);
    ck_assert_mem_eq(fake_arena(&fake, tail[0].off), stop_ids, 12);
    ck_assert_uint_eq(tail[1].kind, TKR_TAIL_MESSAGE);
    ck_assert_uint_eq(tail[1].flags, TKR_ROLE_SYSTEM);
    ck_assert_uint_eq(tail[1].bytes, 9);
    ck_assert_mem_eq(fake_arena(&fake, tail[1].off), "Be brief.", 9);
    ck_assert_uint_eq(tail[2].flags, TKR_ROLE_USER);
    ck_assert_mem_eq(fake_arena(&fake, tail[2].off), "Hello", 5);
    ck_assert_uint_eq(tail[3].kind, TKR_TAIL_STOP_TEXT);
    ck_assert_uint_eq(tail[3].bytes, 3);
    ck_assert_mem_eq(fake_arena(&fake, tail[3].off), "END", 3);
}
END_TEST

START_TEST(the_shorthands_make_one_user_message_or_raw_text)
{
    tkr_req chat = TKR_CHAT("Hi"), text = TKR_TEXT("raw");
    const struct tkr_tail *tail;
    struct tkr_sqe sqe;

    open_with(0, 0);
    ck_assert_int_eq(tkr_submit(conn, &chat, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.max_tokens, 512);
    tail = fake_arena(&fake, sqe.param_off + 128);
    ck_assert_uint_eq(tail->kind, TKR_TAIL_MESSAGE);
    ck_assert_uint_eq(tail->flags, TKR_ROLE_USER);
    ck_assert_mem_eq(fake_arena(&fake, tail->off), "Hi", 2);

    ck_assert_int_eq(tkr_submit(conn, &text, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.data_kind, TKR_DATA_TEXT);
    ck_assert_uint_eq(sqe.data_len, 3);
    ck_assert_mem_eq(fake_arena(&fake, sqe.data_off), "raw", 3);
}
END_TEST

START_TEST(token_ids_arrive_on_a_multiple_of_four)
{
    static const uint32_t ids[] = {1, 2, 3};
    tkr_req req = {.size = sizeof req,
                   .op = TKR_OP_LOGPROBS,
                   .data_kind = TKR_DATA_TOKENS,
                   .tokens = ids,
                   .n_tokens = 3};
    struct tkr_sqe sqe;

    open_with(0, 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.data_len, 12);
    ck_assert_uint_eq(sqe.data_off % 4, 0);
    ck_assert_mem_eq(fake_arena(&fake, sqe.data_off), ids, 12);
}
END_TEST

START_TEST(a_noop_needs_no_arena)
{
    tkr_req req = {.size = sizeof req, .op = TKR_OP_NOOP};
    struct tkr_sqe sqe;

    open_with(0, 0);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_uint_eq(sqe.param_len, 0);
}
END_TEST

START_TEST(a_request_that_is_wrong_in_itself_is_einval_and_not_sent)
{
    static const char odd[8];
    tkr_msg msg = {.role = 65536, .text = "a", .len = 1};
    tkr_req good = TKR_TEXT("x"), bad[12];
    struct tkr_sqe sqe;

    open_with(0, 4096);
    for (size_t i = 0; i < 12; i++)
        bad[i] = good;
    bad[0].size = 8;
    bad[1].reserved = 1;
    bad[2].op = TKR_OP_CANCEL; /* tkr_cancel_ordered() makes these */
    bad[3].op = TKR_OP_PAD;
    bad[4].data_kind = 4;
    bad[5].text = NULL;
    bad[6].n_stops = 65; /* abi.h: 64 tail entries */
    bad[7].n_stops = 1;  /* stops is NULL */
    bad[8].n_stop_ids = 1;
    bad[9].n_msgs = 1; /* with TEXT */
    bad[10].data_kind = TKR_DATA_TOKENS;
    bad[10].n_tokens = 1;
    bad[10].tokens = (const uint32_t *)(const void *)(odd + 1);
    bad[11].data_kind = TKR_DATA_MESSAGES;
    bad[11].msgs = &msg;
    bad[11].n_msgs = 1;
    for (size_t i = 0; i < 12; i++)
        ck_assert_int_eq(tkr_submit(conn, &bad[i], 1), -EINVAL);
    ck_assert_int_eq(fake_take(&fake, &sqe), -EAGAIN);

    bad[0] = good; /* a wrong one behind good ones ends the batch */
    bad[1].reserved = 1;
    ck_assert_int_eq(tkr_submit(conn, bad, 2), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_int_eq(fake_take(&fake, &sqe), -EAGAIN);
}
END_TEST

START_TEST(a_request_larger_than_the_arena_can_never_fit)
{
    char text[4096] = "";
    tkr_req req = TKR_TEXT("");

    open_with(0, 4096);
    req.text = text;
    req.len = 4096 - 128;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    req.len++;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -EMSGSIZE);
    req.len = SIZE_MAX;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -EMSGSIZE);
    answer_and_release();
}
END_TEST

START_TEST(tags_run_out_and_come_back_with_release)
{
    tkr_req reqs[3] = {TKR_TEXT("a"), TKR_TEXT("b"), TKR_TEXT("c")};
    tkr_id first;

    open_with(2, 0);
    ck_assert_int_eq(tkr_submit(conn, reqs, 3), 2);
    ck_assert_int_eq(tkr_submit(conn, &reqs[2], 1), 0);
    first = reqs[0].id;
    ck_assert_int_eq(tkr_release(conn, first), -EBUSY);
    answer_and_release();
    ck_assert_int_eq(tkr_submit(conn, &reqs[2], 1), 1);
    ck_assert_uint_ne(reqs[2].id, first);
    ck_assert_int_eq(tkr_release(conn, first), -ENOENT); /* its tag serves another by now */
}
END_TEST

START_TEST(a_full_queue_takes_no_more_until_the_daemon_reads)
{
    tkr_req req = {.size = sizeof req, .op = TKR_OP_NOOP};
    struct tkr_sqe sqe;

    open_with(16, 0); /* queue of 16 slots: cancels take slots too */
    for (int i = 0; i < 15; i++)
        ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), -EAGAIN);
    while (!fake_take(&fake, &sqe))
        fake_put_done(&fake, &sqe, TKR_OK, NULL);
    for (int i = 0; i < 15; i++) {
        ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
        ck_assert_int_eq(tkr_release(conn, event.id), 0);
    }
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 0); /* the CANCEL's own end is no event */
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
}
END_TEST

START_TEST(the_arena_fills_up_and_comes_back_with_release)
{
    char text[1800] = "";
    tkr_req req = TKR_TEXT("");

    open_with(0, 4096);
    req.text = text;
    req.len = sizeof text;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 0);
    ck_assert_ptr_null(tkr_arena(conn, 1000));
    answer_and_release();
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    answer_and_release();
    answer_and_release();
    ck_assert_ptr_nonnull(tkr_arena(conn, 4096));
}
END_TEST

START_TEST(text_in_the_arena_is_not_copied_and_goes_with_the_last_request)
{
    tkr_req reqs[2] = {TKR_TEXT(""), TKR_CHAT("")};
    const struct tkr_tail *tail;
    struct tkr_sqe sqe[2];
    char *text;

    open_with(0, 4096);
    text = tkr_arena(conn, 3000);
    ck_assert_uint_eq((uintptr_t)text % 64, 0);
    memcpy(text, "in place", 8);
    reqs[0].text = text;
    reqs[0].len = 8;
    reqs[1].text = text + 3;
    reqs[1].len = 5;
    ck_assert_int_eq(tkr_submit(conn, reqs, 2), 2);
    ck_assert_int_eq(fake_take(&fake, &sqe[0]), 0);
    ck_assert_int_eq(fake_take(&fake, &sqe[1]), 0);
    memcpy(text, "IN", 2); /* seen by the daemon: no copy was made */
    ck_assert_mem_eq(fake_arena(&fake, sqe[0].data_off), "IN place", 8);
    tail = fake_arena(&fake, sqe[1].param_off + 128);
    ck_assert_mem_eq(fake_arena(&fake, tail->off), "place", 5);

    tkr_arena_free(conn, text); /* in use: left alone */
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_null(tkr_arena(conn, 3000));
        fake_put_done(&fake, &sqe[i], TKR_OK, NULL);
        ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
        ck_assert_int_eq(tkr_release(conn, event.id), 0);
    }
    ck_assert_ptr_nonnull(tkr_arena(conn, 4096));
}
END_TEST

START_TEST(arena_memory_can_be_given_back_unused_and_a_freed_piece_is_refused)
{
    tkr_req req = TKR_TEXT("");
    char *text;

    open_with(0, 4096);
    text = tkr_arena(conn, 4096);
    ck_assert_ptr_nonnull(text);
    tkr_arena_free(conn, text + 64); /* no start of a block */
    tkr_arena_free(conn, &req);      /* not in the arena */
    tkr_arena_free(conn, NULL);
    ck_assert_ptr_null(tkr_arena(conn, 1));
    tkr_arena_free(conn, text);
    req.text = text;
    req.len = 5;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), -EINVAL);
    ck_assert_ptr_null(tkr_arena(conn, 4097));
    ck_assert_ptr_eq(tkr_arena(conn, 4096), text);
}
END_TEST

START_TEST(cancel_and_release_write_the_low_half_of_the_id_at_the_tag)
{
    tkr_req req = TKR_TEXT("a");
    const uint32_t *cancel, *release;
    struct tkr_sqe sqe, order;

    open_with(0, 0);
    cancel = (const uint32_t *)(const void *)((const uint8_t *)fake.r.base + fake.rh.cancel_off);
    release = (const uint32_t *)(const void *)((const uint8_t *)fake.r.base + fake.rh.release_off);
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    ck_assert_int_eq(fake_take(&fake, &sqe), 0);
    ck_assert_int_eq(tkr_cancel(conn, req.id), 0);
    ck_assert_int_eq(tkr_cancel(conn, req.id), 0); /* twice is the same */
    ck_assert_uint_eq(cancel[sqe.tag], (uint32_t)req.id);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), 0);
    ck_assert_int_eq(fake_take(&fake, &order), 0);
    ck_assert_uint_eq(order.op, TKR_OP_CANCEL);
    ck_assert_uint_eq(order.session, req.id);
    ck_assert_uint_ne(order.tag, sqe.tag);
    ck_assert_uint_ne(order.user, req.id);

    fake_put_done(&fake, &sqe, TKR_E_CANCELLED, NULL);
    ck_assert_int_eq(tkr_peek(conn, &event, 1), 1);
    ck_assert_uint_eq(event.status, TKR_E_CANCELLED);
    ck_assert_int_eq(tkr_cancel(conn, req.id), -ENOENT);
    ck_assert_int_eq(tkr_cancel_ordered(conn, req.id), -ENOENT);
    ck_assert_int_eq(tkr_release(conn, order.user), -ENOENT); /* not the program's */
    ck_assert_uint_eq(release[sqe.tag], 0);
    ck_assert_int_eq(tkr_release(conn, req.id), 0);
    ck_assert_uint_eq(release[sqe.tag], (uint32_t)req.id);
    ck_assert_int_eq(tkr_release(conn, req.id), -ENOENT);
    ck_assert_int_eq(tkr_release(conn, 0), -ENOENT);
    ck_assert_int_eq(tkr_cancel(conn, UINT64_MAX), -ENOENT);
}
END_TEST

START_TEST(a_lying_queue_head_opens_no_room)
{
    tkr_req req = {.size = sizeof req, .op = TKR_OP_NOOP};

    open_with(64, 0);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(tkr_submit(conn, &req, 1), 1);
    *fake_t_word(&fake, TKR_T_SQ_HEAD(0)) = 100000;
    ck_assert_int_eq(tkr_submit(conn, &req, 1), 0);
}
END_TEST

/* ---- words ----------------------------------------------------------------------------------- */

START_TEST(every_status_and_errno_has_a_text_and_the_bit_says_retry)
{
    static const uint16_t statuses[] = {
        TKR_OK,           TKR_E_INVALID,   TKR_E_UNSUPPORTED, TKR_E_CONTEXT,   TKR_E_DEADLINE,
        TKR_E_OVERLOADED, TKR_E_CANCELLED, TKR_E_ABORTED,     TKR_E_NUMERIC,   TKR_E_SLOW,
        TKR_E_NO_MODEL,   TKR_E_MISMATCH,  TKR_E_DENIED,      TKR_E_DUPLICATE, TKR_E_INTERNAL,
        TKR_E_GONE,       TKR_E_RESTARTED};
    static const int errors[] = {EINVAL,  EMSGSIZE,  ENOENT,    ECONNREFUSED, EACCES,       EPROTO,
                                 EDQUOT,  ETIMEDOUT, ESHUTDOWN, ESTALE,       EBUSY,        EAGAIN,
                                 EDEADLK, ENOMEM,    ENOSYS,    EMFILE,       ENAMETOOLONG, EIO};
    int n_retry = 0;

    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        ck_assert_str_ne(tkr_strerror(statuses[i]), tkr_strerror(0x7777));
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(tkr_strerror(statuses[i]), tkr_strerror(statuses[j]));
        n_retry += tkr_retryable(statuses[i]);
    }
    /* abi.h: OVERLOADED, ABORTED, GONE, RESTARTED */
    ck_assert_int_eq(n_retry, 4);
    ck_assert(tkr_retryable(TKR_E_OVERLOADED) && tkr_retryable(TKR_E_GONE));
    ck_assert(!tkr_retryable(-EAGAIN) && !tkr_retryable(TKR_OK));
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        ck_assert_str_ne(tkr_strerror(-errors[i]), tkr_strerror(-9999));
    ck_assert_str_eq(tkr_strerror(-9999), "system error");
    ck_assert_str_eq(tkr_strerror(0x7777), "unknown status");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client");
    TCase *attach = tcase_create("attach"), *out = tcase_create("requests");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_add_checked_fixture(attach, setup, teardown);
    tcase_add_test(attach, limits_are_what_the_daemon_granted);
    tcase_add_test(attach, a_shorter_limits_struct_is_filled_no_further_than_its_size);
    tcase_add_test(attach, no_socket_is_enoent_and_no_listener_is_econnrefused);
    tcase_add_test(attach, a_refusal_has_its_own_errno_and_its_text);
    tcase_add_test(attach, a_welcome_that_lies_is_eproto);
    tcase_add_test(attach, a_token_region_that_lies_is_eproto);
    tcase_add_test(attach, surplus_descriptors_are_closed_and_refused);
    tcase_add_test(attach, a_daemon_that_hangs_up_or_says_nothing_is_reported);
    tcase_add_test(attach, wrong_options_are_einval_and_unknown_zero_ones_are_not);
    tcase_add_test(attach, a_default_path_in_a_folder_that_is_not_ours_is_not_used);
    tcase_add_test(attach, the_environment_names_the_socket);
    suite_add_tcase(suite, attach);

    tcase_add_checked_fixture(out, setup, teardown);
    tcase_add_test(out, a_request_arrives_with_every_field);
    tcase_add_test(out, the_shorthands_make_one_user_message_or_raw_text);
    tcase_add_test(out, token_ids_arrive_on_a_multiple_of_four);
    tcase_add_test(out, a_noop_needs_no_arena);
    tcase_add_test(out, a_request_that_is_wrong_in_itself_is_einval_and_not_sent);
    tcase_add_test(out, a_request_larger_than_the_arena_can_never_fit);
    tcase_add_test(out, tags_run_out_and_come_back_with_release);
    tcase_add_test(out, a_full_queue_takes_no_more_until_the_daemon_reads);
    tcase_add_test(out, the_arena_fills_up_and_comes_back_with_release);
    tcase_add_test(out, text_in_the_arena_is_not_copied_and_goes_with_the_last_request);
    tcase_add_test(out, arena_memory_can_be_given_back_unused_and_a_freed_piece_is_refused);
    tcase_add_test(out, cancel_and_release_write_the_low_half_of_the_id_at_the_tag);
    tcase_add_test(out, a_lying_queue_head_opens_no_room);
    tcase_add_test(out, every_status_and_errno_has_a_text_and_the_bit_says_retry);
    suite_add_tcase(suite, out);

    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
