/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.c - weights into memory: mapped from a cache file when one fits, else packed on the team.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/model/pack_cache.h"
#include "runtime/model/pack_save.h"
#include "runtime/model/weights.h"

#define UNIT_BYTES  (2u << 20) /* packed at a time: a huge page */
#define SAMPLE_COLS 256u       /* whole blocks of every type */
#define SAMPLE_ROWS 13u        /* of 16: the padding is part of the form */

struct filling {
    struct loader *l;
    const struct load_opt *opt;
    struct team *team;
    struct pack_key key;
    int beside_due;
    /* Of the region that runs. */
    const uint8_t *bytes; /* to be hashed */
    uint64_t n_bytes;
    XXH128_canonical_t *digests[2]; /* [pieces] with seed 0, and 1 where it is wanted */
    uint32_t half;                  /* of the columns that are rotated */
    _Atomic int unreadable;
    _Alignas(64) _Atomic uint64_t next; /* piece or unit */
};

/* ---- hashing -------------------------------------------------------------------------------- */

/* Maps the pages of one piece at once. Where they cannot be read that is seen here, and not as a
 * signal. */
static int piece_populate(const struct filling *f, uint64_t i)
{
    const uint8_t *begin = f->bytes + i * DIGEST_PIECE;
    uint64_t left = f->n_bytes - i * DIGEST_PIECE;
    size_t n = left < DIGEST_PIECE ? (size_t)left : DIGEST_PIECE;
    size_t before = (uintptr_t)begin % MEM_PAGE;

    return madvise((void *)(uintptr_t)(begin - before), n + before, MADV_POPULATE_READ) < 0 &&
                   errno == EFAULT
               ? -EIO
               : 0;
}

static void hash_region(void *arg, unsigned member, unsigned n)
{
    struct filling *f = arg;
    uint64_t pieces = digest_pieces(f->n_bytes), i;

    if (member == n - 1 && f->beside_due)
        f->opt->beside(f->opt->beside_arg, f->l->g);
    while ((i = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed)) < pieces) {
        if (piece_populate(f, i) < 0) {
            atomic_store_explicit(&f->unreadable, 1, memory_order_relaxed);
            break;
        }
        for (unsigned seed = 0; seed < 2 && f->digests[seed]; seed++)
            digest_piece(&f->digests[seed][i], f->bytes, f->n_bytes, i, seed);
    }
}

/* ret: n_seeds digests of DIGEST_BYTES. -EIO: not readable. */
static int hash(struct filling *f, const uint8_t *bytes, uint64_t n_bytes, unsigned n_seeds,
                uint8_t *ret)
{
    uint64_t pieces = digest_pieces(n_bytes);
    int err = 0;

    for (unsigned seed = 0; seed < 2; seed++) {
        f->digests[seed] = seed < n_seeds ? calloc(pieces, sizeof *f->digests[seed]) : NULL;
        if (seed < n_seeds && !f->digests[seed])
            err = -ENOMEM;
    }
    if (err == 0) {
        f->bytes = bytes;
        f->n_bytes = n_bytes;
        f->next = 0;
        f->unreadable = 0;
        team_run(f->team, hash_region, f);
        f->beside_due = 0;
        err = f->unreadable ? -EIO : 0;
    }
    for (unsigned seed = 0; seed < n_seeds; seed++) {
        if (err == 0)
            digest_bytes(ret + seed * DIGEST_BYTES, f->digests[seed],
                         pieces * sizeof *f->digests[seed]);
        free(f->digests[seed]);
    }
    return err;
}

/* ---- packing -------------------------------------------------------------------------------- */

static uint32_t job_groups(const struct weights_job *job)
{
    return (job->n_rows + KERN_ROWS - 1) / KERN_ROWS;
}

static uint64_t job_end(const struct weights_job *job)
{
    return job->at + job_groups(job) * job->group_bytes;
}

/* Packs the groups that begin in bytes begin .. end - 1 of the memory. */
static void pack_bytes(const struct filling *f, const struct weights_job *job, uint64_t begin,
                       uint64_t end)
{
    uint8_t *base = f->l->model->memory;
    uint64_t g = begin > job->at ? (begin - job->at + job->group_bytes - 1) / job->group_bytes : 0;

    for (; g < job_groups(job) && job->at + g * job->group_bytes < end; g++)
        pack_group(base + job->at + g * job->group_bytes, (enum dtype)job->tensor->type,
                   job->tensor->data, job->n_rows, job->n_cols, (uint32_t)g * KERN_ROWS);
}

/* A unit is a huge page: if two members touched it first at once, both would clear one. Jobs stand in
 * the order of their places, and units are taken in order. */
