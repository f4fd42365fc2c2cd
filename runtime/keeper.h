/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - the thread that writes packed weights to the cache after start, or gathers those that
 * are mapped from there into huge pages.
 *
 * After and not before the daemon is ready, because that takes longer than packing, the more so with
 * a slow disk, and the first client must not wait for it. It has the lowest priority and ends with the
 * file, or when it is stopped.
 */
#ifndef RUNTIME_KEEPER_H
#define RUNTIME_KEEPER_H

#include "runtime/model/model.h"

struct keeper;

/* Starts it when there is something to do, else *ret_keeper is NULL. The model outlives it.
 * Signals go to other threads. -errno: there is no thread, and nothing is kept. */
int keeper_start(struct keeper **ret_keeper, const struct model *model);

/* Waits for its end, which is near: a file that is not complete is given up. NULL is allowed. */
void keeper_stop(struct keeper *keeper);

#endif
