/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.c - the pass over the hot queues, and sleeping when there are none.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"

#define IO_CLIENTS_MAX 4096u /* IORING_MAX_CQ_ENTRIES bounds the waits that can be armed */
#define FREE_TRIES     100   /* of a millisecond */
#define SPINS          64    /* looks of an idle ring thread between two reads of the clock */

/* ---- start and end -------------------------------------------------------------------------- */

static int opt_check(const struct io_opt *opt, struct diag *diag)
{
    if (!opt->socket_path || !opt->socket_path[0]) {
        diag_set(diag, "no socket path");
        return -EINVAL;
    }
    if (opt->clients_max < 1 || opt->clients_max > IO_CLIENTS_MAX) {
        diag_set(diag, "clients_max is %u, must be 1..%u", opt->clients_max, IO_CLIENTS_MAX);
        return -EINVAL;
    }
    if (opt->inflight_max < 1 || opt->inflight_max > TKR_INFLIGHT_MAX) {
        diag_set(diag, "inflight_max is %u, must be 1..%u", opt->inflight_max, TKR_INFLIGHT_MAX);
        return -EINVAL;
    }
    if (opt->arena_max < TKR_PAGE || opt->arena_max > 1u << 30 || opt->bulk_max < TKR_PAGE ||
        opt->bulk_max > 1u << 30) {
        diag_set(diag, "arena_max and bulk_max must be 4096 bytes to 1 GiB");
        return -EINVAL;
    }
    if (opt->n_rules > IO_RULES_MAX) {
        diag_set(diag, "%u rules of users and groups, at most %u", opt->n_rules, IO_RULES_MAX);
        return -EINVAL;
    }
    if (opt->n_models > TKR_MODELS) {
        diag_set(diag, "%u models, at most %u fit", opt->n_models, TKR_MODELS);
        return -EINVAL;
    }
    return 0;
}

/* Two descriptors per client: the soft limit of 1024 would end that at 500. */
static void descriptors_raise(void)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int tables_new(struct io *io)
{
    io->table_max = io->opt.clients_max + IO_CONNS_SPARE;
    io->table = calloc(io->table_max, sizeof(struct io_client *));
    if (!io->table)
        return -ENOMEM;
    for (int i = 0; i < IO_SETS; i++) {
        io->set[i] = calloc(io->table_max, sizeof(struct io_client *));
        if (!io->set[i])
            return -ENOMEM;
    }
    io->users = calloc((size_t)io->table_max + 1, sizeof *io->users);
    if (!io->users)
        return -ENOMEM;
    for (int i = IO_QUEUE_HOT; i < IO_QUEUE_STATES; i++) {
        io->queues[i] = calloc((size_t)io->table_max * TKR_NSQ_MAX, sizeof(struct io_queue *));
        if (!io->queues[i])
            return -ENOMEM;
    }
    return 0;
}

int io_new(struct io **ret_io, const struct io_opt *opt, const struct io_ops *ops,
           struct diag *diag)
{
    struct io *io;
    int err = opt_check(opt, diag);

    if (err < 0)
        return err;
    diag_set(diag, "out of memory for the transport"); /* replaced by whatever else is wrong */
    io = calloc(1, sizeof *io);
    if (!io)
        return -ENOMEM;
    io->opt = *opt;
    io->ops = *ops;
    io->listen_fd = io->kick_fd = -1;
    io->cpu = sched_getcpu();
    io->starved_tick_ns = IO_STARVED_TICK_NS;
    io->opt.socket_path = strdup(opt->socket_path);
    err = io->opt.socket_path ? tables_new(io) : -ENOMEM;
    if (err < 0)
        goto fail;
    if (getrandom(&io->epoch, sizeof io->epoch, 0) != sizeof io->epoch)
        io->epoch = clock_ns();
    descriptors_raise();
    err = loop_init(io, diag);
    if (err < 0)
        goto fail;
    io->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (io->kick_fd < 0) {
        err = -errno;
        diag_set(diag, "eventfd: %s", strerror(-err));
        goto fail;
    }
    err = loop_arm(io, io->kick_fd, IO_EVENT_KICK);
    if (err == 0)
        err = waker_new(&io->waker, io->table_max);
    if (err < 0)
        goto fail;
    sigbus_install(io);

    *ret_io = io;
    return 0;

fail:
    io_free(io);
    return err;
}

void io_free(struct io *io)
{
    if (!io)
        return;
    sigbus_remove(io);
    for (uint32_t i = 0; io->table && i < io->table_max; i++)
        if (io->table[i])
            client_detach(io->table[i]);
    /* The kernel gives the waits back; a client that the caller still holds keeps its memory. */
    for (int i = 0; io->loop && i < FREE_TRIES; i++) {
        client_sweep(io);
        if (!io->n_dead)
            break;
        loop_wait(io, 1000000);
    }
    loop_fini(io);
    waker_free(io->waker);
    control_close(io);
    if (io->kick_fd >= 0)
        close(io->kick_fd);
    for (int i = 0; i < IO_SETS; i++)
        free(io->set[i]);
    for (int i = 0; i < IO_QUEUE_STATES; i++)
        free(io->queues[i]);
    free(io->users);
    free(io->table);
    free((char *)(uintptr_t)io->opt.socket_path);
    free(io);
}

