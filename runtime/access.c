/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/access.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_BYTES 96
#define SEPARATORS  " ,\t"

static int id_of_number(const char *text, uint32_t *ret_id)
{
    unsigned long id;
    char *end;

    errno = 0;
    id = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || id >= UINT32_MAX)
        return -EINVAL;
    *ret_id = (uint32_t)id;
    return 0;
}

static int id_of_user(const char *name, uint32_t *ret_id)
{
    const struct passwd *user = getpwnam(name);

    if (!user)
        return -ENOENT;
    *ret_id = user->pw_uid;
    return 0;
}

static int id_of_group(const char *name, uint32_t *ret_id)
{
    const struct group *group = getgrnam(name);

    if (!group)
        return -ENOENT;
    *ret_id = group->gr_gid;
    return 0;
}

static const struct {
    const char *prefix;
    enum io_rule_kind kind;
    int (*id_of)(const char *text, uint32_t *ret_id);
} entry_kinds[] = {
    {"uid:", IO_RULE_UID, id_of_number},
    {"gid:", IO_RULE_GID, id_of_number},
    {"user:", IO_RULE_UID, id_of_user},
    {"group:", IO_RULE_GID, id_of_group},
};

static int entry_parse(const char *entry, struct io_rule *ret_rule, struct diag *diag)
{
    for (size_t i = 0; i < sizeof entry_kinds / sizeof entry_kinds[0]; i++) {
        size_t n = strlen(entry_kinds[i].prefix);
        int err;

        if (strncmp(entry, entry_kinds[i].prefix, n) != 0)
            continue;
        err = entry_kinds[i].id_of(entry + n, &ret_rule->id);
        if (err == -ENOENT)
            diag_set(diag, "'%s': this host has no such user or group", entry);
        else if (err < 0)
            diag_set(diag, "'%s': expected a number after the colon", entry);
        ret_rule->kind = entry_kinds[i].kind;
        return err < 0 ? -EINVAL : 0;
    }
    diag_set(diag, "'%s': expected user:NAME, uid:N, group:NAME or gid:N", entry);
    return -EINVAL;
}

int access_parse(const char *list, const struct io_limits *limits, struct io_rule *rules,
                 uint32_t *n_rules, struct diag *diag)
{
    for (const char *at = list + strspn(list, SEPARATORS); *at; at += strspn(at, SEPARATORS)) {
        size_t n = strcspn(at, SEPARATORS);
        char entry[ENTRY_BYTES];

        if (n >= sizeof entry) {
            diag_set(diag, "an entry has more than %d bytes", ENTRY_BYTES - 1);
            return -EINVAL;
        }
        if (*n_rules == IO_RULES_MAX) {
            diag_set(diag, "more than %u entries; use a group", IO_RULES_MAX);
            return -EINVAL;
        }
        memcpy(entry, at, n);
        entry[n] = '\0';
        rules[*n_rules] = (struct io_rule){.limits = *limits};
        if (entry_parse(entry, &rules[*n_rules], diag) < 0)
            return -EINVAL;
        (*n_rules)++;
        at += n;
    }
    return 0;
}
