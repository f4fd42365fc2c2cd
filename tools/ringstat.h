/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringstat.h - what the parts of ringstat share.
 *
 *   ringstat.c         options; which form the figures take
 *   ringstat_view.c    reads the figures of one daemon, and says what they mean now
 *   ringstat_screen.c  the screens as lines of text
 *   ringstat_export.c  JSON and CSV
 *   ringstat_live.c    the screens on a terminal
 */
#ifndef TOOLS_RINGSTAT_H
#define TOOLS_RINGSTAT_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "shm/stats.h"

#define RINGSTAT_HUNG_S                                                                            \
    5.0 /* work, and no sign of life for so long: no region of a step takes that */

/* What is known about one daemon: its figures and what they mean now. */
struct view {
    char socket[PATH_MAX];
    struct tkr_stats stats;
    struct tkr_stats_client *clients; /* [n_clients] those attached; view_fini() frees them */
    uint32_t n_clients;
    const char *state; /* starting, ready, draining, hung, paused, stopped, dead */
    uint64_t read_ns;  /* CLOCK_MONOTONIC: when the figures were read */
    double uptime_s;
    double silent_s; /* since the last pass or step; an idle daemon makes none */
};

/* What happened between two views, a second. Without an earlier one: since the daemon started. */
struct rates {
    double seconds;
    double prompt_tokens, output_tokens, requests, steps;
    double step_ms, rows; /* of the steps in between */
    double awake;         /* part of the time in which the loop was awake and in no step */
};

enum tab { SCREEN_TOP, SCREEN_CLIENTS, SCREEN_RING, SCREENS };
enum sort { SORT_PID, SORT_INFLIGHT, SORT_TOKENS, SORT_RATE, SORT_LAG, SORT_AGE, SORTS };

extern const char *const ringstat_screens[SCREENS], *const ringstat_sorts[SORTS];

/* ---- ringstat_view.c ------------------------------------------------------------------------- */

/* The first living daemon at the usual places (or at the one named), else the first that left
 * figures. -ENOENT: none did. quiet: says nothing on standard error. */
int view_find(struct view *ret_view, const char *socket, bool quiet);
void view_fini(struct view *view);
bool view_is_ready(const struct view *view);
/* The daemon stores the figures since minor 2. */
bool view_has_minor_2(const struct view *view);
/* What the state means, for those states that need a word; NULL for the others. */
const char *view_advice(const struct view *view);
/* before: NULL, or an earlier view. Another daemon's counts as none. */
struct rates view_rates(const struct view *view, const struct view *before);
/* Output tokens a second of one client. */
double client_rate(const struct view *view, const struct view *before,
                   const struct tkr_stats_client *client);
const char *status_name(unsigned number); /* NULL: no such status */
const char *io_name(const struct tkr_stats *stats);

/* ---- ringstat_screen.c ----------------------------------------------------------------------- */

/* The figures of --once. */
void text_show(FILE *out, const struct view *view);
/* A screen as lines: those to keep in sight when the rest is scrolled come first, their number
 * is returned. */
int screen_show(FILE *out, enum tab screen, const struct view *view, const struct view *before,
                enum sort sort, bool reverse);

/* ---- ringstat_export.c ----------------------------------------------------------------------- */

/* One line. -EINVAL: a name that is not UTF-8; -EIO. */
int json_show(FILE *out, const struct view *view);
void csv_head(FILE *out);
void csv_show(FILE *out, const struct view *view, const struct view *before);

/* ---- ringstat_live.c ------------------------------------------------------------------------- */

/* Until the user ends it. -ENOTTY: this terminal cannot show it. */
int live_run(const char *socket, enum tab screen, double interval_s);

#endif
