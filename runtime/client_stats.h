/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_stats.h - the figures of each client in the stats file: what the transport knows of its
 * rings and what the daemon knows of its requests. Stored in pieces, so that thousands of clients
 * stall no step.
 */
#ifndef RUNTIME_CLIENT_STATS_H
#define RUNTIME_CLIENT_STATS_H

#include "runtime/io/io.h"
#include "runtime/job.h"
#include "shm/stats.h"

struct client_stats;

/* Adds the table to the file, which outlives it, and so does io. -ENOMEM, or -errno of the file
 * system. */
int client_stats_new(struct client_stats **ret_cs, struct io *io, struct tkr_stats_file *file);
void client_stats_free(struct client_stats *cs);

/* A request is published to its end. */
void client_stats_end(struct client_stats *cs, const struct job *job);

/* Stores some of the clients, and goes on with the next ones in the next call; nothing within 50 ms
 * of the last store. alive: slots of living jobs. */
void client_stats_store(struct client_stats *cs, const struct job *jobs, const uint32_t *alive,
                        uint32_t n_alive, uint64_t now_ns);

/* When the next store is wanted (absolute ns), 0: what is stored is the truth. */
uint64_t client_stats_due(const struct client_stats *cs);

#endif
