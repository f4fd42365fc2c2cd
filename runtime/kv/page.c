/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/page.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct page_pool {
    uint32_t total;
    uint32_t n_free;
    uint32_t reserved; /* <= n_free */
    uint32_t *free; /* [total], n_free of them; a stack, so that the page given last, still in the
                       cache, goes first */
    uint8_t *taken; /* [total] */
};

int page_pool_new(struct page_pool **ret_pool, uint32_t n_pages)
{
    struct page_pool *pool;

    if (n_pages == 0)
        return -EINVAL;
    pool = calloc(1, sizeof *pool);
    if (!pool)
        return -ENOMEM;
    pool->free = calloc(n_pages, sizeof *pool->free);
    pool->taken = calloc(n_pages, sizeof *pool->taken);
    if (!pool->free || !pool->taken) {
        page_pool_free(pool);
        return -ENOMEM;
    }
    pool->total = pool->n_free = n_pages;
    for (uint32_t i = 0; i < n_pages; i++)
        pool->free[i] = n_pages - 1 - i;
    *ret_pool = pool;
    return 0;
}

void page_pool_free(struct page_pool *pool)
{
    if (!pool)
        return;
    free(pool->taken);
    free(pool->free);
    free(pool);
}

uint32_t page_pool_total(const struct page_pool *pool)
{
    return pool->total;
}

uint32_t page_pool_used(const struct page_pool *pool)
{
    return pool->total - pool->n_free;
}

uint32_t page_pool_reserved(const struct page_pool *pool)
{
    return pool->reserved;
}

int page_reserve(struct page_pool *pool, uint32_t n)
{
    if (pool->n_free - pool->reserved < n)
        return -ENOSPC;
    pool->reserved += n;
    return 0;
}

void page_unreserve(struct page_pool *pool, uint32_t n)
{
    assert(n <= pool->reserved);
    pool->reserved -= n;
}

int page_take(struct page_pool *pool, int from_reserve, uint32_t *ret_page)
{
    uint32_t page;

    if (from_reserve) {
        assert(pool->reserved > 0);
        pool->reserved--;
    } else if (pool->n_free == pool->reserved) {
        return -ENOSPC;
    }
    page = pool->free[--pool->n_free];
    pool->taken[page] = 1;
    *ret_page = page;
    return 0;
}

void page_give(struct page_pool *pool, uint32_t page)
{
    assert(page < pool->total && pool->taken[page]);
    pool->taken[page] = 0;
    pool->free[pool->n_free++] = page;
}
