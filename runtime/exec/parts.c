/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.c - how the columns that a region computes are shared out among the members.
 *
 * Who is done takes more, so that nobody waits long for a member whose CPU others use too (guided
 * self-scheduling, Polychronopoulos and Kuck 1987, IEEE Trans. Computers C-36: each takes a fixed share
 * of what is left, so parts are large first and small in the end). With few rows the memory sets the
 * pace for all alike and likes long reads: each member has one share of its own.
 */
#include "runtime/exec/cpu_state.h"

#define PARTS_LEFT 2 /* a member takes what is left over this many for each member */

/* Columns of a part of `rows` rows at most, whole blocks of 32. */
static uint32_t most_cols(uint32_t rows)
{
    uint32_t cols = PART_FLOATS / rows / KERN_BLOCK * KERN_BLOCK;

    return cols > 0 ? cols : KERN_BLOCK;
}

size_t part_floats(size_t rows)
{
    return rows * KERN_BLOCK > PART_FLOATS ? rows * KERN_BLOCK : PART_FLOATS;
}

void parts_run(struct cpu_state *cpu, team_fn region, void *arg)
{
    /* Relaxed: the region's start orders it. */
    atomic_store_explicit(&cpu->cursor, 0, memory_order_relaxed);
    team_run(cpu->team, region, arg);
}

struct parts parts_of(struct cpu_state *cpu, uint32_t n_cols, uint32_t grain, uint32_t rows,
                      unsigned member)
{
    uint32_t most = most_cols(rows) / grain * grain;
    struct parts parts = {.cpu = cpu,
                          .end = n_cols,
                          .grain = grain,
                          .most = most > grain ? most : grain,
                          .own = rows <= SELF_ROWS};

    if (parts.own)
        team_share(n_cols, grain, member, team_size(cpu->team), &parts.col, &parts.end);
    return parts;
}

/* The columns of the part that begins at parts->col. */
static uint32_t next_cols(const struct parts *parts)
{
    uint32_t left = parts->end - parts->col, cols = left;

    if (!parts->own)
        cols = left / (PARTS_LEFT * team_size(parts->cpu->team)) / parts->grain * parts->grain;
    cols = cols < parts->most ? cols : parts->most;
    cols = cols > parts->grain ? cols : parts->grain;
    return cols < left ? cols : left;
}

int parts_next(struct parts *parts, struct part *ret_part)
{
    _Atomic uint32_t *cursor = &parts->cpu->cursor;

    if (!parts->own)
        parts->col = atomic_load_explicit(cursor, memory_order_relaxed);
    do {
        if (parts->col >= parts->end)
            return 0;
        *ret_part = (struct part){parts->col, next_cols(parts)};
        /* Relaxed: the barrier at the end of the region orders what is written. */
    } while (!parts->own && !atomic_compare_exchange_weak_explicit(
                                cursor, &parts->col, parts->col + ret_part->n_cols,
                                memory_order_relaxed, memory_order_relaxed));
    parts->col += ret_part->n_cols;
    return 1;
}

void part_matmul(const struct cpu_state *cpu, float *y, size_t stride,
                 const struct packed_matrix *w, struct part part, const struct quant_rows *q,
                 const float *x, uint32_t rows)
{
    size_t before = part.col / KERN_ROWS * pack_group_bytes(w->type, w->n_cols);
    struct packed_matrix cut = {w->type, part.n_cols, w->n_cols, w->data + before};

    cpu->kernels->matmul(y, stride, &cut, 0, (part.n_cols + KERN_ROWS - 1) / KERN_ROWS, q, x, rows);
}
