/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the daemon's settings: defaults, then the YAML file, then the command line.
 *
 * Every setting has a range and a reason in systemd/tokenringd.yaml. Unknown keys are refused; an
 * error names the file, line and column.
 */
#ifndef RUNTIME_CONFIG_H
#define RUNTIME_CONFIG_H

#include <stdint.h>
#include "kernels/cpu_kernels.h"
#include "runtime/base/diag.h"
#include "runtime/io/io.h"

struct config {
    char *model;       /* path of the GGUF file */
    char *socket;      /* path; NULL: TOKENRING_SOCKET, else socket_path_default() */
    char *cache;       /* folder of packed weights; "none"; NULL: cache_path_default() */
    char *cpu;         /* auto, ref, avx2, avxvnni, avx512 */
    char *kv_type;     /* f16, q8 */
    char *socket_mode; /* octal, "0600" */
    char *io;          /* auto, uring, epoll */
    char *doorbell;    /* auto, futex, socket */
    char *allow;       /* who may attach (runtime/access.h); NULL: whoever may open the socket */
    char *trusted;     /* who may set `tenant` in its requests; NULL: nobody */
    uint32_t threads;  /* engine threads, the leader included; 0: one a core of those allowed */
    uint32_t ctx;      /* positions of one request; 0: what the model says, at most kv_positions */
    uint32_t running_max;      /* requests in the batch */
    uint32_t queued_max;       /* requests that wait for it */
    uint32_t kv_positions;     /* positions in the KV pool, all requests together */
    int kv_prefault;           /* touch and lock the pool at start */
    uint32_t chunk_rows;       /* prefill rows of one step */
    uint32_t prompt_bytes_max; /* text of one prompt */
    uint32_t clients_max;
    uint32_t inflight_max;  /* requests of one client */
    uint32_t arena_mib_max; /* request arena of one client */
    uint32_t bulk_mib_max;  /* bulk results of one client */
    int takeover;           /* replace a daemon that serves the socket; the command line's alone */
    int require_mlock;      /* refuse clients whose memory cannot be locked */
    uint32_t idle_park_us;  /* a silent queue is polled for so long */
    uint32_t
        client_requests_max;    /* of one client, until its answer is read; 0: inflight_max alone */
    uint32_t client_queued_max; /* of those that wait for a place; 0: no limit */
    uint32_t client_kv_positions_max;  /* of one client's requests together; 0: the pool */
    uint32_t client_prompt_tokens_max; /* of one client's requests together; 0: no limit */
    uint32_t lag_tokens_max;           /* a request with more unread tokens leaves the batch */
    uint32_t lag_timeout_ms;           /* ... and ends SLOW after so long */
    uint32_t user_clients_max;         /* of one uid, all its connections together; 0: no limit */
    uint32_t user_requests_max; /* this and the next three: of a trusted uid, of one tenant */
    uint32_t user_queued_max;
    uint32_t user_kv_positions_max;
    uint32_t user_prompt_tokens_max;
    uint32_t user_memory_mib_max;
    uint32_t user_attaches_per_s;
    char *user_class_max; /* batch, interactive, realtime; NULL: realtime */
    uint32_t drain_s;     /* running requests may finish for so long after SIGTERM */

    uint64_t given;               /* bit i: number i of the list in config.c was set */
    enum cpu_variant cpu_variant; /* parsed from cpu */
    enum kv_type kv_kind;         /* parsed from kv_type */
    uint32_t socket_mode_bits;    /* parsed from socket_mode */
    enum io_kind io_kind;
    struct io_limits user_limits; /* from the user_ settings */
    struct io_rule rules[IO_RULES_MAX];
    uint32_t n_rules;
    struct io_rule trusted_rules[IO_RULES_MAX];
    uint32_t n_trusted;
    enum io_doorbell doorbell_kind;
};

void config_init(struct config *config); /* zero: nothing set yet */
void config_fini(struct config *config);

/* Reads the file into fields: -EINVAL or -errno with diag "FILE: line L, column C: what". */
int config_read(struct config *config, const char *path, struct diag *diag);

/* Fills defaults in for what is not set and checks ranges; path (may be NULL) is the file to
 * point into. */
int config_finish(struct config *config, const char *path, struct diag *diag);

/* Sets one by name, as the file would: -EINVAL with diag, -ENOMEM. The command line comes after
 * the file, and so wins. */
int config_set(struct config *config, const char *name, const char *value, struct diag *diag);

#endif
