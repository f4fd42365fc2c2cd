/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - which bytes of the request arena are in use. Knows offsets only, touches no shared
 * byte.
 *
 * The daemon never learns of this book-keeping; it lives in the client's private memory, in a fixed
 * pool of blocks that cover the arena without gaps, in order of their offsets. Taking is next fit
 * (requests come and go in about the same order, so the search is short), giving merges with free
 * neighbours. No allocation after arena_init().
 */
#ifndef CLIENTS_LIB_ARENA_H
#define CLIENTS_LIB_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGN 64u /* a cache line: two requests never share one */
#define ARENA_NONE  UINT32_MAX

struct arena_block {
    uint32_t off, bytes;
    uint32_t prev, next; /* neighbours by offset; next also links the pool's unused entries */
    uint32_t users;      /* requests that use it */
    uint8_t taken;
};

struct arena {
    struct arena_block *blocks; /* n_blocks, the caller's memory */
    uint32_t n_blocks;
    uint32_t unused; /* list of pool entries that name no block */
    uint32_t rover;  /* where the next search starts */
    uint32_t bytes;
};

/* bytes is a multiple of ARENA_ALIGN; blocks[n_blocks] must outlive the arena. */
void arena_init(struct arena *arena, uint32_t bytes, struct arena_block *blocks, uint32_t n_blocks);

/* Index of a block of at least `bytes` bytes, aligned; ARENA_NONE: no room, or no pool entry left. */
uint32_t arena_take(struct arena *arena, uint64_t bytes);
void arena_give(struct arena *arena, uint32_t index);

/* The taken block that holds all of [off, off + bytes), or ARENA_NONE. */
uint32_t arena_find(const struct arena *arena, uint64_t off, uint64_t bytes);

#endif
