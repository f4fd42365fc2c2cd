/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define KEYS_MAX        65536u /* real files have a few dozen */
#define TENSORS_MAX     65536u /* the largest public models have a few thousand */
#define KEY_BYTES_MAX   65535u /* the specification's limit */
#define NAME_BYTES_MAX  64u    /* of a tensor; the specification's limit */
#define ARRAY_DEPTH_MAX 4u     /* arrays of arrays; no published file has any */
#define ALIGNMENT_MIN   8u     /* the specification: a multiple of 8 */
#define ALIGNMENT_MAX   65536u /* files have 32; a direct read wants 4096 */
#define KEY_BYTES_MIN   13u    /* length, type and a value of one byte */
#define INFO_BYTES_MIN  32u    /* of a tensor: length, n_dims, one dimension, type, offset */

struct kv {
    struct gguf_str key; /* first: the name table reads it */
    uint32_t type;
    uint32_t elem;     /* of an array */
    uint64_t n;        /* of an array */
    const uint8_t *at; /* the value; of an array its first element */
    const uint8_t *end;
};

/* Open addressing over indices of an array whose items begin with their name. The seed is random,
 * so that nobody can write a file whose names all collide. */
struct name_table {
    uint32_t *slots; /* index + 1, or 0 */
    uint32_t mask;
    uint64_t seed;
};

struct gguf {
    const uint8_t *map;
    uint64_t size;
    char *path;
    struct kv *kvs;
    uint32_t n_kvs;
    struct gguf_tensor *tensors;
    uint32_t n_tensors;
    struct name_table keys, names;
    struct stat stat;
};

/* ---- reading --------------------------------------------------------------------------------- */

struct cursor {
    const uint8_t *base;
    uint64_t at, size;
    const char *path;
    char what[160]; /* what is being read, for messages */
    struct diag *diag;
};

static int cut(struct cursor *c, uint64_t need)
{
    diag_set(c->diag,
             "%s: %s needs %" PRIu64 " bytes at %" PRIu64 ", the file has %" PRIu64 " bytes",
             c->path, c->what, need, c->at, c->size);
    return -EINVAL;
}

static int take(struct cursor *c, void *ret, size_t n)
{
    if (n > c->size - c->at)
        return cut(c, n);
    memcpy(ret, c->base + c->at, n);
    c->at += n;
    return 0;
}

static int take_str(struct cursor *c, struct gguf_str *ret)
{
    uint64_t n;
    int err = take(c, &n, sizeof n);

    if (err < 0)
        return err;
    if (n > c->size - c->at)
        return cut(c, n);
    ret->s = (const char *)c->base + c->at;
    ret->n = (size_t)n;
    c->at += n;
    return 0;
}

/* Bytes of a scalar; 0 for strings, arrays and unknown types. */
static unsigned scalar_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

static int skip_elements(struct cursor *c, uint32_t elem, uint64_t n, unsigned depth);

/* Reads an array's head, then walks over its elements. Every element costs file bytes, so the work
 * is bounded by them. */
static int skip_array(struct cursor *c, uint32_t *ret_elem, uint64_t *ret_n, uint64_t *ret_at,
                      unsigned depth)
{
    uint32_t elem;
    uint64_t n, at;
    int err = take(c, &elem, sizeof elem);

    if (err == 0)
        err = take(c, &n, sizeof n);
    if (err < 0)
        return err;
    at = c->at;
    err = skip_elements(c, elem, n, depth);
    if (err < 0)
        return err;
    *ret_elem = elem;
    *ret_n = n;
    *ret_at = at;
    return 0;
}

