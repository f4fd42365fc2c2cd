/* SPDX-License-Identifier: Apache-2.0 */
/*
 * atomic.h - the only way to touch a byte that another process may change.
 *
 * Regions are mapped by two processes that do not trust each other, so a compiler must neither read
 * a peer's word twice nor tear it: every access is one atomic operation of 1, 4 or 8 bytes. Each
 * call site names its partner. A build with TKR_LOAD_HOOK (the fuzzer) calls tkr_load_hook() before
 * each load, where it may change the bytes: a second read of the same byte then shows.
 */
#ifndef TKR_SHM_ATOMIC_H
#define TKR_SHM_ATOMIC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef TKR_LOAD_HOOK
void tkr_load_hook(const void *ptr, size_t bytes);
#define TKR_LOAD(ptr, order) (tkr_load_hook((ptr), sizeof *(ptr)), __atomic_load_n((ptr), (order)))
#else
#define TKR_LOAD(ptr, order) __atomic_load_n((ptr), (order))
#endif

#define TKR_LOAD_RELAXED(ptr)         TKR_LOAD((ptr), __ATOMIC_RELAXED)
#define TKR_LOAD_ACQUIRE(ptr)         TKR_LOAD((ptr), __ATOMIC_ACQUIRE)
#define TKR_STORE_RELAXED(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_RELAXED)
#define TKR_STORE_RELEASE(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_RELEASE)

/* Full fence, store before load: between "I published" and "is the peer asleep?", on both sides. */
static inline void tkr_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* In a spin loop: lets the other hyper-thread run and ends the loop without a pipeline flush. */
static inline void tkr_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Fetches the line for writing: its copy in the peer's cache is gone when the store comes. The
 * builtin fetches for reading unless the compiler may assume PREFETCHW; a CPU without it does
 * nothing. */
static inline void tkr_prefetch_write(const void *ptr)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)ptr));
#else
    __builtin_prefetch(ptr, 1);
#endif
}

/* Copies bytes that a peer may be changing, each read exactly once. dst is private memory. */
static inline void tkr_copy_once(void *dst, const void *src, size_t bytes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;

    while (bytes && ((uintptr_t)from & 7)) {
        *to++ = TKR_LOAD_RELAXED(from);
        from++;
        bytes--;
    }
    for (; bytes >= 8; bytes -= 8, from += 8, to += 8) {
        uint64_t word = TKR_LOAD_RELAXED((const uint64_t *)(const void *)from);

        memcpy(to, &word, sizeof word);
    }
    for (; bytes; bytes--) {
        *to++ = TKR_LOAD_RELAXED(from);
        from++;
    }
}

#endif
