/* SPDX-License-Identifier: Apache-2.0 */
/* tokenringd - serves one language model to the processes of this host through shared memory. */
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "runtime/base/log.h"
#include "runtime/config.h"
#include "runtime/daemon.h"

const char *argp_program_version = "tokenringd " TKR_VERSION;

enum {
    KEY_MODEL = 256,
    KEY_SOCKET,
    KEY_THREADS,
    KEY_CPU,
    KEY_KV_TYPE,
    KEY_CACHE,
    KEY_CTX,
    KEY_IO,
    KEY_DOORBELL,
    KEY_CONFIG,
    KEY_CHECK,
    KEY_TAKEOVER
};

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "FILE", 0, "GGUF file to serve", 0},
    {"config", KEY_CONFIG, "FILE", 0, "YAML settings; the command line wins over it", 0},
    {"socket", KEY_SOCKET, "PATH", 0, "where clients attach", 0},
    {"threads", KEY_THREADS, "N", 0, "engine threads (default: one a core of those allowed)", 0},
    {"cpu", KEY_CPU, "VARIANT", 0, "kernels: auto, ref, avx2, avxvnni or avx512", 0},
    {"kv-type", KEY_KV_TYPE, "TYPE", 0, "keys and values are kept as f16 or q8", 0},
    {"cache", KEY_CACHE, "FOLDER", 0, "where packed weights are kept, or none", 0},
    {"ctx", KEY_CTX, "N", 0, "positions of one request (default: the model's)", 0},
    {"io", KEY_IO, "KIND", 0, "event loop: auto, uring or epoll", 0},
    {"doorbell", KEY_DOORBELL, "KIND", 0, "how clients wake it: auto, futex or socket", 0},
    {"takeover", KEY_TAKEOVER, NULL, 0,
     "take the place of the daemon that serves the socket, which then drains", 0},
    {"check-config", KEY_CHECK, NULL, 0, "read the settings, say what is wrong, and end", 0},
    {0},
};

/* Settings of the command line by key; they are applied after the file's. */
static const char *const setting_names[] = {
    [KEY_MODEL - 256] = "model", [KEY_SOCKET - 256] = "socket",   [KEY_THREADS - 256] = "threads",
    [KEY_CPU - 256] = "cpu",     [KEY_KV_TYPE - 256] = "kv_type", [KEY_CACHE - 256] = "cache",
    [KEY_CTX - 256] = "ctx",     [KEY_IO - 256] = "io",           [KEY_DOORBELL - 256] = "doorbell",
};
#define N_KEYS (sizeof setting_names / sizeof setting_names[0])

struct arguments {
    const char *config;
    const char *values[N_KEYS];
    int check;
    int takeover;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *args = state->input;

    switch (key) {
    case KEY_CONFIG:
        args->config = arg;
        return 0;
    case KEY_CHECK:
        args->check = 1;
        return 0;
    case KEY_TAKEOVER:
        args->takeover = 1;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", arg);
        return 0;
    default:
        if (key < 256 || key >= 256 + (int)N_KEYS)
            return ARGP_ERR_UNKNOWN;
        args->values[key - 256] = arg;
        return 0;
    }
}

/* Defaults, then the file, then the command line. */
static int settings(struct config *config, const struct arguments *args, struct diag *diag)
{
    int err = args->config ? config_read(config, args->config, diag) : 0;

    for (size_t i = 0; i < N_KEYS && err == 0; i++)
        if (args->values[i])
            err = config_set(config, setting_names[i], args->values[i], diag);
    config->takeover = args->takeover;
    return err < 0 ? err : config_finish(config, args->config, diag);
}

static struct daemon *running;

static void on_signal(int number)
{
    (void)number;
    daemon_stop(running);
}

static void signals_mask(int how)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(how, &set, NULL);
}

/* SIGTERM and SIGINT wait while the daemon starts (its threads inherit that, so only this one gets
 * them) and are for daemon_stop() while it runs. */
static void signals_hold(void)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    signals_mask(SIG_BLOCK);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

static int serve(const struct config *config, struct diag *diag)
{
    int err;

    signals_hold();
    err = daemon_new(&running, config, diag);
    if (err < 0)
        return err;
    sd_notify(0, "READY=1");
    signals_mask(SIG_UNBLOCK);
    daemon_run(running);
    signals_mask(SIG_BLOCK); /* a second one has nothing more to stop */
    daemon_free(running);
    return 0;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Serves a language model to the processes of this host through shared memory."};
    struct arguments args = {0};
    struct config config;
    struct diag diag = {{0}};
    int err;

    argp_parse(&argp, argc, argv, 0, NULL, &args);
    config_init(&config);
    err = settings(&config, &args, &diag);
    if (err == 0 && !args.check)
        err = serve(&config, &diag);
    if (err < 0)
        log_line(LOG_ERROR, "%s", diag.text[0] ? diag.text : "out of memory");
    else if (args.check)
        printf("configuration is valid\n");
    config_fini(&config);
    return err < 0 ? 1 : 0;
}
