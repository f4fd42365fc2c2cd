/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/keeper.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/model/pack_save.h"

#define NICE_LAST    19
#define GATHER_BYTES (64u << 20) /* between two looks at stop */

struct keeper {
    const struct model *model;
    pthread_t thread;
    atomic_int stop;
};

static void write_cache(struct keeper *keeper)
{
    const struct pack_keep *keep = keeper->model->keep;
    uint64_t begin = clock_ns();
    struct diag note;
    int err = pack_save(keep, &keeper->stop, &note);

    if (err == 0)
        log_line(LOG_INFO, "cache=%s bytes=%llu ms=%llu", note.text,
                 (unsigned long long)(keep->body_bytes + PACK_HEADER_BYTES),
                 (unsigned long long)((clock_ns() - begin) / 1000000));
    else if (err != -ECANCELED && err != -EBUSY)
        log_line(LOG_WARN, "%s", note.text);
}

/* All of a large model takes seconds, and the end of the daemon must not wait for them. */
static void gather(struct keeper *keeper, const struct pack_map *map)
{
    const uint8_t *at = map->body - PACK_HEADER_BYTES; /* a multiple of 2 MiB, as are its pieces */
    uint64_t left = map->body_bytes + PACK_HEADER_BYTES;

    while (left > 0 && !atomic_load_explicit(&keeper->stop, memory_order_relaxed)) {
        size_t n = left < GATHER_BYTES ? (size_t)left : GATHER_BYTES;

        mem_gather(at, n);
        at += n;
        left -= n;
    }
}

static void *keeper_main(void *arg)
{
    struct keeper *keeper = arg;

    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE_LAST);
    if (keeper->model->packed)
        gather(keeper, keeper->model->packed);
    if (keeper->model->keep)
        write_cache(keeper);
    return NULL;
}

int keeper_start(struct keeper **ret_keeper, const struct model *model)
{
    struct keeper *keeper;
    sigset_t all, before;
    int err;

    *ret_keeper = NULL;
    if (!model->keep && !model->packed)
        return 0;
    keeper = calloc(1, sizeof *keeper);
    if (!keeper)
        return -ENOMEM;
    keeper->model = model;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = -pthread_create(&keeper->thread, NULL, keeper_main, keeper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err < 0)
        free(keeper);
    else
        *ret_keeper = keeper;
    return err;
}

void keeper_stop(struct keeper *keeper)
{
    if (!keeper)
        return;
    atomic_store(&keeper->stop, 1); /* it is looked at between pieces */
    pthread_join(keeper->thread, NULL);
    free(keeper);
}
