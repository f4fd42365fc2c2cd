/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward_llama.c - one step of a llama model: embedding and layers, over all rows at once;
 * head.c makes logits of what they leave.
 *
 * Architecture: Touvron et al. 2023, arXiv:2302.13971 (RMSNorm before, rotary positions, SwiGLU),
 * grouped query heads as Ainslie et al. 2023, arXiv:2305.13245.
 *
 * Each `..._region` runs on every member of the team; between two regions is a barrier. Nothing
 * that a member computes for a row depends on the other rows or on who computes it, so a row's
 * result is the same in every batch, chunk and team. Matrices are shared out by rows of the matrix
 * (parts.c). With few rows every member norms and quantises them all for itself, which costs
 * less than a barrier.
 */
#include <assert.h>
#include <string.h>
#include "runtime/exec/cpu_state.h"

struct pass {
    struct cpu_state *cpu;
    const struct step *step;
    const struct layer *layer;
    uint32_t i_layer;
    uint32_t n_rows;  /* of the step; from the last attention on, those with logits */
    uint32_t n_units; /* of attention, for one kv head */
    int self;         /* n_rows <= SELF_ROWS */
    int split;        /* n_rows <= SPLIT_ROWS */
    int decode;       /* one row a sequence, all with logits: whoever attends to the newest position
                        stores it first */
};

static void attn_norm_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    norm_rows(p->cpu, &p->cpu->in, p->layer->attn_norm, begin, end);
}

static void ffn_norm_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    norm_rows(p->cpu, &p->cpu->in, p->layer->ffn_norm, begin, end);
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Columns of Q, K and V, side by side: of one matrix or of three. */
static void project_part(const struct pass *p, struct part part, const struct matrix_in *in)
{
    struct cpu_state *cpu = p->cpu;
    const struct layer *l = p->layer;
    const struct packed_matrix *matrices[] = {&l->qkv, &l->q, &l->k, &l->v}, *w = matrices[0];
    struct quant_rows q = quant_view(in, cpu->model->hp.n_embd);
    uint32_t first = 0; /* column of w */

    for (uint32_t m = 0; part.n_cols > 0; first += w->n_rows) {
        struct part cut;

        w = matrices[m++];
        if (part.col >= first + w->n_rows)
            continue;
        cut = (struct part){part.col - first, first + w->n_rows - part.col};
        cut.n_cols = cut.n_cols < part.n_cols ? cut.n_cols : part.n_cols;
        part_matmul(cpu, cpu->qkv + part.col, cpu->qkv_rows, w, cut, &q, in->x, p->n_rows);
        part = (struct part){part.col + cut.n_cols, part.n_cols - cut.n_cols};
    }
}

static void qkv_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct parts parts = parts_of(cpu, cpu->qkv_rows, KERN_ROWS, p->n_rows, member);
    struct part part;

    (void)n;
    if (p->self)
        norm_rows(cpu, in, p->layer->attn_norm, 0, p->n_rows);
    while (parts_next(&parts, &part))
        project_part(p, part, in);
}

/* Rotates K of one row and kv head and stores it with V in the row's page. */
static void store_kv(const struct pass *p, float *k, uint32_t row, uint32_t head)
{
    const struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    const struct row_info *info = &cpu->rows[row];
    size_t table = (size_t)info->pos * (hp->rope_dim / 2);
    const float *src =
        cpu->qkv + (size_t)row * cpu->qkv_rows + (size_t)(hp->n_head + head) * hp->head_dim;
    const float *v = src + (size_t)hp->n_head_kv * hp->head_dim;
    uint8_t *page = cpu->kv + kv_at(cpu, p->i_layer, info->pages[info->pos / KERN_PAGE], head);
    uint32_t slot = info->pos % KERN_PAGE;

    memcpy(k, src, hp->head_dim * sizeof *k);
    cpu->kernels->rope(k, cpu->model->rope_cos + table, cpu->model->rope_sin + table, hp->head_dim);
    if (cpu->kv_type == KV_Q8)
        cpu->kernels->kv_store_q8(page, page + cpu->kv_page, slot, k, v, hp->head_dim);
    else
        cpu->kernels->kv_store((void *)page, (void *)(page + cpu->kv_page), slot, k, v,
                               hp->head_dim);
}

