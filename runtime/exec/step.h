/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.h - one flat, variable-length forward pass: rows of many sequences, back to back.
 */
#ifndef RUNTIME_EXEC_STEP_H
#define RUNTIME_EXEC_STEP_H

#include <stdint.h>

struct step_seq {          /* n_rows consecutive positions of one sequence */
    uint32_t row0, n_rows; /* rows row0 .. row0 + n_rows - 1 of the step */
    uint32_t pos0;         /* absolute position of row row0; earlier ones are in the pages */
    const uint32_t
        *pages; /* page table: page of positions 64i .. 64i + 63; covers pos0 + n_rows positions */
};

struct step {
    uint32_t n_rows;        /* 1 .. backend's rows_max */
    const uint32_t *tokens; /* [n_rows] */
    uint32_t n_seqs;
    const struct step_seq *seqs;
    uint32_t n_logits;          /* rows whose logits are wanted, at most the backend's logits_max */
    const uint32_t *logit_rows; /* [n_logits], ascending row numbers */
    /* [n_seqs] where each prompt ends and output begins, or NULL; only the echo backend looks at it */
    const uint32_t *n_prompt;
};

#endif
