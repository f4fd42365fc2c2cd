/* SPDX-License-Identifier: Apache-2.0 */
/*
 * users.c - who may attach, and what one user may have over all of its connections.
 *
 * A user is a uid, as the kernel says it of the peer of a socket. Its limits are those of the first
 * rule that names it or one of its groups. The counts stay while the user has a connection; the
 * record of one that has none is taken again for another, the one with the oldest attach first.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "runtime/base/clock.h"
#include "runtime/io/state.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* Linux 4.13 */
#endif
#define GROUPS_FEW 64u
#define SECOND_NS  1000000000ull

/* ---- rules ---------------------------------------------------------------------------------- */

static int group_in(gid_t gid, const gid_t *groups, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (groups[i] == gid)
            return 1;
    return 0;
}

/* Which of the rules names the peer; n_rules: none. */
static uint32_t rule_find(const struct io_rule *rules, uint32_t n_rules, const struct ucred *cred,
                          const gid_t *groups, size_t n)
{
    for (uint32_t i = 0; i < n_rules; i++) {
        const struct io_rule *rule = &rules[i];

        if (rule->kind == IO_RULE_UID ? rule->id == cred->uid
                                      : rule->id == cred->gid || group_in(rule->id, groups, n))
            return i;
    }
    return n_rules;
}

/* The rules for the peer, by its supplementary groups too. -errno: these cannot be read. */
static int rules_of(struct io_client *client, const struct ucred *cred)
{
    const struct io_opt *opt = &client->io->opt;
    gid_t few[GROUPS_FEW], *groups = few;
    socklen_t bytes = sizeof few;
    int err = 0;

    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes)) {
        /* ERANGE: bytes says how many they are. */
        groups = errno == ERANGE ? malloc(bytes) : NULL;
        if (!groups || getsockopt(client->socket, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes))
            err = -errno;
    }
    if (!err) {
        size_t n = bytes / sizeof *groups;

        client->rule = rule_find(opt->rules, opt->n_rules, cred, groups, n);
        client->trusted = rule_find(opt->trusted, opt->n_trusted, cred, groups, n) < opt->n_trusted;
    }
    if (groups != few)
        free(groups);
    return err;
}

/* ---- the table ------------------------------------------------------------------------------ */

static struct io_user *user_find(struct io *io, uid_t uid)
{
    struct io_user *free_one = NULL;

    for (uint32_t i = 0; i < io->n_users; i++) {
        struct io_user *user = &io->users[i];

        if (user->uid == uid)
            return user;
        if (!user->n_conns && (!free_one || user->attach_at_ns < free_one->attach_at_ns))
            free_one = user;
    }
    /* One place more than connections, so there is always one. */
    if (io->n_users <= io->table_max)
        free_one = &io->users[io->n_users++];
    *free_one = (struct io_user){.uid = uid};
    return free_one;
}

int user_enter(struct io_client *client)
{
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    const struct io_limits *limits;
    int err;

    client->rule = client->io->opt.n_rules;
    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERCRED, &cred, &bytes))
        return -errno;
    err = client->io->opt.n_rules + client->io->opt.n_trusted ? rules_of(client, &cred) : 0;
    if (err < 0)
        return err;
    client->uid = cred.uid;
    client->pid = cred.pid;
    client->user = user_find(client->io, cred.uid);
    client->user->n_conns++;
    limits = user_limits(client);
    /* Some more than it may have: these are told why before they are closed. */
    return limits->clients && client->user->n_conns > limits->clients + IO_CONNS_SPARE ? -EDQUOT
                                                                                       : 0;
}

void user_leave(struct io_client *client)
{
    struct io_user *user = client->user;

    if (!user)
        return;
    user->n_conns--;
    user->bytes -= client->bytes;
    user->inflight -= client->n_active;
}

/* ---- limits --------------------------------------------------------------------------------- */

int rate_take(uint64_t *at_ns, uint64_t now, uint64_t rate, uint64_t burst)
{
    uint64_t period = SECOND_NS / rate, at = *at_ns > now ? *at_ns : now;

    if (at - now > (burst - 1) * period)
        return -EAGAIN;
    *at_ns = at + period;
    return 0;
}

/* As far as the scheduler prefers them: DEFAULT is INTERACTIVE. */
static int class_rank(uint32_t class_)
{
    return class_ == TKR_CLASS_BATCH ? 0 : class_ == TKR_CLASS_REALTIME ? 2 : 1;
}

int user_admit(struct io_client *client, uint32_t class_, uint64_t bytes,
               struct io_refusal *ret_refusal)
{
    const struct io_limits *limits = user_limits(client);
    struct io_user *user = client->user;

    if (limits->denied)
        *ret_refusal = (struct io_refusal){TKR_REFUSED_PEER, 0, 0, "this user may not attach"};
    else if (limits->attach_rate &&
             rate_take(&user->attach_at_ns, clock_ns(), limits->attach_rate,
                       limits->attach_burst ? limits->attach_burst : limits->attach_rate) < 0)
        *ret_refusal = (struct io_refusal){TKR_REFUSED_LIMIT, limits->attach_rate,
                                           (uint64_t)limits->attach_rate + 1,
                                           "attaches of this user in a second"};
    else if (limits->clients && user->n_clients >= limits->clients)
        *ret_refusal =
            (struct io_refusal){TKR_REFUSED_LIMIT, limits->clients, (uint64_t)user->n_clients + 1,
                                "connections of this user"};
    else if (limits->class_max && class_rank(class_) > class_rank(limits->class_max))
        *ret_refusal = (struct io_refusal){TKR_REFUSED_LIMIT, limits->class_max, class_,
                                           "class: above what this user may use"};
    else if (limits->bytes && (user->bytes > limits->bytes || bytes > limits->bytes - user->bytes))
        *ret_refusal = (struct io_refusal){TKR_REFUSED_LIMIT, limits->bytes, user->bytes + bytes,
                                           "memory of this user: bytes of its regions"};
    else
        goto admitted;
    return -EDQUOT;

admitted:
    user->n_clients++;
    user->bytes += bytes;
    client->bytes = bytes;
    client->admitted = 1;
    return 0;
}

uint32_t io_client_rule(const struct io_client *client)
{
    return client->rule;
}

int io_client_trusted(const struct io_client *client)
{
    return client->trusted;
}
