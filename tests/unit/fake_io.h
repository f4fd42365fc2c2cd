/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_io.h - a transport without sockets for the tests of intake and publish: an arena in plain
 * memory and a completion queue with as many free slots as the test says. Only what those two call.
 */
#ifndef TESTS_UNIT_FAKE_IO_H
#define TESTS_UNIT_FAKE_IO_H

#include <errno.h>
#include <string.h>

#include "runtime/io/io.h"

static struct {
    uint8_t arena[65536];
    uint8_t bulk[65536];
    int trusted;
    uint32_t room; /* free CQ slots */
    struct tkr_cqe line[4096];
    uint32_t n_lines, n_soon;
    int done;
    uint16_t done_status;
    struct tkr_result result;
    uint32_t bulk_used, bulk_max;
} fake;

int io_client_trusted(const struct io_client *client)
{
    (void)client;
    return fake.trusted;
}

static void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.room = 4096;
    fake.bulk_max = sizeof fake.bulk;
}

int io_arena_copy(struct io_client *client, void *dst, uint32_t off, uint32_t len)
{
    (void)client;
    if (off > sizeof fake.arena || len > sizeof fake.arena - off)
        return -EFAULT;
    memcpy(dst, fake.arena + off, len);
    return 0;
}

void io_put_soon(const struct io_client *client)
{
    (void)client;
    fake.n_soon++;
}

int io_put(struct io_client *client, const struct tkr_cqe *cqe)
{
    (void)client;
    if (!fake.room)
        return -EAGAIN;
    fake.room--;
    fake.line[fake.n_lines++] = *cqe;
    return 0;
}

int io_bulk_take(struct io_client *client, uint32_t tag, uint32_t bytes, uint32_t *ret_off,
                 void **ret_ptr)
{
    (void)client;
    (void)tag;
    if (bytes > fake.bulk_max - fake.bulk_used)
        return -ENOSPC;
    *ret_off = fake.bulk_used;
    *ret_ptr = fake.bulk + fake.bulk_used;
    fake.bulk_used += bytes;
    return 0;
}

void io_done(struct io_client *client, uint32_t tag, uint64_t user, uint16_t status,
             const struct tkr_result *result)
{
    (void)client;
    (void)tag;
    (void)user;
    fake.done++;
    fake.done_status = status;
    fake.result = *result;
}

#endif
