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
 */
#ifndef SHM_STATS_H
#define SHM_STATS_H

#include <stdint.h>
#include "shm/abi.h"
#include "shm/atomic.h"

#define TKR_STATS_MAGIC 0x3154415453524b54ull /* "TKRSTAT1" */
#define TKR_STATS_MAJOR 1
#define TKR_STATS_MINOR 0
#define TKR_STATS_SUFFIX ".stats"
#define TKR_STATS_STATUSES 32u /* room for enum tkr_status without its retry bit */

enum tkr_stats_state {
    TKR_STATS_STARTING = 1, /* loads and warms up */
    TKR_STATS_READY = 2,
    TKR_STATS_DRAIN = 3, /* finishes what runs, takes nothing new */
    TKR_STATS_GONE = 4   /* ended in order */
};

enum tkr_stats_io {
    TKR_STATS_IO_UNKNOWN = 0,
    TKR_STATS_IO_URING_FUTEX = 1,  /* doorbells are futex words */
    TKR_STATS_IO_URING_SOCKET = 2, /* the kernel lacks futex waits: doorbells are bytes on the socket */
    TKR_STATS_IO_EPOLL = 3         /* io_uring is forbidden here */
};

struct tkr_stats {
    uint64_t magic;
    uint16_t major, minor;
    uint32_t bytes;           /* sizeof(struct tkr_stats) of the writer */
    uint32_t pid;             /* in the daemon's own pid namespace */
    uint32_t reserved0;
    uint64_t pid_start_ticks; /* field 22 of /proc/PID/stat; 0 = unknown */
    uint64_t start_ns;        /* CLOCK_MONOTONIC */
    uint64_t start_unix_s;    /* CLOCK_REALTIME */
    char version[16];         /* of the daemon */

    char model[80];
    uint8_t model_hash[32];
    char cpu_variant[16]; /* kernels in use: ref, avx2, avx512 */

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
TKR_ABI_ASSERT(sizeof(struct tkr_stats) == 0x270);

/* ---- the daemon -------------------------------------------------------------------------------- */

struct tkr_stats_file {
    struct tkr_stats *page; /* shared; write with tkr_stats_put() */
    int fd;                 /* carries the lock */
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

/* An end in order: state GONE. The file stays, for those who ask later. A half-built or zeroed file is allowed. */
void tkr_stats_close(struct tkr_stats_file *file);

/* ---- readers ----------------------------------------------------------------------------------- */

/*
 * Copies the figures once; text fields end with NUL. *ret_alive: the process that wrote them lives.
 * -ENOENT: no file; -EPROTO: not a stats file, or of another major version; else -errno.
 */
int tkr_stats_read(const char *path, struct tkr_stats *ret_stats, int *ret_alive);

/* Field 22 of /proc/PID/stat: 0 and *ret_ticks, *ret_process_state (field 3, a letter); -ESRCH. */
int tkr_stats_process(uint32_t pid, uint64_t *ret_ticks, char *ret_process_state);

#endif
