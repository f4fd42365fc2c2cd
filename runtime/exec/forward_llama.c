/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward_llama.c - one step of a llama model: embedding, layers, head, over all rows at once.
 *
 * Architecture: Touvron et al. 2023, arXiv:2302.13971 (RMSNorm before, rotary positions, SwiGLU),
 * grouped query heads as Ainslie et al. 2023, arXiv:2305.13245.
 *
 * Each `..._region` runs on every member of the team; between two regions is a barrier. Nothing
 * that a member computes for a row depends on the other rows or on who computes it, so a row's
 * result is the same in every batch, chunk and team. Matrices are shared out by rows of the matrix
 * (groups of 16). With few rows every member norms and quantises them all for itself, which costs
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
    uint32_t n_rows; /* of the step; from the last attention on, those with logits */
    int self;        /* n_rows <= SELF_ROWS */
    int split;       /* n_rows <= SPLIT_ROWS */
    int decode;      /* one row a sequence, all with logits: whoever attends to the newest position
                        stores it first */
};

/* ---- inputs of matrices --------------------------------------------------------------------- */

static struct quant_rows quant_view(const struct matrix_in *in, uint32_t n_cols)
{
    struct quant_rows q = in->q;

    q.n_cols = n_cols;
    return q;
}

/* Row `to` of in = norm of x, quantised where a matrix wants that. */
static void norm_row(const struct cpu_state *cpu, struct matrix_in *in, uint32_t to, const float *x,
                     const float *w)
{
    const struct hparams *hp = &cpu->model->hp;
    struct quant_rows q = quant_view(in, hp->n_embd);
    float *y = in->x + (size_t)to * hp->n_embd;

    cpu->kernels->rmsnorm(y, x, w, hp->n_embd, hp->rms_eps);
    if (cpu->quantised)
        cpu->kernels->quantize(&q, to, y, hp->n_embd);
}

/* Norms rows row0 .. row1 - 1 of the residual stream. */
static void norm_rows(const struct pass *p, struct matrix_in *in, const float *w, uint32_t row0,
                      uint32_t row1)
{
    const struct cpu_state *cpu = p->cpu;
    uint32_t n_embd = cpu->model->hp.n_embd;

    for (uint32_t r = row0; r < row1; r++)
        norm_row(cpu, in, r, cpu->x + (size_t)r * n_embd, w);
}

static void attn_norm_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    norm_rows(p, &p->cpu->in, p->layer->attn_norm, begin, end);
}

static void ffn_norm_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    norm_rows(p, &p->cpu->in, p->layer->ffn_norm, begin, end);
}

/* This member's share of y[rows][stride] = w . in. */
static void share_matmul(const struct cpu_state *cpu, float *y, size_t stride,
                         const struct packed_matrix *w, const struct quant_rows *q, const float *x,
                         uint32_t rows, unsigned member, unsigned n)
{
    uint32_t begin, end;

    team_share((w->n_rows + KERN_ROWS - 1) / KERN_ROWS, 1, member, n, &begin, &end);
    if (begin < end)
        cpu->kernels->matmul(y, stride, w, begin, end, q, x, rows);
}

/* ---- attention ------------------------------------------------------------------------------ */

static void qkv_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    const struct layer *l = p->layer;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, hp->n_embd);
    uint32_t rows = p->n_rows;
    float *y = cpu->qkv;

    if (p->self)
        norm_rows(p, in, l->attn_norm, 0, rows);
    if (l->qkv.n_rows) {
        share_matmul(cpu, y, cpu->qkv_rows, &l->qkv, &q, in->x, rows, member, n);
        return;
    }
    share_matmul(cpu, y, cpu->qkv_rows, &l->q, &q, in->x, rows, member, n);
    y += l->q.n_rows;
    share_matmul(cpu, y, cpu->qkv_rows, &l->k, &q, in->x, rows, member, n);
    y += l->k.n_rows;
    share_matmul(cpu, y, cpu->qkv_rows, &l->v, &q, in->x, rows, member, n);
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
    uint16_t *page = cpu->kv + kv_at(cpu, p->i_layer, info->pages[info->pos / KERN_PAGE], head);

    memcpy(k, src, hp->head_dim * sizeof *k);
    cpu->kernels->rope(k, cpu->model->rope_cos + table, cpu->model->rope_sin + table, hp->head_dim);
    cpu->kernels->kv_store(page, page + (size_t)KERN_PAGE * hp->head_dim, info->pos % KERN_PAGE, k,
                           src + (size_t)hp->n_head_kv * hp->head_dim, hp->head_dim);
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

