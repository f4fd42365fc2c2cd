/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_in.c - inputs of matrices: the norm before them, quantising; and a member's share of one. */
#include "runtime/exec/cpu_state.h"

struct quant_rows quant_view(const struct matrix_in *in, uint32_t n_cols)
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

void norm_rows(const struct cpu_state *cpu, struct matrix_in *in, const float *w, uint32_t row0,
               uint32_t row1)
{
    uint32_t n_embd = cpu->model->hp.n_embd;

    for (uint32_t r = row0; r < row1; r++)
        norm_row(cpu, in, r, cpu->x + (size_t)r * n_embd, w);
}

void share_matmul(const struct cpu_state *cpu, float *y, size_t stride,
                  const struct packed_matrix *w, const struct quant_rows *q, const float *x,
                  uint32_t rows, unsigned member, unsigned n)
{
    uint32_t begin, end;

    team_share((w->n_rows + KERN_ROWS - 1) / KERN_ROWS, 1, member, n, &begin, &end);
    if (begin < end)
        cpu->kernels->matmul(y, stride, w, begin, end, q, x, rows);
}

void part_matmul(const struct cpu_state *cpu, float *y, size_t stride,
                 const struct packed_matrix *w, uint32_t col, uint32_t n_cols,
                 const struct quant_rows *q, const float *x, uint32_t rows)
{
    size_t before = col / KERN_ROWS * pack_group_bytes(w->type, w->n_cols);
    struct packed_matrix part = {w->type, n_cols, w->n_cols, w->data + before};

    cpu->kernels->matmul(y, stride, &part, 0, (n_cols + KERN_ROWS - 1) / KERN_ROWS, q, x, rows);
}
