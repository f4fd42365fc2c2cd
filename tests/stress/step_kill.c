/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step_kill.c - kills a client after each n-th instruction of a submit and of a drain.
 *
 *   step_kill SOCKET STRIDE     prints how many instructions there are and how many clients died
 *
 * A child opens a connection and stops itself before tkr_submit() and before the loop that reads
 * its events. From there it is stepped one instruction at a time and killed after 1, 1 + STRIDE,
 * 1 + 2 STRIDE, ... of them. What is left of it in the daemon is for the caller to look at.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "clients/tokenring.h"

#define STEPS_MAX   100000u /* of one part: a drain that finds nothing spins */
#define PART_SUBMIT 0
#define PART_DRAIN  1

static const char *path;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void child_run(void)
{
    const tkr_opt opt = {.size = sizeof opt, .path = path};
    const struct timespec moment = {.tv_nsec = 3000000};
    tkr_req req = tkr_req_text("the quick brown fox");
    tkr_conn *conn;
    tkr_event e;

    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    if (tkr_open(&conn, &opt) < 0)
        _exit(3);
    req.max_tokens = 12;
    raise(SIGSTOP);
    if (tkr_submit(conn, &req, 1) != 1)
        _exit(4);
    raise(SIGSTOP);
    nanosleep(&moment, NULL); /* some of the answer will be there, or all */
    raise(SIGSTOP);
    do
        e.type = 0;
    while (tkr_peek(conn, &e, 1) >= 0 && e.type != TKR_EV_DONE);
    tkr_release(conn, e.id);
    raise(SIGSTOP);
    _exit(0);
}

/* Lets the child run to its next SIGSTOP. 0: it ended. */
static int run_to_stop(pid_t child, int first)
{
    int status;

    if (!first && ptrace(PTRACE_CONT, child, NULL, NULL))
        die("continue");
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
}

/* Steps of the part until its end, at most `steps`. */
static unsigned long stepped(pid_t child, unsigned long steps)
{
    unsigned long n = 0;
    int status;

    while (n < steps) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL))
            break;
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            break;
        if (WSTOPSIG(status) == SIGSTOP)
            break;
        n++;
    }
    return n;
}

/* One client, killed after `steps` instructions of the part: how many it made. */
static unsigned long one(int part, unsigned long steps)
{
    pid_t child = fork();
    unsigned long n;

    if (child < 0)
        die("fork");
    if (child == 0)
        child_run();
    if (!run_to_stop(child, 1))
        die("the client did not attach");
    if (part == PART_DRAIN && (!run_to_stop(child, 0) || !run_to_stop(child, 0)))
        die("the client did not submit");
    n = stepped(child, steps);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return n;
}

int main(int argc, char **argv)
{
    unsigned long stride = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    unsigned long length[2], kills = 0;

    if (!stride)
        return 2;
    path = argv[1];
    for (int part = PART_SUBMIT; part <= PART_DRAIN; part++) {
        length[part] = one(part, STEPS_MAX);
        for (unsigned long at = 1; at <= length[part]; at += stride, kills++)
            one(part, at);
    }
    printf("submit: %lu instructions, drain: %lu, clients killed: %lu\n", length[PART_SUBMIT],
           length[PART_DRAIN], kills);
    return 0;
}
