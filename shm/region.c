/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Newer than Debian 12's headers, or hidden by them. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
TKR_ABI_ASSERT((F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == TKR_SEALS_MUST);

#define SEAL_TRIES 1000 /* of about a millisecond */

static int region_memfd(void)
{
    int fd = memfd_create("tokenring", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("tokenring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

/* Every page present and up to date, which is what SEEK_HOLE will prove to the peer. */
static int region_populate(void *base, uint64_t bytes)
{
    if (!madvise(base, bytes, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL)
        return -errno;
    memset(base, 0, bytes); /* before Linux 5.14; fallocate() took the pages already */
    return 0;
}

int tkr_region_create(struct tkr_region *ret_region, uint64_t bytes)
{
    void *base = MAP_FAILED;
    int fd, err;

    if (!bytes || bytes % TKR_PAGE || bytes > INT64_MAX)
        return -EINVAL;
    fd = region_memfd();
    if (fd < 0)
        return fd;
    /* ftruncate() alone succeeds without memory and faults later; fallocate() takes the memory now. */
    if (ftruncate(fd, (off_t)bytes) || fallocate(fd, 0, 0, (off_t)bytes)) {
        err = -errno;
        goto fail;
    }
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED || madvise(base, bytes, MADV_DONTFORK)) {
        err = -errno;
        goto fail;
    }
    err = region_populate(base, bytes);
    if (err < 0)
        goto fail;

    *ret_region = (struct tkr_region){.base = base, .bytes = bytes, .fd = fd};
    return 0;

fail:
    if (base != MAP_FAILED)
        munmap(base, bytes);
    close(fd);
    return err;
}

int tkr_region_seal(const struct tkr_region *region)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    /* EBUSY: a page is pinned for a moment, for example by the huge page collector. */
    for (int i = 0; i < SEAL_TRIES; i++) {
        if (!fcntl(region->fd, F_ADD_SEALS, (int)TKR_SEALS_MUST))
            return 0;
        if (errno != EBUSY && errno != EINTR)
            return -errno;
        nanosleep(&pause, NULL);
    }
    return -EBUSY;
}

int tkr_region_id(const struct tkr_region *region, struct tkr_region_id *ret_id)
{
    struct stat st;

    if (fstat(region->fd, &st))
        return -errno;
    *ret_id = (struct tkr_region_id){.dev = st.st_dev, .ino = st.st_ino};
    return 0;
}

static int region_fault(struct tkr_region_fault *ret_fault, enum tkr_refusal reason, uint64_t have,
                        uint64_t want)
{
    *ret_fault = (struct tkr_region_fault){.reason = (uint16_t)reason, .have = have, .want = want};
    return -EPERM;
}

int tkr_region_check(int fd, uint64_t bytes, struct tkr_region_id *ret_id,
                     struct tkr_region_fault *ret_fault)
{
    struct statfs fs = {.f_type = 0};
    struct stat st = {.st_size = 0};
    off_t hole;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return region_fault(ret_fault, TKR_REFUSED_FD, 0, 0);
    if (((unsigned)seals & TKR_SEALS_MUST) != TKR_SEALS_MUST)
        return region_fault(ret_fault, TKR_REFUSED_SEALS, (unsigned)seals, TKR_SEALS_MUST);
    if (fstatfs(fd, &fs) || fs.f_type != TMPFS_MAGIC)
        return region_fault(ret_fault, TKR_REFUSED_FILESYSTEM, (uint64_t)fs.f_type, TMPFS_MAGIC);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
        return region_fault(ret_fault, TKR_REFUSED_SIZE, (uint64_t)st.st_size, bytes);
    /* The seals hold from here on, so that what is true now stays true. */
    hole = lseek(fd, 0, SEEK_HOLE);
    if (hole < 0 || (uint64_t)hole != bytes)
        return region_fault(ret_fault, TKR_REFUSED_HOLES, hole < 0 ? 0 : (uint64_t)hole, bytes);

    *ret_id = (struct tkr_region_id){.dev = st.st_dev, .ino = st.st_ino};
    return 0;
}

int tkr_region_map(struct tkr_region *ret_region, int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    int err;

    if (base == MAP_FAILED)
        return -errno;
    if (madvise(base, bytes, MADV_DONTFORK)) {
        err = -errno;
        munmap(base, bytes);
        return err;
    }
    *ret_region = (struct tkr_region){.base = base, .bytes = bytes, .fd = -1};
    return 0;
}

void tkr_region_close_fd(struct tkr_region *region)
{
    if (region->base && region->fd >= 0)
        close(region->fd);
    region->fd = -1;
}

void tkr_region_close(struct tkr_region *region)
{
    tkr_region_close_fd(region);
    if (region->base)
        munmap(region->base, region->bytes);
    *region = (struct tkr_region){.fd = -1};
}

/* ---- layout --------------------------------------------------------------------------------- */

#define SQ_COLOUR_STEP 256u /* queues of one client start in different cache sets */

static uint64_t align_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

int tkr_grant_check(const struct tkr_grant *grant)
{
    if (grant->nsq < 1 || grant->nsq > TKR_NSQ_MAX || grant->sq_log2 < TKR_SQ_LOG2_MIN ||
        grant->sq_log2 > TKR_SQ_LOG2_MAX || grant->cq_log2 < TKR_CQ_LOG2_MIN ||
        grant->cq_log2 > TKR_CQ_LOG2_MAX)
        return -EINVAL;
    if (grant->max_inflight < 1 || grant->max_inflight > TKR_INFLIGHT_MAX ||
        grant->colour >= TKR_COLOURS)
        return -EINVAL;
    /* Offsets into both are 32 bits on the wire. */
    if (grant->arena_len > UINT32_MAX || grant->bulk_len > UINT32_MAX ||
        grant->arena_len % TKR_LINE || grant->bulk_len % TKR_LINE)
        return -EINVAL;
    /* A terminal of every request must fit besides at least one line of output. */
    return grant->max_inflight < (1u << grant->cq_log2) ? 0 : -EINVAL;
}

void tkr_r_layout(struct tkr_r_header *ret_header, const struct tkr_grant *grant)
{
    uint32_t colour = TKR_LINE * grant->colour;
    uint32_t words = (uint32_t)align_up(4u * grant->max_inflight, TKR_LINE);
    struct tkr_r_header h = {
        .magic = TKR_MAGIC_R,
        .major = TKR_ABI_MAJOR,
        .minor = TKR_ABI_MINOR,
        .header_len = sizeof h,
        .nsq = grant->nsq,
        .sq_log2 = grant->sq_log2,
        .arena_len = grant->arena_len,
        .max_inflight = grant->max_inflight,
        .colour = grant->colour,
    };

    h.ctl_off = TKR_PAGE + colour;
    h.cancel_off = 2 * TKR_PAGE + colour;
    h.release_off = h.cancel_off + words;
    h.sq_off = (uint32_t)align_up(h.release_off + words, TKR_PAGE) + colour;
    h.sq_stride = (uint32_t)align_up(TKR_LINE << grant->sq_log2, TKR_PAGE) + SQ_COLOUR_STEP;
    h.arena_off = align_up((uint64_t)h.sq_off + (uint64_t)h.sq_stride * grant->nsq, TKR_PAGE);
    h.region_len = align_up(h.arena_off + h.arena_len, TKR_PAGE);
    *ret_header = h;
}

void tkr_t_layout(struct tkr_t_header *ret_header, const struct tkr_grant *grant)
{
    uint32_t colour = TKR_LINE * grant->colour;
    struct tkr_t_header h = {
        .magic = TKR_MAGIC_T,
        .major = TKR_ABI_MAJOR,
        .minor = TKR_ABI_MINOR,
        .header_len = sizeof h,
        .cq_log2 = grant->cq_log2,
        .bulk_len = grant->bulk_len,
    };

    h.ctl_off = TKR_PAGE + colour;
    h.models_off = 2 * TKR_PAGE;
    h.cq_off = h.models_off + TKR_MODELS * (uint32_t)sizeof(struct tkr_model_entry) + colour;
    h.res_off = h.cq_off + (TKR_LINE << grant->cq_log2);
    h.bulk_off = align_up(
        (uint64_t)h.res_off + sizeof(struct tkr_result) * (uint64_t)grant->max_inflight, TKR_PAGE);
    h.region_len = align_up(h.bulk_off + h.bulk_len, TKR_PAGE);
    *ret_header = h;
}

/* 1: [off, off + bytes) lies inside [TKR_PAGE, region_len) and starts on a multiple of align. */
static int inside(uint64_t off, uint64_t bytes, uint64_t region_len, uint32_t align)
{
    return off >= TKR_PAGE && off % align == 0 && bytes <= region_len && off <= region_len - bytes;
}

static int all_zero(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++)
        any |= bytes[i];
    return !any;
}

#define CHECK(cond, name)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            *ret_field = (name);                                                                   \
            return -EINVAL;                                                                        \
        }                                                                                          \
    } while (0)

