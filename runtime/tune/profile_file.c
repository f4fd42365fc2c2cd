/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime/model/pack_cache.h"
#include "runtime/model/pack_save.h"
#include "runtime/tune/profile.h"

/* Up to `bytes` of the file, which another process may change while it is read. */
static ssize_t read_all(int fd, char *text, size_t bytes)
{
    size_t n = 0;

    while (n < bytes) {
        ssize_t got = read(fd, text + n, bytes - n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static int read_file(struct profile *ret_profile, const char *path, struct diag *ret_why)
{
    char *text = malloc(PROFILE_BYTES_MAX + 1); /* one byte more shows what is too long */
    uint64_t bytes;
    ssize_t n;
    int fd, err;

    if (!text) {
        diag_set(ret_why, "does not fit the memory");
        return -ENOMEM;
    }
    fd = pack_file_open(AT_FDCWD, path, &bytes, ret_why);
    n = fd < 0 ? fd : read_all(fd, text, PROFILE_BYTES_MAX + 1);
    if (fd >= 0 && n < 0)
        diag_set(ret_why, "cannot be read: %s", strerror((int)-n));
    err = n < 0 ? (int)n : profile_parse(ret_profile, text, (size_t)n, ret_why);
    if (fd >= 0)
        close(fd);
    free(text);
    return err;
}

/* The note of a file that is not used; -ENOENT is no news. */
static int ignored(int err, const char *path, const struct diag *why, struct diag *note)
{
    if (err < 0 && err != -ENOENT)
        diag_set(note, "profile %.256s is ignored: it %.200s", path, why->text);
    return err;
}

int profile_read(struct profile *ret_profile, const char *path, struct diag *note)
{
    struct diag why = {""};

    return ignored(read_file(ret_profile, path, &why), path, &why, note);
}

/* Its name says for what it is; but it may have been copied there. */
static int key_check(const struct profile_key *key, const struct profile_key *want,
                     struct diag *ret_why)
{
    if (strcmp(key->cpu, want->cpu) != 0)
        diag_set(ret_why, "is of the CPU %s", key->cpu);
    else if (strcmp(key->variant, want->variant) != 0 || key->threads != want->threads)
        diag_set(ret_why, "is of %s with %u threads", key->variant, key->threads);
    else if (memcmp(key->model, want->model, sizeof key->model) != 0)
        diag_set(ret_why, "is of another model");
    else
        return 0;
    return -EINVAL;
}

int profile_load(struct profile *ret_profile, const char *folder, const struct profile_key *key,
                 struct diag *note)
{
    char name[PROFILE_NAME_BYTES], path[4096];
    struct profile profile;
    struct diag why = {""};
    int err;

    profile_name(name, key);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return -ENOENT;
    err = read_file(&profile, path, &why);
    if (err == 0)
        err = key_check(&profile.key, key, &why);
    if (err == 0)
        *ret_profile = profile;
    return ignored(err, path, &why, note);
}

static int write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, text, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        text += done;
        n -= (size_t)done;
    }
    return fsync(fd) < 0 ? -errno : 0;
}

/* Into a new file beside it, whose name nobody can guess, then over it. */
static int replace(const char *path, const char *text)
{
    char temporary[4096 + 8];
    int fd, err;

    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary)
        return -ENAMETOOLONG;
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    err = write_all(fd, text, strlen(text));
    if (err == 0 && fchmod(fd, 0644) < 0) /* root measures for a service with another user */
        err = -errno;
    if (close(fd) < 0 && err == 0)
        err = -errno;
    if (err == 0 && rename(temporary, path) < 0)
        err = -errno;
    if (err < 0)
        unlink(temporary);
    return err;
}

int profile_write(const struct profile *profile, const char *path, struct diag *diag)
{
    char *text = profile_text(profile);
    int err = text ? replace(path, text) : -ENOMEM;

    free(text);
    if (err < 0)
        diag_set(diag, "%s: cannot be written: %s", path, strerror(-err));
    return err;
}

int profile_save(const struct profile *profile, const char *folder, char *ret_path, size_t bytes,
                 struct diag *diag)
{
    char name[PROFILE_NAME_BYTES];
    int fd = pack_folder_open(folder);

    if (fd < 0) {
        diag_set(diag, "%s: cannot be made or opened: %s", folder, strerror(-fd));
        return fd;
    }
    close(fd);
    profile_name(name, &profile->key);
    if (snprintf(ret_path, bytes, "%s/%s", folder, name) >= (int)bytes) {
        diag_set(diag, "%s: its path is too long", folder);
        return -ENAMETOOLONG;
    }
    return profile_write(profile, ret_path, diag);
}
