/* SPDX-License-Identifier: Apache-2.0 */
/* socket_path.h - where the daemon listens when nobody says. */
#ifndef RUNTIME_SOCKET_PATH_H
#define RUNTIME_SOCKET_PATH_H

#include <stddef.h>
#include "runtime/base/diag.h"

/*
 * $XDG_RUNTIME_DIR/tokenring/socket; without it /run/tokenring/socket as root, else
 * /tmp/tokenring-UID/socket. The folder is made with 0700 when it is missing; one that belongs to
 * somebody else, or that others may write to, is refused: -EPERM.
 */
int socket_path_default(char *ret_path, size_t bytes, struct diag *diag);

/* 1 when a daemon answers there. */
int socket_path_in_use(const char *path);

#endif
