/* SPDX-License-Identifier: Apache-2.0 */
/* cache_path.h - where packed weights are kept when nobody says. */
#ifndef RUNTIME_CACHE_PATH_H
#define RUNTIME_CACHE_PATH_H

#include <stddef.h>

/*
 * The service's own folder (CACHE_DIRECTORY, which systemd sets for CacheDirectory=), else
 * $XDG_CACHE_HOME/tokenring, else $HOME/.cache/tokenring. -ENOENT: none of them is set to an absolute
 * path; -ENAMETOOLONG.
 */
int cache_path_default(char *ret_path, size_t bytes);

#endif
