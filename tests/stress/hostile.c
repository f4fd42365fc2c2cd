/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile.c - a client that attacks the daemon, one way at a time.
 *
 *   hostile SOCKET MODE SECONDS SEED     prints how often it tried; exit code 1: it got through
 *
 * What an attack may get back is checked here (a seal that gives way, a region taken twice); what
 * it does to others is checked by test_attack.py, which runs honest clients beside it. Without
 * arguments: the modes, one a line.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "runtime/base/clock.h"
#include "tests/unit/raw_client.h"

#define QUEUES   8u
#define TAGS     16u
#define ARENA    65536u
#define SLOTS    64u /* of a queue */
#define CROWD    24
#define BATCH    256
#define TEXT     64u
#define WAIT_S   5
#define FDS_MANY 12

static const char *path;
static uint64_t end_ns, generator;
static uint64_t tries;

struct attacker {
    struct raw_client raw;
    struct tkr_ring_out sq[QUEUES];
    uint32_t n_queues;
};

static void got_through(const char *what)
{
    printf("got through: %s\n", what);
    exit(1);
}

static void must(int holds, const char *what)
{
    if (!holds)
        got_through(what);
}

static int on(void)
{
    tries++;
    return clock_ns() < end_ns;
}

/* xorshift64* of Vigna. */
static uint64_t dice(void)
{
    generator ^= generator >> 12;
    generator ^= generator << 25;
    generator ^= generator >> 27;
    return generator * 0x2545f4914f6cdd1du;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)(dice() >> 32) % n;
}

/* ---- attaching ------------------------------------------------------------------------------- */

static int connected(struct raw_client *c)
{
    const struct timeval wait = {.tv_sec = WAIT_S};

    memset(c, 0, sizeof *c);
    c->r.fd = c->t.fd = -1;
    c->socket = raw_connect(path);
    if (c->socket < 0)
        return c->socket;
    setsockopt(c->socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    c->hello.arena_len = ARENA;
    c->hello.bulk_len = ARENA;
    c->hello.nsq = QUEUES;
    c->hello.sq_log2 = 6;
    c->hello.cq_log2 = 6;
    c->hello.max_inflight = TAGS;
    return 0;
}

static int welcomed(struct raw_client *c)
{
    int err = connected(c);

    if (!err)
        err = raw_hello_send(c);
    if (!err)
        err = raw_welcome_recv(c);
    return err;
}

static void left(struct attacker *a)
{
    if (a->raw.socket >= 0)
        raw_close(&a->raw);
    a->raw.socket = -1;
}

/* -EPERM: refused, which may be for its rate. */
static int attached(struct attacker *a)
{
    struct raw_client *c = &a->raw;
    int err = connected(c);

    if (!err)
        err = raw_attach(c);
    if (err < 0) {
        left(a);
        return err;
    }
    a->n_queues = c->rh.nsq;
    for (uint32_t q = 0; q < a->n_queues; q++)
        tkr_ring_out_init(&a->sq[q],
                          (uint8_t *)c->r.base + c->rh.sq_off + (size_t)c->rh.sq_stride * q,
                          c->rh.sq_log2);
    for (size_t i = 0; i < ARENA; i++)
        c->arena[i] = (uint8_t)('a' + i % 26);
    return 0;
}

static void attached_surely(struct attacker *a)
{
    uint64_t give_up = clock_ns() + WAIT_S * 1000000000ull;

    while (attached(a) < 0 && clock_ns() < give_up)
        usleep(1000);
    if (a->raw.socket < 0)
        exit(0); /* kept out */
}

/* ---- submitting ------------------------------------------------------------------------------ */

static void ring_bell(struct attacker *a, uint32_t q)
{
    struct raw_client *c = &a->raw;
    uint8_t *r = c->r.base;

    if (c->welcome.doorbell == TKR_DOORBELL_SOCKET) {
        tkr_doorbell_send(c->socket);
        return;
    }
    __atomic_fetch_add((uint32_t *)(void *)(r + c->rh.ctl_off + TKR_R_BELL(q)), 1,
                       __ATOMIC_SEQ_CST);
    tkr_futex_wake((uint32_t *)(void *)(r + c->rh.ctl_off + TKR_R_BELL(q)), 1);
}

/* Puts without a look at sq_head, as no honest client does, and rings. */
static void put(struct attacker *a, uint32_t q, struct tkr_sqe *sqe)
{
    tkr_ring_put(&a->sq[q], sqe);
    ring_bell(a, q);
}

static struct tkr_sqe generate(struct attacker *a, uint16_t tag)
{
    return (struct tkr_sqe){.op = TKR_OP_GENERATE,
                            .tag = tag,
                            .user = ++a->raw.user,
                            .data_kind = TKR_DATA_TEXT,
                            .data_off = below(ARENA - TEXT),
                            .data_len = 1 + below(TEXT),
                            .max_tokens = 1 + below(200)};
}

/* Reads the lines that are there and gives them back: how many. */
static uint32_t lines_read(struct attacker *a)
{
    struct tkr_cqe cqe;
    uint32_t n = 0;

    while (raw_take(&a->raw, &cqe, 0) == 0)
        n++;
    return n;
}

/* 1: the daemon has ended this connection, as it may (for strikes); a new one is there. */
static int renewed(struct attacker *a)
{
    uint8_t message[256];
    ssize_t n = recv(a->raw.socket, message, sizeof message, MSG_DONTWAIT);

    if (n != 0 && n != (ssize_t)sizeof message && !(n < 0 && errno != EAGAIN))
        return 0;
    left(a);
    attached_surely(a);
    return 1;
}

static void bytes_random(void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)(dice() >> 56);
}

