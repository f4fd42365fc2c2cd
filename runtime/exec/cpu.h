/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h - the CPU backend: activations, KV slab and forward pass over a packed model.
 */
#ifndef RUNTIME_EXEC_CPU_H
#define RUNTIME_EXEC_CPU_H

#include <stdint.h>
#include "kernels/cpu_kernels.h"
#include "runtime/base/diag.h"
#include "runtime/base/team.h"
#include "runtime/exec/backend.h"
#include "runtime/model/model.h"

struct cpu_backend_opt {
    uint32_t n_pages;     /* of the pool: page numbers are below this */
    enum kv_type kv_type; /* f16 when 0 */
    uint32_t rows_max;    /* 256 when 0 */
    uint32_t logits_max;  /* 64 when 0 */
    int kv_prefault;      /* touch and lock the KV slab at start */
    int kv_touch;         /* touch it: whoever measures reads pages that nobody wrote */
};

/* Takes all memory now. The team and the model outlive the backend. */
int cpu_backend_new(struct backend **ret_backend, const struct model *model,
                    const struct cpu_kernels *kernels, struct team *team,
                    const struct cpu_backend_opt *opt, struct diag *diag);
void cpu_backend_free(struct backend *backend);

#endif
