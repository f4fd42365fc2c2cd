/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.h - KV pages as integers: a free list and page tables. No device memory here.
 *
 * A page holds 64 positions of one sequence in every layer. Everything is taken at pages_new.
 * One thread only.
 */
#ifndef RUNTIME_KV_PAGE_H
#define RUNTIME_KV_PAGE_H

#include <stdint.h>

#define KV_PAGE 64u /* positions of a page */

struct page_pool;

int page_pool_new(struct page_pool **ret_pool, uint32_t n_pages); /* -ENOMEM, -EINVAL (0 pages) */
void page_pool_free(struct page_pool *pool);

uint32_t page_pool_total(const struct page_pool *pool);
uint32_t page_pool_used(const struct page_pool *pool); /* held in a page table */
uint32_t
page_pool_reserved(const struct page_pool *pool); /* promised to a reservation, not yet held */

/* Promise n pages to somebody: 0, or -ENOSPC when free - reserved < n. */
int page_reserve(struct page_pool *pool, uint32_t n);
void page_unreserve(struct page_pool *pool, uint32_t n);

/* Takes a page: from the caller's reservation (reserved goes down by one) or, with from_reserve 0,
 * from what nobody was promised: -ENOSPC when there is none. Lowest-numbered free page first is not
 * promised. */
int page_take(struct page_pool *pool, int from_reserve, uint32_t *ret_page);
void page_give(struct page_pool *pool,
               uint32_t page); /* asserts that it was taken: a double give is our own mistake */

/* Pages that n positions need. */
static inline uint32_t pages_for(uint32_t n_positions)
{
    return n_positions / KV_PAGE + (n_positions % KV_PAGE != 0);
}

#endif
