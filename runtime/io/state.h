/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h - what the files of runtime/io share: the transport, its clients, and who calls whom.
 *
 *   io.c       the public calls: the pass, sleeping, parking
 *   loop.h     waiting: loop.c, loop_uring.c, loop_epoll.c
 *   control.c  the socket: accept, attach, refusals
 *   users.c    who may attach, and limits by user
 *   client.c   one client: checking slots, publishing, tags, bulk memory, the end
 *   notify.c   the waker thread
 *   sigbus.c   memory errors in regions
 *   report.c   what a client looks like to the operator
 *
 * Everything here belongs to the ring thread but where said.
 */
#ifndef RUNTIME_IO_STATE_H
#define RUNTIME_IO_STATE_H

#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include "runtime/io/io.h"
#include "runtime/io/loop.h"
#include "shm/doorbell.h"
#include "shm/region.h"
#include "shm/ring.h"

#define IO_SLOTS_PER_PASS  8u  /* of one queue: a flood costs the others at most this */
#define IO_EVENTS_PER_PASS 64u /* events handled in one go */
#define IO_CONNS_SPARE     16u /* connections beyond clients_max that still get a typed refusal */
#define IO_HALF_OPEN_NS                                                                            \
    3000000000ull /* from accept to READY; populating 16 MiB takes milliseconds */
#define IO_SILENT_NS                                                                               \
    100000000ull /* from accept to HELLO when the table is full: it comes with the connection */
#define IO_CONTROL_DELAY_NS                                                                        \
    50000000ull /* an attach takes milliseconds: kept out of a step for so long at most */
#define IO_STRIKES         64u /* malformed slots in a second; the client of one more is detached */
#define IO_FDS_PER_MESSAGE 4u /* what recvmsg makes room for; one is right, the others are closed */
#define IO_NONE            UINT32_MAX

/* A full CQ has no doorbell (the client would pay a fence on each read), so who waits for room is
 * looked at again after 1 ms, and less often while nothing changes. */
#define IO_STARVED_TICK_NS     1000000ull
#define IO_STARVED_TICK_MAX_NS 16000000ull

enum io_client_state {
    IO_CLIENT_HELLO,  /* accepted, HELLO awaited */
    IO_CLIENT_ATTACH, /* WELCOME sent, ATTACH awaited */
    IO_CLIENT_LIVE,
    IO_CLIENT_DEAD /* nothing is published any more; freed when the last wait is reaped */
};

enum io_queue_state {
    IO_QUEUE_NONE,
    IO_QUEUE_HOT,     /* polled in each pass */
    IO_QUEUE_PARKED,  /* need_wakeup is set and the doorbell is armed */
    IO_QUEUE_BLOCKED, /* has a slot whose answer finds no room in the CQ */
    IO_QUEUE_STATES
};

struct io_tag {
    uint64_t user;
    uint32_t active_at; /* index in client->active, IO_NONE: free */
    uint32_t bulk_user; /* low half of the owner of the bulk memory below; 0: none */
    uint32_t bulk_off, bulk_bytes;
};

/* A tag in use, beside what each pass compares with its cancel word. */
struct io_active {
    uint32_t user; /* low half of the tag's */
    uint16_t tag;
    uint8_t cancelled; /* ops.cancel was called for its cancel word */
};

/* A set of clients: a dense array with back-pointers, so that adding and removing cost O(1). */
enum io_set {
    IO_SET_BUSY,    /* have active tags: cancel words are polled */
    IO_SET_TOUCHED, /* something was published or taken since the last fence */
    IO_SET_DUE,     /* to be woken */
    IO_SET_STARVED, /* something could not be published or taken: the CQ is full */
    IO_SET_CONTROL, /* the control socket has something */
    IO_SET_RUNG,    /* its socket rang as a doorbell and is not armed */
    IO_SETS
};

/* What client->due holds besides bit q: wake who sleeps on sq_head[q]. */
#define IO_DUE_BELL   0x100u /* on cq_bell */
#define IO_DUE_SOCKET 0x200u /* by a byte on its socket */

struct io_queue { /* one submission queue; tags belong to the whole connection */
    struct io_client *client;
    uint32_t index; /* q */
    enum io_queue_state state;
    uint32_t at; /* index in io->queues[state] */
    struct tkr_ring_in sq;
    const uint32_t *bell, *sq_wait;  /* in R: each load is one atomic load */
    uint32_t *sq_head, *need_wakeup; /* in T: written, never read */
    uint32_t bell_value;
    uint8_t traffic;        /* slots came since the last look of hot_park() */
    uint64_t idle_since_ns; /* HOT: last traffic, as hot_park() saw it */
};

struct io_client {
    struct io *io;
    void *ptr; /* the daemon's own */
    enum io_client_state state;
    uint32_t set_at[IO_SETS]; /* index in io->set[], IO_NONE: not a member */