static void state_set(struct io *io, enum tkr_state state)
{
    for (uint32_t i = 0; i < io->table_max; i++)
        if (io->table[i] && io->table[i]->state == IO_CLIENT_LIVE)
            TKR_STORE_RELEASE(io->table[i]->t_state, (uint32_t)state);
}

void io_drain(struct io *io)
{
    io->draining = 1;
    state_set(io, TKR_STATE_DRAIN);
}

void io_gone(struct io *io)
{
    io->draining = 1;
    state_set(io, TKR_STATE_GONE);
    for (uint32_t i = 0; i < io->table_max; i++) {
        struct io_client *client = io->table[i];

        if (!client || client->state != IO_CLIENT_LIVE)
            continue;
        TKR_STORE_RELEASE(client->cq_bell, ++client->cq_bell_value);
        tkr_futex_wake(client->cq_bell, 1);
    }
}

void io_kick(struct io *io)
{
    int saved = errno;
    uint64_t one = 1;
    ssize_t ret;

    /* The flag is for a ring thread that polls, the eventfd for one that sleeps. */
    __atomic_store_n(&io->kicked, 1, __ATOMIC_RELEASE);
    ret = write(io->kick_fd, &one, sizeof one);
    (void)ret;
    errno = saved;
}

void io_counts(const struct io *io, struct io_counts *ret)
{
    *ret = io->counts;
    ret->clients = io->n_live;
    ret->hot = io->n_queues[IO_QUEUE_HOT];
    ret->parked = io->n_queues[IO_QUEUE_PARKED];
}

/* ---- the pass ------------------------------------------------------------------------------- */

void queue_heat(struct io_queue *queue)
{
    struct io *io = queue->client->io;

    if (queue->state == IO_QUEUE_HOT)
        return;
    queue_move(queue, IO_QUEUE_HOT);
    queue->traffic = 1;
    TKR_STORE_RELAXED(queue->client->daemon_cpu, (uint32_t)io->cpu);
    /* A client that still sees 1 rings for nothing; its slot is found by the pass either way. */
    TKR_STORE_RELAXED(queue->need_wakeup, 0);
}

void client_rung(struct io_client *client)
{
    for (uint32_t q = 0; q < client->n_queues; q++)
        if (client->queue[q].state == IO_QUEUE_PARKED)
            queue_heat(&client->queue[q]);
}

/* One parked queue a pass: a busy ring thread then notices its client without the way through the
 * kernel. */
static void parked_peek(struct io *io)
{
    struct io_queue *queue;

    if (++io->parked_at >= io->n_queues[IO_QUEUE_PARKED])
        io->parked_at = 0;
    queue = io->queues[IO_QUEUE_PARKED][io->parked_at];
    if (tkr_ring_ready(&queue->sq))
        queue_heat(queue);
}

void io_busy(struct io *io, int busy)
{
    io->busy = busy;
}

/* 1: it is looked at in this pass. A client's hot queues take turns, so that one client costs the
 * others the lines and slots of one queue, however many it has. */
static int queue_turn(struct io_queue *queue)
{
    struct io_client *client = queue->client;

    if (client->n_queues == 1 || client->hot == 1u << queue->index)
        return 1;
    if (queue->index != client->hot_next || client->hot_seen == client->io->turn)
        return 0;
    client->hot_next = turn_after(client->hot, queue->index);
    client->hot_seen = client->io->turn;
    return 1;
}

uint32_t io_pass(struct io *io)
{
    uint32_t n = 0;

    io->turn++;
    for (uint32_t i = 0; i < io->n_queues[IO_QUEUE_HOT]; i++) {
        struct io_queue *queue = io->queues[IO_QUEUE_HOT][i];

        if (queue_turn(queue))
            n += queue_take(queue);
    }
    for (uint32_t i = io->n_set[IO_SET_BUSY]; i-- > 0;)
        if (i < io->n_set[IO_SET_BUSY])
            client_cancels(io->set[IO_SET_BUSY][i]);
    if (io->n_queues[IO_QUEUE_PARKED])
        parked_peek(io);
    if (io->n_set[IO_SET_TOUCHED])
        notify_touched(io);
    if (io->n_set[IO_SET_DUE])
        notify_due(io, io->busy);
    if (loop_flagged(io))
        loop_events(io);
    if (io->control_since_ns && clock_ns() - io->control_since_ns > IO_CONTROL_DELAY_NS)
        io_control(io);
    if (__atomic_load_n(&io->poisoned, __ATOMIC_RELAXED))
        sigbus_detach(io);
    return n;
}

/* ---- sleeping ------------------------------------------------------------------------------- */

static int kick_taken(struct io *io)
{
    /* Acquire pairs with the release in io_kick(): what the other thread did before is visible. */
    return __atomic_load_n(&io->kicked, __ATOMIC_RELAXED) &&
           __atomic_exchange_n(&io->kicked, 0, __ATOMIC_ACQUIRE);
}

