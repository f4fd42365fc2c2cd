/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access.h - lists of users: the settings `allow` and `trusted`, as rules for the transport.
 *
 * A list of user:NAME, uid:N, group:NAME and gid:N, separated by spaces or commas. An empty `allow`:
 * whoever may open the socket; else nobody but those named. An empty `trusted`: nobody.
 */
#ifndef RUNTIME_ACCESS_H
#define RUNTIME_ACCESS_H

#include "runtime/base/diag.h"
#include "runtime/io/io.h"

/* Appends a rule with `limits` for each entry: 0; -EINVAL (diag names the entry). */
int access_parse(const char *list, const struct io_limits *limits, struct io_rule *rules,
                 uint32_t *n_rules, struct diag *diag);

#endif
