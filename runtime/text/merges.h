/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merges.h - the byte-pair merges of a vocabulary: (left id, right id) -> (rank, result id).
 *
 * A hash table with open addressing, at most half full, written at load and only read afterwards.
 * The seed is random for each table, so that no file can be made whose pairs all fall together.
 * Rank 0 is merged first.
 */
#ifndef RUNTIME_TEXT_MERGES_H
#define RUNTIME_TEXT_MERGES_H

#include <stdint.h>

#define MERGE_NONE UINT32_MAX /* a rank that no merge has */

struct merge {
    uint32_t left, right;
    uint32_t rank; /* MERGE_NONE: an empty slot */
    uint32_t result;
};

struct merges {
    struct merge *slots;
    uint32_t mask; /* number of slots - 1; the number is a power of two */
    uint64_t seed;
};

/* Room for n merges: 0, -ENOMEM. */
int merges_init(struct merges *m, uint32_t n, uint64_t seed);
void merges_fini(struct merges *m);

/* -EEXIST: the pair has a rank already. */
int merges_add(struct merges *m, const struct merge *merge);

/* The slot of the pair, or the empty one where it would be. */
static inline struct merge *merges_slot(const struct merges *m, uint32_t left, uint32_t right)
{
    /* 2^64 divided by the golden ratio: the high bits of the product depend on all bits of the
     * pair. */
    uint64_t hash = (((uint64_t)left << 32 | right) ^ m->seed) * 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(hash >> 32) & m->mask;
    struct merge *slot = &m->slots[at];

    while (slot->rank != MERGE_NONE && (slot->left != left || slot->right != right)) {
        at = (at + 1) & m->mask;
        slot = &m->slots[at];
    }
    return slot;
}

#endif