static void store_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    for (uint32_t r = begin; r < end; r++)
        for (uint32_t h = 0; h < p->cpu->model->hp.n_head_kv; h++)
            store_kv(p, p->cpu->members[member].k, r, h);
}

static uint32_t n_splits(const struct cpu_state *cpu, uint32_t row)
{
    return cpu->rows[row].pos / KERN_SPLIT + 1;
}

/* What a member does at a time: a tile of rows and a kv head, all splits or (few rows) one of them,
 * merged by the next region. */
struct unit {
    const struct row_tile *tile;
    uint32_t head, split;
};

/* Unit `index` of the step's attention; 0 when there are fewer. Rows inside heads, so that a head's
 * pages stay in the cache for all rows; the last positions, which take longest, first. */
static int find_unit(const struct pass *p, uint32_t index, struct unit *ret_unit)
{
    const struct cpu_state *cpu = p->cpu;
    const struct row_tile *tile = &cpu->tiles[cpu->n_tiles - 1];
    uint32_t head = index / p->n_units;

    if (head >= cpu->model->hp.n_head_kv)
        return 0;
    index %= p->n_units;
    if (!p->split) {
        *ret_unit = (struct unit){tile - index, head, 0};
        return 1;
    }
    for (; index >= n_splits(cpu, tile->row0); tile--)
        index -= n_splits(cpu, tile->row0);
    *ret_unit = (struct unit){tile, head, index};
    return 1;
}

/* Keys of page i of the unit's sequence. */
static const uint8_t *unit_keys(const struct pass *p, const struct unit *unit, uint32_t i)
{
    const struct cpu_state *cpu = p->cpu;

    return cpu->kv + kv_at(cpu, p->i_layer, cpu->rows[unit->tile->row0].pages[i], unit->head);
}

/* The row's query heads of one kv head, rotated. */
static void rotate_q(const struct pass *p, float *q, uint32_t row, uint32_t head)
{
    const struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    size_t table = (size_t)cpu->rows[row].pos * (hp->rope_dim / 2);

    memcpy(q, cpu->qkv + (size_t)row * cpu->qkv_rows + (size_t)head * cpu->group * hp->head_dim,
           (size_t)cpu->group * hp->head_dim * sizeof *q);
    for (uint32_t g = 0; g < cpu->group; g++)
        cpu->kernels->rope(q + (size_t)g * hp->head_dim, cpu->model->rope_cos + table,
                           cpu->model->rope_sin + table, hp->head_dim);
}

/* The unit's split into the rows of partial from row `at` on. */
static void attend_split(const struct pass *p, const struct unit *unit, const float *q,
                         const struct partial *partial, uint32_t at, const void *next_k)
{
    const struct cpu_state *cpu = p->cpu;
    uint32_t hd = cpu->model->hp.head_dim, first_page = unit->split * (KERN_SPLIT / KERN_PAGE);
    uint32_t left = cpu->rows[unit->tile->row0].pos + 1 - unit->split * KERN_SPLIT;
    size_t query = ((size_t)unit->split * ATTEND_ROWS + at) * cpu->group;
    const void *k[KERN_SPLIT / KERN_PAGE], *v[KERN_SPLIT / KERN_PAGE];
    struct attention a = {.o = partial->o + query * hd,
                          .m = partial->m + query,
                          .sum = partial->sum + query,
                          .q = q,
                          .k = k,
                          .v = v,
                          .next_k = next_k,
                          .n_pos = left < KERN_SPLIT ? left : KERN_SPLIT,
                          .n_rows = unit->tile->n_rows,
                          .group = cpu->group,
                          .hd = hd,
                          .scale = cpu->scale};

    /* The tile's last row sees no page more than its first. */
    for (uint32_t i = 0; i < (a.n_pos + KERN_PAGE - 1) / KERN_PAGE; i++) {
        const uint8_t *page = unit_keys(p, unit, first_page + i);

        k[i] = page;
        v[i] = page + cpu->kv_page;
    }
    if (cpu->kv_type == KV_Q8)
        cpu->kernels->attention_q8(&a);
    else
        cpu->kernels->attention(&a);
}

