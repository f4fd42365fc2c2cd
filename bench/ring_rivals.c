/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_rivals.c - 64 bytes there and back, between the two processes, by other means. Both sides
 * spin
 * but for the futex. Each answer is the question.
 */
#include "bench/ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "shm/doorbell.h"
#if HAVE_CK
#include <ck_ring.h>
#endif

#define CK_SLOTS 256

struct message {
    uint64_t word[8];
};

static int sockets[2]; /* the daemon's end, the client's end */
static struct io_uring sqpoll;

#if HAVE_CK
CK_RING_PROTOTYPE(message, message)
static struct ck {
    ck_ring_t ring[2];
    char pad[64];
    struct message slots[2][CK_SLOTS];
} * ck;
#endif

void rivals_init(void)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets))
        die("socketpair");
#if HAVE_CK
    ck = mmap(NULL, sizeof *ck, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
              -1, 0);
    if (ck == MAP_FAILED)
        die("mmap");
    ck_ring_init(&ck->ring[0], CK_SLOTS);
    ck_ring_init(&ck->ring[1], CK_SLOTS);
#endif
}

const char *rival_missing(enum contest contest)
{
    if (contest == CONTEST_CK && !HAVE_CK)
        return "libck-dev is not installed";
    if (contest == CONTEST_SQPOLL && shared->sqpoll_error)
        return strerror((int)shared->sqpoll_error);
    return NULL;
}

/* ---- two lines ------------------------------------------------------------------------------- */

/* Answers until the mode changes, which is looked at only now and then. */
static void ping_serve(void)
{
    uint32_t round = TKR_LOAD_RELAXED(&shared->round);
    uint64_t seen = 0;

    for (uint32_t i = 1; i % 1024 || mode_now() == MODE_PING; i++) {
        uint64_t n = TKR_LOAD_ACQUIRE(&shared->lines[round].ping); /* pairs with ping_one() */

        if (n == seen)
            continue;
        seen = n;
        TKR_STORE_RELEASE(&shared->lines[round].pong, n);
    }
}

static void ping_one(uint64_t n)
{
    uint32_t round = TKR_LOAD_RELAXED(&shared->round);

    TKR_STORE_RELEASE(&shared->lines[round].ping, n);
    while (TKR_LOAD_ACQUIRE(&shared->lines[round].pong) != n)
        continue;
}

/* ---- Unix stream socket ---------------------------------------------------------------------- */

/* A message of 64 bytes comes whole here, as it was sent. */
static int unix_take(int fd, struct message *message)
{
    return read(fd, message, sizeof *message) == (ssize_t)sizeof *message;
}

static void unix_put(int fd, const struct message *message)
{
    if (write(fd, message, sizeof *message) != (ssize_t)sizeof *message)
        die("write");
}

static void unix_serve(void)
{
    struct message message;

    while (mode_now() == MODE_UNIX)
        if (unix_take(sockets[0], &message))
            unix_put(sockets[0], &message);
}

static void unix_one(uint64_t n)
{
    struct message message = {{n}};

    unix_put(sockets[1], &message);
    while (!unix_take(sockets[1], &message))
        continue;
}

/* ---- ck_ring --------------------------------------------------------------------------------- */

#if HAVE_CK
static void ck_serve(void)
{
    struct message message;

    while (mode_now() == MODE_CK)
        if (CK_RING_DEQUEUE_SPSC(message, &ck->ring[0], ck->slots[0], &message))
            CK_RING_ENQUEUE_SPSC(message, &ck->ring[1], ck->slots[1], &message);
}

static void ck_one(uint64_t n)
{
    struct message message = {{n}};

    CK_RING_ENQUEUE_SPSC(message, &ck->ring[0], ck->slots[0], &message);
    while (!CK_RING_DEQUEUE_SPSC(message, &ck->ring[1], ck->slots[1], &message))
        continue;
}
#else
static void ck_serve(void)
{
    rest();
}

static void ck_one(uint64_t n)
{
    (void)n;
}
#endif

/* ---- io_uring's own polling thread, on the daemon's core ------------------------------------- */

/* For one round: a thread that is left alone would go on spinning on a core that others need. */
static int sqpoll_open(void)
{
    struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF,
                                     .sq_thread_cpu = (uint32_t)cpu_daemon,
                                     .sq_thread_idle = 2000};
    int err = io_uring_queue_init_params(64, &sqpoll, &params);

    if (err < 0)
        shared->sqpoll_error = (uint32_t)-err;
    rest(); /* the thread begins on our core, and needs it to move to its own */
    return err;
}

static void sqpoll_one(void)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&sqpoll);
    struct io_uring_cqe *cqe;

    io_uring_prep_nop(sqe);
    io_uring_submit(&sqpoll);
    while (io_uring_peek_cqe(&sqpoll, &cqe))
        continue;
    io_uring_cqe_seen(&sqpoll, cqe);
}

/* ---- futex ----------------------------------------------------------------------------------- */

static void futex_post(uint32_t *word, uint32_t value)
{
    TKR_STORE_RELEASE(word, value); /* pairs with futex_await() */
    tkr_futex_wake(word, 1);
}

static int futex_await(const uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    while (TKR_LOAD_ACQUIRE(word) == seen)
        if (tkr_futex_wait(word, seen, timeout_ns) == -ETIMEDOUT)
            return 0;
    return 1;
}

static void futex_serve(void)
{
    uint32_t seen = TKR_LOAD_RELAXED(&shared->futex_pong);

    while (mode_now() == MODE_FUTEX) {
        if (!futex_await(&shared->futex_ping, seen, 20000000))
            continue;
        futex_post(&shared->futex_pong, ++seen);
    }
}

static void futex_one(void)
{
    uint32_t seen = TKR_LOAD_RELAXED(&shared->futex_pong);

    futex_post(&shared->futex_ping, seen + 1);
    futex_await(&shared->futex_pong, seen, -1);
}

/* ---- by name --------------------------------------------------------------------------------- */

void rival_serve(enum mode mode)
{
    switch (mode) {
    case MODE_PING:
        ping_serve();
        break;
    case MODE_UNIX:
        unix_serve();
        break;
    case MODE_CK:
        ck_serve();
        break;
    default:
        futex_serve();
    }
}

void rival_round(enum contest contest, uint32_t *ret_ns, uint32_t n, uint32_t warm)
{
    if (contest == CONTEST_SQPOLL && sqpoll_open() < 0)
        return;
    for (uint32_t i = 0; i < warm + n; i++) {
        uint64_t t;

        if (contest == CONTEST_FUTEX)
            peer_sleeps();
        t = ticks();
        switch (contest) {
        case CONTEST_PING:
            ping_one(i + 1);
            break;
        case CONTEST_UNIX:
            unix_one(i);
            break;
        case CONTEST_CK:
            ck_one(i);
            break;
        case CONTEST_SQPOLL:
            sqpoll_one();
            break;
        default:
            futex_one();
        }
        if (i >= warm)
            ret_ns[i - warm] = to_ns(ticks() - t);
    }
    if (contest == CONTEST_SQPOLL)
        io_uring_queue_exit(&sqpoll);
}
