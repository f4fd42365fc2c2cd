/* SPDX-License-Identifier: Apache-2.0 */
/* head.c - from the residual stream of a step's rows with logits to these logits and, while a part of
 * them is in the cache, the largest of each block. */
#include "runtime/exec/cpu_state.h"

/* Of all rows together, that are computed before their maxima are found: 64 KiB, which stay in the
 * second level cache beside the weights. */
#define PART_LOGITS 16384u

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

/* Logits of groups group0 .. group1 - 1, whole blocks unless they are the last, and the blocks'
 * maxima. */
static void head_part(const struct head_pass *p, const struct matrix_in *in, uint32_t group0,
                      uint32_t group1)
{
    struct cpu_state *cpu = p->cpu;
    struct quant_rows q = quant_view(in, cpu->model->hp.n_embd);
    uint32_t n_vocab = cpu->backend.n_vocab, begin = group0 * KERN_ROWS, end = group1 * KERN_ROWS;

    end = end < n_vocab ? end : n_vocab;
    cpu->kernels->matmul(cpu->logits, n_vocab, &cpu->model->head, group0, group1, &q, in->x,
                         p->n_rows);
    for (uint32_t r = 0; r < p->n_rows; r++)
        cpu->kernels->block_max(cpu->block_max + (size_t)r * n_tops(cpu) + begin / KERN_TOP,
                                cpu->logits + (size_t)r * n_vocab + begin, end - begin);
}

static void head_region(void *arg, unsigned member, unsigned n)
{
    struct head_pass *p = arg;
    struct cpu_state *cpu = p->cpu;
    struct matrix_in *in = p->self ? &cpu->members[member].in : &cpu->in;
    uint32_t n_groups = (cpu->backend.n_vocab + KERN_ROWS - 1) / KERN_ROWS, part, begin, end;

    if (p->self)
        norm_rows(cpu, in, cpu->model->output_norm, 0, p->n_rows);
    part = PART_LOGITS / KERN_TOP / p->n_rows;
    part = (part > 0 ? part : 1) * (KERN_TOP / KERN_ROWS);
    team_share(n_groups, KERN_TOP / KERN_ROWS, member, n, &begin, &end);
    for (; begin < end; begin += part)
        head_part(p, in, begin, end - begin < part ? end : begin + part);
}

void head_run(struct cpu_state *cpu, uint32_t n_rows)
{
    struct head_pass p = {.cpu = cpu, .n_rows = n_rows, .self = n_rows <= SELF_ROWS};

    if (!p.self)
        team_run(cpu->team, final_norm_region, &p);
    team_run(cpu->team, head_region, &p);
}
