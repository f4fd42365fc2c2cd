/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - the figures of a daemon, in a file beside its socket (`<socket>.stats`, mode 0640).
 *
 * The daemon maps the file shared and stores into it; whoever may read the file sees the figures
 * without asking the daemon, so also those of a busy, hung, stopped or dead one. The daemon never
 * reads it. Each starting daemon puts a new file in place of the old one, and holds a flock on it
 * while it lives: the kernel drops the lock with the process, so neither a recycled pid nor another
 * pid namespace can make a dead daemon look alive.
 *
 * Fields up to `version` are written before the file gets its name. The text fields after them are
 * complete once state is TKR_STATS_READY. Every other field is one 64-bit word with one writing
 * thread and relaxed stores: each is whole, but two of them may be a moment apart.
 *
 * Since minor 1 a table of clients follows at clients_off: a record per place in the daemon's own
 * table, each behind a sequence word, so that a reader never takes half of one for a whole one.
 *
 * Fields that the writer's minor lacks are 0 for a reader.
 */
#ifndef SHM_STATS_H
#define SHM_STATS_H

#include <stdint.h>
#include "shm/abi.h"
#include "shm/atomic.h"

#define TKR_STATS_MAGIC    0x3154415453524b54ull /* "TKRSTAT1" */
#define TKR_STATS_MAJOR    1
#define TKR_STATS_MINOR    2
#define TKR_STATS_SUFFIX   ".stats"
#define TKR_STATS_STATUSES 32u /* room for enum tkr_status without its retry bit */

enum tkr_stats_state {
    TKR_STATS_STARTING = 1, /* loads and warms up */
    TKR_STATS_READY = 2,
    TKR_STATS_DRAIN = 3, /* finishes what runs, takes nothing new */
    TKR_STATS_GONE = 4   /* ended in order */
};

enum tkr_stats_io {
    TKR_STATS_IO_UNKNOWN = 0,
    TKR_STATS_IO_URING_FUTEX = 1, /* doorbells are futex words */
    TKR_STATS_IO_URING_SOCKET =
        2,                 /* the kernel lacks futex waits: doorbells are bytes on the socket */
    TKR_STATS_IO_EPOLL = 3 /* io_uring is forbidden here */
};

struct tkr_stats {
    uint64_t magic;
    uint16_t major, minor;
    uint32_t bytes; /* sizeof(struct tkr_stats) of the writer */
    uint32_t pid;   /* in the daemon's own pid namespace */
    uint32_t reserved0;
    uint64_t pid_start_ticks; /* field 22 of /proc/PID/stat; 0 = unknown */
    uint64_t start_ns;        /* CLOCK_MONOTONIC */
    uint64_t start_unix_s;    /* CLOCK_REALTIME */
    char version[16];         /* of the daemon */

    char model[80];
    uint8_t model_hash[32];
    char cpu_variant[16]; /* kernels in use: ref, avx2, avxvnni, avx512 */

    uint64_t state;        /* enum tkr_stats_state; stored with release */
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last pass or step; an idle daemon makes none */
    uint64_t stopped_ns;   /* CLOCK_MONOTONIC of an end in order */
    uint64_t threads;      /* of the engine's team */
    uint64_t io;           /* enum tkr_stats_io */

    uint64_t clients; /* attached now */
    uint64_t clients_attached, clients_refused;
    uint64_t regions_unlocked; /* regions that mlock was refused for */

    uint64_t running, queued;             /* requests now; queued: also those being tokenised */
    uint64_t finished, cancelled, failed; /* each ended request counts in one of them */
    uint64_t prompt_tokens, output_tokens;
    uint64_t kv_pages_total, kv_pages_used;
    uint64_t steps, rows; /* rows: of all steps; rows / steps is the mean batch */
    uint64_t step_ns_sum, step_ns_last;
    uint64_t ended[TKR_STATS_STATUSES]; /* by status number: the rejects are here too */

    /* since minor 1 */
    uint64_t clients_off,
        client_slots; /* the table; stored last and with release: 0 slots = none */