static void pack_region(void *arg, unsigned member, unsigned n)
{
    struct filling *f = arg;
    const struct weights_job *job = f->l->jobs, *jobs_end = job + f->l->n_jobs;

    (void)member;
    (void)n;
    while (job < jobs_end) {
        uint64_t begin = UNIT_BYTES * atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed);

        while (job < jobs_end && job_end(job) <= begin)
            job++;
        for (const struct weights_job *j = job; j < jobs_end && j->at < begin + UNIT_BYTES; j++)
            pack_bytes(f, j, begin, begin + UNIT_BYTES);
    }
}

static void table_region(void *arg, unsigned member, unsigned n)
{
    const struct filling *f = arg;
    const struct model *model = f->l->model;
    float *cos = (float *)(uintptr_t)model->rope_cos, *sin = (float *)(uintptr_t)model->rope_sin;
    uint32_t begin, end;

    team_share(model->n_ctx, 1, member, n, &begin, &end);
    rope_table(cos + (size_t)begin * f->half, sin + (size_t)begin * f->half, begin, end, &model->hp,
               &f->l->rope);
}

static void pack_norms(const struct loader *l)
{
    uint8_t *at = (uint8_t *)l->model->memory + l->norms_at;

    for (uint32_t i = 0; i < l->n_norms; i++, at += l->norm_bytes) {
        const struct gguf_tensor *t = l->norms[i].tensor;

        dequantize_row((float *)(void *)at, (enum dtype)t->type, t->data, (uint32_t)t->dims[0]);
    }
}

/* Everything that points into the weights; tables of n_ctx positions. */
static void point(struct loader *l, const uint8_t *base, uint64_t n_ctx)
{
    struct model *model = l->model;
    const uint8_t *norm = base + l->norms_at;
    size_t half = model->hp.rope_dim / 2;

    for (uint32_t i = 0; i < l->n_places; i++)
        l->places[i].matrix->data = base + l->places[i].at;
    if (l->tied)
        model->embd = model->head;
    for (uint32_t i = 0; i < l->n_norms; i++, norm += l->norm_bytes)
        *l->norms[i].ret = (const float *)(const void *)norm;
    model->rope_cos = (const float *)(const void *)(base + l->fixed_bytes);
    model->rope_sin = model->rope_cos + n_ctx * half;
}

static int pack(struct filling *f)
{
    struct loader *l = f->l;
    struct model *model = l->model;
    uint64_t bytes = l->fixed_bytes + f->key.ctx_bytes * model->n_ctx, begin;

    model->memory = mem_map(bytes);
    if (!model->memory) {
        diag_set(l->diag, "%s: no memory for %zu bytes of weights", gguf_path(l->g), (size_t)bytes);
        return -ENOMEM;
    }
    model->memory_bytes = bytes;
    point(l, model->memory, model->n_ctx);
    f->next = 0;
    begin = clock_ns();
    team_run(f->team, pack_region, f);
    pack_norms(l);
    model->pack_ns = clock_ns() - begin;
    team_run(f->team, table_region, f);
    return 0;
}

/* ---- the cache ------------------------------------------------------------------------------ */

/* What the packer makes of a few rows: with another packer no cache of this one is read. */
static int sample_digest(uint8_t ret[DIGEST_BYTES], uint32_t type)
{
    size_t packed_bytes = pack_group_bytes((enum dtype)type, SAMPLE_COLS), bytes;
    uint32_t block, block_bytes;
    uint8_t *source, *packed;
    int err = gguf_type_size(type, &block, &block_bytes);

    if (err < 0)
        return err;
    bytes = (size_t)SAMPLE_ROWS * (SAMPLE_COLS / block) * block_bytes;
    source = malloc(bytes);
    packed = malloc(packed_bytes);
    if (source && packed) {
        for (size_t i = 0; i < bytes; i++)
            source[i] = (uint8_t)(i * 131 + (i >> 8) * 29);
        pack_group(packed, (enum dtype)type, source, SAMPLE_ROWS, SAMPLE_COLS, 0);
        digest_bytes(ret, packed, packed_bytes);
    } else {
        err = -ENOMEM;
    }
    free(source);
    free(packed);
    return err;
}

struct entry { /* of a layout's digest: a matrix */
    uint64_t at, group_bytes, type, n_rows, n_cols;
    uint8_t sample[DIGEST_BYTES];
};

/* The sample of a type is the same for all of its matrices: taken from one before. */
static int sample_once(struct entry *e, const struct entry *entries)
{
    for (const struct entry *before = e; before-- > entries;) {
        if (before->type == e->type) {
            memcpy(e->sample, before->sample, sizeof e->sample);
            return 0;
        }
    }
    return sample_digest(e->sample, (uint32_t)e->type);
}

