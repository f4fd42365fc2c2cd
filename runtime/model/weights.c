/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/weights.h"

static size_t reserve(struct loader *l, size_t bytes)
{
    size_t at = l->fixed_bytes;

    l->fixed_bytes = (at + bytes + WEIGHTS_ALIGN - 1) / WEIGHTS_ALIGN * WEIGHTS_ALIGN;
    return at;
}

/* ---- binding: every tensor is found, checked and given its place ---------------------------- */

static const struct gguf_tensor *find(struct loader *l, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(l->g, name);

    if (t)
        l->used[t - gguf_tensor_at(l->g, 0)] = 1;
    return t;
}

/* Finds a tensor that must be there with exactly these dimensions (rows 0: one dimension). */
static int want(struct loader *l, const char *name, uint32_t cols, uint32_t rows,
                const struct gguf_tensor **ret)
{
    const struct gguf_tensor *t = find(l, name);
    const char *path = gguf_path(l->g);

    if (!t) {
        diag_set(l->diag, "%s: tensor '%s' is missing", path, name);
        return -EINVAL;
    }
    if (t->n_dims != (rows ? 2u : 1u) || t->dims[0] != cols || t->dims[1] != (rows ? rows : 1)) {
        diag_set(l->diag,
                 "%s: tensor '%s' has %" PRIu32 " dimensions, %" PRIu64 " x %" PRIu64
                 ", expected %" PRIu32 " x %" PRIu32
                 " (from the keys of llama.* and the vocabulary)",
                 path, name, t->n_dims, t->dims[0], t->dims[1], cols, rows ? rows : 1);
        return -EINVAL;
    }
    *ret = t;
    return 0;
}

static int want_matrix(struct loader *l, const char *name, uint32_t cols, uint32_t rows,
                       const struct gguf_tensor **ret)
{
    int err = want(l, name, cols, rows, ret);

    if (err < 0)
        return err;
    if (!pack_group_bytes((enum dtype)(*ret)->type, cols)) {
        diag_set(l->diag,
                 "%s: tensor '%s' has type %s, which is not run; convert the model to F32, F16, "
                 "BF16, Q8_0, Q2_K to Q6_K, Q5_0, Q5_1, Q4_0, Q4_1, IQ4_NL, IQ4_XS or MXFP4",
                 gguf_path(l->g), name, gguf_type_name((*ret)->type));
        return -EINVAL;
    }
    return 0;
}

/* Appends a job at a place that the caller chose; returns the bytes that it fills. */
static size_t add_job(struct loader *l, const struct gguf_tensor *t, size_t at)
{
    struct weights_job *job = &l->jobs[l->n_jobs++];

    job->tensor = t;
    job->at = at;
    job->n_cols = (uint32_t)t->dims[0];
    job->n_rows = (uint32_t)t->dims[1];
    job->group_bytes = pack_group_bytes((enum dtype)t->type, job->n_cols);
    return job->group_bytes * ((job->n_rows + KERN_ROWS - 1) / KERN_ROWS);
}

static void set_matrix(struct loader *l, struct packed_matrix *m, const struct gguf_tensor *t,
                       size_t at, uint32_t rows)
{
    m->type = (enum dtype)t->type;
    m->n_cols = (uint32_t)t->dims[0];
    m->n_rows = rows;
    l->places[l->n_places++] = (struct weights_place){m, at};
}

static int bind_matrix(struct loader *l, const char *name, uint32_t cols, uint32_t rows,
                       struct packed_matrix *m)
{
    const struct gguf_tensor *t;
    int err = want_matrix(l, name, cols, rows, &t);

    if (err < 0)
        return err;
    set_matrix(l, m, t, l->fixed_bytes, rows);
    reserve(l, add_job(l, t, l->fixed_bytes));
    return 0;
}