/* The row's query heads of one kv head, rotated, in the member's scratch. */
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

/* One split of one row and kv head, into partial. */
static void attend_split(const struct pass *p, const float *q, struct partial *partial,
                         uint32_t row, uint32_t head, uint32_t split)
{
    const struct cpu_state *cpu = p->cpu;
    uint32_t hd = cpu->model->hp.head_dim, group = cpu->group;
    const struct row_info *info = &cpu->rows[row];
    uint32_t left = info->pos + 1 - split * KERN_SPLIT;
    uint32_t n_pos = left < KERN_SPLIT ? left : KERN_SPLIT;
    const uint16_t *k[KERN_SPLIT / KERN_PAGE], *v[KERN_SPLIT / KERN_PAGE];

    for (uint32_t i = 0; i < (n_pos + KERN_PAGE - 1) / KERN_PAGE; i++) {
        uint32_t page = info->pages[split * (KERN_SPLIT / KERN_PAGE) + i];

        k[i] = cpu->kv + kv_at(cpu, p->i_layer, page, head);
        v[i] = k[i] + (size_t)KERN_PAGE * hd;
    }
    cpu->kernels->attention(
        partial->o + (size_t)split * group * hd, partial->m + (size_t)split * group,
        partial->sum + (size_t)split * group, q, k, v, n_pos, group, hd, cpu->scale);
}

static void merge_head(const struct cpu_state *cpu, float *attn, const struct partial *partial,
                       uint32_t row, uint32_t head)
{
    uint32_t hd = cpu->model->hp.head_dim;

    cpu->kernels->attention_merge(attn + (size_t)head * cpu->group * hd, partial->o, partial->m,
                                  partial->sum, n_splits(cpu, row), cpu->group, hd);
}

/* A unit of work: all splits of a row and kv head, or (few rows) one of them, merged by the next
 * region. */
static void attend_unit(struct pass *p, struct member *member, uint32_t row, uint32_t head,
                        uint32_t split)
{
    struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    uint32_t splits = n_splits(cpu, row);

    rotate_q(p, member->q, row, head);
    if (p->decode && (!p->split || split == splits - 1))
        store_kv(p, member->k, row, head);
    if (p->split) {
        attend_split(p, member->q, &cpu->parts[row * hp->n_head_kv + head], row, head, split);
        return;
    }
    for (uint32_t s = 0; s < splits; s++)
        attend_split(p, member->q, &member->partial, row, head, s);
    merge_head(cpu, cpu->attn + (size_t)row * hp->n_head * hp->head_dim, &member->partial, row,
               head);
}

/* Units differ in cost, so members take the next one when they are done. */
static void attention_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    uint32_t mine = atomic_fetch_add_explicit(&cpu->cursor, 1, memory_order_relaxed), unit = 0;

    (void)n;
    /* Rows inside heads: pages of one head stay in the cache for the rows of a prefill. */
    for (uint32_t head = 0; head < cpu->model->hp.n_head_kv; head++) {
        for (uint32_t row = 0; row < p->n_rows; row++) {
            uint32_t units = p->split ? n_splits(cpu, row) : 1;

            for (uint32_t split = 0; split < units; split++, unit++) {
                if (unit != mine)
                    continue;
                attend_unit(p, &cpu->members[member], row, head, split);
                /* Relaxed: the barrier at the end of the region orders what the units wrote. */
                mine = atomic_fetch_add_explicit(&cpu->cursor, 1, memory_order_relaxed);
            }
        }
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
        merge_head(cpu, y, &cpu->parts[row * hp->n_head_kv + h], row, h);
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

/* x += w . in for this member's columns of x. */
static void share_residual(const struct pass *p, const struct packed_matrix *w,
                           const struct quant_rows *q, const float *x, unsigned member, unsigned n)
{
    struct cpu_state *cpu = p->cpu;
    uint32_t n_embd = cpu->model->hp.n_embd, begin, end;

    team_share(n_embd / KERN_ROWS, 1, member, n, &begin, &end);
    if (begin == end)
        return;
    cpu->kernels->matmul(cpu->out, n_embd, w, begin, end, q, x, p->n_rows);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        size_t at = (size_t)r * n_embd + begin * KERN_ROWS;

        cpu->kernels->add(cpu->x + at, cpu->out + at, (end - begin) * KERN_ROWS);
    }
}