/* ---- the region ------------------------------------------------------------------------------ */

static void mode_seals(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct raw_client *c = &a.raw;
        size_t bytes = (size_t)c->r.bytes;
        void *again;

        must(ftruncate(c->r.fd, (off_t)bytes / 2) < 0, "R was truncated");
        must(ftruncate(c->r.fd, (off_t)bytes * 2) < 0, "R was extended");
        must(fallocate(c->r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0,
             "R has a hole");
        must(madvise(c->r.base, 4096, MADV_REMOVE) < 0, "a page of R was removed");
        again = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->r.fd, 0);
        must(again == MAP_FAILED, "R was mapped writable again");
        must(mprotect(c->t.base, (size_t)c->t.bytes, PROT_READ | PROT_WRITE) < 0,
             "T became writable");
        /* Allowed, and of no use: pages go out and come back. */
        madvise(c->r.base, bytes, MADV_PAGEOUT);
        madvise(c->r.base, bytes, MADV_DONTNEED);
        put(&a, 0, &(struct tkr_sqe){.op = TKR_OP_NOOP, .user = ++c->user});
        lines_read(&a);
    }
}

/* A region that lacks what is demanded is refused. */
static void mode_unsealed(void)
{
    struct attacker a;

    while (on()) {
        struct raw_client *c = &a.raw;
        int kind = (int)below(3);

        if (welcomed(c) < 0 || raw_r_make(c) < 0) {
            left(&a);
            usleep(1000);
            continue;
        }
        if (kind == 0) /* no seal at all */
            must(raw_attach_send(c) < 0 || raw_ready_recv(c) < 0, "an unsealed region was taken");
        if (kind == 1) { /* not FUTURE_WRITE */
            fcntl(c->r.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
            must(raw_attach_send(c) < 0 || raw_ready_recv(c) < 0, "a writable region was taken");
        }
        if (kind == 2) { /* spoilt header under good seals: taken only if it is still the layout */
            bytes_random((uint8_t *)c->r.base + below(256), 1);
            raw_r_seal(c);
            if (raw_attach_send(c) == 0)
                raw_ready_recv(c);
        }
        left(&a);
    }
}

static void mode_reuse(void)
{
    struct attacker first, second;

    attached_surely(&first);
    while (on()) {
        struct raw_client *c = &second.raw;
        struct tkr_attach attach = {.head = raw_head(TKR_CTL_ATTACH)};

        if (welcomed(c) < 0) {
            left(&second);
            usleep(1000);
            continue;
        }
        if (c->welcome.daemon_epoch != first.raw.welcome.daemon_epoch) {
            left(&second); /* another daemon, which may take what the first one had */
            left(&first);
            attached_surely(&first);
            continue;
        }
        attach.region_len = first.raw.rh.region_len;
        raw_send(c->socket, &attach, sizeof attach, &first.raw.r.fd, 1);
        must(raw_ready_recv(c) < 0, "one region was taken twice");
        left(&second);
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

struct writer {
    struct attacker *a;
    uint32_t stop;
};

/* The other core: changes whatever the daemon may be reading. */
static void *rewrite(void *arg)
{
    struct writer *w = arg;
    struct raw_client *c = &w->a->raw;
    uint64_t x = 88172645463325252u;
    uint8_t *r = c->r.base;

    while (!__atomic_load_n(&w->stop, __ATOMIC_RELAXED)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if (x & 1)
            c->arena[(x >> 8) % ARENA] = (uint8_t)x;
        else /* the slots: all but seq */
            r[c->rh.sq_off + (x >> 8) % SLOTS * 64 + 4 + (x >> 40) % 60] = (uint8_t)x;
    }
    return NULL;
}

static void mode_rewrite(void)
{
    struct attacker a;

    attached_surely(&a);
    while (clock_ns() < end_ns) {
        struct writer w = {.a = &a};
        pthread_t thread;

        pthread_create(&thread, NULL, rewrite, &w);
        for (int i = 0; i < BATCH && on(); i++) {
            struct tkr_sqe sqe = generate(&a, (uint16_t)below(TAGS));

            put(&a, 0, &sqe);
            lines_read(&a);
        }
        __atomic_store_n(&w.stop, 1, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
        renewed(&a);
    }
}

static void mode_wild(void)
{
    static const uint32_t edges[] = {0,         1,          63,         ARENA - 1,  ARENA,
                                     ARENA + 1, 0x7fffffff, 0x80000000, 0xffffffc0, 0xffffffff};
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct tkr_sqe sqe = generate(&a, (uint16_t)below(TAGS));

        if (below(2)) {
            sqe.data_off = edges[below(10)];
            sqe.data_len = edges[below(10)];
            sqe.param_off = edges[below(10)];
            sqe.param_len = edges[below(10)];
        } else {
            bytes_random((uint8_t *)&sqe + 4 + below(56), 1 + below(4));
        }
        put(&a, below(a.n_queues), &sqe);
        lines_read(&a);
        renewed(&a);
    }
}

static void mode_duplicates(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct tkr_sqe sqe = generate(&a, 3);

        sqe.user = 1 + below(2); /* tag and user of a request that lives, most of the time */
        put(&a, below(a.n_queues), &sqe);
        lines_read(&a);
        renewed(&a);
    }
}

/* ---- floods ---------------------------------------------------------------------------------- */

static void mode_sq_flood(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        for (uint32_t q = 0; q < a.n_queues; q++)
            for (uint32_t i = 0; i < SLOTS; i++)
                tkr_ring_put(&a.sq[q],
                             &(struct tkr_sqe){.op = TKR_OP_NOOP, .user = ++a.raw.user | 1});
        ring_bell(&a, below(a.n_queues));
        lines_read(&a);
        renewed(&a);
    }
}

static void mode_bell_flood(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        for (uint32_t q = 0; q < a.n_queues; q++)
            ring_bell(&a, q);
        if (below(64) == 0)
            renewed(&a);
    }
}

