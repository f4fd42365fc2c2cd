/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/pack_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime/base/mem.h"

#define FILES_MAX 256u /* of a folder that are looked at */

static const char magic[8] = "TKRPACK";

_Static_assert(sizeof(struct pack_header) < PACK_HEADER_BYTES, "one page");
_Static_assert(sizeof(struct pack_header) == 16 + 3 * 16 + 32 + 3 * 8 + 2 * 16, "no padding");

static void header_digest(uint8_t ret[DIGEST_BYTES], const struct pack_header *header)
{
    digest_bytes(ret, header, offsetof(struct pack_header, check));
}

void pack_header_seal(struct pack_header *header)
{
    memcpy(header->magic, magic, sizeof magic);
    header->version = PACK_CACHE_VERSION;
    header->header_bytes = PACK_HEADER_BYTES;
    header_digest(header->check, header);
}

int pack_header_check(const struct pack_header *header, uint64_t file_bytes, struct diag *ret_why)
{
    const struct pack_key *key = &header->key;
    uint8_t check[DIGEST_BYTES];
    uint64_t bytes;

    if (memcmp(header->magic, magic, sizeof magic) != 0) {
        diag_set(ret_why, "is not a file of packed weights");
    } else if (header->version != PACK_CACHE_VERSION || header->header_bytes != PACK_HEADER_BYTES) {
        diag_set(ret_why, "has version %" PRIu32 ", this tokenringd reads %u", header->version,
                 PACK_CACHE_VERSION);
    } else if (header_digest(check, header), memcmp(check, header->check, sizeof check) != 0) {
        diag_set(ret_why, "has a damaged header");
    } else if (__builtin_mul_overflow(key->ctx_bytes, key->n_ctx, &bytes) ||
               __builtin_add_overflow(bytes, key->fixed_bytes, &bytes) ||
               __builtin_add_overflow(bytes, PACK_HEADER_BYTES, &bytes) || bytes != file_bytes) {
        diag_set(ret_why, "has %" PRIu64 " bytes, its header says otherwise", file_bytes);
    } else {
        return 0;
    }
    return -EINVAL;
}

void pack_name(char ret[PACK_NAME_BYTES], const struct pack_key *key)
{
    uint8_t both[sizeof key->model + sizeof key->layout], digest[DIGEST_BYTES];

    memcpy(both, key->model, sizeof key->model);
    memcpy(both + sizeof key->model, key->layout, sizeof key->layout);
    digest_bytes(digest, both, sizeof both);
    for (unsigned i = 0; i < sizeof digest; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    strcpy(ret + 2 * sizeof digest, ".packed");
}

int pack_file_open(int folder, const char *name, uint64_t *ret_bytes, struct diag *ret_why)
{
    /* Non-blocking: a FIFO of that name must not hold the start up. */
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        int err = -errno;

        if (err == -ELOOP)
            diag_set(ret_why, "is a symbolic link");
        else if (err != -ENOENT)
            diag_set(ret_why, "cannot be opened: %s", strerror(-err));
        if (fd >= 0)
            close(fd);
        return err;
    }
    if (!S_ISREG(st.st_mode)) {
        diag_set(ret_why, "is not a regular file");
    } else if (st.st_uid != geteuid() && st.st_uid != 0) {
        diag_set(ret_why, "belongs to uid %u, not to root or uid %u", (unsigned)st.st_uid,
                 (unsigned)geteuid());
    } else if (st.st_mode & (S_IWGRP | S_IWOTH)) {
        diag_set(ret_why, "has mode %04o, which lets others write to it",
                 (unsigned)st.st_mode & 07777u);
    } else {
        *ret_bytes = (uint64_t)st.st_size;
        return fd;
    }
    close(fd);
    return -EPERM;
}

/* Opens and reads the header. The descriptor, or -errno with the reason (but for -ENOENT). */
static int header_read(int folder, const char *name, struct pack_header *ret_header,
                       uint64_t *ret_bytes, struct diag *ret_why)
{
    int fd = pack_file_open(folder, name, ret_bytes, ret_why);
    ssize_t n;
    int err;

    if (fd < 0)
        return fd;
    n = pread(fd, ret_header, sizeof *ret_header, 0);
    if (n == (ssize_t)sizeof *ret_header) {
        err = pack_header_check(ret_header, *ret_bytes, ret_why);
    } else {
        err = n < 0 ? -errno : -EINVAL;
        diag_set(ret_why, n < 0 ? "cannot be read" : "is too short for a header");
    }
    if (err == 0)
        return fd;
    close(fd);
    return err;
}

