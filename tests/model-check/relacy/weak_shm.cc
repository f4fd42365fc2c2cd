/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weak_shm.cc - shm/ring.h and shm/doorbell.h themselves under the memory model of C++11 (Relacy).
 *
 *   weak_shm TEST MISTAKE ITERATIONS      prints `held`, or `caught: REASON`
 *
 * Words that carry order are simulated atomics. The payload of a slot is simulated as plain memory,
 * so that any missing order shows as a data race. The futex is a lock and a condition variable,
 * which order less than the kernel's does. A mistake weakens one access on its way to the simulated
 * word; the code under test stays what it is.
 */
#include <relacy/relacy.hpp>
/* Relacy's own names for these would reach the C headers below. */
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef new
#undef delete
#undef assert
#define EAGAIN 11
#include "shm/doorbell.h"
#include <stdio.h>

enum mistake {
    NOTHING,
    RELAXED_PUBLISH,
    RELAXED_READY,
    RELAXED_CREDIT,
    RELAXED_CREDIT_LOAD,
    NO_FENCE_FIRST, /* of thread 0: the client that rings, the daemon that publishes */
    NO_FENCE_SECOND /* of thread 1: who goes to sleep */
};
static enum mistake mistake;

static const uint32_t LOG2 = 1, SLOTS = 1u << LOG2, LINES = 4;
static const uint64_t SEED = 0x0123456789abcdefull;

/* The memory that the code sees, and by the same offset the words that stand for it. */
static const size_t HEAD = 128, BELL = 132, NEED = 136, WAIT = 144, BYTES = 152;
static union {
    uint64_t words[BYTES / 8];
    uint8_t bytes[BYTES];
} memory;

struct machine {
    rl::atomic<uint64_t> atoms[BYTES / 4];
    rl::var<uint64_t> plain[BYTES / 4];
    rl::mutex lock;
    rl::condition_variable_any sleepers;

    void start()
    {
        for (size_t i = 0; i < BYTES / 4; i++)
            atoms[i].store(0, rl::mo_relaxed, $);
    }
};
static machine *now;

template <typename T> static T *at(size_t offset)
{
    return (T *)(void *)(memory.bytes + offset);
}

static size_t offset_of(const void *ptr)
{
    return (size_t)((const uint8_t *)ptr - memory.bytes);
}

static bool is_slot(size_t offset)
{
    return offset < HEAD;
}

static bool is_seq(size_t offset)
{
    return is_slot(offset) && offset % TKR_LINE == 0;
}

uint64_t weak_load(const void *ptr, enum weak_order order)
{
    size_t offset = offset_of(ptr);

    if (is_slot(offset) && !is_seq(offset))
        return (uint64_t)now->plain[offset / 4]($);
    if ((mistake == RELAXED_READY && is_seq(offset)) ||
        (mistake == RELAXED_CREDIT_LOAD && offset == HEAD))
        order = WEAK_RELAXED;
    return now->atoms[offset / 4].load(order == WEAK_ACQUIRE ? rl::mo_acquire : rl::mo_relaxed, $);
}

void weak_store(void *ptr, uint64_t value, enum weak_order order)
{
    size_t offset = offset_of(ptr);

    if (is_slot(offset) && !is_seq(offset)) {
        now->plain[offset / 4]($) = value;
        return;
    }
    if ((mistake == RELAXED_PUBLISH && is_seq(offset)) ||
        (mistake == RELAXED_CREDIT && offset == HEAD))
        order = WEAK_RELAXED;
    now->atoms[offset / 4].store(value, order == WEAK_RELEASE ? rl::mo_release : rl::mo_relaxed, $);
}

void weak_fence(void)
{
    if (mistake == (rl::ctx().current_thread() ? NO_FENCE_SECOND : NO_FENCE_FIRST))
        return;
    rl::atomic_thread_fence(rl::mo_seq_cst, $);
}

int tkr_futex_wait(const uint32_t *word, uint32_t value, int64_t)
{
    now->lock.lock($);
    if (now->atoms[offset_of(word) / 4].load(rl::mo_relaxed, $) == value)
        now->sleepers.wait(now->lock, $);
    now->lock.unlock($);
    return 0;
}

int tkr_futex_wake(const uint32_t *, int)
{
    now->lock.lock($);
    now->sleepers.notify_one($);
    now->lock.unlock($);
    return 1;
}

/* ---- both ends of a queue -------------------------------------------------------------------- */

static void put_line(struct tkr_ring_out *ring)
{
    uint64_t line[TKR_SLOT_WORDS];

    for (uint32_t i = 0; i < TKR_SLOT_WORDS; i++)
        line[i] = SEED * (ring->pos + 1) + i;
    tkr_ring_put(ring, line);
}

/* 1: a line came, and it was the next one, whole. */
static int take_line(struct tkr_ring_in *ring)
{
    uint64_t line[TKR_SLOT_WORDS];
    uint64_t expected = SEED * (ring->pos + 1);

    if (tkr_ring_take(ring, line) < 0)
        return 0;
    RL_ASSERT((uint32_t)line[0] == ring->pos);
    RL_ASSERT(line[0] >> 32 == expected >> 32);
    for (uint32_t i = 1; i < TKR_SLOT_WORDS; i++)
        RL_ASSERT(line[i] == expected + i);
    return 1;
}