/* Merges the row that stands `at` rows into partial. */
static void merge_head(const struct cpu_state *cpu, float *attn, const struct partial *partial,
                       uint32_t at, uint32_t row, uint32_t head)
{
    uint32_t hd = cpu->model->hp.head_dim;
    size_t query = (size_t)at * cpu->group;

    cpu->kernels->attention_merge(attn + (size_t)head * cpu->group * hd, partial->o + query * hd,
                                  partial->m + query, partial->sum + query, n_splits(cpu, row),
                                  (size_t)ATTEND_ROWS * cpu->group, cpu->group, hd);
}

/* next: the unit that this member will probably do next, or NULL. */
static void attend_unit(const struct pass *p, struct member *member, struct unit *unit,
                        const struct unit *next)
{
    const struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    const void *next_k = next ? unit_keys(p, next, next->split * (KERN_SPLIT / KERN_PAGE)) : NULL;
    uint32_t row0 = unit->tile->row0, splits = n_splits(cpu, row0);

    for (uint32_t r = 0; r < unit->tile->n_rows; r++)
        rotate_q(p, member->q + (size_t)r * cpu->group * hp->head_dim, row0 + r, unit->head);
    if (p->decode && (!p->split || unit->split == splits - 1))
        store_kv(p, member->k, row0, unit->head);
    if (p->split) {
        attend_split(p, unit, member->q, &cpu->parts[unit->head], row0, next_k);
        return;
    }
    for (; unit->split < splits; unit->split++)
        attend_split(p, unit, member->q, &member->partial, 0,
                     unit->split + 1 < splits
                         ? unit_keys(p, unit, (unit->split + 1) * (KERN_SPLIT / KERN_PAGE))
                         : next_k);
    for (uint32_t r = 0; r < unit->tile->n_rows; r++)
        merge_head(cpu, cpu->attn + (size_t)(row0 + r) * hp->n_head * hp->head_dim,
                   &member->partial, r, row0 + r, unit->head);
}

/* Units differ in cost, so members take the next one when they are done. */
static void attention_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    uint32_t mine = atomic_fetch_add_explicit(&cpu->cursor, 1, memory_order_relaxed);
    struct unit unit, next;

    while (find_unit(p, mine, &unit)) {
        /* Members mostly take turns. */
        attend_unit(p, &cpu->members[member], &unit, find_unit(p, mine + n, &next) ? &next : NULL);
        /* Relaxed: the barrier at the end of the region orders what the units wrote. */
        mine = atomic_fetch_add_explicit(&cpu->cursor, 1, memory_order_relaxed);
    }
}

/* Brings a row's attention output together in y and quantises it as row `row` of in. */
static void gather_attn(const struct pass *p, struct matrix_in *in, float *y, uint32_t row)
{
    const struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    uint32_t n_cols = hp->n_head * hp->head_dim;
    struct quant_rows q = quant_view(in, n_cols);

    y += (size_t)row * n_cols;
    for (uint32_t h = 0; h < hp->n_head_kv && p->split; h++)
        merge_head(cpu, y, &cpu->parts[h], row, row, h);
    if (cpu->quantised)
        cpu->kernels->quantize(&q, row, y, n_cols);
}

static void gather_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    for (uint32_t r = begin; r < end; r++)
        gather_attn(p, &p->cpu->in, p->cpu->attn, r);
}

/* x += w . in for the columns of x that this member takes. */
static void add_residual(const struct pass *p, const struct packed_matrix *w,
                         const struct quant_rows *q, const float *x, unsigned member)
{
    struct cpu_state *cpu = p->cpu;
    uint32_t n_embd = cpu->model->hp.n_embd;
    float *y = cpu->members[member].part[0];
    struct parts parts = parts_of(cpu, n_embd, KERN_ROWS, p->n_rows, member);
    struct part part;

    while (parts_next(&parts, &part)) {
        part_matmul(cpu, y, part.n_cols, w, part, q, x, p->n_rows);
        for (uint32_t r = 0; r < p->n_rows; r++)
            cpu->kernels->add(cpu->x + (size_t)r * n_embd + part.col, y + (size_t)r * part.n_cols,
                              part.n_cols);
    }
}

