/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/doorbell.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int tkr_futex_wait(const uint32_t *word, uint32_t value, int64_t timeout_ns)
{
    struct timespec ts = {
        .tv_sec = (time_t)(timeout_ns / 1000000000),
        .tv_nsec = (long)(timeout_ns % 1000000000),
    };
    long ret = syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ns < 0 ? NULL : &ts, NULL, 0);

    return ret < 0 ? -errno : 0;
}

int tkr_futex_wake(const uint32_t *word, int n)
{
    long ret = syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);

    return ret < 0 ? -errno : (int)ret;
}

int tkr_doorbell_send(int socket)
{
    const uint8_t one = 1;

    return send(socket, &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}
