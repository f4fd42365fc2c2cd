/* SPDX-License-Identifier: Apache-2.0 */
/* head.c - from the residual stream of a step's rows with logits to these logits and, while a part of
 * them is in the cache, the largest of each block. */
#include "runtime/exec/cpu_state.h"

struct head_pass {
    struct cpu_state *cpu;
    uint32_t n_rows;
    int self; /* n_rows <= SELF_ROWS */
};

static void final_norm_region(void *arg, unsigned member, unsigned n)
{
    struct head_pass *p = arg;
    uint32_t begin, end;

    team_share(p->n_rows, 1, member, n, &begin, &end);
    norm_rows(p->cpu, &p->cpu->in, p->cpu->model->output_norm, begin, end);
}

/* Logits of a part, whole blocks unless they are the last, and the blocks' maxima. */
static void head_part(const struct head_pass *p, const struct matrix_in *in, struct part part)
{
    struct cpu_state *cpu = p->cpu;
    struct quant_rows q = quant_view(in, cpu->model->hp.n_embd);
    uint32_t n_vocab = cpu->backend.n_vocab;
    float *logits = cpu->logits + part.col;

    part_matmul(cpu, logits, n_vocab, &cpu->model->head, part, &q, in->x, p->n_rows);
    for (uint32_t r = 0; r < p->n_rows; r++)
        cpu->kernels->block_max(cpu->block_max + (size_t)r * n_tops(cpu) + part.col / KERN_TOP,
                                logits + (size_t)r * n_vocab, part.n_cols);
}

static void head_region(void *arg, unsigned member, unsigned n)
{
    struct head_pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct parts parts = parts_of(cpu, cpu->backend.n_vocab, KERN_TOP, p->n_rows, member);
    struct part part;

    (void)n;
    if (p->self)
        norm_rows(cpu, in, cpu->model->output_norm, 0, p->n_rows);
    while (parts_next(&parts, &part))
        head_part(p, in, part);
}

void head_run(struct cpu_state *cpu, uint32_t n_rows)
{
    struct head_pass p = {.cpu = cpu, .n_rows = n_rows, .self = n_rows <= SELF_ROWS};

    if (!p.self)
        team_run(cpu->team, final_norm_region, &p);
    parts_run(cpu, head_region, &p);
}