    /* since minor 2 */
    uint64_t paused;         /* requests now: they left the batch until their reader goes on */
    uint64_t pauses, slow;   /* times paused; of the failed: readers that did not go on */
    uint64_t displaced;      /* times that a running request made room for another client's */
    uint64_t rejected_slots; /* answered with an error at once */
    uint64_t struck;         /* clients detached for too many malformed slots */
    uint64_t memory_errors;  /* clients detached for a memory error in their regions */
    uint64_t wakes;          /* of sleeping clients */
    uint64_t awake_ns;       /* the loop awake and in no step: passes over the rings, attaches */
};
TKR_ABI_AT(struct tkr_stats, pid, 0x10);
TKR_ABI_AT(struct tkr_stats, start_ns, 0x20);
TKR_ABI_AT(struct tkr_stats, version, 0x30);
TKR_ABI_AT(struct tkr_stats, model, 0x40);
TKR_ABI_AT(struct tkr_stats, model_hash, 0x90);
TKR_ABI_AT(struct tkr_stats, cpu_variant, 0xb0);
TKR_ABI_AT(struct tkr_stats, state, 0xc0);
TKR_ABI_AT(struct tkr_stats, clients, 0xe8);
TKR_ABI_AT(struct tkr_stats, running, 0x108);
TKR_ABI_AT(struct tkr_stats, kv_pages_total, 0x140);
TKR_ABI_AT(struct tkr_stats, ended, 0x170);
TKR_ABI_AT(struct tkr_stats, clients_off, 0x270);
TKR_ABI_AT(struct tkr_stats, paused, 0x280);
TKR_ABI_AT(struct tkr_stats, rejected_slots, 0x2a0);
TKR_ABI_AT(struct tkr_stats, awake_ns, 0x2c0);
TKR_ABI_ASSERT(sizeof(struct tkr_stats) == 0x2c8);
#define TKR_STATS_BYTES_MINOR_0 0x270u

enum tkr_stats_client_flags {
    TKR_STATS_CLIENT_BUSY = 1,     /* has requests */
    TKR_STATS_CLIENT_STARVED = 2,  /* its completion queue is full: something waits for room */
    TKR_STATS_CLIENT_DUE = 4,      /* is to be woken */
    TKR_STATS_CLIENT_UNLOCKED = 8, /* mlock of its memory was refused */
    TKR_STATS_CLIENT_SOCKET = 16,  /* hang-ups of its socket are waited for */
    TKR_STATS_CLIENT_PIDFD = 32,   /* the end of its process is waited for */
    TKR_STATS_CLIENT_PAUSED = 64   /* has a request that is paused, since it does not read */
};
#define TKR_STATS_TAGS 12u

/* One client. The u8 are bitmaps of its submission queues. */
struct tkr_stats_client {
    uint64_t seq;      /* odd: it is being written */
    uint64_t id;       /* number of this attach; 0: nobody */
    uint32_t pid, uid; /* as the daemon's namespaces see them */
    char library[32];
    uint64_t attached_ns,
        stored_ns; /* CLOCK_MONOTONIC; stored: of the last change of this record */
    uint8_t n_queues, hot, parked, blocked;
    uint8_t need_wakeup; /* as last published */
    uint8_t bells;       /* a wait is armed on the queue's bell */
    uint16_t flags;      /* enum tkr_stats_client_flags */
    uint32_t inflight, inflight_max;
    uint64_t generated, published; /* output tokens: the difference waits for room in its queue */
    uint64_t slots, rejected;  /* submission slots taken; of these answered with an error at once */
    uint64_t cancelled, ended; /* requests; ended counts all */
    uint64_t lag_max;          /* largest difference of the two that was seen at a store */
    uint64_t wait;             /* its wait word as last seen, 0: never */
    uint32_t cq_pos, cq_head; /* next completion to write; the client's position as last credited */
    uint32_t reserved, cq_slots;   /* places kept for terminals; size of the completion queue */
    uint32_t sq_pos[TKR_NSQ_MAX];  /* next slot to take */
    uint32_t sq_head[TKR_NSQ_MAX]; /* as last published */
    uint16_t tags[TKR_STATS_TAGS]; /* of the first requests in flight */
};
TKR_ABI_AT(struct tkr_stats_client, pid, 0x10);
TKR_ABI_AT(struct tkr_stats_client, library, 0x18);
TKR_ABI_AT(struct tkr_stats_client, attached_ns, 0x38);
TKR_ABI_AT(struct tkr_stats_client, n_queues, 0x48);
TKR_ABI_AT(struct tkr_stats_client, inflight, 0x50);
TKR_ABI_AT(struct tkr_stats_client, generated, 0x58);
TKR_ABI_AT(struct tkr_stats_client, slots, 0x68);
TKR_ABI_AT(struct tkr_stats_client, cancelled, 0x78);
TKR_ABI_AT(struct tkr_stats_client, wait, 0x90);
TKR_ABI_AT(struct tkr_stats_client, cq_pos, 0x98);
TKR_ABI_AT(struct tkr_stats_client, sq_pos, 0xa8);
TKR_ABI_AT(struct tkr_stats_client, tags, 0xe8);
TKR_ABI_ASSERT(sizeof(struct tkr_stats_client) == 256);

