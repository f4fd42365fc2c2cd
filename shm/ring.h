/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - queue of 64-byte slots in shared memory, one producer and one consumer.
 *
 * A slot carries its own sequence number: the slot at position p is ready when seq == p + 1, so one
 * cache line moves per message and the consumer never writes a slot. Each side keeps its position
 * here, in private memory. The producer learns from a position that the consumer publishes
 * elsewhere (sq_head in T, cq_head in R) how many slots it may write again. A hostile producer can
 * stall its consumer but cannot make it step outside the slots, and each of its bytes is read once;
 * a hostile consumer can only lose its own slots.
 *
 * The same code serves both queues: SQ (struct tkr_sqe, client to daemon) and CQ (struct tkr_cqe).
 */
#ifndef TKR_SHM_RING_H
#define TKR_SHM_RING_H

#include <errno.h>
#include "shm/abi.h"
#include "shm/atomic.h"

#define TKR_SLOT_WORDS 8u /* a slot as 8-byte words */

struct tkr_ring_out { /* the producer's end */
    uint64_t *slots;  /* shared, mask + 1 of 64 bytes */
    uint32_t mask;    /* number of slots - 1; the number is a power of two */
    uint32_t pos;     /* next position to put; runs freely over 2^32 */
    uint32_t head;    /* consumer's position as last accepted: older slots may be rewritten */
};

struct tkr_ring_in { /* the consumer's end */
    const uint64_t *slots;
    uint32_t mask;
    uint32_t pos; /* next position to take */
};

static inline void tkr_ring_out_init(struct tkr_ring_out *ring, void *slots, uint32_t log2)
{
    ring->slots = slots;
    ring->mask = (1u << log2) - 1;
    ring->pos = 0;
    ring->head = 0;
}

static inline void tkr_ring_in_init(struct tkr_ring_in *ring, const void *slots, uint32_t log2)
{
    ring->slots = slots;
    ring->mask = (1u << log2) - 1;
    ring->pos = 0;
}

/* Slots that may be put now, as far as known. */
static inline uint32_t tkr_ring_room(const struct tkr_ring_out *ring)
{
    return ring->mask + 1 - (ring->pos - ring->head);
}

/* Takes over the consumer's position. One that goes backwards or beyond what was put is a lie and
 * changes nothing. The caller loaded it with acquire, which pairs with the release in the
 * consumer's store: the consumer has read the slots before it gives them back. Returns the room. */
static inline uint32_t tkr_ring_credit(struct tkr_ring_out *ring, uint32_t consumer_pos)
{
    if (consumer_pos - ring->head <= ring->pos - ring->head)
        ring->head = consumer_pos;
    return tkr_ring_room(ring);
}

/* Puts 64 bytes; those of seq are replaced. The caller has seen tkr_ring_room() > 0. */
static inline void tkr_ring_put(struct tkr_ring_out *ring, const void *slot)
{
    uint64_t *to = ring->slots + (size_t)(ring->pos & ring->mask) * TKR_SLOT_WORDS;
    uint32_t *half = (uint32_t *)(void *)to;
    const uint8_t *from = slot;
    uint32_t second;

    memcpy(&second, from + 4, sizeof second);
    TKR_STORE_RELAXED(half + 1, second);
    for (uint32_t i = 1; i < TKR_SLOT_WORDS; i++) {
        uint64_t word;

        memcpy(&word, from + 8 * i, sizeof word);
        TKR_STORE_RELAXED(to + i, word);
    }
    ring->pos++;
    /* Release pairs with the acquire in tkr_ring_ready(): the payload is written before seq. */
    TKR_STORE_RELEASE(half, ring->pos);
}

static inline int tkr_ring_ready(const struct tkr_ring_in *ring)
{
    const uint64_t *from = ring->slots + (size_t)(ring->pos & ring->mask) * TKR_SLOT_WORDS;

    /* Acquire pairs with the release in tkr_ring_put(). */
    return TKR_LOAD_ACQUIRE((const uint32_t *)(const void *)from) == ring->pos + 1;
}

/* Copies the oldest unread slot to *ret_slot (64 bytes) and moves on. -EAGAIN: nothing to read. */
static inline int tkr_ring_take(struct tkr_ring_in *ring, void *ret_slot)
{
    const uint64_t *from = ring->slots + (size_t)(ring->pos & ring->mask) * TKR_SLOT_WORDS;
    const uint32_t *half = (const uint32_t *)(const void *)from;
    uint8_t *to = ret_slot;
    uint64_t word;

    if (!tkr_ring_ready(ring))
        return -EAGAIN;

    ring->pos++;
    /* Not seq again: every byte is read once. Word by word to its place: a detour through an array
     * would be read back in wider pieces than it was written, which stalls the processor. */
    word = (uint64_t)TKR_LOAD_RELAXED(half + 1) << 32 | ring->pos;
    memcpy(to, &word, sizeof word);
    for (uint32_t i = 1; i < TKR_SLOT_WORDS; i++) {
        word = TKR_LOAD_RELAXED(from + i);
        memcpy(to + 8 * i, &word, sizeof word);
    }
    return 0;
}

#endif