/* Looks at the hot queues for a while without reading the clock. 1: something is there. */
static int hot_spin(struct io *io)
{
    for (int i = 0; i < SPINS; i++) {
        for (uint32_t h = 0; h < io->n_queues[IO_QUEUE_HOT]; h++) {
            const struct io_queue *queue = io->queues[IO_QUEUE_HOT][h];

            if (tkr_ring_ready(&queue->sq) && client_room(queue->client))
                return 1;
        }
        if (loop_flagged(io) || __atomic_load_n(&io->kicked, __ATOMIC_RELAXED))
            return 1;
        tkr_pause();
    }
    return 0;
}

/* HOT to PARKED or BLOCKED, after a time without traffic. */
static void queue_rest(struct io_queue *queue)
{
    if (tkr_ring_ready(&queue->sq)) {
        if (client_room(queue->client))
            return;
        queue_move(queue, IO_QUEUE_BLOCKED);
        set_add(queue->client->io, IO_SET_STARVED, queue->client);
    } else if (tkr_doorbell_park(queue->bell, queue->need_wakeup, &queue->sq, &queue->bell_value)) {
        queue_move(queue, IO_QUEUE_PARKED);
        loop_bell(queue);
    }
}

/* Each queue has its own idle timer. No system call but for a bell that has to be armed. */
static void hot_park(struct io *io, uint64_t now)
{
    for (uint32_t i = io->n_queues[IO_QUEUE_HOT]; i-- > 0;) {
        struct io_queue *queue = io->queues[IO_QUEUE_HOT][i];

        if (queue->traffic) {
            queue->traffic = 0;
            queue->idle_since_ns = now;
        } else if (now - queue->idle_since_ns >= io->opt.idle_park_ns) {
            queue_rest(queue);
        }
    }
    loop_submit(io);
}

/* Who waited for room in its CQ and has some now is tried again. 1: there is one. */
static int starved_look(struct io *io)
{
    int found = 0;

    for (uint32_t i = io->n_set[IO_SET_STARVED]; i-- > 0;) {
        struct io_client *client = io->set[IO_SET_STARVED][i];

        if (!client_room(client))
            continue;
        set_remove(io, IO_SET_STARVED, client);
        for (uint32_t q = 0; q < client->n_queues; q++)
            if (client->queue[q].state == IO_QUEUE_BLOCKED)
                queue_heat(&client->queue[q]);
        found = 1;
    }
    if (found)
        io->starved_tick_ns = IO_STARVED_TICK_NS;
    return found;
}

void io_control(struct io *io)
{
    control_run(io);
    /* A caller that always has work never comes to io_sleep(), which sees to these otherwise. */
    if (io->busy) {
        uint64_t now = clock_ns();

        control_expire(io, now);
        hot_park(io, now);
        starved_look(io);
    }
    if (io->n_set[IO_SET_RUNG])
        loop_rearm(io);
    client_sweep(io);
}

static void cpu_publish(struct io *io)
{
    int cpu = sched_getcpu();

    if (cpu == io->cpu)
        return;
    io->cpu = cpu;
    for (uint32_t i = 0; i < io->n_queues[IO_QUEUE_HOT]; i++)
        TKR_STORE_RELAXED(io->queues[IO_QUEUE_HOT][i]->client->daemon_cpu, (uint32_t)cpu);
}

static uint64_t sleep_timeout(const struct io *io, uint64_t until_ns, uint64_t now)
{
    uint64_t timeout = UINT64_MAX;

    if (until_ns)
        timeout = until_ns > now ? until_ns - now : 0;
    if (io->n_set[IO_SET_STARVED] && timeout > io->starved_tick_ns)
        timeout = io->starved_tick_ns;
    if (io->n_half_open && timeout > IO_SILENT_NS)
        timeout = IO_SILENT_NS;
    if (io->accept_retry_ns && timeout > IO_SILENT_NS)
        timeout = IO_SILENT_NS;
    return timeout;
}

void io_sleep(struct io *io, uint64_t until_ns)
{
    uint64_t now, before = io_comings_and_goings(&io->counts);

    if (io->n_set[IO_SET_TOUCHED])
        notify_touched(io);
    if (io->n_set[IO_SET_DUE])
        notify_due(io, 0);
    if (io->n_queues[IO_QUEUE_HOT] && hot_spin(io) && !loop_flagged(io)) {
        kick_taken(io);
        return;
    }

    if (loop_flagged(io))
        loop_events(io);
    io_control(io);
    now = clock_ns();
    cpu_publish(io);
    control_expire(io, now);
    hot_park(io, now);
    if (kick_taken(io) || starved_look(io) || io->n_queues[IO_QUEUE_HOT] || io->n_set[IO_SET_DUE] ||
        io->n_set[IO_SET_TOUCHED] || io_comings_and_goings(&io->counts) != before)
        return; /* the caller has something to do or to show, and must not sleep over it */
    loop_wait(io, sleep_timeout(io, until_ns, now));
    if (io->n_set[IO_SET_STARVED] && !starved_look(io) &&
        io->starved_tick_ns < IO_STARVED_TICK_MAX_NS)
        io->starved_tick_ns *= 2;
    io_control(io);
    kick_taken(io);
}
