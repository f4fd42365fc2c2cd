/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/best.h"

#include <math.h>
#include <string.h>
#include "kernels/cpu_kernels.h"

/* Up to here a heap orders faster than a radix sort, whose time for few is that of its tables. */
#define HEAP_MAX   128u
#define RADIX_BITS 11
#define RADIX      (1u << RADIX_BITS)

/* More than a logit of each block is wanted: so often the bound is lowered, then it is none. */
#define LOWERED_MAX 6

static uint64_t key_of(float logit, uint32_t id)
{
    float plain = logit + 0.0f; /* -0 and 0 are equal logits */
    uint32_t bits;

    memcpy(&bits, &plain, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

static uint32_t n_blocks(const struct logit_row *row)
{
    return (row->n_vocab + KERN_TOP - 1) / KERN_TOP;
}

static uint32_t block_end(const struct logit_row *row, uint32_t begin)
{
    return row->n_vocab - begin < KERN_TOP ? row->n_vocab : begin + KERN_TOP;
}

uint32_t best_one(const struct logit_row *row)
{
    uint32_t block = 0, id;

    for (uint32_t b = 1; b < n_blocks(row); b++)
        block = row->block_max[b] > row->block_max[block] ? b : block;
    for (id = block * KERN_TOP; row->logits[id] != row->block_max[block]; id++)
        ;
    return id;
}

void best_gather(struct best *best, const struct logit_row *row, float least)
{
    best->n = 0;
    for (uint32_t b = 0; b < n_blocks(row); b++) {
        uint32_t begin = b * KERN_TOP, end = block_end(row, begin), found[KERN_TOP], n = 0;

        if (row->block_max[b] < least)
            continue;
        /* No branch: which logits of a block are among the best cannot be predicted. */
        for (uint32_t id = begin; id < end; id++) {
            found[n] = id;
            n += row->logits[id] >= least;
        }
        for (uint32_t i = 0; i < n; i++)
            best->cand[best->n++] = key_of(row->logits[found[i]], found[i]);
    }
}

/* heap[0] is the smallest; the value at i has moved there and may be too large for its place. */
static void heap_sift(uint64_t *heap, uint32_t n, uint32_t i)
{
    uint64_t value = heap[i];

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (value <= heap[child])
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = value;
}

static void heap_make(uint64_t *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        heap_sift(heap, n, i);
}

static void order_by_heap(uint64_t *heap, uint32_t n)
{
    heap_make(heap, n);
    for (uint32_t left = n; left-- > 1;) {
        uint64_t least = heap[0];

        heap[0] = heap[left];
        heap_sift(heap, left, 0);
        heap[left] = least;
    }
}

/* A stable sort by the logit's 32 bits; ids were gathered in ascending order. */
static void order_by_radix(struct best *best)
{
    uint64_t *from = best->cand, *to = best->spare;

    for (int shift = 32; shift < 64; shift += RADIX_BITS) {
        uint32_t place[RADIX] = {0};
        uint32_t sum = 0;
        uint64_t *swap;

        for (uint32_t i = 0; i < best->n; i++)
            place[from[i] >> shift & (RADIX - 1)]++;
        for (uint32_t digit = RADIX; digit-- > 0;) {
            uint32_t count = place[digit];

            place[digit] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < best->n; i++)
            to[place[from[i] >> shift & (RADIX - 1)]++] = from[i];
        swap = from;
        from = to;
        to = swap;
    }
    best->cand = from;
    best->spare = to;
}

void best_order(struct best *best)
{
    if (best->n <= HEAP_MAX)
        order_by_heap(best->cand, best->n);
    else
        order_by_radix(best);
}

/* The k-th largest of the blocks' maxima, k <= their number: k logits at least are not below it. */
static float block_bound(uint64_t *heap, const struct logit_row *row, uint32_t k)
{
    float floor_max;

    for (uint32_t b = 0; b < k; b++)
        heap[b] = key_of(row->block_max[b], b);
    heap_make(heap, k);
    floor_max = row->block_max[best_id(heap[0])];
    for (uint32_t b = k; b < n_blocks(row); b++) {
        if (row->block_max[b] <= floor_max)
            continue;
        heap[0] = key_of(row->block_max[b], b);
        heap_sift(heap, k, 0);
        floor_max = row->block_max[best_id(heap[0])];
    }
    return floor_max;
}

void best_first(struct best *best, const struct logit_row *row, uint32_t k)
{
    uint32_t blocks = k <= n_blocks(row) ? k : (n_blocks(row) + 1) / 2;
    float least = block_bound(best->spare, row, blocks), largest = row->logits[best_one(row)];

    best_gather(best, row, least);
    for (int i = 0; best->n < k; i++) {
        least = i < LOWERED_MAX ? least - (largest - least) : -INFINITY;
        best_gather(best, row, least);
    }
    best_order(best);
    best->n = k;
}
