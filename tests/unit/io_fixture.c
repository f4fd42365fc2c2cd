/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/io_fixture.h"

struct saw saw;

char daemon_folder[64], daemon_path[128];
struct io *io;
struct io_opt daemon_opt;

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    (void)ctx;
    saw.submits++;
    saw.client = client;
    saw.sqe = *sqe;
    saw.seen_ns = seen_ns;
    if (saw.hold)
        io_client_ref(client);
    if (saw.end_at_once)
        io_done(client, sqe->tag, sqe->user, TKR_OK, NULL);
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    (void)ctx;
    (void)client;
    saw.cancels++;
    saw.cancel_tag = tag;
    saw.cancel_user = user;
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    (void)client;
    saw.detaches++;
}

const struct io_ops daemon_ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach};

void daemon_setup(void)
{
    struct diag diag;

    memset(&saw, 0, sizeof saw);
    snprintf(daemon_folder, sizeof daemon_folder, "/tmp/tokenring-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(daemon_folder));
    snprintf(daemon_path, sizeof daemon_path, "%s/socket", daemon_folder);
    daemon_opt = (struct io_opt){
        .socket_path = daemon_path,
        .socket_mode = 0600,
        .clients_max = 8,
        .inflight_max = 8,
        .arena_max = 1 << 20,
        .bulk_max = 1 << 20,
        .idle_park_ns = 0,
        .op_bitmap = {WORKING_OPS},
        .engine_cpus = {5},
        .prompt_tokens_max = 100,
        .output_tokens_max = 50,
    };
    io_way_set(&daemon_opt);
    ck_assert_msg(io_new(&io, &daemon_opt, &daemon_ops, &diag) == 0, "%s", diag.text);
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
}

void daemon_restart(void)
{
    struct diag diag;

    io_free(io);
    ck_assert_msg(io_new(&io, &daemon_opt, &daemon_ops, &diag) == 0, "%s", diag.text);
    ck_assert_msg(io_listen(io, &diag) == 0, "%s", diag.text);
}

void daemon_teardown(void)
{
    io_free(io);
    ck_assert_int_eq(access(daemon_path, F_OK), -1); /* the socket file goes with the daemon */
    ck_assert_int_eq(rmdir(daemon_folder), 0);
}

uint32_t daemon_pump(void)
{
    uint32_t n = io_pass(io);

    io_sleep(io, clock_ns() + 1000000);
    return n;
}

int socket_readable(int socket)
{
    struct pollfd p = {.fd = socket, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

void client_connect(struct raw_client *c)
{
    memset(c, 0, sizeof *c);
    c->r.fd = c->t.fd = -1;
    c->socket = raw_connect(daemon_path);
    ck_assert_int_ge(c->socket, 0);
}

int client_hello(struct raw_client *c)
{
    ck_assert_int_eq(raw_hello_send(c), 0);
    PUMP_UNTIL(socket_readable(c->socket));
    return raw_welcome_recv(c);
}

int client_attach(struct raw_client *c)
{
    ck_assert_int_eq(raw_attach_send(c), 0);
    PUMP_UNTIL(socket_readable(c->socket));
    return raw_ready_recv(c);
}

void client_open(struct raw_client *c)
{
    client_connect(c);
    c->hello.arena_len = 65536;
    c->hello.bulk_len = 65536;
    c->hello.cq_log2 = 5;
    c->hello.sq_log2 = 6;
    c->hello.max_inflight = 4;
    ck_assert_int_eq(client_hello(c), 0);
    ck_assert_int_eq(raw_r_make(c), 0);
    ck_assert_int_eq(raw_r_seal(c), 0);
    ck_assert_int_eq(client_attach(c), 0);
}

struct tkr_cqe client_next(struct raw_client *c)
{
    struct tkr_cqe cqe;

    PUMP_UNTIL(raw_take(c, &cqe, 0) == 0);
    return cqe;
}

struct tkr_sqe client_generate(struct raw_client *c, uint16_t tag)
{
    struct tkr_sqe sqe = raw_noop(c, tag);

    sqe.op = TKR_OP_GENERATE;
    sqe.data_kind = TKR_DATA_TEXT;
    sqe.data_len = 5;
    return sqe;
}

int folder_entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

int region_maps(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:tokenring") != NULL;
    fclose(f);
    return n;
}
