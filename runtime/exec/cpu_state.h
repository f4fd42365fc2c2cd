/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_state.h - what the CPU backend holds between steps and what a step's regions share. Internal
 * to exec/.
 */
#ifndef RUNTIME_EXEC_CPU_STATE_H
#define RUNTIME_EXEC_CPU_STATE_H

#include <stdatomic.h>
#include <stdint.h>
#include "kernels/cpu_kernels.h"
#include "runtime/base/team.h"
#include "runtime/exec/backend.h"
#include "runtime/model/model.h"

/* Up to this many rows each member prepares (norm, quantise) all rows for itself: cheaper than
 * waiting for others. */
#define SELF_ROWS 4u

/* Rows that attend together share each page that is read: those of one sequence whose positions
 * lie in the same ATTEND_ROWS, so that they have the same pages and splits. */
#define ATTEND_ROWS 32u

/* Up to this many rows attention is also shared out by split, so that one long sequence keeps all
 * members busy; above, rows and heads are enough, and partial results need room in one member only.
 */
#define SPLIT_ROWS 16u

_Static_assert(SPLIT_ROWS <= ATTEND_ROWS, "all rows of a shared split fit in a struct partial");
_Static_assert(KERN_PAGE % ATTEND_ROWS == 0, "rows that attend together end in one page");

/* Outputs of a matrix product that are used up at once, column by column of all rows, are computed in
 * parts of this many, which stay in the second level cache: 128 KiB. */
#define PART_FLOATS 32768u

/* Input of a matrix product: floats for the float types, quantised for the others. */
struct matrix_in {
    float *x; /* [rows][n_cols] */
    struct quant_rows q;
};

/* What attention leaves of each split, of up to ATTEND_ROWS rows and one kv head. */
struct partial {
    float *o;       /* [n_splits_max][ATTEND_ROWS][group][hd] */
    float *m, *sum; /* [n_splits_max][ATTEND_ROWS][group] */
};

/* Scratch of one member, so that nothing is shared by accident. */
struct member {
    struct matrix_in in;    /* [SELF_ROWS] */
    struct partial partial; /* of one unit of attention */
    float *q, *k;           /* [ATTEND_ROWS][group][hd], [hd]: rotated */
    float *part[2];         /* [part_floats()] of outputs; gate and up, or one of them */
};

struct row_info {
    uint32_t pos;
    const uint32_t *pages;
};

struct row_tile { /* rows that attend together */
    uint32_t row0, n_rows;
};

struct cpu_state {
    struct backend backend;
    const struct model *model;
    const struct cpu_kernels *kernels;
    struct team *team;

    uint32_t n_pages, n_splits_max, group, qkv_rows;
    float scale;   /* of attention scores: 1 / sqrt(head_dim) */
    int quantised; /* some matrix wants quantised input; floats are there anyway */
    uint8_t *kv;   /* [page][layer][kv head][K, V], kv_page_bytes() each: a page's layers stand
                      together, so that what is used, and not the pool, is what is touched */
    enum kv_type kv_type;
    size_t kv_page; /* bytes of a K page, and of a V page, of one kv head */

    /* Activations, shared by the team; each region's members write disjoint parts. */
    float *x;               /* [rows][n_embd] residual stream */
    float *qkv;             /* [rows][qkv_rows] */
    float *attn;            /* [rows][n_head * hd] */
    struct matrix_in in;    /* [rows] of the matrix that comes next */
    struct matrix_in mlp;   /* [rows] of down */
    struct partial *parts;  /* [n_head_kv] of all rows, when there are up to SPLIT_ROWS */
    float *logits;          /* [logits_max][n_vocab] */
    float *block_max;       /* [logits_max][n_tops] of logits */
    struct row_info *rows;  /* [rows_max] */
    struct row_tile *tiles; /* [rows_max], n_tiles of them in this step */
    uint32_t n_tiles;
    struct member *members;
    _Alignas(64) _Atomic uint32_t cursor; /* next column, or unit of attention, of a region */

    void *memory;
    size_t memory_bytes, kv_bytes;
};

static inline struct cpu_state *cpu_state_of(void *self)
{
    return self;
}

/* K of a page, in bytes from cpu_state.kv; V follows after cpu_state.kv_page. */
static inline size_t kv_at(const struct cpu_state *cpu, uint32_t layer, uint32_t page,
                           uint32_t head)
{
    const struct hparams *hp = &cpu->model->hp;

    return (((size_t)page * hp->n_layer + layer) * hp->n_head_kv + head) * 2 * cpu->kv_page;
}

/* Blocks of a row of logits. */
static inline uint32_t n_tops(const struct cpu_state *cpu)
{
    return (cpu->backend.n_vocab + KERN_TOP - 1) / KERN_TOP;
}

/* Columns of an output, for all rows. */
struct part {
    uint32_t col, n_cols;
};

/* What a member takes of an output: columns col .. end - 1, of which others take some too unless they
 * are its own. */
struct parts {
    struct cpu_state *cpu;
    uint32_t col, end;
    uint32_t grain, most; /* a part's columns are a multiple of, and no more than */
    int own;
};

/* parts.c: floats of a part of up to `rows` rows; */
size_t part_floats(size_t rows);
/* runs a region whose members take parts or units; */
void parts_run(struct cpu_state *cpu, team_fn region, void *arg);
/* what member takes of n_cols columns, in whole grains unless they are the last; */
struct parts parts_of(struct cpu_state *cpu, uint32_t n_cols, uint32_t grain, uint32_t rows,
                      unsigned member);
/* the next part; 0: none is left; */
int parts_next(struct parts *parts, struct part *ret_part);
/* y[rows][stride] = w . in for the columns of a part, which begins with a group of w; y begins with its
 * first column. */
void part_matmul(const struct cpu_state *cpu, float *y, size_t stride,
                 const struct packed_matrix *w, struct part part, const struct quant_rows *q,
                 const float *x, uint32_t rows);

/* matrix_in.c: in with rows of n_cols values; */
struct quant_rows quant_view(const struct matrix_in *in, uint32_t n_cols);
/* rows row0 .. row1 - 1 of in = norm of those of the residual stream, w: [n_embd]; */
void norm_rows(const struct cpu_state *cpu, struct matrix_in *in, const float *w, uint32_t row0,
               uint32_t row1);

/* head.c: logits of rows 0 .. n_rows - 1 of the residual stream, and their block_max. */
void head_run(struct cpu_state *cpu, uint32_t n_rows);

/* backend.forward for the llama family (forward_llama.c). */
void forward_llama(void *self, const struct step *step, const float **ret_logits);

#endif