static int layout_digest(const struct loader *l, uint8_t ret[DIGEST_BYTES])
{
    struct entry *entries = calloc(l->n_jobs + 1u, sizeof *entries);
    int err = entries ? 0 : -ENOMEM;

    for (uint32_t i = 0; i < l->n_jobs && err == 0; i++) {
        const struct weights_job *job = &l->jobs[i];
        struct entry *e = &entries[i];

        *e = (struct entry){.at = job->at,
                            .group_bytes = job->group_bytes,
                            .type = job->tensor->type,
                            .n_rows = job->n_rows,
                            .n_cols = job->n_cols};
        err = sample_once(e, entries);
    }
    if (err == 0) {
        entries[l->n_jobs] =
            (struct entry){.at = l->norms_at, .group_bytes = l->norm_bytes, .n_rows = l->n_norms};
        digest_bytes(ret, entries, (l->n_jobs + 1u) * sizeof *entries);
    }
    free(entries);
    return err;
}

static int key_make(struct filling *f)
{
    const struct loader *l = f->l;
    char *path = realpath(gguf_path(l->g), NULL);
    const char *named = path ? path : gguf_path(l->g);

    digest_bytes(f->key.path, named, strlen(named));
    free(path);
    pack_source(f->key.source, gguf_stat(l->g));
    f->key.fixed_bytes = l->fixed_bytes;
    f->key.n_ctx = l->model->n_ctx;
    return layout_digest(l, f->key.layout);
}

/* Hashes what is mapped, and takes it. */
static int map_take(struct filling *f, struct pack_map *map)
{
    struct model *model = f->l->model;
    uint8_t body[DIGEST_BYTES];
    int err = hash(f, map->body, map->body_bytes, 1, body);

    if (err == 0 && memcmp(body, map->header.body, sizeof body) != 0)
        err = -EINVAL;
    if (err == 0) {
        model->packed = malloc(sizeof *model->packed);
        err = model->packed ? 0 : -ENOMEM;
    }
    if (err < 0) {
        pack_cache_damaged(map, f->opt->cache, &model->cache_note);
        pack_cache_close(map);
        return err;
    }
    *model->packed = *map;
    memcpy(model->hash, map->header.key.model, sizeof model->hash);
    point(f->l, map->body, map->header.key.n_ctx);
    return 0;
}

/* Leaves what is to be written: all that was packed, or what the file that is mapped should have
 * said of the model file, which looks different than when it was packed, but is the same. */
static int keep(struct filling *f)
{
    struct model *model = f->l->model;
    const struct pack_map *map = model->packed;
    struct pack_keep *k;

    if (map && (memcmp(map->header.key.source, f->key.source, DIGEST_BYTES) == 0 ||
                memcmp(map->header.key.path, f->key.path, DIGEST_BYTES) != 0))
        return 0;
    model->keep = k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->key = f->key;
    k->key.n_ctx = map ? map->header.key.n_ctx : model->n_ctx;
    k->body = map ? map->body : model->memory;
    k->body_bytes = map ? map->body_bytes : model->memory_bytes;
    k->folder = strdup(f->opt->cache);
    k->source = strdup(gguf_path(f->l->g));
    return k->folder && k->source ? 0 : -ENOMEM;
}

int weights_fill(struct loader *l, const struct load_opt *opt, struct team *team)
{
    struct model *model = l->model;
    struct filling f = {.l = l, .opt = opt, .team = team, .beside_due = opt->beside != NULL};
    struct pack_map map = {.body = NULL};
    const uint8_t *bytes;
    uint64_t n_bytes;
    int err = 0, mapped = 0, damaged = 0;

    f.half = model->hp.rope_dim / 2;
    f.key.ctx_bytes = 2 * sizeof(float) * f.half;
    if (opt->cache)
        err = key_make(&f);
    if (err == 0 && opt->cache && pack_cache_find(&map, opt->cache, &f.key) == 0) {
        mapped = map_take(&f, &map) == 0;
        damaged = !mapped;
    }
    if (err == 0 && !mapped) {
        bytes = gguf_bytes(l->g, &n_bytes);
        err = hash(&f, bytes, n_bytes, 2, model->hash);
        if (err == -EIO)
            diag_set(l->diag, "%s: cannot be read", gguf_path(l->g));
        memcpy(f.key.model, model->hash, sizeof f.key.model);
        if (err == 0 && opt->cache && !damaged &&
            pack_cache_open(&map, opt->cache, &f.key, &model->cache_note) == 0)
            mapped = map_take(&f, &map) == 0;
        if (err == 0 && !mapped)
            err = pack(&f);
    }
    memcpy(f.key.model, model->hash, sizeof f.key.model);
    return err == 0 && opt->cache ? keep(&f) : err;
}