static int skip_elements(struct cursor *c, uint32_t elem, uint64_t n, unsigned depth)
{
    unsigned bytes = scalar_bytes(elem);
    int err = 0;

    if (bytes) {
        if (n > (c->size - c->at) / bytes)
            return cut(c, n > UINT64_MAX / bytes ? UINT64_MAX : n * bytes);
        c->at += n * bytes;
        return 0;
    }
    if (elem == GGUF_STRING) {
        struct gguf_str str;

        for (uint64_t i = 0; i < n && err == 0; i++)
            err = take_str(c, &str);
        return err;
    }
    if (elem != GGUF_ARRAY) {
        diag_set(c->diag, "%s: %s is an array of unknown type %" PRIu32, c->path, c->what, elem);
        return -EINVAL;
    }
    if (depth >= ARRAY_DEPTH_MAX) {
        diag_set(c->diag, "%s: %s nests arrays more than %u deep", c->path, c->what,
                 ARRAY_DEPTH_MAX);
        return -EINVAL;
    }
    for (uint64_t i = 0; i < n && err == 0; i++) {
        uint32_t inner;
        uint64_t inner_n, inner_at;

        err = skip_array(c, &inner, &inner_n, &inner_at, depth + 1);
    }
    return err;
}

/* ---- names ----------------------------------------------------------------------------------- */

static int table_init(struct name_table *table, uint32_t n)
{
    uint32_t size = 16;

    while (size < 2 * n)
        size *= 2;
    table->slots = calloc(size, sizeof *table->slots);
    table->mask = size - 1;
    /* A seed that could not be drawn only makes collisions possible, and n is bounded. */
    if (getrandom(&table->seed, sizeof table->seed, GRND_NONBLOCK) != (ssize_t)sizeof table->seed)
        table->seed = (uint64_t)(uintptr_t)table;
    return table->slots ? 0 : -ENOMEM;
}

/* The slot that holds the name, or the empty one where it belongs. */
static uint32_t *table_slot(const struct name_table *table, const void *items, size_t stride,
                            const char *name, size_t n)
{
    uint32_t at = (uint32_t)XXH3_64bits_withSeed(name, n, table->seed) & table->mask;

    while (table->slots[at]) {
        const struct gguf_str *str =
            (const void *)((const char *)items + (size_t)(table->slots[at] - 1) * stride);

        if (str->n == n && memcmp(str->s, name, n) == 0)
            break;
        at = (at + 1) & table->mask;
    }
    return &table->slots[at];
}

static const struct kv *kv_find(const struct gguf *g, const char *key)
{
    uint32_t i = *table_slot(&g->keys, g->kvs, sizeof g->kvs[0], key, strlen(key));

    return i ? &g->kvs[i - 1] : NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int read_kv(struct gguf *g, struct cursor *c, uint32_t i)
{
    struct kv *kv = &g->kvs[i];
    uint64_t at;
    uint32_t *slot;
    int err;

    snprintf(c->what, sizeof c->what, "metadata key %" PRIu32 " of %" PRIu32, i + 1, g->n_kvs);
    err = take_str(c, &kv->key);
    if (err < 0)
        return err;
    if (kv->key.n == 0 || kv->key.n > KEY_BYTES_MAX) {
        diag_set(c->diag, "%s: %s is an %s of %zu bytes; 1 to %u are allowed", c->path, c->what,
                 kv->key.n ? "overlong key" : "empty key", kv->key.n, KEY_BYTES_MAX);
        return -EINVAL;
    }
    snprintf(c->what, sizeof c->what, "key '%.*s'", (int)(kv->key.n < 100 ? kv->key.n : 100),
             kv->key.s);
    slot = table_slot(&g->keys, g->kvs, sizeof *kv, kv->key.s, kv->key.n);
    if (*slot) {
        diag_set(c->diag, "%s: %s appears twice", c->path, c->what);
        return -EINVAL;
    }
    *slot = i + 1;
    err = take(c, &kv->type, sizeof kv->type);
    if (err < 0)
        return err;
    at = c->at;
    if (kv->type == GGUF_ARRAY) {
        err = skip_array(c, &kv->elem, &kv->n, &at, 1);
    } else if (kv->type == GGUF_STRING || scalar_bytes(kv->type)) {
        err = skip_elements(c, kv->type, 1, 0);
    } else {
        diag_set(c->diag, "%s: %s has unknown type %" PRIu32, c->path, c->what, kv->type);
        return -EINVAL;
    }
    if (err < 0)
        return err;
    kv->at = c->base + at;
    kv->end = c->base + c->at;
    return 0;
}

static int read_dims(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t rows = 1;
    uint32_t block, block_bytes;
    int err = take(c, &t->n_dims, sizeof t->n_dims);

    if (err < 0)
        return err;
    if (t->n_dims < 1 || t->n_dims > 4) {
        diag_set(c->diag, "%s: %s has %" PRIu32 " dimensions; 1 to 4 are allowed", c->path, c->what,
                 t->n_dims);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < 4; i++)
        t->dims[i] = 1;
    err = take(c, t->dims, t->n_dims * sizeof t->dims[0]);
    if (err == 0)
        err = take(c, &t->type, sizeof t->type);
    if (err < 0)
        return err;
    if (gguf_type_size(t->type, &block, &block_bytes) < 0) {
        diag_set(c->diag, "%s: %s has unknown element type %" PRIu32, c->path, c->what, t->type);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0 || t->dims[i] > INT64_MAX) {
            diag_set(c->diag, "%s: dimension %" PRIu32 " of %s is %" PRIi64, c->path, i, c->what,
                     (int64_t)t->dims[i]);
            return -EINVAL;
        }
        if (i > 0 && __builtin_mul_overflow(rows, t->dims[i], &rows))
            goto too_large;
    }
    if (t->dims[0] % block) {
        diag_set(c->diag,
                 "%s: %s of type %s has rows of %" PRIu64 " weights, not a multiple of %" PRIu32,
                 c->path, c->what, gguf_type_name(t->type), t->dims[0], block);
        return -EINVAL;
    }
    if (__builtin_mul_overflow(t->dims[0] / block, (uint64_t)block_bytes, &t->bytes) ||
        __builtin_mul_overflow(t->bytes, rows, &t->bytes))
        goto too_large;
    return 0;

too_large:
    diag_set(c->diag, "%s: dimensions of %s multiply to over 2^64 bytes", c->path, c->what);
    return -EINVAL;
}