static void o_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, cpu->model->hp.n_head * cpu->model->hp.head_dim);

    (void)n;
    for (uint32_t r = 0; r < p->n_rows && p->self; r++)
        gather_attn(p, in, in->x, r);
    add_residual(p, &p->layer->o, &q, p->self ? in->x : cpu->attn, member);
}

/* ---- the gated MLP -------------------------------------------------------------------------- */

/* Input of down: a part of row r. gate becomes its floats, which are kept only for a matrix that
 * reads them. */
static void put_mlp(const struct pass *p, uint32_t r, struct part part, float *gate,
                    const float *up)
{
    const struct cpu_state *cpu = p->cpu;
    const struct matrix_in *mlp = &cpu->mlp;
    size_t at = (size_t)r * cpu->model->hp.n_ff + part.col, block = at / KERN_BLOCK;
    /* No outliers: they are of a whole row, and parts of a row have other sizes with other teams. */
    struct quant_rows q = {.q = mlp->q.q + at,
                           .d = mlp->q.d + block,
                           .sum = mlp->q.sum + block,
                           .isum = mlp->q.isum + block,
                           .n_cols = part.n_cols};

    if (dtype_is_float(p->layer->down.type)) {
        cpu->kernels->swiglu(mlp->x + at, gate, up, part.n_cols);
        return;
    }
    cpu->kernels->swiglu(gate, gate, up, part.n_cols);
    cpu->kernels->quantize(&q, 0, gate, part.n_cols);
}

static void gate_up_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, hp->n_embd);
    float *gate = cpu->members[member].part[0], *up = cpu->members[member].part[1];
    /* Whole blocks of 32, so that they are also quantised here. */
    struct parts parts = parts_of(cpu, hp->n_ff, KERN_BLOCK, p->n_rows, member);
    struct part part;

    (void)n;
    if (p->self)
        norm_rows(cpu, in, p->layer->ffn_norm, 0, p->n_rows);
    while (parts_next(&parts, &part)) {
        part_matmul(cpu, gate, part.n_cols, &p->layer->gate, part, &q, in->x, p->n_rows);
        part_matmul(cpu, up, part.n_cols, &p->layer->up, part, &q, in->x, p->n_rows);
        for (uint32_t r = 0; r < p->n_rows; r++)
            put_mlp(p, r, part, gate + (size_t)r * part.n_cols, up + (size_t)r * part.n_cols);
    }
}

static void down_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;

    (void)n;
    add_residual(p, &p->layer->down, &p->cpu->mlp.q, p->cpu->mlp.x, member);
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void embed_rows(const struct pass *p, uint32_t begin, uint32_t end)
{
    const struct cpu_state *cpu = p->cpu;

    for (uint32_t r = begin; r < end; r++) {
        assert(p->step->tokens[r] < cpu->backend.n_vocab);
        packed_row(cpu->x + (size_t)r * cpu->model->hp.n_embd, &cpu->model->embd,
                   p->step->tokens[r]);
    }
}

static void embed_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    embed_rows(p, begin, end);
}

/* Rows of one sequence attend together, as far as there is then work for all members. */
static void cut_tiles(struct pass *p)
{
    struct cpu_state *cpu = p->cpu;
    uint32_t units = 3 * team_size(cpu->team), rows = ATTEND_ROWS;

    while (rows > 1 && p->n_rows * cpu->model->hp.n_head_kv < units * rows)
        rows /= 2;
    cpu->n_tiles = 0;
    p->n_units = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const struct row_info *info = &cpu->rows[r];

        if (r > 0 && info->pages == info[-1].pages && info->pos == info[-1].pos + 1 &&
            info->pos % rows != 0) {
            cpu->tiles[cpu->n_tiles - 1].n_rows++;
            continue;
        }
        cpu->tiles[cpu->n_tiles++] = (struct row_tile){r, 1};
        p->n_units += p->split ? n_splits(cpu, r) : 1;
    }
}

