/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_daemon.c - the daemon process: four of the daemon's real transports, with an engine that
 * has
 * its tokens ready. Only the one that the mode names is served at a time.
 */
#include "bench/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/io.h"

#define QUIET_PASSES 16        /* as in runtime/daemon.c */
#define TURN_NS      20000000u /* sleeps at most so long before it looks at the mode */

struct stream {
    struct io_client *client;
    uint64_t user;
    uint32_t tag, left, pos;
};

static struct io *transports[TRANSPORTS];
static struct stream streams[STREAMS];
static uint32_t n_streams;

static void on_submit(void *ctx, struct io_client *client, const struct tkr_sqe *sqe,
                      uint64_t seen_ns)
{
    (void)ctx;
    (void)seen_ns;
    if (n_streams == STREAMS) {
        io_done(client, sqe->tag, sqe->user, TKR_E_OVERLOADED, NULL);
        return;
    }
    streams[n_streams++] = (struct stream){
        .client = client, .user = sqe->user, .tag = sqe->tag, .left = sqe->max_tokens};
}

static void on_cancel(void *ctx, struct io_client *client, uint32_t tag, uint64_t user)
{
    (void)ctx;
    (void)client;
    (void)tag;
    (void)user;
}

static void on_detach(void *ctx, struct io_client *client)
{
    (void)ctx;
    if (TKR_LOAD_RELAXED(&shared->attack_on)) {
        shared->passes[shared->attack][shared->attack_round].detached++;
        TKR_STORE_RELEASE(&shared->attack_on, 0u);
    }
    for (uint32_t i = 0; i < n_streams;)
        if (streams[i].client == client)
            streams[i] = streams[--n_streams];
        else
            i++;
}

/* -EAGAIN: no room, in a later pass. */
static int token_put(struct stream *stream)
{
    struct tkr_cqe cqe = {.kind = TKR_CQE_TOKEN,
                          .ntok = 1,
                          .nbytes = 4,
                          .user = stream->user,
                          .pos = stream->pos,
                          .tag = (uint16_t)stream->tag,
                          .u.token = {.tok = {7}, .utf8 = "tok "}};
    int err = io_put(stream->client, &cqe);

    if (err < 0)
        return err;
    stream->left--;
    stream->pos++;
    return 0;
}

/* A token for each stream, up to `burst` of them; those that are complete end. */
static void streams_step(uint32_t burst)
{
    for (uint32_t i = 0; i < n_streams;) {
        struct stream *stream = &streams[i];

        for (uint32_t k = 0; k < burst && stream->left; k++)
            if (token_put(stream) < 0)
                break;
        if (stream->left) {
            i++;
            continue;
        }
        io_done(stream->client, stream->tag, stream->user, TKR_OK, NULL);
        *stream = streams[--n_streams];
    }
}

/* As the daemon does it between steps: passes while there is traffic, then a look around, then
 * sleep. */
static void transport_serve(struct io *io, enum mode mode, uint32_t burst)
{
    uint32_t turns = 0, quiet = 0;

    while (++turns % 256 || mode_now() == mode) {
        if (io_pass(io) || n_streams) {
            streams_step(burst);
            quiet = 0;
            continue;
        }
        if (++quiet % QUIET_PASSES)
            continue;
        io_sleep(io, clock_ns() + TURN_NS);
        if (mode_now() != mode)
            break;
    }
}

/* When the client process asks: one token to each stream, and the fence and the look at the wait
 * words. */
static void publish_serve(struct io *io)
{
    uint32_t asked = TKR_LOAD_RELAXED(&shared->published);

    while (mode_now() == MODE_PUBLISH) {
        uint64_t t;

        if (n_streams < PUBLISH || TKR_LOAD_ACQUIRE(&shared->publish) == asked) {
            io_pass(io);
            continue;
        }
        asked++;
        t = ticks();
        for (uint32_t i = 0; i < n_streams; i++)
            io_put_soon(streams[i].client);
        for (uint32_t i = 0; i < n_streams; i++)
            token_put(&streams[i]);
        io_pass(io);
        shared->publish_ns = to_ns(ticks() - t);
        TKR_STORE_RELEASE(&shared->published, asked); /* pairs with publish_round() */
    }
    for (uint32_t i = 0; i < n_streams; i++)
        streams[i].left = 0;
    while (n_streams)
        streams_step(1);
    io_pass(io);
}

#define BINS 65536u /* a tick each */

static struct histogram {
    uint32_t bins[BINS], n;
} pass_times, look_times;

static void histogram_add(struct histogram *h, uint64_t t)
{
    h->bins[t < BINS ? t : BINS - 1]++;
    h->n++;
}