    struct tkr_ring_out cq;
    uint32_t reserved; /* CQ slots kept for terminals: one per active tag */
    uint32_t max_inflight;
    uint32_t n_active;
    struct io_active *active; /* [max_inflight] dense */
    struct io_tag *tags;      /* [max_inflight] */
    uint16_t *bulk;           /* [max_inflight] tags that own bulk memory, by offset */
    uint32_t n_bulk;

    const uint32_t *cq_head, *cancel, *release; /* in R: each load is one atomic load */
    const uint64_t *wait;
    const uint8_t *arena;
    uint64_t arena_len;
    uint32_t *cq_bell, *t_state, *daemon_cpu; /* in T: written, never read */
    struct tkr_result *results;
    uint8_t *bulk_base;
    uint32_t cq_bell_value; /* our copy of what we do not read back */
    uint64_t wait_served;   /* the wait word that was answered last: one wake for each */
    uint16_t due;           /* IO_DUE_*: what waits to be woken */
    uint8_t took;           /* bit q: slots were taken since the last fence */

    uint8_t armed_bells; /* bit q */
    uint8_t armed_socket, armed_pidfd;
    uint8_t poisoned; /* atomic: a region of it is zeros now; detached by the next pass */
    uint64_t accepted_ns;
    uint64_t rung_ns; /* when its socket was last emptied of rings */

    uint8_t unlocked; /* mlock of one of its regions was refused */
    uint8_t struck; /* IO_STRIKES were exceeded: it is to be detached */
    uint64_t strike_at_ns;

    struct io_user *user; /* NULL: not known yet */
    uint32_t rule;        /* index in io->opt.rules, n_rules: none */
    int trusted;          /* one of io->opt.trusted names it */
    uint64_t bytes;       /* of its regions, as counted for its user */
    int admitted;         /* counts as one of its user's clients */

    char library[32]; /* what it calls itself; any bytes */
    uint64_t attached_ns;
    uint64_t n_rejected; /* slots answered with an error at once */

    int socket, pidfd;
    uid_t uid;
    pid_t pid;
    uint32_t refs; /* atomic: other threads may hold some */
    uint32_t slot; /* in io->table */
    uint64_t id;
    struct tkr_grant grant;
    struct tkr_region r, t;
    struct tkr_region_id r_id, t_id;

    uint32_t n_queues;
    struct io_queue queue[TKR_NSQ_MAX];
    uint32_t hot_seen; /* the last pass that looked at one of several hot queues */
    uint8_t hot;       /* bit q: queue q is HOT */
    uint8_t hot_next;  /* whose turn it is */
};

struct io_user { /* the sums over the connections of one uid */
    uid_t uid;
    uint32_t n_conns;   /* also those that are not admitted, or dead and not yet freed */
    uint32_t n_clients; /* admitted and not dead */
    uint32_t inflight;
    uint64_t bytes;
    uint64_t attach_at_ns; /* see rate_take() */
};

struct io_refusal {
    enum tkr_refusal reason;
    uint64_t have, want;
    const char *what;
};

struct waker;

struct io {
    struct io_opt opt;
    struct io_ops ops;
    const struct loop_ops *loop; /* NULL until loop_init() */
    struct io_uring ring;
    int epoll_fd;
    uint64_t looked_ns; /* epoll: the last look */
    struct diag note;   /* why this is not the best way, if it is not */
    int listen_fd, kick_fd;
    struct tkr_region_id listen_id; /* of the socket file, so that only our own is removed */
    uint32_t kicked;                /* atomic: set by any thread */
    uint32_t poisoned;              /* atomic: set by the handler of SIGBUS */
    int busy;                       /* wakes go through the waker */
    enum tkr_doorbell doorbell;     /* chosen by loop_init() */
    uint32_t parked_at;             /* whose slot the next pass peeks at */
    int cpu;                        /* as last published */
    int draining;
    int accept_armed, accept_pending;
    uint64_t control_since_ns; /* control work waits since then; 0 = none */
    uint64_t accept_retry_ns;  /* out of descriptors: try again then; 0 = no */
    uint64_t starved_tick_ns;
    uint64_t epoch, next_id;

    uint32_t table_max;
    struct io_client **table; /* [table_max] */
    uint32_t n_table;
    uint32_t n_half_open, n_dead, n_live;
    struct io_user *users; /* [table_max + 1] */
    uint32_t n_users;
    struct io_client **set[IO_SETS]; /* each [table_max] */
    uint32_t n_set[IO_SETS];
    struct io_queue **queues[IO_QUEUE_STATES]; /* each [table_max * TKR_NSQ_MAX], but not NONE */
    uint32_t n_queues[IO_QUEUE_STATES];

    struct waker *waker;
    struct io_counts counts;
    uint32_t turn; /* counts passes */
};

