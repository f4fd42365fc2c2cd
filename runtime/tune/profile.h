/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h - what `ringctl tune` has measured: the machine's limits, and what a step of one model
 * costs on it.
 *
 * A profile is for one CPU, kernel variant, number of threads and model; its file's name is a digest
 * of these. The file is one JSON object. It is believed only if it was opened without following a
 * link, is a regular file, belongs to the effective user or root, cannot be written by group or
 * others, is small, and has every field, each in its range, and no other.
 */
#ifndef RUNTIME_TUNE_PROFILE_H
#define RUNTIME_TUNE_PROFILE_H

#include <stddef.h>
#include <stdint.h>
#include "runtime/base/diag.h"
#include "runtime/model/digest.h"
#include "runtime/tune/limits.h"

#define PROFILE_VERSION    1u
#define PROFILE_BYTES_MAX  65536u /* of a file; one has about 3000 */
#define PROFILE_GRID_MAX   16u    /* rows, and contexts, of a grid */
#define PROFILE_MS_MAX     1e7    /* of a step: hours are an error */
#define PROFILE_NAME_BYTES (sizeof "tune-.json" + 2 * DIGEST_BYTES)

/* Milliseconds of a step, by its rows and by the positions that stand before each. */
struct step_grid {
    uint32_t n_rows, n_contexts;         /* 0: not measured */
    uint32_t rows[PROFILE_GRID_MAX];     /* ascending, from 1 */
    uint32_t contexts[PROFILE_GRID_MAX]; /* ascending, from 0 */
    uint32_t positions_max; /* cells of more rows * context are computed: step_grid_extend() */
    double ms[PROFILE_GRID_MAX][PROFILE_GRID_MAX]; /* [n_rows][n_contexts] */
};

/* What a profile is for. */
struct profile_key {
    char cpu[CPUS_NAME_BYTES]; /* as cpus_name() tells it */
    char variant[16];          /* name of the kernels */
    uint32_t threads;
    uint8_t model[32]; /* hash, as in struct model */
};

struct profile {
    struct profile_key key;
    char model_name[80];
    double took_s; /* to measure it */
    struct limits limits;
    struct step_grid decode;  /* each row is a sequence of its own, with logits */
    struct step_grid prefill; /* the rows are of one prompt, without logits */
};

/* Between the points of the grid bilinear; beyond the last ones on with the last slope (costs are
 * straight there), but never down; before the first ones as there. The grid has a cell. */
double profile_step_ms(const struct step_grid *grid, uint32_t rows, uint32_t context);

/* Computes what was not measured, from the largest number of rows that was: each row and position
 * that attends costs the same. */
void step_grid_extend(struct step_grid *grid);

/* Whether a cell was measured. */
int step_grid_measured(const struct step_grid *grid, uint32_t row, uint32_t context);

/* Of this machine. */
void profile_key_fill(struct profile_key *ret_key, const char *variant, uint32_t threads,
                      const uint8_t model[32]);

/* "tune-DIGEST.json" */
void profile_name(char ret[PROFILE_NAME_BYTES], const struct profile_key *key);

/* One object with a line end; free() it. NULL: no memory. */
char *profile_text(const struct profile *profile);

/* -EINVAL with the reason (words that follow the file's name). */
int profile_parse(struct profile *ret_profile, const char *text, size_t n, struct diag *ret_why);

/* ---- files (profile_file.c) ------------------------------------------------------------------ */

/* Reads the file of any machine and model. -ENOENT without a word: there is none; else -errno, and
 * the note names the file and says why it is not used. */
int profile_read(struct profile *ret_profile, const char *path, struct diag *note);

/* Reads the one in the folder that is for this key. */
int profile_load(struct profile *ret_profile, const char *folder, const struct profile_key *key,
                 struct diag *note);

/* Writes the file in one go: whoever reads sees the old one or all of the new one. -errno with
 * diag. */
int profile_write(const struct profile *profile, const char *path, struct diag *diag);

/* Writes it into the folder, which is made if it is missing, and says where. */
int profile_save(const struct profile *profile, const char *folder, char *ret_path, size_t bytes,
                 struct diag *diag);

#endif