static void o_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, cpu->model->hp.n_head * cpu->model->hp.head_dim);

    for (uint32_t r = 0; r < p->n_rows && p->self; r++)
        gather_attn(p, in, in->x, r);
    share_residual(p, &p->layer->o, &q, p->self ? in->x : cpu->attn, member, n);
}

/* ---- the gated MLP -------------------------------------------------------------------------- */

static void gate_up_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    const struct hparams *hp = &cpu->model->hp;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, hp->n_embd);
    uint32_t rows = p->n_rows, begin, end;

    if (p->self)
        norm_rows(p, in, p->layer->ffn_norm, 0, rows);
    /* Whole blocks of 32, so that the share is also quantised here. */
    team_share(hp->n_ff, KERN_BLOCK, member, n, &begin, &end);
    if (begin == end)
        return;
    cpu->kernels->matmul(cpu->gate, hp->n_ff, &p->layer->gate, begin / KERN_ROWS, end / KERN_ROWS,
                         &q, in->x, rows);
    cpu->kernels->matmul(cpu->up, hp->n_ff, &p->layer->up, begin / KERN_ROWS, end / KERN_ROWS, &q,
                         in->x, rows);
    for (uint32_t r = 0; r < rows; r++) {
        size_t at = (size_t)r * hp->n_ff + begin, block = at / KERN_BLOCK;
        struct quant_rows part = {cpu->mlp.q.q + at, cpu->mlp.q.d + block, cpu->mlp.q.sum + block,
                                  cpu->mlp.q.isum + block, end - begin};

        cpu->kernels->swiglu(cpu->gate + at, cpu->gate + at, cpu->up + at, end - begin);
        if (cpu->quantised)
            cpu->kernels->quantize(&part, 0, cpu->gate + at, end - begin);
    }
}

static void down_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;

    share_residual(p, &p->layer->down, &p->cpu->mlp.q, p->cpu->mlp.x, member, n);
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

static void final_norm_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    norm_rows(p, &p->cpu->in, p->cpu->model->output_norm, begin, end);
}

static void head_region(void *arg, unsigned member, unsigned n)
{
    struct pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, cpu->model->hp.n_embd);

    if (p->self)
        norm_rows(p, in, cpu->model->output_norm, 0, p->n_rows);
    share_matmul(cpu, cpu->logits, cpu->backend.n_vocab, &cpu->model->head, &q, in->x, p->n_rows,
                 member, n);
}

static void set_rows(struct pass *p, uint32_t n_rows)
{
    p->n_rows = n_rows;
    p->self = n_rows <= SELF_ROWS;
    p->split = n_rows <= SPLIT_ROWS;
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
    team_run(team, qkv_region, p);
    if (!p->decode)
        team_run(team, store_region, p);
}

static void finish_layer(struct pass *p)
{
    struct cpu_state *cpu = p->cpu;
    struct team *team = cpu->team;

    atomic_store_explicit(&cpu->cursor, 0, memory_order_relaxed); /* the next barrier orders it */
    team_run(team, attention_region, p);
    if (!p->self)
        team_run(team, gather_region, p);
    team_run(team, o_region, p);
    if (!p->self)
        team_run(team, ffn_norm_region, p);
    team_run(team, gate_up_region, p);
    team_run(team, down_region, p);
}

void forward_llama(void *self, const struct step *step, const float **ret_logits)
{
    struct cpu_state *cpu = self;
    struct pass p = {.cpu = cpu, .step = step};
    uint32_t n_layer = cpu->model->hp.n_layer;

    assert(step->n_rows >= 1 && step->n_rows <= cpu->backend.rows_max);
    assert(step->n_logits <= cpu->backend.logits_max && step->n_logits <= step->n_rows);
    *ret_logits = cpu->logits;
    set_rows(&p, step->n_rows);
    lay_out_rows(&p);

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
    if (!p.self)
        team_run(cpu->team, final_norm_region, &p);
    team_run(cpu->team, head_region, &p);
}
