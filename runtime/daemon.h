/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - joins the transport (io) to the scheduler: one loop on one thread.
 *
 *   io_pass -> intake -> text work -> sched_submit -> sched_step -> publish -> io_pass ...
 *
 * Inside a step the team's barriers call back here, so that new slots and cancels are
 * seen every few tens of microseconds while a long prefill runs. What they change waits for the
 * step's end.
 */
#ifndef RUNTIME_DAEMON_H
#define RUNTIME_DAEMON_H

#include "runtime/base/diag.h"
#include "runtime/config.h"

struct daemon;

/* Loads the model, takes all memory, warms up and listens: ready when it returns 0. daemon_run and
 * daemon_free belong to the same thread: the io_uring has one issuer. */
int daemon_new(struct daemon **ret_daemon, const struct config *config, struct diag *diag);

/* Serves until daemon_stop(), then drains. */
void daemon_run(struct daemon *daemon);

/* Async-signal-safe. */
void daemon_stop(struct daemon *daemon);

void daemon_free(struct daemon *daemon);

#endif