/* Whether what the file holds is what is wanted, under the model that the header names. */
static int fits(const struct pack_key *key, const struct pack_key *want, struct diag *ret_why)
{
    if (memcmp(key->layout, want->layout, sizeof key->layout) != 0 ||
        key->fixed_bytes != want->fixed_bytes || key->ctx_bytes != want->ctx_bytes) {
        diag_set(ret_why, "was packed in another layout");
    } else if (key->n_ctx < want->n_ctx) {
        diag_set(ret_why, "was made for a context of %" PRIu64 ", %" PRIu64 " are wanted",
                 key->n_ctx, want->n_ctx);
    } else {
        return 0;
    }
    return -EINVAL;
}

static int map(struct pack_map *ret, const struct pack_header *header, const char *name, int fd,
               uint64_t bytes)
{
    uint8_t *base = mem_map_file(fd, bytes);

    if (!base)
        return -ENOMEM;
    ret->body = base + PACK_HEADER_BYTES;
    ret->body_bytes = bytes - PACK_HEADER_BYTES;
    ret->header = *header;
    memcpy(ret->name, name, sizeof ret->name); /* of pack_name()'s form */
    return 0;
}

int pack_cache_open(struct pack_map *ret, const char *folder, const struct pack_key *want,
                    struct diag *note)
{
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[PACK_NAME_BYTES];
    struct pack_header header;
    struct diag why = {""};
    uint64_t bytes;
    int fd, err;

    if (dir < 0)
        return -errno;
    pack_name(name, want);
    fd = header_read(dir, name, &header, &bytes, &why);
    close(dir);
    if (fd == -ENOENT)
        return fd;
    err = fd < 0 ? fd : fits(&header.key, want, &why);
    if (err == 0 && memcmp(header.key.model, want->model, sizeof want->model) != 0) {
        diag_set(&why, "is of another model");
        err = -EINVAL;
    }
    if (err == 0) {
        err = map(ret, &header, name, fd, bytes);
        if (err < 0)
            diag_set(&why, "cannot be mapped");
    }
    if (fd >= 0)
        close(fd);
    if (err < 0)
        diag_set(note, "cache %s/%s is ignored: it %.*s", folder, name, 128, why.text);
    return err;
}

static int is_name(const char *name)
{
    return strspn(name, "0123456789abcdef") == 2 * DIGEST_BYTES &&
           strcmp(name + 2 * DIGEST_BYTES, ".packed") == 0;
}

int pack_cache_find(struct pack_map *ret, const char *folder, const struct pack_key *want)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    unsigned n = 0;
    int err = -ENOENT;

    if (!dir)
        return err;
    while (err < 0 && n < FILES_MAX && (entry = readdir(dir))) {
        struct pack_header header;
        uint64_t bytes;
        int fd;

        if (!is_name(entry->d_name))
            continue;
        n++;
        fd = header_read(dirfd(dir), entry->d_name, &header, &bytes, NULL);
        if (fd < 0)
            continue;
        if (memcmp(header.key.source, want->source, sizeof want->source) == 0 &&
            fits(&header.key, want, NULL) == 0)
            err = map(ret, &header, entry->d_name, fd, bytes);
        close(fd);
    }
    closedir(dir);
    return err;
}

int pack_is_from(int folder, const char *name, const uint8_t path[DIGEST_BYTES])
{
    struct pack_header header;
    struct stat st;
    uint64_t bytes;
    int fd = is_name(name) ? pack_file_open(folder, name, &bytes, NULL) : -ENOENT;
    int is = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
             pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header &&
             memcmp(header.magic, magic, sizeof magic) == 0 &&
             memcmp(header.key.path, path, sizeof header.key.path) == 0;

    if (fd >= 0)
        close(fd);
    return is;
}

void pack_cache_damaged(const struct pack_map *map, const char *folder, struct diag *note)
{
    diag_set(note, "cache %s/%s is ignored: its contents do not hash to what its header says",
             folder, map->name);
}

void pack_cache_close(struct pack_map *map)
{
    if (map->body)
        mem_unmap((void *)(uintptr_t)(map->body - PACK_HEADER_BYTES),
                  map->body_bytes + PACK_HEADER_BYTES);
    map->body = NULL;
}
