/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_cache.h - files of packed weights, so that a start maps what an earlier one has packed.
 *
 * A file is a header of one page, then the packed weights as they stand in memory: matrices, norms,
 * rotation tables. Its name is a digest of the model's hash and of the layout, so that two paths of
 * one model share it. It is used only if it was opened without following a link, is a regular file,
 * belongs to the effective user or root, cannot be written by group or others, has a header that
 * agrees with itself, with the file's size and with what is wanted, and hashes (all of it) to what
 * the header says. That finds damage. Who owns the file could forge it, and could as well replace
 * the model.
 *
 * Written by pack_save.h. A file in use is never written to, only replaced.
 */
#ifndef RUNTIME_MODEL_PACK_CACHE_H
#define RUNTIME_MODEL_PACK_CACHE_H

#include <stdint.h>
#include <sys/types.h>
#include "runtime/base/diag.h"
#include "runtime/model/digest.h"

/* Raised when the header, the order of what follows it, norms or rotation tables change. Changes
 * of the packed form of a type are found without it: the layout's digest has a packed sample. */
#define PACK_CACHE_VERSION 1u
#define PACK_HEADER_BYTES  4096u
#define PACK_NAME_BYTES    (2 * DIGEST_BYTES + sizeof ".packed")

/* What a file was made of and for. */
struct pack_key {
    uint8_t path[DIGEST_BYTES];   /* of the GGUF file's path */
    uint8_t source[DIGEST_BYTES]; /* of its device, inode, size, mtime and ctime */
    uint8_t layout[DIGEST_BYTES]; /* of every matrix' type, shape and place, and packed samples */
    uint8_t model[32];            /* hash of its contents, as in struct model */
    uint64_t fixed_bytes;         /* of matrices and norms */
    uint64_t ctx_bytes;           /* of the rotation tables, a position */
    uint64_t n_ctx; /* positions of the tables; a file may have more than are wanted */
};

/* The first bytes of a file, little endian. All versions have the fields to key.path. */
struct pack_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    struct pack_key key;
    uint8_t body[DIGEST_BYTES];  /* of all behind the header page */
    uint8_t check[DIGEST_BYTES]; /* of the header before this */
};

/* A file that is mapped and whose header is right. */
struct pack_map {
    const uint8_t *body; /* 64-byte aligned; NULL: none */
    uint64_t body_bytes;
    struct pack_header header;
    char name[PACK_NAME_BYTES];
};

/* 0; -EINVAL with the reason in ret_why (words that follow the file's name): the header is wrong, or
 * does not fit a file of file_bytes. */
int pack_header_check(const struct pack_header *header, uint64_t file_bytes, struct diag *ret_why);

/* Fills in all but key and body. */
void pack_header_seal(struct pack_header *header);

void pack_name(char ret[PACK_NAME_BYTES], const struct pack_key *key);

/* Opens what may be trusted as said above: descriptor and size, or -ENOENT, -errno with the reason. */
int pack_file_open(int folder, const char *name, uint64_t *ret_bytes, struct diag *ret_why);

/* Maps the file of that source and layout, the model's hash being its header's; -ENOENT: none is
 * fit, whatever the reason. */
int pack_cache_find(struct pack_map *ret, const char *folder, const struct pack_key *want);

/* Maps the file of that model and layout; -ENOENT: there is none. Else the note names the file and
 * says why it is not used. */
int pack_cache_open(struct pack_map *ret, const char *folder, const struct pack_key *want,
                    struct diag *note);

/* Whether it is a file of packed weights, of any version, that was made from the GGUF file of that
 * path and may be removed by its owner, this user. */
int pack_is_from(int folder, const char *name, const uint8_t path[DIGEST_BYTES]);

/* The note for a map whose hash is wrong. */
void pack_cache_damaged(const struct pack_map *map, const char *folder, struct diag *note);

void pack_cache_close(struct pack_map *map);

#endif
