/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ringstat.h"

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct live {
    const char *socket;
    enum tab screen;
    enum sort sort;
    bool reverse, help;
    int scroll;
    int err; /* of the last look: 0, or why there is nothing to show */
    struct view now, before;
};

static volatile sig_atomic_t ended;

static void on_end(int signal_number)
{
    (void)signal_number;
    ended = 1;
}

static const char help_text[] =
    "ringstat: the figures of tokenringd, read from the file beside its socket.\n"
    "It asks the daemon nothing: a busy, hung, stopped or dead one is shown as well.\n"
    "\n"
    "  t  top        throughput, requests, KV pages, the busiest clients\n"
    "  c  clients    one line each\n"
    "  r  ring       raw positions and flags of each client's queues\n"
    "  Tab           the next screen\n"
    "  s  S          sort by the next column; the other way round\n"
    "  Up Down PgUp PgDn Home    scroll\n"
    "  h  ?          this help\n"
    "  q             quit\n"
    "\n"
    "  Q in clients: hot/parked queues, ! when one waits for room; in ring: H P B\n"
    "  LAG: tokens that are made but wait for room in the client's queue; p: too many,\n"
    "  so a request is paused until some are read\n"
    "  held up: requests paused for that, ended SLOW, displaced by another client's\n";

static void look(struct live *live)
{
    struct view fresh;
    int err = view_find(&fresh, live->socket, true);

    live->err = err;
    if (err < 0)
        return; /* the last figures stay in sight, with a word about it */
    view_fini(&live->before);
    live->before = live->now;
    live->now = fresh;
}

/* One line of the terminal; what does not fit is cut. */
static void line_put(int y, const char *text, size_t bytes, attr_t attributes)
{
    int width = bytes < (size_t)COLS ? (int)bytes : COLS;

    attrset((int)attributes);
    mvaddnstr(y, 0, text, width);
    attrset(A_NORMAL);
}

/* Puts text from line `skip` on below its first n_fixed lines; returns how many lines it has. */
static int text_put(const char *text, int n_fixed, int skip)
{
    int n = 0, y = 0;

    while (*text) {
        const char *end = strchr(text, '\n');
        size_t bytes = end ? (size_t)(end - text) : strlen(text);

        if (n < n_fixed || n >= n_fixed + skip) {
            if (y < LINES - 1)
                line_put(y, text, bytes, n == 0 ? A_BOLD : n < n_fixed ? A_REVERSE : A_NORMAL);
            y++;
        }
        n++;
        text += bytes + (end != NULL);
    }
    return n;
}

static void footer_put(const struct live *live, int below)
{
    char text[256];

    if (live->err < 0)
        snprintf(text, sizeof text, " no figures now: %s   q quit",
                 live->err == -ENOENT ? "the file is gone" : strerror(-live->err));
    else
        snprintf(text, sizeof text,
                 " t top  c clients  r ring  s sort (%s)  h help  q quit   [%s]%s",
                 ringstat_sorts[live->sort], live->help ? "help" : ringstat_screens[live->screen],
                 below > 0 ? "  more below" : "");
    move(LINES - 1, 0);
    clrtoeol();
    line_put(LINES - 1, text, strlen(text), A_REVERSE);
}

static void draw(struct live *live)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    int n_fixed = 0, n, scroll_max;

    if (!out)
        return;
    if (live->help)
        fputs(help_text, out);
    else if (!live->now.state)
        fputs("waiting for a daemon\n", out);
    else
        n_fixed = screen_show(out, live->screen, &live->now,
                              live->before.state ? &live->before : NULL, live->sort, live->reverse);
    if (fclose(out)) {
        free(text);
        return;
    }
    erase();
    n = text_put(text, n_fixed, live->scroll);
    scroll_max = n - (LINES - 1) > 0 ? n - (LINES - 1) : 0;
    if (live->scroll > scroll_max) { /* the list became shorter, or the terminal higher */
        live->scroll = scroll_max;
        erase();
        text_put(text, n_fixed, live->scroll);
    }
    footer_put(live, scroll_max - live->scroll);
    refresh();
    free(text);
}

static void screen_to(struct live *live, enum tab screen)
{
    live->screen = screen;
    live->help = false;
    live->scroll = 0;
}

/* false: quit */
static bool key_take(struct live *live, int key)
{
    switch (key) {
    case 'q':
    case 'Q':
        return false;
    case 't':
    case '1':
        screen_to(live, SCREEN_TOP);
        break;
    case 'c':
    case '2':
        screen_to(live, SCREEN_CLIENTS);
        break;
    case 'r':
    case '3':
        screen_to(live, SCREEN_RING);
        break;
    case '\t':
        screen_to(live, (enum tab)((live->screen + 1) % SCREENS));
        break;
    case 's':
        live->sort = (enum sort)((live->sort + 1) % SORTS);
        break;
    case 'S':
        live->reverse = !live->reverse;
        break;
    case 'h':
    case '?':
        live->help = !live->help;
        live->scroll = 0;
        break;
    case 27: /* Escape */
        live->help = false;
        break;
    case KEY_DOWN:
        live->scroll++;
        break;
    case KEY_UP:
        live->scroll -= live->scroll > 0;
        break;
    case KEY_NPAGE:
        live->scroll += LINES / 2;
        break;
    case KEY_PPAGE:
        live->scroll = live->scroll > LINES / 2 ? live->scroll - LINES / 2 : 0;
        break;
    case KEY_HOME:
        live->scroll = 0;
        break;
    default: /* KEY_RESIZE among them: drawn again */
        break;
    }
    return true;
}

static void signals_set(void)
{
    struct sigaction action = {.sa_handler = on_end};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static uint64_t clock_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Draws and takes keys until the user ends it. */
static void loop(struct live *live, uint64_t interval_ms)
{
    uint64_t next = clock_ms() + interval_ms;

    while (!ended) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        uint64_t now;
        int key;

        draw(live);
        now = clock_ms();
        if (now >= next) {
            look(live);
            next = now + interval_ms;
            continue;
        }
        if (poll(&in, 1, (int)(next - now)) > 0 && !(in.revents & POLLIN))
            return; /* the terminal is gone */
        while ((key = getch()) != ERR)
            if (!key_take(live, key))
                return;
    }
}

int live_run(const char *socket, enum tab screen, double interval_s)
{
    struct live live = {.socket = socket, .screen = screen};
    SCREEN *terminal;

    setlocale(LC_CTYPE, ""); /* for the terminal's character set; numbers stay as in C */
    terminal = newterm(NULL, stdout, stdin);
    if (!terminal)
        return -ENOTTY;
    signals_set();
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    look(&live);
    loop(&live, (uint64_t)(interval_s * 1000));
    endwin();
    delscreen(terminal);
    view_fini(&live.now);
    view_fini(&live.before);
    return 0;
}
