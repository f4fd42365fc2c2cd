/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/cpu.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/mem.h"
#include "runtime/exec/cpu_state.h"
#include "runtime/model/load.h"

_Static_assert(MODEL_HEAD_DIM_MAX <= KERN_HD_MAX, "any model's heads can be kept in 8 bits");

#define ROWS_MAX_DEFAULT                                                                           \
    256u /* of a step: enough for prefill to be bound by arithmetic, short enough to be heard in   \
            between */
#define LOGITS_MAX_DEFAULT 64u
#define ALIGN              64u /* members never share a cache line, kernels load whole lines */

/* First pass (base NULL): counts bytes. Second pass: hands out. Both run the same calls in the same
 * order. */
struct carve {
    uint8_t *base;
    size_t at;
};

static void *carve(struct carve *c, size_t n, size_t bytes)
{
    size_t at = c->at;

    c->at = (at + n * bytes + ALIGN - 1) / ALIGN * ALIGN;
    return c->base ? c->base + at : NULL;
}

static float *carve_floats(struct carve *c, size_t n)
{
    return carve(c, n, sizeof(float));
}

static void carve_quant(struct carve *c, struct quant_rows *q, size_t rows, uint32_t n_cols)
{
    size_t blocks = rows * (n_cols / KERN_BLOCK);

    q->q = carve(c, rows, n_cols);
    q->d = carve_floats(c, blocks);
    q->sum = carve_floats(c, blocks);
    q->isum = carve(c, blocks, sizeof *q->isum);
    q->n_cols = n_cols;
}

static void carve_in(struct carve *c, struct matrix_in *in, size_t rows, uint32_t n_cols)
{
    in->x = carve_floats(c, rows * n_cols);
    carve_quant(c, &in->q, rows, n_cols);
}

/* The same for rows that are quantised whole, so that their outliers are known. */
static void carve_whole_in(struct carve *c, struct matrix_in *in, size_t rows, uint32_t n_cols)
{
    carve_in(c, in, rows, n_cols);
    in->q.n_out = carve(c, rows, sizeof *in->q.n_out);
    in->q.out = carve(c, rows * (n_cols / KERN_BLOCK), sizeof *in->q.out);
}

static void carve_partial(const struct cpu_state *cpu, struct carve *c, struct partial *partial)
{
    size_t heads = (size_t)cpu->n_splits_max * ATTEND_ROWS * cpu->group;

    partial->o = carve_floats(c, heads * cpu->model->hp.head_dim);
    partial->m = carve_floats(c, heads);
    partial->sum = carve_floats(c, heads);
}

static void carve_all(struct cpu_state *cpu, struct carve *c)
{
    const struct hparams *hp = &cpu->model->hp;
    uint32_t attn_cols = hp->n_head * hp->head_dim;
    uint32_t in_cols = hp->n_embd > attn_cols ? hp->n_embd : attn_cols;
    size_t rows = cpu->backend.rows_max;

    cpu->x = carve_floats(c, rows * hp->n_embd);
    cpu->qkv = carve_floats(c, rows * cpu->qkv_rows);
    cpu->attn = carve_floats(c, rows * attn_cols);
    carve_whole_in(c, &cpu->in, rows, in_cols);
    carve_in(c, &cpu->mlp, rows, hp->n_ff);
    cpu->logits = carve_floats(c, (size_t)cpu->backend.logits_max * hp->n_vocab);
    cpu->block_max = carve_floats(c, (size_t)cpu->backend.logits_max * n_tops(cpu));
    cpu->backend.block_max = cpu->block_max;
    for (uint32_t i = 0; i < hp->n_head_kv; i++)
        carve_partial(cpu, c, &cpu->parts[i]);
    for (unsigned i = 0; i < team_size(cpu->team); i++) {
        struct member *member = &cpu->members[i];

        carve_whole_in(c, &member->in, SELF_ROWS, in_cols);
        carve_partial(cpu, c, &member->partial);
        member->q = carve_floats(c, (size_t)ATTEND_ROWS * cpu->group * hp->head_dim);
        member->k = carve_floats(c, hp->head_dim);
        for (unsigned half = 0; half < 2; half++)
            member->part[half] = carve_floats(c, part_floats(rows));
    }
}

static void note_type(struct cpu_state *cpu, const struct packed_matrix *m)
{
    if (m->n_rows == 0)
        return; /* Q, K and V are either one matrix or three */
    if (!dtype_is_float(m->type))
        cpu->quantised = 1;
}

static void note_types(struct cpu_state *cpu)
{
    note_type(cpu, &cpu->model->head);
    for (uint32_t i = 0; i < cpu->model->hp.n_layer; i++) {
        const struct layer *l = &cpu->model->layers[i];
        const struct packed_matrix *matrices[] = {&l->qkv, &l->q,    &l->k,  &l->v,
                                                  &l->o,   &l->gate, &l->up, &l->down};

        for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++)
            note_type(cpu, matrices[m]);
    }
}

