/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/socket_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "runtime/io/io.h"

static int folder_ready(const char *path, struct diag *diag)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST) {
        diag_set(diag, "%s: cannot make the socket's folder: %s", path, strerror(errno));
        return -errno;
    }
    /* lstat: somebody else's link in /tmp must not choose the folder. */
    if (lstat(path, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022)) {
        diag_set(diag,
                 "%s: must be a folder of your own that nobody else can write to; use --socket",
                 path);
        return -EPERM;
    }
    return 0;
}

int socket_path_default(char *ret_path, size_t bytes, struct diag *diag)
{
    const char *runtime_dir = getenv("XDG_RUNTIME_DIR");
    char folder[96];
    int n;

    if (runtime_dir && runtime_dir[0] == '/')
        n = snprintf(folder, sizeof folder, "%s/tokenring", runtime_dir);
    else if (geteuid() == 0)
        n = snprintf(folder, sizeof folder, "/run/tokenring");
    else
        n = snprintf(folder, sizeof folder, "/tmp/tokenring-%u", (unsigned)geteuid());
    if (n < 0 || (size_t)n >= sizeof folder || (size_t)n + sizeof "/socket" > bytes) {
        diag_set(diag, "XDG_RUNTIME_DIR is too long for a socket; use --socket");
        return -ENAMETOOLONG;
    }
    snprintf(ret_path, bytes, "%s/socket", folder);
    return folder_ready(folder, diag);
}

int socket_path_in_use(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    int fd, used;

    if (n >= sizeof addr.sun_path)
        return 0;
    memcpy(addr.sun_path, path, n);
    /* Non-blocking: one that is stopped, with a full backlog, is in use as well. */
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return 0;
    if (!connect(fd, (const struct sockaddr *)&addr, sizeof addr))
        used = !io_listener_dead(fd);
    else
        used = errno == EAGAIN;
    close(fd);
    return used;
}