/* Never gives a line back. */
static void mode_cq_flood(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct tkr_sqe sqe = generate(&a, (uint16_t)(a.raw.user % TAGS));

        sqe.max_tokens = TKR_MAX_TOKENS_NONE;
        tkr_ring_credit(&a.sq[0], TKR_LOAD_ACQUIRE(a.raw.sq_head));
        if (tkr_ring_room(&a.sq[0]))
            put(&a, 0, &sqe);
        else
            usleep(100);
        renewed(&a);
    }
}

static void mode_hammer(void)
{
    struct attacker a;
    uint8_t *r;

    attached_surely(&a);
    r = a.raw.r.base;
    while (on())
        for (int i = 0; i < 10000; i++) {
            uint32_t *seq =
                (void *)(r + a.raw.rh.sq_off + (size_t)a.raw.rh.sq_stride * (uint32_t)(i & 7));
            uint32_t *bell = (void *)(r + a.raw.rh.ctl_off + TKR_R_BELL((uint32_t)i & 7));

            TKR_STORE_RELAXED(seq, (uint32_t)i << 8); /* never the number that is due */
            __atomic_fetch_add(bell, 1, __ATOMIC_SEQ_CST);
            TKR_STORE_RELAXED(a.raw.wait, 0);
        }
}

static void mode_garbage_seq(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        for (uint32_t q = 0; q < a.n_queues; q++)
            for (uint32_t i = 0; i < SLOTS; i++)
                bytes_random(a.sq[q].slots + (size_t)i * 8, 64);
        ring_bell(&a, below(a.n_queues));
        renewed(&a);
    }
}