/* Ranges may overlap: it is the writer's own memory, and the reader stays inside the region either
 * way. */
int tkr_r_check(const struct tkr_r_header *header, const struct tkr_grant *grant,
                const char **ret_field)
{
    struct tkr_r_header want;
    const struct tkr_r_header *h = header;
    uint64_t len, sq_bytes;

    tkr_r_layout(&want, grant);
    len = want.region_len;
    CHECK(h->magic == TKR_MAGIC_R, "magic");
    CHECK(h->major == TKR_ABI_MAJOR, "major");
    CHECK(h->header_len == sizeof *h, "header_len");
    CHECK(h->region_len == len, "region_len");
    CHECK(h->features == 0, "features"); /* this version has none to grant */
    CHECK(h->nsq == grant->nsq, "nsq");
    CHECK(h->sq_log2 == grant->sq_log2, "sq_log2");
    CHECK(h->max_inflight == grant->max_inflight, "max_inflight");
    CHECK(h->colour == grant->colour, "colour");
    CHECK(h->ctl_off == want.ctl_off, "ctl_off");
    CHECK(inside(h->ctl_off, TKR_R_CTL_BYTES, len, TKR_LINE), "ctl_off");
    CHECK(inside(h->cancel_off, 4u * (uint64_t)h->max_inflight, len, TKR_LINE), "cancel_off");
    CHECK(inside(h->release_off, 4u * (uint64_t)h->max_inflight, len, TKR_LINE), "release_off");
    CHECK(h->sq_stride % TKR_LINE == 0 && h->sq_stride >= TKR_LINE << h->sq_log2, "sq_stride");
    sq_bytes = (uint64_t)h->sq_stride * (h->nsq - 1) + (TKR_LINE << h->sq_log2);
    CHECK(inside(h->sq_off, sq_bytes, len, TKR_LINE), "sq_off");
    CHECK(h->arena_len == grant->arena_len, "arena_len");
    CHECK(inside(h->arena_off, h->arena_len, len, TKR_LINE), "arena_off");
    CHECK(!h->reserved0 && all_zero(h->reserved, sizeof h->reserved), "reserved");
    return 0;
}