static inline void set_add(struct io *io, enum io_set set, struct io_client *client)
{
    if (client->set_at[set] != IO_NONE)
        return;
    client->set_at[set] = io->n_set[set];
    io->set[set][io->n_set[set]++] = client;
}

static inline void set_remove(struct io *io, enum io_set set, struct io_client *client)
{
    uint32_t at = client->set_at[set];
    struct io_client *last;

    if (at == IO_NONE)
        return;
    last = io->set[set][--io->n_set[set]];
    io->set[set][at] = last;
    last->set_at[set] = at;
    client->set_at[set] = IO_NONE;
}

/* Of these queues the first after q, round the end. There is one. */
static inline uint8_t turn_after(uint8_t hot, uint32_t q)
{
    uint32_t after = hot & ~((2u << q) - 1);

    return (uint8_t)__builtin_ctz(after ? after : hot);
}

static inline void queue_move(struct io_queue *queue, enum io_queue_state state)
{
    struct io *io = queue->client->io;

    if (queue->state != IO_QUEUE_NONE) {
        struct io_queue *last = io->queues[queue->state][--io->n_queues[queue->state]];

        io->queues[queue->state][queue->at] = last;
        last->at = queue->at;
    }
    queue->state = state;
    if (state != IO_QUEUE_NONE) {
        queue->at = io->n_queues[state];
        io->queues[state][io->n_queues[state]++] = queue;
    }
    queue->client->hot &= (uint8_t) ~(1u << queue->index);
    if (state == IO_QUEUE_HOT)
        queue->client->hot |= (uint8_t)(1u << queue->index);
    /* Not from the lowest on: queues that come and go would keep the turn from the others. */
    if (queue->client->hot && !(queue->client->hot >> queue->client->hot_next & 1))
        queue->client->hot_next = turn_after(queue->client->hot, queue->client->hot_next);
}

/* How an IO_EVENT_BELL names its queue. */
static inline uint32_t queue_number(const struct io_queue *queue)
{
    return queue->client->slot * TKR_NSQ_MAX + queue->index;
}

/* io.c */
void queue_heat(struct io_queue *queue);    /* to HOT, from whatever it is */
void client_rung(struct io_client *client); /* a doorbell that does not say for which queue */

/* sigbus.c */
void sigbus_install(struct io *io); /* for the thread that calls */
void sigbus_remove(const struct io *io);
void sigbus_detach(struct io *io); /* whose memory failed */

/* control.c */
void control_accept(struct io *io);
void control_close(struct io *io);
void control_socket(struct io_client *client);
/* What the event loop found for the control part: run now if between steps, else soon. */
void control_defer(struct io *io, struct io_client *client);
void control_run(struct io *io);
void control_expire(struct io *io, uint64_t now);

/* users.c */
static inline const struct io_limits *user_limits(const struct io_client *client)
{
    const struct io_opt *opt = &client->io->opt;

    return client->rule < opt->n_rules ? &opt->rules[client->rule].limits : &opt->limits;
}

int user_enter(struct io_client *client); /* who it is; -EDQUOT: more connections than it may try */
void user_leave(struct io_client *client);
/* Counts it, with its regions; -EDQUOT and the refusal: it may not attach. */
int user_admit(struct io_client *client, uint32_t class_, uint64_t bytes,
               struct io_refusal *ret_refusal);
/* A token bucket as the time at which it is full again: 0, or -EAGAIN: more than burst at once, or
 * than rate a second. */
int rate_take(uint64_t *at_ns, uint64_t now, uint64_t rate, uint64_t burst);

/* client.c */
struct io_client *client_new(struct io *io, int socket);
int client_bind(struct io_client *client, const struct tkr_r_header *r,
                const struct tkr_t_header *t);
uint32_t queue_take(struct io_queue *queue); /* up to IO_SLOTS_PER_PASS slots: how many */
uint32_t client_room(struct io_client *client);
void client_cancels(struct io_client *client);
void client_detach(struct io_client *client);
void client_sweep(struct io *io); /* frees the dead that nobody holds */
/* Checks the private copy of a slot: TKR_OK, or the status that answers it and what was wrong in
 * words. */
uint16_t sqe_check(const struct tkr_sqe *sqe, const struct io_client *client,
                   const char **ret_what);

/* notify.c */
int waker_new(struct waker **ret_waker, uint32_t clients_max);
void waker_free(struct waker *waker);
/* Wakes who sleeps on word, or with NULL sends a byte to the client. -EAGAIN: full, try in the next
 * pass. */
int waker_put(struct waker *waker, const uint32_t *word, struct io_client *client);
void waker_ring(struct waker *waker); /* after some puts: at most one futex_wake */
void notify_touched(struct io *io);   /* one fence, then who wants to be woken becomes due */
void notify_due(struct io *io, int through_waker);

#endif