/* Q, K and V read the same input: one matrix, one pass, when they have one type. */
static int bind_qkv(struct loader *l, uint32_t i, struct layer *layer)
{
    static const char *const parts[] = {"q", "k", "v"};
    const struct hparams *hp = &l->model->hp;
    struct packed_matrix *const matrices[] = {&layer->q, &layer->k, &layer->v};
    const uint32_t rows[] = {hp->n_head * hp->head_dim, hp->n_head_kv * hp->head_dim,
                             hp->n_head_kv * hp->head_dim};
    const struct gguf_tensor *t[3];
    size_t bytes = 0;
    char name[64];

    for (int p = 0; p < 3; p++) {
        int err;

        snprintf(name, sizeof name, "blk.%" PRIu32 ".attn_%s.weight", i, parts[p]);
        err = want_matrix(l, name, hp->n_embd, rows[p], &t[p]);
        if (err < 0)
            return err;
    }
    if (t[0]->type == t[1]->type && t[0]->type == t[2]->type) {
        set_matrix(l, &layer->qkv, t[0], l->fixed_bytes, rows[0] + rows[1] + rows[2]);
        for (int p = 0; p < 3; p++)
            bytes += add_job(l, t[p], l->fixed_bytes + bytes);
        reserve(l, bytes);
        return 0;
    }
    for (int p = 0; p < 3; p++) {
        set_matrix(l, matrices[p], t[p], l->fixed_bytes, rows[p]);
        reserve(l, add_job(l, t[p], l->fixed_bytes));
    }
    return 0;
}

/* Norm weights become f32. */
static int bind_norm(struct loader *l, const char *name, const float **ret)
{
    const struct gguf_tensor *t;
    int err = want(l, name, l->model->hp.n_embd, 0, &t);

    if (err < 0)
        return err;
    if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16) {
        diag_set(l->diag, "%s: tensor '%s' has type %s, expected F32, F16 or BF16", gguf_path(l->g),
                 name, gguf_type_name(t->type));
        return -EINVAL;
    }
    l->norms[l->n_norms++] = (struct weights_norm){ret, t};
    return 0;
}

static int bind_layer(struct loader *l, uint32_t i)
{
    const struct hparams *hp = &l->model->hp;
    struct layer *layer = &l->model->layers[i];
    const struct {
        const char *name;
        uint32_t cols, rows;
        struct packed_matrix *matrix;
    } matrices[] = {
        {"attn_output", hp->n_head * hp->head_dim, hp->n_embd, &layer->o},
        {"ffn_gate", hp->n_embd, hp->n_ff, &layer->gate},
        {"ffn_up", hp->n_embd, hp->n_ff, &layer->up},
        {"ffn_down", hp->n_ff, hp->n_embd, &layer->down},
    };
    char name[64];
    int err;

    snprintf(name, sizeof name, "blk.%" PRIu32 ".attn_norm.weight", i);
    err = bind_norm(l, name, &layer->attn_norm);
    if (err == 0)
        err = bind_qkv(l, i, layer);
    snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_norm.weight", i);
    if (err == 0)
        err = bind_norm(l, name, &layer->ffn_norm);
    for (size_t m = 0; m < sizeof matrices / sizeof matrices[0] && err == 0; m++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", i, matrices[m].name);
        err = bind_matrix(l, name, matrices[m].cols, matrices[m].rows, matrices[m].matrix);
    }
    return err;
}

