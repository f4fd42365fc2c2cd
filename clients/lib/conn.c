/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c - opening and closing a connection, and what the daemon granted.
 */
#include "clients/lib/conn.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#define INFLIGHT_DEFAULT 64u
#define ARENA_DEFAULT    ((size_t)1 << 20)
#define BULK_DEFAULT     ((size_t)1 << 20)
#define TIMEOUT_DEFAULT  TKR_S(5)
/* About what a sleep and a wake-up cost, so that a wait takes at most twice the best. */
#define SPIN_DEFAULT      TKR_US(50)
#define RECONNECT_DEFAULT TKR_S(30)
#define WAKE_EVERY_MAX    4096u
#define MODEL_READ_TRIES  1000u /* an entry changes for some nanoseconds once in a model's life */

uint64_t clock_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void conn_lost(tkr_conn *conn, const char *why)
{
    if (conn->gone)
        return;
    conn->gone_why = why;
    conn->gone_status = TKR_E_GONE;
    /* Relaxed: submitting threads only learn that it is no use. */
    TKR_STORE_RELAXED(&conn->gone, 1);
}

/* Defaults filled in. A newer program's longer struct is fine while what we do not know is zero. */
static int opt_read(struct tkr_opt *ret_opt, const tkr_opt *opt)
{
    struct tkr_opt o = {0};

    if (opt) {
        size_t known = opt->size < sizeof o ? opt->size : sizeof o;

        if (opt->size < sizeof opt->size)
            return open_fail(-EINVAL, "tkr_opt.size is %u; set it to sizeof(tkr_opt)", opt->size);
        for (size_t i = sizeof o; i < opt->size; i++)
            if (((const uint8_t *)opt)[i])
                return open_fail(-EINVAL, "tkr_opt has an option that this library lacks");
        memcpy(&o, opt, known);
    }
    if (!o.max_inflight)
        o.max_inflight = INFLIGHT_DEFAULT;
    if (!o.arena_bytes)
        o.arena_bytes = ARENA_DEFAULT;
    if (!o.bulk_bytes)
        o.bulk_bytes = BULK_DEFAULT;
    if (!o.timeout_ns)
        o.timeout_ns = TIMEOUT_DEFAULT;
    if (!o.n_queues)
        o.n_queues = 1;
    if (!o.wake_every)
        o.wake_every = 1;
    if (!o.reconnect_timeout_ns)
        o.reconnect_timeout_ns = RECONNECT_DEFAULT;
    if (o.max_inflight > TKR_INFLIGHT_MAX)
        return open_fail(-EINVAL, "max_inflight is %u, at most %u", o.max_inflight,
                         TKR_INFLIGHT_MAX);
    if (o.arena_bytes > UINT32_MAX - TKR_LINE || o.bulk_bytes > UINT32_MAX - TKR_LINE)
        return open_fail(-EINVAL, "arena_bytes and bulk_bytes must be below 4 GiB");
    if (o.timeout_ns < 0 || o.reconnect_timeout_ns < 0)
        return open_fail(-EINVAL, "timeout_ns or reconnect_timeout_ns is negative");
    if (o.n_queues > TKR_NSQ_MAX || o.n_queues > o.max_inflight)
        return open_fail(-EINVAL, "n_queues is %u, at most %u and max_inflight", o.n_queues,
                         TKR_NSQ_MAX);
    if (o.wake_every > WAKE_EVERY_MAX)
        return open_fail(-EINVAL, "wake_every is %u, at most %u", o.wake_every, WAKE_EVERY_MAX);
    if (o.reconnect > 1 || o.reserved)
        return open_fail(-EINVAL, "reconnect is 0 or 1, reserved is 0");
    *ret_opt = o;
    return 0;
}

/*
 * Spinning only helps when the daemon runs at the same time, and a real-time thread that spins on a
 * core which it shares would keep the daemon off it for good.
 */
static int64_t spin_budget(int64_t wanted_ns)
{
    cpu_set_t cpus;
    int policy = sched_getscheduler(0);

    if (wanted_ns < 0 || get_nprocs() == 1)
        return 0;
    if ((policy == SCHED_FIFO || policy == SCHED_RR) &&
        (sched_getaffinity(0, sizeof cpus, &cpus) || CPU_COUNT(&cpus) != 1))
        return 0;
    return wanted_ns ? wanted_ns : SPIN_DEFAULT;
}