static void mode_lying_cq_head(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct tkr_sqe sqe = generate(&a, (uint16_t)below(TAGS));

        TKR_STORE_RELEASE(a.raw.cq_head, (uint32_t)(dice() >> 32));
        TKR_STORE_RELEASE(a.raw.wait, dice());
        put(&a, 0, &sqe);
        TKR_STORE_RELEASE(a.raw.cq_head, a.raw.cq.pos + below(128));
        renewed(&a);
    }
}

static void mode_cancel_storm(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct tkr_sqe sqe = generate(&a, (uint16_t)(a.raw.user % TAGS));
        struct tkr_sqe cancel = {.op = TKR_OP_CANCEL, .tag = (uint16_t)((sqe.tag + 1u) % TAGS)};

        sqe.max_tokens = 200;
        put(&a, 0, &sqe);
        for (uint32_t i = 0; i < TAGS; i++)
            TKR_STORE_RELAXED(a.raw.cancel + i, (uint32_t)(a.raw.user - below(TAGS)));
        cancel.session = a.raw.user - below(4);
        cancel.user = ++a.raw.user;
        put(&a, 1, &cancel);
        lines_read(&a);
        renewed(&a);
    }
}

/* Says that bulk memory is free while it is being filled. */
static void mode_release_lies(void)
{
    struct attacker a;

    attached_surely(&a);
    while (on()) {
        struct tkr_sqe sqe = generate(&a, (uint16_t)(a.raw.user % TAGS));

        sqe.op = TKR_OP_TOKENIZE;
        sqe.max_tokens = 0;
        put(&a, 0, &sqe);
        for (uint32_t i = 0; i < TAGS; i++)
            TKR_STORE_RELEASE(a.raw.release + i, (uint32_t)(a.raw.user - below(TAGS)));
        lines_read(&a);
        renewed(&a);
    }
}

/* ---- life and death -------------------------------------------------------------------------- */

static void detach_mid_request(struct attacker *a)
{
    for (uint16_t tag = 0; tag < TAGS; tag++) {
        struct tkr_sqe sqe = generate(a, tag);

        put(a, tag % a->n_queues, &sqe);
    }
    if (below(2))
        usleep(below(3000));
}

static void mode_detach(void)
{
    while (on()) {
        struct attacker a;

        if (attached(&a) < 0) {
            usleep(1000);
            continue;
        }
        detach_mid_request(&a);
        left(&a);
    }
}

