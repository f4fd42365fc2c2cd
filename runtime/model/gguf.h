/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf.h - reads GGUF v2 and v3 files and trusts nothing in them.
 *
 * The file is mapped read-only; every count, length and offset is checked by subtraction against
 * what is left before it is used, so a hostile file gives one line in diag and -EINVAL. Strings are
 * views into the mapping (not NUL-terminated).
 * Source: GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#ifndef RUNTIME_MODEL_GGUF_H
#define RUNTIME_MODEL_GGUF_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include "runtime/base/diag.h"

struct gguf;

struct gguf_str {
    const char *s; /* in the mapping; n bytes */
    size_t n;
};

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_tensor {
    struct gguf_str name;
    uint32_t type;    /* ggml type id: a `enum dtype`, or one that we do not run */
    uint32_t n_dims;  /* 1..4 */
    uint64_t dims[4]; /* dims[0] is the contiguous one (columns) */
    const uint8_t *data;
    uint64_t bytes;
};

int gguf_open(struct gguf **ret_gguf, const char *path, struct diag *diag);
void gguf_close(struct gguf *gguf);

/* Scalars: -ENOENT when the key is absent, -EINVAL (diag) when it has another type or does not
 * fit. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct diag *diag);
int gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct diag *diag);
int gguf_get_bool(const struct gguf *g, const char *key, int *ret, struct diag *diag);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct diag *diag);

/* Arrays: number of elements of an array of that element type; then elements by index (in order is
 * O(1) a step through the iterator). */
struct gguf_iter {
    const uint8_t *at, *end;
    uint64_t left;
    uint32_t type;
};
int gguf_array(const struct gguf *g, const char *key, uint32_t elem_type,
               struct gguf_iter *ret_iter, struct diag *diag);
int gguf_next_str(struct gguf_iter *it, struct gguf_str *ret); /* 0, -ENOENT at the end */
int gguf_next_u32(struct gguf_iter *it, uint32_t *ret);        /* of a U32 or I32 array */
int gguf_next_f32(struct gguf_iter *it, float *ret);

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name); /* NULL: absent */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);

/* Every key, to find those that nobody asks for. */
uint64_t gguf_n_keys(const struct gguf *g);
struct gguf_str gguf_key_at(const struct gguf *g, uint64_t i);

const char *gguf_path(const struct gguf *g); /* as it was opened, for messages */
const uint8_t *gguf_bytes(const struct gguf *g, uint64_t *ret_n); /* the whole mapping */
const struct stat *gguf_stat(const struct gguf *g);               /* when it was opened */

/* "Q4_K" and the like for messages; "type 77" for an unknown id. */
const char *gguf_type_name(uint32_t type);

/* Weights and bytes of a block of that type; -EINVAL for an unknown id. */
int gguf_type_size(uint32_t type, uint32_t *ret_block, uint32_t *ret_bytes);

#endif
