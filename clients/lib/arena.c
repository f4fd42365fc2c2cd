/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/lib/arena.h"

#include <assert.h>

void arena_init(struct arena *arena, uint32_t bytes, struct arena_block *blocks, uint32_t n_blocks)
{
    assert(n_blocks >= 1 && bytes % ARENA_ALIGN == 0);
    *arena = (struct arena){.blocks = blocks, .n_blocks = n_blocks, .bytes = bytes};
    blocks[0] = (struct arena_block){.bytes = bytes, .prev = ARENA_NONE, .next = ARENA_NONE};
    arena->unused = n_blocks > 1 ? 1 : ARENA_NONE;
    for (uint32_t i = 1; i < n_blocks; i++)
        blocks[i].next = i + 1 < n_blocks ? i + 1 : ARENA_NONE;
}

/* Cuts what is beyond `bytes` off a free block. 0 when the pool is used up. */
static int block_split(struct arena *arena, uint32_t index, uint32_t bytes)
{
    struct arena_block *block = &arena->blocks[index];
    uint32_t rest = arena->unused;

    if (block->bytes == bytes)
        return 1;
    if (rest == ARENA_NONE)
        return 0;
    arena->unused = arena->blocks[rest].next;
    arena->blocks[rest] = (struct arena_block){
        .off = block->off + bytes,
        .bytes = block->bytes - bytes,
        .prev = index,
        .next = block->next,
    };
    if (block->next != ARENA_NONE)
        arena->blocks[block->next].prev = rest;
    block->next = rest;
    block->bytes = bytes;
    return 1;
}

uint32_t arena_take(struct arena *arena, uint64_t bytes)
{
    uint32_t index = arena->rover;
    uint32_t need;

    if (bytes > arena->bytes)
        return ARENA_NONE;
    /* A request of no bytes still gets a line, so that its address is its own. */
    need = bytes ? ((uint32_t)bytes + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1) : ARENA_ALIGN;

    do {
        struct arena_block *block = &arena->blocks[index];

        if (!block->taken && block->bytes >= need) {
            if (!block_split(arena, index, need))
                return ARENA_NONE;
            block->taken = 1;
            block->users = 0;
            arena->rover = block->next != ARENA_NONE ? block->next : 0;
            return index;
        }
        index = block->next != ARENA_NONE ? block->next : 0;
    } while (index != arena->rover);
    return ARENA_NONE;
}

/* Joins `index` and the block after it into one. */
static void block_merge_next(struct arena *arena, uint32_t index)
{
    struct arena_block *block = &arena->blocks[index];
    uint32_t gone = block->next;

    block->bytes += arena->blocks[gone].bytes;
    block->next = arena->blocks[gone].next;
    if (block->next != ARENA_NONE)
        arena->blocks[block->next].prev = index;
    if (arena->rover == gone)
        arena->rover = index;
    arena->blocks[gone].taken = 0;
    arena->blocks[gone].next = arena->unused;
    arena->unused = gone;
}

void arena_give(struct arena *arena, uint32_t index)
{
    struct arena_block *block = &arena->blocks[index];

    assert(index < arena->n_blocks && block->taken);
    block->taken = 0;
    if (block->next != ARENA_NONE && !arena->blocks[block->next].taken)
        block_merge_next(arena, index);
    /* Block 0 has offset 0 for ever: it has no predecessor and is never merged away. */
    if (block->prev != ARENA_NONE && !arena->blocks[block->prev].taken)
        block_merge_next(arena, block->prev);
}

uint32_t arena_find(const struct arena *arena, uint64_t off, uint64_t bytes)
{
    for (uint32_t i = 0; i != ARENA_NONE; i = arena->blocks[i].next) {
        const struct arena_block *block = &arena->blocks[i];

        if (off < block->off || off - block->off >= block->bytes)
            continue;
        if (!block->taken || bytes > block->bytes - (off - block->off))
            return ARENA_NONE;
        return i;
    }
    return ARENA_NONE;
}