/* Reads one entry of the tensor list; *ret_offset is relative to the data, which begins after the
 * list. */
static int read_tensor(struct gguf *g, struct cursor *c, uint32_t i, uint64_t *ret_offset)
{
    struct gguf_tensor *t = &g->tensors[i];
    uint32_t *slot;
    int err;

    snprintf(c->what, sizeof c->what, "tensor %" PRIu32 " of %" PRIu32, i + 1, g->n_tensors);
    err = take_str(c, &t->name);
    if (err < 0)
        return err;
    if (t->name.n == 0 || t->name.n > NAME_BYTES_MAX) {
        diag_set(c->diag, "%s: the name of %s is an %s of %zu bytes; 1 to %u are allowed", c->path,
                 c->what, t->name.n ? "overlong name" : "empty name", t->name.n, NAME_BYTES_MAX);
        return -EINVAL;
    }
    snprintf(c->what, sizeof c->what, "tensor '%.*s'", (int)t->name.n, t->name.s);
    slot = table_slot(&g->names, g->tensors, sizeof *t, t->name.s, t->name.n);
    if (*slot) {
        diag_set(c->diag, "%s: %s appears twice", c->path, c->what);
        return -EINVAL;
    }
    *slot = i + 1;
    err = read_dims(c, t);
    if (err == 0)
        err = take(c, ret_offset, sizeof *ret_offset);
    return err;
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;

    return x->data < y->data ? -1 : x->data > y->data;
}

static int check_overlaps(const struct gguf *g, const struct cursor *c)
{
    const struct gguf_tensor **order =
        malloc((g->n_tensors + 1) * sizeof(const struct gguf_tensor *));
    int err = 0;

    if (!order)
        return -ENOMEM;
    for (uint32_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensors[i];
    qsort(order, g->n_tensors, sizeof(const struct gguf_tensor *), by_place);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = order[i - 1], *b = order[i];

        if (a->bytes > (uint64_t)(b->data - a->data)) {
            diag_set(c->diag, "%s: tensor '%.*s' at %td overlaps tensor '%.*s' at %td", c->path,
                     (int)a->name.n, a->name.s, a->data - c->base, (int)b->name.n, b->name.s,
                     b->data - c->base);
            err = -EINVAL;
            break;
        }
    }
    free(order);
    return err;
}

