/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_world.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

struct bell_wait {
    const uint32_t *word;
    uint64_t data;
    int armed, fired;
};

struct actor actors[ACTORS];
uint32_t now_running;
ucontext_t scheduler;
struct io io;
uint64_t generator;
enum mistake mistake;
int pidfd_fired[PLACES];
int attached_event;
static struct bell_wait waits[PLACES * TKR_NSQ_MAX];
static int last_look_lies; /* DAEMON_PARKS_WITHOUT_LAST_LOOK: of the next load of a slot */

void world_reset(void)
{
    memset(waits, 0, sizeof waits);
    memset(pidfd_fired, 0, sizeof pidfd_fired);
    attached_event = last_look_lies = 0;
}

/* xorshift64* of Vigna. */
uint64_t dice(void)
{
    generator ^= generator >> 12;
    generator ^= generator << 25;
    generator ^= generator >> 27;
    return (generator * 0x2545f4914f6cdd1du) >> 20;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void yield(void)
{
    struct actor *a = &actors[now_running];

    swapcontext(&a->context, &scheduler);
}

void turns_pass(uint64_t max)
{
    for (uint64_t n = 1 + dice() % max; n > 0; n--)
        yield();
}

static void store_now(const struct buffered *b)
{
    memcpy(b->ptr, &b->value, b->bytes);
}

void buffer_pop(struct actor *a)
{
    store_now(&a->buffer[0]);
    memmove(a->buffer, a->buffer + 1, --a->n_buffer * sizeof *a->buffer);
}

void buffer_drain(struct actor *a)
{
    while (a->n_buffer)
        buffer_pop(a);
}

uint64_t sim_load(const void *ptr, size_t bytes)
{
    struct actor *a = &actors[now_running];
    uint64_t value = 0;

    yield();
    if (last_look_lies && now_running == DAEMON) {
        last_look_lies = 0;
        return 0;
    }
    memcpy(&value, ptr, bytes);
    for (uint32_t i = 0; i < a->n_buffer; i++) /* the newest of its own stores counts */
        if (a->buffer[i].ptr == ptr)
            value = a->buffer[i].value;
    return value;
}

void sim_store(void *ptr, uint64_t value, size_t bytes)
{
    struct actor *a = &actors[now_running];

    yield();
    if (a->n_buffer == BUFFER)
        buffer_pop(a);
    a->buffer[a->n_buffer++] = (struct buffered){ptr, value, bytes};
}

void sim_fence(void)
{
    yield();
    if (mistake == DAEMON_PARKS_WITHOUT_FENCE && now_running == DAEMON)
        return;
    if (mistake == CLIENT_RINGS_WITHOUT_FENCE && now_running != DAEMON)
        return;
    buffer_drain(&actors[now_running]);
    if (mistake == DAEMON_PARKS_WITHOUT_LAST_LOOK && now_running == DAEMON)
        last_look_lies = 1;
}

void sim_region_close(struct tkr_region *region)
{
    buffer_drain(&actors[DAEMON]);
    if (region->base)
        munmap(region->base, (size_t)region->bytes);
    region->base = NULL;
}

/* Else the host's scheduler would have a say in the run. */
int sched_getcpu(void)
{
    return 0;
}

/* ---- futexes and the daemon's loop ----------------------------------------------------------- */

void daemon_event(void)
{
    actors[DAEMON].asleep = 0;
}

/* System calls empty the buffer, as the locks in the kernel do. */
int tkr_futex_wait(const uint32_t *word, uint32_t value, int64_t timeout_ns)
{
    struct actor *a = &actors[now_running];

    (void)timeout_ns;
    yield();
    buffer_drain(a);
    if (*word != value || a->gone)
        return -EAGAIN;
    a->sleeps_on = word;
    a->asleep = 1;
    yield();
    a->sleeps_on = NULL;
    return 0;
}

int tkr_futex_wake(const uint32_t *word, int n)
{
    yield();
    buffer_drain(&actors[now_running]);
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (actors[i].asleep && actors[i].sleeps_on == word)
            actors[i].asleep = 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].armed && waits[i].word == word) {
            waits[i].fired = 1;
            daemon_event();
        }
    return n;
}

int tkr_doorbell_send(int socket)
{
    (void)socket;
    return 0;
}

static int sim_poll(struct io *of, int fd, uint32_t events, uint64_t data)
{
    (void)of;
    (void)fd;
    (void)events;
    (void)data;
    return 0;
}

static int sim_cancel(struct io *of, int fd, uint64_t data)
{
    (void)of;
    (void)fd;
    if (data >> 56 != IO_EVENT_BELL)
        return 1;
    waits[(uint32_t)data].fired = 1; /* it is told that it was cancelled */
    return 0;
}

static void sim_submit(struct io *of)
{
    (void)of;
}

static int events_there(void)
{
    if (attached_event)
        return 1;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].fired)
            return 1;
    for (size_t i = 0; i < sizeof pidfd_fired / sizeof *pidfd_fired; i++)
        if (pidfd_fired[i])
            return 1;
    return 0;
}

static int sim_flagged(const struct io *of)
{
    (void)of;
    return events_there();
}

static void events_deliver(void)
{
    attached_event = 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].fired) {
            uint64_t data = waits[i].data;

            waits[i] = (struct bell_wait){NULL, 0, 0, 0};
            loop_handle(&io, data);
        }
    for (uint32_t i = 0; i < sizeof pidfd_fired / sizeof *pidfd_fired; i++)
        if (pidfd_fired[i]) {
            pidfd_fired[i] = 0;
            loop_handle(&io, (uint64_t)IO_EVENT_PIDFD << 56 | i);
        }
}

static void sim_wait(struct io *of, uint64_t timeout_ns)
{
    (void)of;
    yield();
    buffer_drain(&actors[DAEMON]);
    if (timeout_ns && !events_there()) {
        actors[DAEMON].asleep = 1;
        actors[DAEMON].timer = timeout_ns != UINT64_MAX;
        yield();
    }
    events_deliver();
}

const struct loop_ops loop_uring = {.name = "sim",
                                    .poll = sim_poll,
                                    .cancel = sim_cancel,
                                    .submit = sim_submit,
                                    .flagged = sim_flagged,
                                    .wait = sim_wait};

int uring_has_futex(struct io *of)
{
    (void)of;
    return 1;
}

void uring_futex(struct io *of, const uint32_t *word, uint32_t value, uint64_t data)
{
    struct bell_wait *wait = &waits[(uint32_t)data];

    (void)of;
    turns_pass(KERNEL_MAX);
    buffer_drain(&actors[DAEMON]);
    *wait = (struct bell_wait){.word = word, .data = data, .armed = 1};
    /* The kernel compares before it sleeps; with the mistake it is told the newest value. */
    wait->fired = mistake != DAEMON_READS_THE_BELL_TOO_LATE && *word != value;
}
