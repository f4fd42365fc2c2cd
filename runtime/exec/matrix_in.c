/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_in.c - inputs of matrices: the norm before them, and quantising. */
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