/* ---- the daemon ------------------------------------------------------------------------------ */

struct tkr_stats_file {
    struct tkr_stats *page;           /* shared; write with tkr_stats_put() */
    int fd;                           /* carries the lock */
    struct tkr_stats_client *clients; /* shared; NULL: no table */
    uint32_t client_slots;
};

/*
 * Puts a fresh file at path, state STARTING, in place of what is there: the caller holds the socket
 * already, and that is what refuses a second daemon. -errno of the file system, -ENAMETOOLONG.
 */
int tkr_stats_create(struct tkr_stats_file *ret_file, const char *path, const char *version);

/* Relaxed: figures order nothing. */
static inline void tkr_stats_put(uint64_t *field, uint64_t value)
{
    TKR_STORE_RELAXED(field, value);
}

/* Counts a request that ended with this status. */
void tkr_stats_count_end(struct tkr_stats_file *file, enum tkr_status status);

/* Text is cut to what fits, hash has 32 bytes. To be called once, before READY. */
void tkr_stats_set_model(struct tkr_stats_file *file, const char *name, const uint8_t *hash,
                         const char *cpu_variant);
void tkr_stats_set_state(struct tkr_stats_file *file, enum tkr_stats_state state);

/* Adds the table of clients, once: -ENOSPC and the like leave the file as it was. */
int tkr_stats_add_clients(struct tkr_stats_file *file, uint32_t slots);

/* Stores a client's record (its seq and stored_ns are ignored), or NULL: nobody is there. Nothing
 * is written when nothing changed. One thread. 1: the record changed. */
int tkr_stats_put_client(struct tkr_stats_file *file, uint32_t slot,
                         const struct tkr_stats_client *client, uint64_t now_ns);

/* An end in order: state GONE. The file stays, for those who ask later. A half-built or zeroed
 * file is allowed. */
void tkr_stats_close(struct tkr_stats_file *file);

/* ---- readers --------------------------------------------------------------------------------- */

/*
 * Copies the figures once; text fields end with NUL. *ret_alive: the process that wrote them lives.
 * -ENOENT: no file; -EPROTO: not a stats file, or of another major version; else -errno.
 */
int tkr_stats_read(const char *path, struct tkr_stats *ret_stats, int *ret_alive);

/* The same, and the records of those who are attached: *ret_clients is the caller's to free(), NULL
 * when there are none. A record that its writer left unfinished has an odd seq. Also -ENOMEM. */
int tkr_stats_read_clients(const char *path, struct tkr_stats *ret_stats, int *ret_alive,
                           struct tkr_stats_client **ret_clients, uint32_t *ret_n);

/* Field 22 of /proc/PID/stat: 0 and *ret_ticks, *ret_process_state (field 3, a letter); -ESRCH. */
int tkr_stats_process(uint32_t pid, uint64_t *ret_ticks, char *ret_process_state);

#endif
