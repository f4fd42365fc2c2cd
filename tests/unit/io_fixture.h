/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_fixture.h - a daemon's transport and its raw clients, driven by one thread: the test decides
 * each step, nothing depends on timing.
 */
#ifndef TESTS_UNIT_IO_FIXTURE_H
#define TESTS_UNIT_IO_FIXTURE_H

#include <check.h>
#include "runtime/base/clock.h"
#include "runtime/io/io.h"
#include "tests/unit/io_way.h"
#include "tests/unit/raw_client.h"

#define GENERATE_BIT (1ull << TKR_OP_GENERATE)
#define WORKING_OPS                                                                                \
    (1ull << TKR_OP_NOOP | 1ull << TKR_OP_PAD | 1ull << TKR_OP_CANCEL | GENERATE_BIT)
#define HANG_NS 20000000000ull /* a wait that takes longer has hung */

/* What the callbacks saw. */
struct saw {
    uint32_t submits, cancels, detaches;
    struct io_client *client;
    struct tkr_sqe sqe;
    uint64_t seen_ns;
    uint32_t cancel_tag;
    uint64_t cancel_user;
    int end_at_once; /* submit answers with DONE itself */
    int hold;        /* submit takes a reference */
};

extern struct saw saw;
extern char daemon_folder[64], daemon_path[128];
extern struct io *io;
extern struct io_opt daemon_opt;
extern const struct io_ops daemon_ops;

/* A daemon that listens on a socket in a new folder; parks at once. */
void daemon_setup(void);
void daemon_teardown(void);
/* Another daemon in its place, by daemon_opt as it is now; nobody is attached. */
void daemon_restart(void);
/* One pass and at most a millisecond of sleep; slots that were taken. */
uint32_t daemon_pump(void);

/* Runs the daemon until cond. */
#define PUMP_UNTIL(cond)                                                                           \
    do {                                                                                           \
        uint64_t hang = clock_ns() + HANG_NS;                                                      \
        while (!(cond)) {                                                                          \
            daemon_pump();                                                                         \
            ck_assert_msg(clock_ns() < hang, "hangs: %s", #cond);                                  \
        }                                                                                          \
    } while (0)

int socket_readable(int socket);

/* The steps of an attach, each with the daemon running until it answered. */
void client_connect(struct raw_client *c);
int client_hello(struct raw_client *c);
int client_attach(struct raw_client *c);
/* All of them: 64 KiB of arena and bulk, 64 SQ slots, 32 CQ slots, 4 tags. */
void client_open(struct raw_client *c);
/* Next completion; the daemon runs until there is one. */
struct tkr_cqe client_next(struct raw_client *c);
/* A good request with the next user and five bytes of text. */
struct tkr_sqe client_generate(struct raw_client *c, uint16_t tag);

int folder_entries(const char *dir);
int region_maps(void); /* regions that are mapped into this process */

#endif
