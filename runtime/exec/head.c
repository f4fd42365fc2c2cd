/* SPDX-License-Identifier: Apache-2.0 */
/* head.c - from the residual stream of a step's rows with logits to these logits. */
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

static void head_region(void *arg, unsigned member, unsigned n)
{
    struct head_pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    struct quant_rows q = quant_view(in, cpu->model->hp.n_embd);

    if (p->self)
        norm_rows(cpu, in, cpu->model->output_norm, 0, p->n_rows);
    share_matmul(cpu, cpu->logits, cpu->backend.n_vocab, &cpu->model->head, &q, in->x, p->n_rows,
                 member, n);
}

void head_run(struct cpu_state *cpu, uint32_t n_rows)
{
    struct head_pass p = {.cpu = cpu, .n_rows = n_rows, .self = n_rows <= SELF_ROWS};

    if (!p.self)
        team_run(cpu->team, final_norm_region, &p);
    team_run(cpu->team, head_region, &p);
}