static int read_alignment(const struct gguf *g, const struct cursor *c, uint64_t *ret_alignment)
{
    const struct kv *kv = kv_find(g, "general.alignment");
    uint32_t alignment = 32;

    if (kv) {
        if (kv->type != GGUF_U32) {
            diag_set(c->diag, "%s: key 'general.alignment' has type %" PRIu32 ", expected a u32",
                     c->path, kv->type);
            return -EINVAL;
        }
        memcpy(&alignment, kv->at, sizeof alignment);
    }
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1))) {
        diag_set(c->diag,
                 "%s: key 'general.alignment' is %" PRIu32
                 ", expected a power of two from %u to %u",
                 c->path, alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
        return -EINVAL;
    }
    *ret_alignment = alignment;
    return 0;
}

/* Turns offsets (one a tensor) into places in the mapping. */
static int place_tensors(struct gguf *g, struct cursor *c, const uint64_t *offsets)
{
    uint64_t alignment, data_at;
    int err = read_alignment(g, c, &alignment);

    if (err < 0)
        return err;
    data_at = (c->at + alignment - 1) & ~(alignment - 1);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];

        if (offsets[i] & (alignment - 1)) {
            diag_set(c->diag,
                     "%s: tensor '%.*s' is unaligned: offset %" PRIu64
                     " is not a multiple of %" PRIu64,
                     c->path, (int)t->name.n, t->name.s, offsets[i], alignment);
            return -EINVAL;
        }
        if (data_at > c->size || offsets[i] > c->size - data_at ||
            t->bytes > c->size - data_at - offsets[i]) {
            diag_set(c->diag,
                     "%s: tensor '%.*s' needs %" PRIu64 " bytes at %" PRIu64 " + %" PRIu64
                     ", the file has %" PRIu64 " bytes",
                     c->path, (int)t->name.n, t->name.s, t->bytes, data_at, offsets[i], c->size);
            return -EINVAL;
        }
        t->data = c->base + data_at + offsets[i];
    }
    return check_overlaps(g, c);
}

static int read_count(struct cursor *c, const char *of, uint32_t max, uint32_t bytes_min,
                      uint32_t *ret)
{
    uint64_t n;
    int err = take(c, &n, sizeof n);

    if (err < 0)
        return err;
    /* Before anything is allocated. */
    if (n > max) {
        diag_set(c->diag, "%s: the number of %s is %" PRIu64 "; at most %" PRIu32 " are read",
                 c->path, of, n, max);
        return -EINVAL;
    }
    if (n > c->size / bytes_min) {
        diag_set(c->diag,
                 "%s: the number of %s is %" PRIu64 ", which needs %" PRIu64
                 " bytes or more, the file has %" PRIu64 " bytes",
                 c->path, of, n, n * bytes_min, c->size);
        return -EINVAL;
    }
    *ret = (uint32_t)n;
    return 0;
}

static int read_header(struct gguf *g, struct cursor *c)
{
    char magic[4];
    uint32_t version;
    int err;

    snprintf(c->what, sizeof c->what, "the header");
    err = take(c, magic, sizeof magic);
    if (err < 0)
        return err;
    if (memcmp(magic, "GGUF", 4) != 0) {
        diag_set(
            c->diag,
            "%s: is not a GGUF file: the magic is %02x %02x %02x %02x, expected 47 47 55 46 (GGUF)",
            c->path, (unsigned char)magic[0], (unsigned char)magic[1], (unsigned char)magic[2],
            (unsigned char)magic[3]);
        return -EINVAL;
    }
    err = take(c, &version, sizeof version);
    if (err < 0)
        return err;
    if (version && (version & 0xffffu) == 0) {
        diag_set(c->diag, "%s: is a big endian GGUF file; only little endian ones are read",
                 c->path);
        return -EINVAL;
    }
    if (version != 2 && version != 3) {
        diag_set(c->diag, "%s: has GGUF version %" PRIu32 "; versions 2 and 3 are read", c->path,
                 version);
        return -EINVAL;
    }
    err = read_count(c, "tensors", TENSORS_MAX, INFO_BYTES_MIN, &g->n_tensors);
    if (err == 0)
        err = read_count(c, "keys", KEYS_MAX, KEY_BYTES_MIN, &g->n_kvs);
    return err;
}

