/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tune.h - measures a profile: the machine's limits, then steps of the model as the daemon runs them.
 */
#ifndef RUNTIME_TUNE_TUNE_H
#define RUNTIME_TUNE_TUNE_H

#include "runtime/tune/profile.h"

struct tune_opt {
    const char *model; /* GGUF file; NULL: the limits alone */
    const char *cache; /* folder of packed weights; NULL: none */
    uint32_t threads;  /* 0: as many as the daemon takes */
    enum cpu_variant variant;
    int quick;                                     /* a coarse grid, each cell once */
    void (*progress)(void *arg, const char *line); /* NULL: nobody looks */
    void *arg;
};

/* Takes up to 1 GiB beside the model (2 GiB before it is loaded, with many threads more). Without a model
 * the grids are empty. -EINVAL, -ENOTSUP, -ENOMEM, -errno; diag says why and what to do. */
int tune_run(struct profile *ret_profile, const struct tune_opt *opt, struct diag *diag);

/* What a profile of this machine, model and options is for: measures nothing. */
int tune_key(struct profile_key *ret_key, const struct tune_opt *opt, struct diag *diag);

#endif
