/* SPDX-License-Identifier: Apache-2.0 */
/*
 * echo.h - a backend without a model, for those who write clients and for tests of the transport:
 * an answer is the prompt's own tokens, or letters that a seed names, then an end-of-sequence
 * token.
 *
 * What comes next is a function of the sequence alone, as with a model: of the prompt, or of its
 * last message when it has any in ChatML's form, and of how many tokens came after it. A client
 * that ignores the end of a sequence gets the same answer again and again. Scores of a prompt are
 * those of a model that knows nothing: all tokens are equally likely.
 */
#ifndef RUNTIME_EXEC_ECHO_H
#define RUNTIME_EXEC_ECHO_H

#include <stdint.h>
#include "runtime/base/diag.h"
#include "runtime/base/team.h"
#include "runtime/exec/backend.h"

#define ECHO_VOCAB    259u /* vocab_new_bytes() */
#define ECHO_IM_START 257u
#define ECHO_IM_END   258u
#define ECHO_N_CTX    32768u
#define ECHO_RATE_MAX 1000000u

struct echo_opt {
    uint32_t tokens_per_s; /* of each stream; 0: as fast as it goes */
    uint64_t seed; /* 0: the prompt's tokens; else letters, as many, that are a function of it */
};

/* Reads "echo:" or "echo:tokens_per_s=N,seed=N": 1; 0 when model is no such name (a path);
 * -EINVAL. */
int echo_parse(struct echo_opt *ret_opt, const char *model, struct diag *diag);

/* Takes all memory now. Between looks at the clock it runs an empty region on the team, whose hook
 * so makes its passes also while a paced step waits. The team outlives the backend. */
int echo_backend_new(struct backend **ret_backend, const struct echo_opt *opt, uint32_t n_pages,
                     uint32_t rows_max, uint32_t logits_max, struct team *team);
void echo_backend_free(struct backend *backend);

#endif