int tkr_t_check(const struct tkr_t_header *header, const struct tkr_grant *grant,
                const char **ret_field)
{
    struct tkr_t_header want;
    const struct tkr_t_header *h = header;
    uint64_t len;

    tkr_t_layout(&want, grant);
    len = want.region_len;
    CHECK(h->magic == TKR_MAGIC_T, "magic");
    CHECK(h->major == TKR_ABI_MAJOR, "major");
    CHECK(h->header_len == sizeof *h, "header_len");
    CHECK(h->region_len == len, "region_len");
    CHECK(h->cq_log2 == grant->cq_log2, "cq_log2");
    CHECK(inside(h->ctl_off, TKR_T_CTL_BYTES, len, TKR_LINE), "ctl_off");
    CHECK(inside(h->cq_off, TKR_LINE << h->cq_log2, len, TKR_LINE), "cq_off");
    CHECK(inside(h->res_off, sizeof(struct tkr_result) * (uint64_t)grant->max_inflight, len,
                 TKR_LINE),
          "res_off");
    CHECK(h->bulk_len == grant->bulk_len, "bulk_len");
    CHECK(inside(h->bulk_off, h->bulk_len, len, TKR_LINE), "bulk_off");
    CHECK(inside(h->models_off, TKR_MODELS * sizeof(struct tkr_model_entry), len, TKR_LINE),
          "models_off");
    CHECK(h->n_models <= TKR_MODELS, "n_models");
    return 0;
}