static double histogram_at(const struct histogram *h, double share)
{
    uint32_t bin = 0;
    double seen = 0;

    while (bin < BINS - 1 && (seen += h->bins[bin]) < share * h->n)
        bin++;
    return to_ns(bin);
}

static void attack_save(struct io *io)
{
    struct passes *passes = &shared->passes[shared->attack][shared->attack_round];
    struct io_counts counts;

    passes->p50 = histogram_at(&pass_times, 0.5);
    passes->p99 = histogram_at(&pass_times, 0.99);
    passes->look_p99 = histogram_at(&look_times, 0.99);
    passes->n = pass_times.n;
    io_counts(io, &counts);
    if (counts.memory_errors > shared->attack_memory_errors)
        shared->attack_memory_errors = (uint32_t)counts.memory_errors;
    shared->attack_struck += passes->detached;
}

/* As transport_serve(), timed while an attack is on. */
static void attack_serve(void)
{
    struct io *io = transports[attack_transport(shared->attack)];
    uint32_t quiet = 0;

    memset(&pass_times, 0, sizeof pass_times);
    memset(&look_times, 0, sizeof look_times);
    while (mode_now() == MODE_ATTACK) {
        uint32_t on = TKR_LOAD_RELAXED(&shared->attack_on), n;
        uint64_t t = ticks();

        n = io_pass(io);
        t = ticks() - t;
        if (on)
            histogram_add(&pass_times, t);
        streams_step(1);
        quiet = n && on ? 0 : quiet + 1;
        if (quiet % QUIET_PASSES || !quiet)
            continue;
        t = ticks();
        io_sleep(io, clock_ns() + TURN_NS);
        if (on)
            histogram_add(&look_times, ticks() - t);
    }
    attack_save(io);
}

static void serve(enum mode mode)
{
    struct timespec pause = {.tv_nsec = 3000000};

    switch (mode) {
    case MODE_REST:
        nanosleep(&pause, NULL);
        break;
    case MODE_HOT:
        transport_serve(transports[HOT], mode, 1);
        break;
    case MODE_STREAM:
        transport_serve(transports[HOT], mode, 16);
        break;
    case MODE_CROWD:
        transport_serve(transports[CROWD], mode, 1);
        break;
    case MODE_PARK:
        transport_serve(transports[PARK], mode, 1);
        break;
    case MODE_PUBLISH:
        publish_serve(transports[CROWD]);
        break;
    case MODE_ATTACK:
        attack_serve();
        break;
    case MODE_IDLE: /* longer than the client process measures; nothing must wake it meanwhile */
        io_sleep(transports[CROWD], clock_ns() + 6000000000u);
        break;
    default:
        rival_serve(mode);
    }
}

static struct io *transport_new(const char *path, uint32_t clients_max, uint64_t idle_park_ns)
{
    struct io_ops ops = {.submit = on_submit, .cancel = on_cancel, .detach = on_detach};
    struct io_opt opt = {.socket_path = path,
                         .socket_mode = 0600,
                         .clients_max = clients_max,
                         .inflight_max = 256,
                         .arena_max = 1 << 20,
                         .bulk_max = 1 << 20,
                         .idle_park_ns = idle_park_ns,
                         .op_bitmap = {1u << TKR_OP_NOOP | 1u << TKR_OP_GENERATE}};
    struct diag diag;
    struct io *io;

    if (io_new(&io, &opt, &ops, &diag) < 0 || io_listen(io, &diag) < 0) {
        fprintf(stderr, "bench_ring: %s\n", diag.text);
        exit(1);
    }
    return io;
}

void daemon_process(void)
{
    int fifo = own_core(cpu_daemon);

    descriptors_raise();
    ticks_calibrate();
    transports[HOT] = transport_new(ring_paths[HOT], 4, PARK_NS);
    transports[CROWD] = transport_new(ring_paths[CROWD], ATTACHED, PARK_NS);
    transports[PARK] = transport_new(ring_paths[PARK], 4, 1);
    transports[PARKS] = transport_new(ring_paths[PARKS], 4, 50000);
    if (fifo)
        printf("note: SCHED_FIFO is not allowed here, the tails below are the scheduler's\n");
    fflush(stdout);
    TKR_STORE_RELEASE(&shared->daemon_ready, 1u);
    for (;;) {
        enum mode mode = (enum mode)TKR_LOAD_ACQUIRE(&shared->mode);

        TKR_STORE_RELEASE(&shared->serving, (uint32_t)mode);
        if (mode == MODE_END)
            break;
        serve(mode);
    }
    _exit(0); /* the kernel is faster with thousands of clients */
}