static void set_rows(struct pass *p, uint32_t n_rows)
{
    p->n_rows = n_rows;
    p->self = n_rows <= SELF_ROWS;
    p->split = n_rows <= SPLIT_ROWS;
    cut_tiles(p);
}

/* Once the last layer's K and V are stored, only rows with logits matter: they move to the
 * front. */
static void keep_logit_rows(struct pass *p)
{
    struct cpu_state *cpu = p->cpu;
    uint32_t n_embd = cpu->model->hp.n_embd;

    for (uint32_t i = 0; i < p->step->n_logits; i++) {
        uint32_t r = p->step->logit_rows[i]; /* ascending, so r >= i */

        assert(r >= i && r < p->n_rows);
        memmove(cpu->x + (size_t)i * n_embd, cpu->x + (size_t)r * n_embd, n_embd * sizeof *cpu->x);
        memmove(cpu->qkv + (size_t)i * cpu->qkv_rows, cpu->qkv + (size_t)r * cpu->qkv_rows,
                cpu->qkv_rows * sizeof *cpu->qkv);
        cpu->rows[i] = cpu->rows[r];
    }
    set_rows(p, p->step->n_logits);
}

/* Says for each row where it stands in its sequence. */
static void lay_out_rows(struct pass *p)
{
    const struct step *step = p->step;
    struct cpu_state *cpu = p->cpu;

    p->decode = 1;
    for (uint32_t s = 0; s < step->n_seqs; s++) {
        const struct step_seq *seq = &step->seqs[s];

        assert(seq->pos0 + seq->n_rows <= cpu->model->n_ctx);
        p->decode &= seq->n_rows == 1 && step->n_logits == step->n_rows;
        for (uint32_t i = 0; i < seq->n_rows; i++)
            cpu->rows[seq->row0 + i] = (struct row_info){seq->pos0 + i, seq->pages};
    }
}

/* K and V of all rows are in their pages when this returns, but for a decode step whose attention
 * stores them. */
static void project_rows(struct pass *p)
{
    struct team *team = p->cpu->team;

    if (!p->self)
        team_run(team, attn_norm_region, p);
    parts_run(p->cpu, qkv_region, p);
    if (!p->decode)
        team_run(team, store_region, p);
}

static void finish_layer(struct pass *p)
{
    struct cpu_state *cpu = p->cpu;
    struct team *team = cpu->team;

    parts_run(cpu, attention_region, p);
    if (!p->self)
        team_run(team, gather_region, p);
    parts_run(cpu, o_region, p);
    if (!p->self)
        team_run(team, ffn_norm_region, p);
    parts_run(cpu, gate_up_region, p);
    parts_run(cpu, down_region, p);
}

void forward_llama(void *self, const struct step *step, const float **ret_logits)
{
    struct cpu_state *cpu = self;
    struct pass p = {.cpu = cpu, .step = step};
    uint32_t n_layer = cpu->model->hp.n_layer;

    assert(step->n_rows >= 1 && step->n_rows <= cpu->backend.rows_max);
    assert(step->n_logits <= cpu->backend.logits_max && step->n_logits <= step->n_rows);
    *ret_logits = cpu->logits;
    lay_out_rows(&p);
    set_rows(&p, step->n_rows);

    if (p.self)
        embed_rows(&p, 0, p.n_rows);
    else
        team_run(cpu->team, embed_region, &p);
    for (p.i_layer = 0; p.i_layer < n_layer; p.i_layer++) {
        p.layer = &cpu->model->layers[p.i_layer];
        project_rows(&p);
        if (p.i_layer == n_layer - 1 && step->n_logits < step->n_rows)
            keep_logit_rows(&p);
        if (p.n_rows == 0)
            return;
        finish_layer(&p);
    }
    head_run(cpu, p.n_rows);
}
