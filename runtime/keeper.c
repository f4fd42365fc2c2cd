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

#define NICE_LAST 19

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

static void *keeper_main(void *arg)
{
    struct keeper *keeper = arg;

    const struct pack_map *map = keeper->model->packed;

    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE_LAST);
    if (map)
        mem_gather(map->body - PACK_HEADER_BYTES, map->body_bytes + PACK_HEADER_BYTES);
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
    atomic_store(&keeper->stop, 1); /* pack_save() looks at it between pieces */
    pthread_join(keeper->thread, NULL);
    free(keeper);
}