/* Llama 3 carries its rotation scaling as one divisor a frequency. */
static int bind_rope_freqs(struct loader *l)
{
    static const char name[] = "rope_freqs.weight";
    uint32_t half = l->model->hp.rope_dim / 2;
    const struct gguf_tensor *t;
    int err;

    if (!gguf_tensor(l->g, name))
        return 0;
    err = want(l, name, half, 0, &t);
    if (err < 0)
        return err;
    if (t->type != DTYPE_F32) {
        diag_set(l->diag, "%s: tensor '%s' has type %s, expected F32", gguf_path(l->g), name,
                 gguf_type_name(t->type));
        return -EINVAL;
    }
    l->rope_freqs = malloc(half * sizeof *l->rope_freqs);
    if (!l->rope_freqs)
        return -ENOMEM;
    memcpy(l->rope_freqs, t->data, half * sizeof *l->rope_freqs);
    for (uint32_t i = 0; i < half; i++) {
        if (!(l->rope_freqs[i] >= 1 && l->rope_freqs[i] <= 1e6f)) {
            diag_set(l->diag, "%s: tensor '%s' has %g at %" PRIu32 ", expected 1 to 1e6",
                     gguf_path(l->g), name, (double)l->rope_freqs[i], i);
            return -EINVAL;
        }
    }
    l->rope.freqs = l->rope_freqs;
    return 0;
}

/* A tensor that nobody asked for (a bias, an expert, a second norm) would change the answer:
 * refused, not ignored. */
static int check_unused(const struct loader *l)
{
    for (uint64_t i = 0; i < gguf_n_tensors(l->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(l->g, i);

        if (!l->used[i]) {
            diag_set(l->diag,
                     "%s: tensor '%.*s' is not part of a llama model of %" PRIu32
                     " blocks as it is run here",
                     gguf_path(l->g), (int)t->name.n, t->name.s, l->model->hp.n_layer);
            return -EINVAL;
        }
    }
    return 0;
}

/* Places follow the order of use, so that a decode step streams through the arena once. */
static int bind_all(struct loader *l)
{
    struct model *model = l->model;
    const struct hparams *hp = &model->hp;
    int untied = gguf_tensor(l->g, "output.weight") != NULL;
    int err = 0;

    for (uint32_t i = 0; i < hp->n_layer && err == 0; i++)
        err = bind_layer(l, i);
    if (err == 0)
        err = bind_norm(l, "output_norm.weight", &model->output_norm);
    if (err == 0)
        err = bind_matrix(l, untied ? "output.weight" : "token_embd.weight", hp->n_embd,
                          hp->n_vocab, &model->head);
    model->weight_bytes = l->fixed_bytes;
    if (err == 0 && untied)
        err = bind_matrix(l, "token_embd.weight", hp->n_embd, hp->n_vocab, &model->embd);
    if (err == 0)
        err = bind_rope_freqs(l);
    if (err == 0)
        err = check_unused(l);
    l->tied = !untied;
    /* Norms come behind the matrices: they are small and stay in a cache. */
    l->norm_bytes =
        (hp->n_embd * sizeof(float) + WEIGHTS_ALIGN - 1) / WEIGHTS_ALIGN * WEIGHTS_ALIGN;
    l->norms_at = reserve(l, l->n_norms * l->norm_bytes);
    return err;
}

int weights_load(struct model *model, const struct gguf *g, float linear,
                 const struct load_opt *opt, struct team *team, struct diag *diag)
{
    struct loader l = {.model = model, .g = g, .diag = diag, .rope = {.linear = linear}};
    size_t n_matrices = (size_t)model->hp.n_layer * 7 + 2,
           n_norms = (size_t)model->hp.n_layer * 2 + 1;
    int err = -ENOMEM;

    l.used = calloc(gguf_n_tensors(g) + 1, 1);
    l.jobs = calloc(n_matrices, sizeof *l.jobs);
    l.places = calloc(n_matrices, sizeof *l.places);
    l.norms = calloc(n_norms, sizeof *l.norms);
    if (l.used && l.jobs && l.places && l.norms) {
        err = bind_all(&l);
        if (err == 0)
            err = weights_fill(&l, opt, team);
    }
    if (err == -ENOMEM)
        diag_set(diag, "%s: out of memory", gguf_path(g));
    free(l.rope_freqs);
    free(l.norms);
    free(l.places);
    free(l.jobs);
    free(l.used);
    return err;
}
