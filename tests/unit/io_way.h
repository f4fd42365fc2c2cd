/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_way.h - the tests of the transport run once for each way of waiting (runtime/io/loop.h): the
 * environment variable TOKENRING_TEST_IO chooses it.
 */
#ifndef TESTS_UNIT_IO_WAY_H
#define TESTS_UNIT_IO_WAY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/io/io.h"

struct io_way {
    const char *name, *mode;
    enum io_kind io;
    enum io_doorbell doorbell;
    const char *io_name, *doorbell_name; /* as settings */
};

static inline const struct io_way *io_way(void)
{
    static const struct io_way ways[] = {
        {"uring+futex", "io_uring+futex", IO_KIND_URING, IO_DOORBELL_FUTEX, "uring", "futex"},
        {"uring+socket", "io_uring+socket", IO_KIND_URING, IO_DOORBELL_SOCKET, "uring", "socket"},
        {"epoll+socket", "epoll+socket", IO_KIND_EPOLL, IO_DOORBELL_AUTO, "epoll", "auto"},
    };
    const char *name = getenv("TOKENRING_TEST_IO");

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(name ? name : ways[0].name, ways[i].name))
            return &ways[i];
    fprintf(stderr, "TOKENRING_TEST_IO is none of uring+futex, uring+socket, epoll+socket\n");
    abort();
}

static inline void io_way_set(struct io_opt *opt)
{
    opt->io = io_way()->io;
    opt->doorbell = io_way()->doorbell;
}

/* For main(): 1 when this host cannot do it, which has been said in TAP. */
static inline int io_way_skip(void)
{
    struct io_opt opt = {.socket_path = "/",
                         .clients_max = 1,
                         .inflight_max = 1,
                         .arena_max = 4096,
                         .bulk_max = 4096};
    struct io_ops ops = {.ctx = NULL};
    struct diag diag;
    struct io *io;

    io_way_set(&opt);
    if (io_new(&io, &opt, &ops, &diag) < 0) {
        printf("1..0 # SKIP %s\n", diag.text);
        return 1;
    }
    io_free(io);
    return 0;
}

#endif