static int take_memory(struct cpu_state *cpu, const struct cpu_backend_opt *opt, struct diag *diag)
{
    const struct hparams *hp = &cpu->model->hp;
    struct carve c = {NULL, 0};
    size_t page_bytes = kv_at(cpu, 0, 1, 0);
    int err;

    cpu->rows = calloc(cpu->backend.rows_max, sizeof *cpu->rows);
    cpu->members = calloc(team_size(cpu->team), sizeof *cpu->members);
    cpu->parts = calloc(hp->n_head_kv, sizeof *cpu->parts);
    cpu->tiles = calloc(cpu->backend.rows_max, sizeof *cpu->tiles);
    if (!cpu->rows || !cpu->tiles || !cpu->members || !cpu->parts) {
        diag_set(diag, "no memory for %" PRIu32 " rows a step", cpu->backend.rows_max);
        return -ENOMEM;
    }
    carve_all(cpu, &c);
    cpu->memory_bytes = c.at;
    cpu->memory = mem_map(cpu->memory_bytes);
    if (!cpu->memory) {
        diag_set(diag, "no memory for %zu bytes of activations", cpu->memory_bytes);
        return -ENOMEM;
    }
    c = (struct carve){cpu->memory, 0};
    carve_all(cpu, &c);

    cpu->kv = cpu->n_pages <= SIZE_MAX / 2 / page_bytes ? mem_map(cpu->n_pages * page_bytes) : NULL;
    cpu->kv_bytes = cpu->n_pages * page_bytes;
    if (!cpu->kv) {
        diag_set(diag, "no memory for %zu bytes of KV in %" PRIu32 " pages", cpu->kv_bytes,
                 cpu->n_pages);
        return -ENOMEM;
    }
    if (opt->kv_touch) {
        err = mem_touch(cpu->kv, cpu->kv_bytes);
        if (err < 0)
            diag_set(diag, "no memory for %zu bytes of KV: %s", cpu->kv_bytes, strerror(-err));
        return err;
    }
    if (!opt->kv_prefault)
        return 0;
    err = mem_populate(cpu->kv, cpu->kv_bytes);
    if (err < 0)
        diag_set(diag,
                 "kv_prefault: cannot touch and lock %zu bytes of KV: %s; raise LimitMEMLOCK, take "
                 "fewer pages or "
                 "turn kv_prefault off",
                 cpu->kv_bytes, strerror(-err));
    return err;
}

int cpu_backend_new(struct backend **ret_backend, const struct model *model,
                    const struct cpu_kernels *kernels, struct team *team,
                    const struct cpu_backend_opt *opt, struct diag *diag)
{
    const struct hparams *hp = &model->hp;
    struct cpu_state *cpu;
    int err;

    if (opt->n_pages == 0) {
        diag_set(diag, "a KV pool without pages");
        return -EINVAL;
    }
    cpu = aligned_alloc(ALIGN, sizeof *cpu);
    if (!cpu)
        return -ENOMEM;
    memset(cpu, 0, sizeof *cpu);
    cpu->model = model;
    cpu->kernels = kernels;
    cpu->team = team;
    cpu->n_pages = opt->n_pages;
    cpu->n_splits_max = (model->n_ctx + KERN_SPLIT - 1) / KERN_SPLIT;
    cpu->kv_type = opt->kv_type;
    cpu->kv_page = kv_page_bytes(opt->kv_type, hp->head_dim);
    cpu->group = hp->n_head / hp->n_head_kv;
    cpu->scale = 1 / sqrtf((float)hp->head_dim);
    cpu->qkv_rows = (hp->n_head + 2 * hp->n_head_kv) * hp->head_dim;
    cpu->backend = (struct backend){
        .self = cpu,
        .rows_max = opt->rows_max ? opt->rows_max : ROWS_MAX_DEFAULT,
        .logits_max = opt->logits_max ? opt->logits_max : LOGITS_MAX_DEFAULT,
        .n_vocab = hp->n_vocab,
        .forward = forward_llama,
    };
    note_types(cpu);
    err = take_memory(cpu, opt, diag);
    if (err < 0) {
        cpu_backend_free(&cpu->backend);
        return err;
    }
    *ret_backend = &cpu->backend;
    return 0;
}

void cpu_backend_free(struct backend *backend)
{
    struct cpu_state *cpu;

    if (!backend)
        return;
    cpu = backend->self;
    mem_unmap(cpu->kv, cpu->kv_bytes);
    mem_unmap(cpu->memory, cpu->memory_bytes);
    free(cpu->tiles);
    free(cpu->parts);
    free(cpu->members);
    free(cpu->rows);
    free(cpu);
}
