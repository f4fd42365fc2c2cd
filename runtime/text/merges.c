/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/merges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int merges_init(struct merges *m, uint32_t n, uint64_t seed)
{
    uint32_t n_slots = 16;

    while (n_slots / 2 < n)
        n_slots *= 2;
    m->slots = malloc(n_slots * sizeof *m->slots);
    if (!m->slots)
        return -ENOMEM;
    memset(m->slots, 0xff, n_slots * sizeof *m->slots); /* every rank is MERGE_NONE */
    m->mask = n_slots - 1;
    m->seed = seed;
    return 0;
}

void merges_fini(struct merges *m)
{
    free(m->slots);
}

int merges_add(struct merges *m, const struct merge *merge)
{
    struct merge *slot = merges_slot(m, merge->left, merge->right);

    if (slot->rank != MERGE_NONE)
        return -EEXIST;
    *slot = *merge;
    return 0;
}