static int read_all(struct gguf *g, struct cursor *c)
{
    uint64_t *offsets = NULL;
    int err = read_header(g, c);

    if (err < 0)
        return err;
    g->kvs = calloc(g->n_kvs + 1u, sizeof *g->kvs);
    g->tensors = calloc(g->n_tensors + 1u, sizeof *g->tensors);
    offsets = calloc(g->n_tensors + 1u, sizeof *offsets);
    if (!g->kvs || !g->tensors || !offsets || table_init(&g->keys, g->n_kvs) < 0 ||
        table_init(&g->names, g->n_tensors) < 0) {
        diag_set(c->diag, "%s: no memory for %" PRIu32 " keys and %" PRIu32 " tensors", c->path,
                 g->n_kvs, g->n_tensors);
        err = -ENOMEM;
    }
    for (uint32_t i = 0; i < g->n_kvs && err == 0; i++)
        err = read_kv(g, c, i);
    for (uint32_t i = 0; i < g->n_tensors && err == 0; i++)
        err = read_tensor(g, c, i, &offsets[i]);
    if (err == 0)
        err = place_tensors(g, c, offsets);
    free(offsets);
    return err;
}

/* Maps a regular file whole. Its size is what fstat says now, so nothing behind it is ever
 * touched. */
static int map_file(struct gguf *g, const char *path, struct diag *diag)
{
    struct stat st;
    void *map;
    int err = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) < 0) {
        err = -errno;
        diag_set(diag, "%s: cannot open: %s", path, strerror(-err));
    } else if (!S_ISREG(st.st_mode)) {
        err = -EINVAL;
        diag_set(diag, "%s: is not a regular file", path);
    } else if (st.st_size == 0) {
        err = -EINVAL;
        diag_set(diag, "%s: is an empty file, expected a GGUF file", path);
    } else {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            err = -errno;
            diag_set(diag, "%s: cannot map %jd bytes: %s", path, (intmax_t)st.st_size,
                     strerror(-err));
        } else {
            g->map = map;
            g->size = (uint64_t)st.st_size;
            g->stat = st;
        }
    }
    if (fd >= 0)
        close(fd);
    return err;
}

int gguf_open(struct gguf **ret_gguf, const char *path, struct diag *diag)
{
    struct gguf *g = calloc(1, sizeof *g);
    struct cursor c = {.path = path, .diag = diag};
    int err;

    if (!g)
        return -ENOMEM;
    g->path = strdup(path);
    err = g->path ? map_file(g, path, diag) : -ENOMEM;
    if (err < 0)
        goto fail;
    c.base = g->map;
    c.size = g->size;
    err = read_all(g, &c);
    if (err < 0)
        goto fail;
    *ret_gguf = g;
    return 0;

fail:
    gguf_close(g);
    return err;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    if (g->map)
        munmap((void *)(uintptr_t)g->map, (size_t)g->size);
    free(g->keys.slots);
    free(g->names.slots);
    free(g->tensors);
    free(g->kvs);
    free(g->path);
    free(g);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int wrong_type(const struct gguf *g, const char *key, uint32_t type, const char *expected,
                      struct diag *diag)
{
    diag_set(diag, "%s: key '%s' has type %" PRIu32 ", expected %s", g->path, key, type, expected);
    return -EINVAL;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct diag *diag)
{
    const struct kv *kv = kv_find(g, key);
    unsigned bytes;
    uint64_t raw = 0;
    int64_t value;

    if (!kv)
        return -ENOENT;
    bytes = scalar_bytes(kv->type);
    if (!bytes || kv->type == GGUF_F32 || kv->type == GGUF_F64 || kv->type == GGUF_BOOL)
        return wrong_type(g, key, kv->type, "an integer", diag);
    memcpy(&raw, kv->at, bytes); /* little endian, as the file */
    value = (int64_t)raw;
    if (kv->type == GGUF_I8)
        value = (int8_t)raw;
    else if (kv->type == GGUF_I16)
        value = (int16_t)raw;
    else if (kv->type == GGUF_I32)
        value = (int32_t)raw;
    if ((value < 0 && kv->type != GGUF_U64) || (uint64_t)value > UINT32_MAX) {
        diag_set(diag, "%s: key '%s' is %" PRIi64 ", expected 0 to %" PRIu32, g->path, key, value,
                 UINT32_MAX);
        return -EINVAL;
    }
    *ret = (uint32_t)value;
    return 0;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct diag *diag)
{
    const struct kv *kv = kv_find(g, key);

    if (!kv)
        return -ENOENT;
    if (kv->type == GGUF_F64) {
        double value;

        memcpy(&value, kv->at, sizeof value);
        *ret = (float)value;
        return 0;
    }
    if (kv->type != GGUF_F32)
        return wrong_type(g, key, kv->type, "a float", diag);
    memcpy(ret, kv->at, sizeof *ret);
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, int *ret, struct diag *diag)
{
    const struct kv *kv = kv_find(g, key);
    uint8_t value;

    if (!kv)
        return -ENOENT;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, key, kv->type, "a bool", diag);
    value = *kv->at;
    if (value > 1) {
        diag_set(diag, "%s: key '%s' is %u, expected 0 or 1", g->path, key, value);
        return -EINVAL;
    }
    *ret = value;
    return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct diag *diag)
{
    const struct kv *kv = kv_find(g, key);

    if (!kv)
        return -ENOENT;
    if (kv->type != GGUF_STRING)
        return wrong_type(g, key, kv->type, "a string", diag);
    ret->s = (const char *)kv->at + sizeof(uint64_t);
    ret->n = (size_t)(kv->end - kv->at) - sizeof(uint64_t);
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, uint32_t elem_type,
               struct gguf_iter *ret_iter, struct diag *diag)
{
    const struct kv *kv = kv_find(g, key);

