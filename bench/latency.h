/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latency.h - what a client process waits for, from a daemon that is warm.
 */
#ifndef BENCH_LATENCY_H
#define BENCH_LATENCY_H

struct latency {
    double ttft32_ms; /* a prompt of 32 tokens to an idle daemon, submit to first token */
    /* A prompt of 1 token and 1 token of answer, submit to end, less the step that computed it: from
     * its start until the forward pass has ended, by the daemon's own stamps of the same request.
     * One after the other, and to a daemon that has gone to sleep. */
    double overhead_us, overhead_idle_us;
};

/* Medians of some dozens of requests to the daemon at socket_path. 0 or -errno. */
int latency_measure(struct latency *ret_latency, const char *socket_path);

#endif
