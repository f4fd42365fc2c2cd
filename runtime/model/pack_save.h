/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_save.h - writes a file of packed weights (pack_cache.h), so that no reader ever sees half of
 * one.
 *
 * It is written under another name in the same folder, locked while that takes, and renamed when
 * it is on the disk. Whoever finds the other name unlocked removes it: its writer was killed. Files
 * that were made from the same path before are removed, so there is one file a model path and
 * layout, not one for each model that ever stood there. Others may read it if they may read the model
 * file.
 */
#ifndef RUNTIME_MODEL_PACK_SAVE_H
#define RUNTIME_MODEL_PACK_SAVE_H

#include <stdatomic.h>
#include <stdint.h>
#include "runtime/base/diag.h"
#include "runtime/model/pack_cache.h"

/* What is to be written. */
struct pack_keep {
    char *folder; /* made when it is missing, its parents too */
    char *source; /* path of the GGUF file */
    struct pack_key key;
    const uint8_t *body; /* fixed_bytes + n_ctx * ctx_bytes of them */
    uint64_t body_bytes;
};

/* Identity of a file that is open: device, inode, size, times of change. */
struct stat;
void pack_source(uint8_t ret[DIGEST_BYTES], const struct stat *st);

/* The cache's folder: its descriptor, or -errno. Makes it, and what leads to it, for this user alone. */
int pack_folder_open(const char *folder);

/* 0; -ECANCELED: *stop was set; -EBUSY: another process writes the same file; -ESTALE: the GGUF file
 * is not the one any more that was packed; else -errno. The note names the file and says what
 * failed. Nothing is left behind then. */
int pack_save(const struct pack_keep *keep, const atomic_int *stop, struct diag *note);

/* NULL is allowed. */
void pack_keep_free(struct pack_keep *keep);

#endif