    if (!kv)
        return -ENOENT;
    if (kv->type != GGUF_ARRAY)
        return wrong_type(g, key, kv->type, "an array", diag);
    if (kv->elem != elem_type) {
        diag_set(diag, "%s: key '%s' is an array of type %" PRIu32 ", expected type %" PRIu32,
                 g->path, key, kv->elem, elem_type);
        return -EINVAL;
    }
    *ret_iter = (struct gguf_iter){.at = kv->at, .end = kv->end, .left = kv->n, .type = kv->elem};
    return 0;
}

int gguf_next_str(struct gguf_iter *it, struct gguf_str *ret)
{
    uint64_t n;

    /* The lengths were checked at opening; they are checked again because the file may have been
     * written since. */
    if (it->left == 0 || it->type != GGUF_STRING || (size_t)(it->end - it->at) < sizeof n)
        return -ENOENT;
    memcpy(&n, it->at, sizeof n);
    if (n > (uint64_t)(it->end - it->at) - sizeof n)
        return -ENOENT;
    ret->s = (const char *)it->at + sizeof n;
    ret->n = (size_t)n;
    it->at += sizeof n + n;
    it->left--;
    return 0;
}

static int next_4(struct gguf_iter *it, void *ret)
{
    if (it->left == 0 || (size_t)(it->end - it->at) < 4)
        return -ENOENT;
    memcpy(ret, it->at, 4);
    it->at += 4;
    it->left--;
    return 0;
}

int gguf_next_u32(struct gguf_iter *it, uint32_t *ret)
{
    return it->type == GGUF_U32 || it->type == GGUF_I32 ? next_4(it, ret) : -ENOENT;
}

int gguf_next_f32(struct gguf_iter *it, float *ret)
{
    return it->type == GGUF_F32 ? next_4(it, ret) : -ENOENT;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    uint32_t i = *table_slot(&g->names, g->tensors, sizeof g->tensors[0], name, strlen(name));

    return i ? &g->tensors[i - 1] : NULL;
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

uint64_t gguf_n_keys(const struct gguf *g)
{
    return g->n_kvs;
}

struct gguf_str gguf_key_at(const struct gguf *g, uint64_t i)
{
    return g->kvs[i].key;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

const uint8_t *gguf_bytes(const struct gguf *g, uint64_t *ret_n)
{
    *ret_n = g->size;
    return g->map;
}

const struct stat *gguf_stat(const struct gguf *g)
{
    return &g->stat;
}
