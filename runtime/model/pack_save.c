/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/pack_save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Written at once: ext4 and others then cache the file in huge pages, which readers map. */
#define CHUNK_BYTES ((size_t)2 << 20)

struct save {
    const struct pack_keep *keep;
    const atomic_int *stop;
    int dir, fd;
    char name[PACK_NAME_BYTES];
    char temporary[PACK_NAME_BYTES + sizeof ".tmp"];
};

void pack_source(uint8_t ret[DIGEST_BYTES], const struct stat *st)
{
    const uint64_t identity[] = {
        (uint64_t)st->st_dev,          (uint64_t)st->st_ino,          (uint64_t)st->st_size,
        (uint64_t)st->st_mtim.tv_sec,  (uint64_t)st->st_mtim.tv_nsec, (uint64_t)st->st_ctim.tv_sec,
        (uint64_t)st->st_ctim.tv_nsec,
    };

    digest_bytes(ret, identity, sizeof identity);
}

void pack_keep_free(struct pack_keep *keep)
{
    if (!keep)
        return;
    free(keep->folder);
    free(keep->source);
    free(keep);
}

int pack_folder_open(const char *folder)
{
    char path[4096];
    int fd;

    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path)
        return -ENAMETOOLONG;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700); /* what fails here fails again below */
        *slash = '/';
    }
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Whether the temporary name still is the file that is open: its lock may have come too late. */
static int is_ours(const struct save *s)
{
    struct stat named, opened;

    return fstat(s->fd, &opened) == 0 &&
           fstatat(s->dir, s->temporary, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

/* Removes what a killed writer has left. -EBUSY: a writer is at work, or may be, being another user's. */
static int remove_left(int dir, const char *temporary)
{
    int fd = openat(dir, temporary, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int err = 0;

    if (fd < 0 ? errno == EACCES : flock(fd, LOCK_EX | LOCK_NB) < 0)
        err = -EBUSY;
    if (err == 0)
        unlinkat(dir, temporary, 0); /* also a link of that name */
    if (fd >= 0)
        close(fd);
    return err;
}

/* Whom the model file is closed to, this one is too: it holds the same. A change of mode until the end
 * is found by source_check(). */
static mode_t file_mode(const struct pack_keep *keep)
{
    struct stat st;

    return stat(keep->source, &st) == 0 && (st.st_mode & S_IROTH) ? 0644 : 0600;
}

static int temporary_open(struct save *s)
{
    mode_t mode = file_mode(s->keep);

    for (int try = 0; try < 2; try++) {
        int err;

        s->fd =
            openat(s->dir, s->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (s->fd >= 0)
            return flock(s->fd, LOCK_EX | LOCK_NB) == 0 && is_ours(s) ? 0 : -EBUSY;
        if (errno != EEXIST)
            return -errno;
        err = remove_left(s->dir, s->temporary);
        if (err < 0)
            return err;
    }
    return -EBUSY;
}

static int stopped(const struct save *s)
{
    return s->stop && atomic_load_explicit(s->stop, memory_order_relaxed);
}

static int header_make(const struct save *s, struct pack_header *header)
{
    const struct pack_keep *keep = s->keep;
    uint64_t n = digest_pieces(keep->body_bytes);
    XXH128_canonical_t *list = calloc(n, sizeof *list);

    if (!list)
        return -ENOMEM;
    memset(header, 0, sizeof *header);
    header->key = keep->key;
    for (uint64_t i = 0; i < n && !stopped(s); i++)
        digest_piece(&list[i], keep->body, keep->body_bytes, i, 0);
    digest_bytes(header->body, list, n * sizeof *list);
    free(list);
    pack_header_seal(header);
    return 0;
}

static int write_all(int fd, const uint8_t *bytes, size_t n, uint64_t at)
{
    while (n) {
        ssize_t done = pwrite(fd, bytes, n, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        bytes += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

/* The header page and the first bytes of the body, together one chunk. */
static int write_first(const struct save *s, const struct pack_header *header, size_t body_bytes)
{
    uint8_t page[PACK_HEADER_BYTES] = {0};
    struct iovec parts[] = {{page, sizeof page}, {(void *)(uintptr_t)s->keep->body, body_bytes}};
    ssize_t n;

    memcpy(page, header, sizeof *header);
    n = pwritev(s->fd, parts, 2, 0);
    if (n < 0)
        return -errno;
    if (n == (ssize_t)(sizeof page + body_bytes))
        return 0;
    return n < (ssize_t)sizeof page
               ? -EIO
               : write_all(s->fd, s->keep->body + ((size_t)n - sizeof page),
                           body_bytes - ((size_t)n - sizeof page), (uint64_t)n);
}

static int write_file(const struct save *s)
{
    const struct pack_keep *keep = s->keep;
    size_t first = CHUNK_BYTES - PACK_HEADER_BYTES;
    struct pack_header header;
    int err = header_make(s, &header);

    /* No room is found before the first byte; a file system that cannot say finds it later. */
    if (err == 0 && !stopped(s) &&
        fallocate(s->fd, 0, 0, (off_t)(keep->body_bytes + PACK_HEADER_BYTES)) < 0 &&
        errno != EOPNOTSUPP)
        err = -errno;
    if (first > keep->body_bytes)
        first = keep->body_bytes;
    if (err == 0 && !stopped(s))
        err = write_first(s, &header, first);
    for (uint64_t at = first; at < keep->body_bytes && err == 0 && !stopped(s);) {
        uint64_t left = keep->body_bytes - at;
        size_t n = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;

        err = write_all(s->fd, keep->body + at, n, at + PACK_HEADER_BYTES);
        /* The disk starts now, so that the last wait is a short one. */
        sync_file_range(s->fd, (off_t)(at + PACK_HEADER_BYTES), (off_t)n, SYNC_FILE_RANGE_WRITE);
        at += n;
    }
    if (err == 0 && !stopped(s) && fsync(s->fd) < 0)
        err = -errno;
    return err == 0 && stopped(s) ? -ECANCELED : err;
}

/* The file may have been replaced or written to since it was packed. */
static int source_check(const struct pack_keep *keep)
{
    uint8_t now[DIGEST_BYTES];
    struct stat st;

    if (stat(keep->source, &st) < 0)
        return -ESTALE;
    pack_source(now, &st);
    return memcmp(now, keep->key.source, sizeof now) == 0 ? 0 : -ESTALE;
}

static int is_temporary(const char *name)
{
    size_t n = strlen(name);

    return n + 1 == sizeof((struct save *)0)->temporary && name[0] == '.' &&
           strcmp(name + n - strlen(".packed.tmp"), ".packed.tmp") == 0;
}

/* Files made from the same path before: the model was replaced, or is packed in another form. And what
 * was left of any other, which may never be written again. */
static void remove_older(const struct save *s)
{
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(dir))) {
        if (is_temporary(entry->d_name))
            remove_left(s->dir, entry->d_name);
        else if (strcmp(entry->d_name, s->name) != 0 &&
                 pack_is_from(s->dir, entry->d_name, s->keep->key.path))
            unlinkat(s->dir, entry->d_name, 0);
    }
    closedir(dir);
}

static int save(struct save *s)
{
    int err = temporary_open(s);

    if (err < 0)
        return err;
    err = write_file(s);
    if (err == 0)
        err = source_check(s->keep);
    if (err == 0 && renameat(s->dir, s->temporary, s->dir, s->name) < 0)
        err = -errno;
    if (err < 0)
        unlinkat(s->dir, s->temporary, 0);
    else
        fsync(s->dir); /* not written: the next start packs again */
    return err;
}

int pack_save(const struct pack_keep *keep, const atomic_int *stop, struct diag *note)
{
    struct save s = {.keep = keep, .stop = stop, .fd = -1};
    int err;

    pack_name(s.name, &keep->key);
    snprintf(s.temporary, sizeof s.temporary, ".%s.tmp", s.name);
    s.dir = pack_folder_open(keep->folder);
    err = s.dir < 0 ? s.dir : save(&s);
    if (err == 0)
        remove_older(&s);
    if (s.fd >= 0)
        close(s.fd);
    if (s.dir >= 0)
        close(s.dir);
    if (err < 0)
        diag_set(note, "cache %s/%s is not written: %s", keep->folder, s.name,
                 err == -ESTALE  ? "the model file has changed since"
                 : err == -EBUSY ? "another process is writing it"
                                 : strerror(-err));
    else
        diag_set(note, "%s/%s", keep->folder, s.name);
    return err;
}
