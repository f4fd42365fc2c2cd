/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - wakes clients that sleep.
 *
 * One futex_wake with a sleeper on another core costs the caller about ten microseconds, so the
 * thread that leads the engine makes none for clients while steps run: it hands the futex words to
 * the waker thread through a private queue and rings that thread at most once a pass, and only when
 * some client really sleeps. The waker does not spin between wakes: on a host with two cores a
 * spinning waker would steal the core that the engine or a client computes on. An idle ring thread
 * wakes clients itself, since a sleeping waker would only add a hop.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include "runtime/io/state.h"

struct wake {
    const uint32_t *word;     /* NULL: by socket */
    struct io_client *client; /* by socket: held, so that its descriptor is not another's by then */
};

struct waker {
    pthread_t thread;
    uint32_t mask;
    struct wake *wakes;         /* [mask + 1] */
    _Alignas(64) uint32_t tail; /* written by the ring thread */
    uint32_t bell;              /* futex word the waker sleeps on; written by the ring thread */
    uint32_t stop;
    _Alignas(64) uint32_t head; /* written by the waker */
    uint32_t asleep;            /* written by the waker */
};

static void wake_now(const struct wake *wake)
{
    if (wake->word) {
        tkr_futex_wake(wake->word, 1);
    } else {
        tkr_doorbell_send(wake->client->socket);
        io_client_unref(wake->client);
    }
}

static void *waker_run(void *arg)
{
    struct waker *w = arg;
    uint32_t head = 0;

    for (;;) {
        /* Acquire pairs with the release in waker_ring(). */
        uint32_t bell = __atomic_load_n(&w->bell, __ATOMIC_ACQUIRE);

        /* Acquire pairs with the release in waker_put(): the word is written before tail. */
        while (head != __atomic_load_n(&w->tail, __ATOMIC_ACQUIRE)) {
            wake_now(&w->wakes[head & w->mask]);
            head++;
            /* Release pairs with the acquire in waker_put(): the entry was read before it is
             * written again. */
            __atomic_store_n(&w->head, head, __ATOMIC_RELEASE);
        }
        if (__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE))
            return NULL;
        /* Sequentially consistent, as are their partners in waker_ring(): asleep before the last
         * look at tail. */
        __atomic_store_n(&w->asleep, 1, __ATOMIC_SEQ_CST);
        if (head == __atomic_load_n(&w->tail, __ATOMIC_SEQ_CST))
            tkr_futex_wait(&w->bell, bell, -1);
        __atomic_store_n(&w->asleep, 0, __ATOMIC_SEQ_CST);
    }
}

int waker_new(struct waker **ret_waker, uint32_t clients_max)
{
    struct waker *w = aligned_alloc(64, sizeof *w);
    sigset_t all, old;
    uint32_t n = 2;
    int err;

    if (!w)
        return -ENOMEM;
    *w = (struct waker){.mask = 0};
    while (n < clients_max)
        n *= 2;
    w->mask = n - 1;
    w->wakes = calloc(n, sizeof *w->wakes);
    if (!w->wakes) {
        free(w);
        return -ENOMEM;
    }
    /* Signals are for the main thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&w->thread, NULL, waker_run, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        free(w->wakes);
        free(w);
        return -err;
    }
    *ret_waker = w;
    return 0;
}

void waker_free(struct waker *waker)
{
    if (!waker)
        return;
    __atomic_store_n(&waker->stop, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&waker->bell, 1, __ATOMIC_SEQ_CST);
    tkr_futex_wake(&waker->bell, 1);
    pthread_join(waker->thread, NULL);
    free(waker->wakes);
    free(waker);
}

int waker_put(struct waker *waker, const uint32_t *word, struct io_client *client)
{
    uint32_t tail = waker->tail;

    /* Acquire pairs with the release of head in waker_run(). */
    if (tail - __atomic_load_n(&waker->head, __ATOMIC_ACQUIRE) > waker->mask)
        return -EAGAIN;
    if (!word)
        io_client_ref(client);
    waker->wakes[tail & waker->mask] = (struct wake){word, client};
    /* Release pairs with the acquire of tail in waker_run(). */
    __atomic_store_n(&waker->tail, tail + 1, __ATOMIC_SEQ_CST);
    return 0;
}

void waker_ring(struct waker *waker)
{
    if (!__atomic_load_n(&waker->asleep, __ATOMIC_SEQ_CST))
        return;
    __atomic_fetch_add(&waker->bell, 1, __ATOMIC_RELEASE);
    tkr_futex_wake(&waker->bell, 1);
}

/* After the fence: what of this client wants to be woken. */
static void notify_client(struct io_client *client)
{
    uint64_t wait = TKR_LOAD_RELAXED(client->wait);

    if (!tkr_wait_due(wait, client->cq.pos)) {
        client->wait_served = 0;
    } else if (wait != client->wait_served) {
        /* Once for each wait: its client sees the slot when it looks again and needs no second. */
        client->wait_served = wait;
        /* Before the wake is queued, so that a client on its way to sleep finds the word changed.
         * Release pairs with the acquire of cq_bell in the client's wait. */
        TKR_STORE_RELEASE(client->cq_bell, ++client->cq_bell_value);
        client->due |= wait & TKR_WAIT_BY_SOCKET ? IO_DUE_SOCKET : IO_DUE_BELL;
    }
    for (uint32_t q = 0; client->took >> q; q++)
        if (client->took >> q & 1 && TKR_LOAD_RELAXED(client->queue[q].sq_wait))
            client->due |= (uint16_t)(1u << q);
    client->took = 0;
    if (client->due)
        set_add(client->io, IO_SET_DUE, client);
}

void notify_touched(struct io *io)
{
    /* Store-load, one for all clients of this pass: a client stores wait, then looks at its CQ once
     * more; it stores sq_wait, then looks at sq_head once more. */
    tkr_fence();
    while (io->n_set[IO_SET_TOUCHED]) {
        struct io_client *client = io->set[IO_SET_TOUCHED][io->n_set[IO_SET_TOUCHED] - 1];

        set_remove(io, IO_SET_TOUCHED, client);
        notify_client(client);
    }
}

static const uint32_t *due_word(const struct io_client *client, uint32_t bit)
{
    return bit == IO_DUE_SOCKET ? NULL
           : bit == IO_DUE_BELL ? client->cq_bell
                                : client->queue[__builtin_ctz(bit)].sq_head;
}

void notify_due(struct io *io, int through_waker)
{
    while (io->n_set[IO_SET_DUE]) {
        struct io_client *client = io->set[IO_SET_DUE][io->n_set[IO_SET_DUE] - 1];

        while (client->due) {
            uint32_t bit = client->due & -(uint32_t)client->due;
            const uint32_t *word = due_word(client, bit);

            if (through_waker && waker_put(io->waker, word, client) < 0) {
                waker_ring(io->waker);
                return;
            }
            if (!through_waker && word)
                tkr_futex_wake(word, 1);
            else if (!through_waker)
                tkr_doorbell_send(client->socket);
            client->due &= (uint16_t)~bit;
            io->counts.wakes++;
        }
        set_remove(io, IO_SET_DUE, client);
    }
    if (through_waker)
        waker_ring(io->waker);
}
