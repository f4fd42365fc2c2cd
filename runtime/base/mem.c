/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/mem.h"

#include <errno.h>
#include <numa.h>
#include <stdint.h>
#include <sys/mman.h>

#define HUGE ((size_t)2 << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

static size_t mapped_bytes(size_t bytes)
{
    size_t align = bytes >= HUGE ? HUGE : 4096;

    return (bytes + align - 1) / align * align;
}

unsigned mem_nodes(void)
{
    int nodes = numa_available() < 0 ? 1 : numa_num_task_nodes();

    return nodes > 1 ? (unsigned)nodes : 1;
}

static uint64_t wanted_nodes; /* set at start, before other threads map anything; 0: all */

void mem_set_nodes(uint64_t nodes)
{
    wanted_nodes = nodes;
}

/* Without those that this process may not allocate on; all when none is left. */
static void interleave(void *ptr, size_t bytes)
{
    struct bitmask *nodes = numa_allocate_nodemask();
    unsigned n = 0;

    for (unsigned i = 0; nodes && i < 64; i++) {
        if (!(wanted_nodes >> i & 1) || !numa_bitmask_isbitset(numa_all_nodes_ptr, i))
            continue;
        numa_bitmask_setbit(nodes, i);
        n++;
    }
    numa_interleave_memory(ptr, bytes, n ? nodes : numa_all_nodes_ptr);
    if (nodes)
        numa_bitmask_free(nodes);
}

/* mapped_bytes(bytes) of address space, aligned to 2 MiB when there are so many. */
static uint8_t *map_aligned(size_t bytes, int protection)
{
    size_t want = mapped_bytes(bytes);
    size_t slack = want >= HUGE ? HUGE : 0;
    uint8_t *p =
        mmap(NULL, want + slack, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t head;

    if (p == MAP_FAILED)
        return NULL;
    if (!slack)
        return p;
    /* Give back what lies outside the aligned part, so that mem_unmap() needs no second address. */
    head = (HUGE - (uintptr_t)p % HUGE) % HUGE;
    if (head)
        munmap(p, head);
    if (slack - head)
        munmap(p + head + want, slack - head);
    return p + head;
}

static void *map(size_t bytes, int advice)
{
    size_t want = mapped_bytes(bytes ? bytes : 1);
    uint8_t *p = map_aligned(want, PROT_READ | PROT_WRITE);

    if (!p || want < HUGE)
        return p;
    madvise(p, want, advice);
    if (mem_nodes() > 1)
        interleave(p, want);
    return p;
}

void *mem_map(size_t bytes)
{
    return map(bytes, MADV_HUGEPAGE);
}

void *mem_map_small(size_t bytes)
{
    return map(bytes, MADV_NOHUGEPAGE);
}

void *mem_map_file(int fd, size_t bytes)
{
    uint8_t *p = bytes ? map_aligned(bytes, PROT_NONE) : NULL;

    if (!p)
        return NULL;
    if (mmap(p, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        mem_unmap(p, bytes);
        return NULL;
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void mem_gather(const void *ptr, size_t bytes)
{
    madvise((void *)(uintptr_t)ptr, bytes, MADV_COLLAPSE); /* or they stay as they are */
}

void mem_unmap(void *ptr, size_t bytes)
{
    if (ptr)
        munmap(ptr, mapped_bytes(bytes ? bytes : 1));
}

int mem_touch(void *ptr, size_t bytes)
{
    return madvise(ptr, mapped_bytes(bytes ? bytes : 1), MADV_POPULATE_WRITE) < 0 ? -errno : 0;
}

int mem_populate(void *ptr, size_t bytes)
{
    int err = mem_touch(ptr, bytes);

    if (err < 0)
        return err;
    return mlock(ptr, mapped_bytes(bytes ? bytes : 1)) < 0 ? -errno : 0;
}
