/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus.c - a memory error in a client's region ends that client, not the daemon.
 *
 * The seals rule out that a client makes the daemon's access fail; a memory cell that dies does not
 * ask. Only the ring thread touches regions, so the handler finds the client in tables that it has
 * itself interrupted: zeros are mapped over the whole region, the access is made again and reads
 * them, and the next pass detaches the client. A fault anywhere else ends the process as before.
 */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include "runtime/io/state.h"

/* Of the ring thread; others have NULL. This model of access calls nothing, as a handler needs. */
static __thread __attribute__((tls_model("initial-exec"))) struct io *sigbus_io;

static int region_has(const struct tkr_region *region, uintptr_t at)
{
    uintptr_t base = (uintptr_t)region->base;

    return base && at >= base && at - base < region->bytes;
}

/* 1: at lies in a region of this client, which reads as zeros from now on. */
static int region_replace(struct io_client *client, uintptr_t at)
{
    const struct tkr_region *region = NULL;
    int access = PROT_READ;

    if (region_has(&client->r, at)) {
        region = &client->r;
    } else if (region_has(&client->t, at)) {
        region = &client->t;
        access |= PROT_WRITE;
    }
    return region && mmap(region->base, region->bytes, access,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    struct io *io = sigbus_io;
    int saved = errno;

    (void)context;
    /* Not above zero: somebody sent it, and there is no address. */
    for (uint32_t i = 0; io && info->si_code > 0 && i < io->table_max; i++) {
        if (!io->table[i] || !region_replace(io->table[i], at))
            continue;
        __atomic_store_n(&io->table[i]->poisoned, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&io->poisoned, 1, __ATOMIC_RELAXED);
        io_kick(io); /* no sleep before the pass that sees it */
        errno = saved;
        return;
    }
    signal(signal_number, SIG_DFL); /* the access is made once more and ends the process */
    if (info->si_code <= 0)
        raise(signal_number);
    errno = saved;
}

void sigbus_install(struct io *io)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};

    sigemptyset(&action.sa_mask);
    sigbus_io = io;
    sigaction(SIGBUS, &action, NULL);
}

void sigbus_remove(const struct io *io)
{
    if (sigbus_io == io)
        sigbus_io = NULL;
}

void sigbus_detach(struct io *io)
{
    __atomic_store_n(&io->poisoned, 0, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < io->table_max; i++) {
        struct io_client *client = io->table[i];

        if (!client || !__atomic_exchange_n(&client->poisoned, 0, __ATOMIC_RELAXED))
            continue;
        io->counts.memory_errors++;
        client_detach(client);
    }
}
