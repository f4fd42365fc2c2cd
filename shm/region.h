/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.h - the sealed memfds that two processes share, and where things lie in them.
 *
 * The owner of a region creates, populates and maps it, then seals it: from then on nobody can map
 * it writable, shrink, grow or punch it, so its bytes have one writer and a reader can never take
 * SIGBUS. The peer gets the descriptor, checks all of that itself and maps it read-only. Neither
 * mapping survives fork().
 *
 * The layout of R and T follows from the sizes that WELCOME grants; both sides compute it with the
 * same functions. A reader still validates the header that it got (a private copy of it) and uses
 * only that.
 */
#ifndef TKR_SHM_REGION_H
#define TKR_SHM_REGION_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "shm/abi.h"

struct tkr_region {
    void *base; /* NULL: not mapped */
    uint64_t bytes;
    int fd; /* owner only; -1 elsewhere and after tkr_region_close_fd() */
};

/* Identity of the file behind a descriptor, to find a region that is passed twice. */
struct tkr_region_id {
    dev_t dev;
    ino_t ino;
};

/* Why a peer's region was refused. */
struct tkr_region_fault {
    uint16_t reason; /* enum tkr_refusal */
    uint64_t have, want;
};

/* Sizes that R and T are laid out for; as in WELCOME. */
struct tkr_grant {
    uint64_t arena_len, bulk_len;
    uint32_t nsq, sq_log2, cq_log2, max_inflight;
    uint32_t colour;
};

/* A new region of zeros, mapped read-write, every page present; bytes is a multiple of TKR_PAGE.
 * -ENOMEM, -ENOSPC, -errno. */
int tkr_region_create(struct tkr_region *ret_region, uint64_t bytes);
/* After the owner filled it in; retries while the kernel migrates pages (-EBUSY after a second of
 * that). */
int tkr_region_seal(const struct tkr_region *region);
int tkr_region_id(const struct tkr_region *region, struct tkr_region_id *ret_id);

/* Seals, file system, exact size, no hole, in this order. 0, or -EPERM with *ret_fault filled in.
 * The descriptor stays the caller's. */
int tkr_region_check(int fd, uint64_t bytes, struct tkr_region_id *ret_id,
                     struct tkr_region_fault *ret_fault);
/* Maps a checked descriptor read-only; the descriptor may be closed afterwards. */
int tkr_region_map(struct tkr_region *ret_region, int fd, uint64_t bytes);
/* Unmaps and closes. A zeroed or closed region is allowed (fd 0 of a zeroed one is not touched when
 * base is NULL). */
void tkr_region_close(struct tkr_region *region);
void tkr_region_close_fd(struct tkr_region *region);

/* 0 or -EINVAL: a size outside the limits of abi.h. */
int tkr_grant_check(const struct tkr_grant *grant);
/* Fills in the whole header of R or T but for what is not layout (features, nonce, ids, limits):
 * these stay 0. */
void tkr_r_layout(struct tkr_r_header *ret_header, const struct tkr_grant *grant);
void tkr_t_layout(struct tkr_t_header *ret_header, const struct tkr_grant *grant);

/* Validates a private copy against the grant: 0, or -EINVAL with *ret_field naming the field that
 * is wrong. */
int tkr_r_check(const struct tkr_r_header *header, const struct tkr_grant *grant,
                const char **ret_field);
int tkr_t_check(const struct tkr_t_header *header, const struct tkr_grant *grant,
                const char **ret_field);

#endif