static int canary_new(const uint64_t **ret_canary)
{
    uint64_t *page =
        mmap(NULL, TKR_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int err;

    if (page == MAP_FAILED)
        return -errno;
    if (madvise(page, TKR_PAGE, MADV_WIPEONFORK)) {
        err = -errno;
        munmap(page, TKR_PAGE);
        return err;
    }
    *page = CONN_CANARY;
    *ret_canary = page;
    return 0;
}

/* Memory for the queues, before it is known how many will be granted. */
static int conn_alloc(tkr_conn **ret_conn, uint32_t n_queues)
{
    tkr_conn *conn = calloc(1, sizeof *conn);
    size_t bytes = n_queues * sizeof *conn->queues;

    if (!conn)
        return -ENOMEM;
    conn->fd = -1;
    conn->r.fd = -1;
    conn->t.fd = -1;
    conn->queues = aligned_alloc(_Alignof(struct queue), bytes);
    if (!conn->queues) {
        free(conn);
        return -ENOMEM;
    }
    memset(conn->queues, 0, bytes);
    conn->n_queues = n_queues;
    *ret_conn = conn;
    return 0;
}

static int reconnect_init(tkr_conn *conn, const struct tkr_opt *opt)
{
    conn->reconnect.on = opt->reconnect != 0;
    conn->reconnect.timeout_ns = opt->reconnect_timeout_ns;
    if (!conn->reconnect.on || !opt->path)
        return 0;
    conn->reconnect.path = strdup(opt->path);
    return conn->reconnect.path ? 0 : -ENOMEM;
}

int tkr_open(tkr_conn **ret_conn, const tkr_opt *opt)
{
    struct tkr_opt o;
    tkr_conn *conn = NULL;
    int err;

    open_fail(0, "%s", "");
    err = opt_read(&o, opt);
    if (err < 0)
        goto fail;
    err = conn_alloc(&conn, o.n_queues);
    if (err < 0) {
        open_fail(err, "out of memory");
        goto fail;
    }
    err = canary_new(&conn->canary);
    if (err < 0) {
        open_fail(err, "cannot map a page that is wiped on fork: %s", strerror(-err));
        goto fail;
    }
    err = conn_attach(conn, &o, clock_ns() + (uint64_t)o.timeout_ns);
    if (err < 0)
        goto fail;
    err = queues_init(conn);
    if (!err)
        err = reconnect_init(conn, &o);
    if (err < 0) {
        open_fail(err, "out of memory");
        goto fail;
    }
    conn->wake_every = o.wake_every;
    conn->spin_ns = spin_budget(o.spin_ns);
    conn->spin_forced = o.spin_ns > 0;
    conn->looked_ns = clock_ns();
    *ret_conn = conn;
    return 0;

fail:
    tkr_close(conn);
    errno = -err; /* for perror() */
    return err;
}

void tkr_close(tkr_conn *conn)
{
    if (!conn)
        return;
    if (conn->canary && conn_stale(conn)) {
        /* The child of a fork: both regions were left out of it, and other memory may lie there
         * now. */
        tkr_region_close_fd(&conn->r);
        conn->r.base = NULL;
        conn->t.base = NULL;
    } else if (conn->requests) {
        for (uint32_t i = 0; i < conn->max_inflight; i++)
            if (TKR_LOAD_RELAXED(&conn->requests[i].state) == REQUEST_LIVE)
                tkr_cancel(conn, conn->requests[i].user);
    }
    if (conn->fd >= 0)
        close(conn->fd);
    tkr_region_close(&conn->r);
    tkr_region_close(&conn->t);
    reconnect_fini(conn);
    if (conn->canary)
        munmap((void *)(uintptr_t)conn->canary, TKR_PAGE);
    queues_fini(conn);
    free(conn->requests);
    free(conn->queues);
    free(conn);
}

int model_read(const struct tkr_region *t, const struct tkr_t_header *header, uint32_t index,
               struct tkr_model_entry *ret_entry)
{
    const uint8_t *base = (const uint8_t *)t->base + header->models_off;
    const struct tkr_model_entry *entry =
        (const struct tkr_model_entry *)(const void *)base + index;

    for (unsigned i = 0; i < MODEL_READ_TRIES; i++) {
        /* Acquire pairs with the daemon's release of an even gen after it wrote the entry. */
        uint32_t before = TKR_LOAD_ACQUIRE(&entry->gen);

        tkr_copy_once(ret_entry, entry, sizeof *ret_entry);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(before & 1) && TKR_LOAD_RELAXED(&entry->gen) == before) {
            ret_entry->gen = before;
            ret_entry->name[sizeof ret_entry->name - 1] = '\0';
            return 0;
        }
    }
    return -EAGAIN;
}

int tkr_get_limits(tkr_conn *conn, tkr_limits *limits)
{
    struct tkr_model_entry entry = {0};
    struct tkr_limits l;

    if (conn_stale(conn))
        return -ESTALE;
    if (limits->size < sizeof limits->size)
        return -EINVAL;
    if (conn->t_header.n_models && model_read(&conn->t, &conn->t_header, 0, &entry) < 0)
        return -EAGAIN;

    l = (struct tkr_limits){
        .size = limits->size,
        .max_inflight = conn->max_inflight,
        .prompt_tokens_max = conn->t_header.prompt_tokens_max,
        .output_tokens_max = conn->t_header.output_tokens_max,
        .n_ctx = entry.n_ctx,
        .n_vocab = entry.n_vocab,
        .arena_bytes = conn->arena_len,
        .bulk_bytes = conn->t_header.bulk_len,
        .n_models = conn->t_header.n_models,
        .daemon_pid = conn->daemon_pid,
        .model_flags = entry.flags,
        .model_gen = entry.gen,
        .n_queues = conn->n_queues,
    };
    memcpy(l.model, entry.name, sizeof l.model);
    memcpy(l.model_hash, entry.hash, sizeof l.model_hash);
    /* An older program's shorter struct gets what it knows. */
    memcpy(limits, &l, limits->size < sizeof l ? limits->size : sizeof l);
    return 0;
}

int tkr_fd(tkr_conn *conn)
{
    return conn_stale(conn) ? -ESTALE : conn->fd;
}

int tkr_state(tkr_conn *conn)
{
    uint32_t state;

    if (conn_stale(conn))
        return -ESTALE;
    state = TKR_LOAD_RELAXED(conn->state);
    if (conn->gone || state == TKR_STATE_GONE)
        return conn->reconnect.on && !conn->broken && !conn->reconnect.gave_up
                   ? TKR_STATE_RECONNECTING
                   : TKR_STATE_GONE;
    return state == TKR_STATE_DRAIN ? TKR_STATE_DRAIN : TKR_STATE_RUN;
}