struct queue_test {
    machine shared;
    struct tkr_ring_out out;
    struct tkr_ring_in in;

    void start()
    {
        now = &shared;
        shared.start();
        tkr_ring_out_init(&out, memory.bytes, LOG2);
        tkr_ring_in_init(&in, memory.bytes, LOG2);
    }

    void put_all()
    {
        while (out.pos < LINES) {
            if (tkr_ring_room(&out) || tkr_ring_credit(&out, TKR_LOAD_ACQUIRE(at<uint32_t>(HEAD))))
                put_line(&out);
            else
                rl::yield(1, $);
        }
    }
};

/* A producer and a consumer that poll; the queue has two slots, so each is used twice. */
struct ring_test : rl::test_suite<ring_test, 2>, queue_test {
    void before() { start(); }

    void thread(unsigned index)
    {
        if (!index) {
            put_all();
            return;
        }
        while (in.pos < LINES) {
            if (take_line(&in))
                TKR_STORE_RELEASE(at<uint32_t>(HEAD), in.pos);
            else
                rl::yield(1, $);
        }
    }
};

/* A client that rings and a daemon that parks whenever its queue is empty. */
struct bell_test : rl::test_suite<bell_test, 2>, queue_test {
    void before() { start(); }

    void thread(unsigned index)
    {
        if (!index) {
            for (uint32_t i = 0; i < SLOTS; i++) {
                put_line(&out);
                tkr_doorbell_ring(at<uint32_t>(BELL), at<uint32_t>(NEED));
            }
            return;
        }
        while (in.pos < SLOTS) {
            uint32_t value;

            if (take_line(&in))
                continue;
            if (!tkr_doorbell_park(at<uint32_t>(BELL), at<uint32_t>(NEED), &in, &value))
                continue;
            tkr_futex_wait(at<uint32_t>(BELL), value, -1);
            TKR_STORE_RELAXED(at<uint32_t>(NEED), 0);
        }
    }
};

/*
 * The other way: a daemon that publishes and a client that sleeps. The order of the steps is
 * written down again here, after notify_touched() in runtime/io/notify.c and doze() in
 * clients/lib/events.c, which stand among system calls; ring and tkr_wait_due() are the real ones.
 */
struct wait_test : rl::test_suite<wait_test, 2>, queue_test {
    void before() { start(); }

    void thread(unsigned index)
    {
        uint32_t bell = 0;

        if (!index) {
            for (uint32_t i = 0; i < SLOTS; i++) {
                put_line(&out);
                tkr_fence();
                if (!tkr_wait_due(TKR_LOAD_RELAXED(at<uint64_t>(WAIT)), out.pos))
                    continue;
                TKR_STORE_RELEASE(at<uint32_t>(BELL), ++bell);
                tkr_futex_wake(at<uint32_t>(BELL), 1);
            }
            return;
        }
        while (in.pos < SLOTS) {
            if (take_line(&in))
                continue;
            bell = TKR_LOAD_ACQUIRE(at<uint32_t>(BELL));
            TKR_STORE_RELAXED(at<uint64_t>(WAIT), TKR_WAIT_ASLEEP | (uint32_t)(in.pos + 1));
            tkr_fence();
            if (!tkr_ring_ready(&in))
                tkr_futex_wait(at<uint32_t>(BELL), bell, -1);
            TKR_STORE_RELAXED(at<uint64_t>(WAIT), 0);
        }
    }
};

template <typename T> static int search(unsigned long iterations)
{
    std::ostringstream output;
    rl::test_params params;

    params.iteration_count = iterations;
    params.search_type = rl::random_scheduler_type;
    params.output_stream = &output;
    params.progress_stream = &output;
    params.execution_depth_limit = 4000;
    if (rl::simulate<T>(params)) {
        printf("held\n");
        return 0;
    }
    printf("caught: %s (iteration %lu)\n%s\n", rl::test_result_str(params.test_result),
           (unsigned long)params.stop_iteration, output.str().c_str());
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"NOTHING",        "RELAXED_PUBLISH",     "RELAXED_READY",
                                        "RELAXED_CREDIT", "RELAXED_CREDIT_LOAD", "NO_FENCE_FIRST",
                                        "NO_FENCE_SECOND"};
    unsigned long iterations = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;

    for (size_t i = 0; argc == 4 && i < sizeof names / sizeof *names; i++) {
        if (strcmp(argv[2], names[i]))
            continue;
        mistake = (enum mistake)i;
        if (!strcmp(argv[1], "ring"))
            return search<ring_test>(iterations);
        if (!strcmp(argv[1], "bell"))
            return search<bell_test>(iterations);
        if (!strcmp(argv[1], "wait"))
            return search<wait_test>(iterations);
    }
    fprintf(stderr, "usage: weak_shm ring|bell|wait MISTAKE ITERATIONS\n");
    return 2;
}
