/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zmq_rtt.c - 64 bytes there and back through libzmq (PAIR over ipc), both sides asking without
 * waiting.
 *
 *   bench_peer_zmq CPU CPU
 *
 * libzmq moves messages in a thread of its own on each side, on the same cores as ours here, so
 * the two
 * run without SCHED_FIFO: a spinning one would starve it.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include "bench/ring.h"

#define TRIPS      5000u
#define WARM_TRIPS 500u

int cpu_daemon = -1, cpu_client = -1; /* for ring_clock.c */

static void on_core(const char *cpu)
{
    cpu_set_t set;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CPU_ZERO(&set);
    CPU_SET((size_t)atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

static void *socket_new(const char *address, int server)
{
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_PAIR);

    if (!socket || (server ? zmq_bind(socket, address) : zmq_connect(socket, address)))
        die(zmq_strerror(zmq_errno()));
    return socket;
}

static void take(void *socket, char *message)
{
    while (zmq_recv(socket, message, 64, ZMQ_DONTWAIT) != 64)
        if (zmq_errno() != EAGAIN)
            die(zmq_strerror(zmq_errno()));
}

static _Noreturn void server(const char *address, const char *cpu)
{
    void *socket;
    char message[64];

    on_core(cpu);
    socket = socket_new(address, 1);
    for (;;) {
        take(socket, message);
        zmq_send(socket, message, sizeof message, 0);
    }
}

int main(int argc, char **argv)
{
    static uint32_t ns[TRIPS];
    char address[64], message[64] = "hello";
    struct row row;
    void *socket;
    pid_t pid;

    if (argc != 3)
        return 2;
    snprintf(address, sizeof address, "ipc:///tmp/tokenring-bench-zmq-%d", (int)getpid());
    alarm(30);
    pid = fork();
    if (!pid)
        server(address, argv[1]);
    on_core(argv[2]);
    ticks_calibrate();
    socket = socket_new(address, 0);
    for (uint32_t i = 0; i < WARM_TRIPS + TRIPS; i++) {
        uint64_t t = ticks();

        zmq_send(socket, message, sizeof message, 0);
        take(socket, message);
        if (i >= WARM_TRIPS)
            ns[i - WARM_TRIPS] = to_ns(ticks() - t);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    unlink(address + strlen("ipc://"));
    row = one_summary(ns, TRIPS);
    printf("%-34s %9.0f %9.0f %9.0f  PAIR over ipc, its own threads, no SCHED_FIFO\n", "libzmq",
           row.p50, row.p99, row.p999);
    return 0;
}