/* A child stops in mid-stream, stands for a while, and is killed there. */
static void mode_stop(void)
{
    while (on()) {
        pid_t child = fork();
        int status;

        if (child == 0) {
            struct attacker a;

            attached_surely(&a);
            detach_mid_request(&a);
            raise(SIGSTOP);
            _exit(0);
        }
        waitpid(child, &status, WUNTRACED);
        usleep(20000);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
}

/* The attached process dies; its child keeps the socket and the regions' files open. */
static void mode_fork(void)
{
    while (on()) {
        pid_t child = fork();

        if (child == 0) {
            struct attacker a;

            attached_surely(&a);
            detach_mid_request(&a);
            if (fork() == 0) {
                usleep(30000);
                _exit(0);
            }
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

/* ---- the socket ------------------------------------------------------------------------------ */

static void mode_odd_fds(void)
{
    int fds[FDS_MANY], huge = memfd_create("huge", MFD_ALLOW_SEALING);

    if (ftruncate(huge, (off_t)1 << 42)) /* sparse */
        exit(2);
    fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | 0x10);
    fds[0] = huge;
    fds[1] = open("/dev/zero", O_RDWR);
    fds[2] = open("/", O_RDONLY | O_DIRECTORY);
    fds[3] = memfd_create("open", 0);
    for (int i = 4; i < FDS_MANY; i++)
        fds[i] = eventfd(0, 0);
    while (on()) {
        struct attacker a;
        struct tkr_attach attach = {.head = raw_head(TKR_CTL_ATTACH)};
        int n = below(2) ? 1 : (int)(2 + below(FDS_MANY - 2));

        if (welcomed(&a.raw) == 0) {
            attach.region_len = below(2) ? (uint64_t)1 << 42 : 4096u * (1 + below(100));
            raw_send(a.raw.socket, &attach, sizeof attach, fds + (n == 1 ? below(FDS_MANY) : 0), n);
            must(raw_ready_recv(&a.raw) < 0, "an odd descriptor was taken");
        }
        left(&a);
    }
}

static void mode_attach_flood(void)
{
    while (on()) {
        struct attacker a;

        if (below(4) == 0)
            attached(&a);
        else
            welcomed(&a.raw);
        left(&a);
    }
}

static void mode_half_open(void)
{
    int sockets[CROWD];

    while (on()) {
        for (int i = 0; i < CROWD; i++) {
            struct raw_client c;

            sockets[i] = connected(&c) < 0 ? -1 : c.socket;
            if (sockets[i] >= 0 && below(2))
                raw_hello_send(&c);
        }
        usleep(50000);
        for (int i = 0; i < CROWD; i++)
            if (sockets[i] >= 0)
                close(sockets[i]);
    }
}

static void mode_socket_bytes(void)
{
    while (on()) {
        struct attacker a;
        uint8_t junk[512];

        if (attached(&a) < 0) {
            usleep(1000);
            continue;
        }
        detach_mid_request(&a);
        bytes_random(junk, sizeof junk);
        for (int i = 0; i < 16; i++)
            if (send(a.raw.socket, junk, 1 + below(sizeof junk), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
                break;
        left(&a);
    }
}

/* ---- main ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {
    {"seals", mode_seals},
    {"unsealed", mode_unsealed},
    {"reuse", mode_reuse},
    {"rewrite", mode_rewrite},
    {"wild", mode_wild},
    {"duplicates", mode_duplicates},
    {"sq_flood", mode_sq_flood},
    {"bell_flood", mode_bell_flood},
    {"cq_flood", mode_cq_flood},
    {"hammer", mode_hammer},
    {"garbage_seq", mode_garbage_seq},
    {"lying_cq_head", mode_lying_cq_head},
    {"cancel_storm", mode_cancel_storm},
    {"release_lies", mode_release_lies},
    {"detach", mode_detach},
    {"stop", mode_stop},
    {"fork", mode_fork},
    {"odd_fds", mode_odd_fds},
    {"attach_flood", mode_attach_flood},
    {"half_open", mode_half_open},
    {"socket_bytes", mode_socket_bytes},
};

int main(int argc, char **argv)
{
    size_t n = sizeof modes / sizeof *modes;

    if (argc != 5) {
        for (size_t i = 0; i < n; i++)
            puts(modes[i].name);
        return argc == 1 ? 0 : 2;
    }
    path = argv[1];
    end_ns = clock_ns() + (uint64_t)(strtod(argv[3], NULL) * 1e9);
    generator = strtoull(argv[4], NULL, 10) * 2 + 1;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(modes[i].name, argv[2]))
            continue;
        modes[i].run();
        printf("%llu tries\n", (unsigned long long)tries);
        return 0;
    }
    fprintf(stderr, "no mode '%s'\n", argv[2]);
    return 2;
}
