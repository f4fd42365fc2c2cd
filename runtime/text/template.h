/* SPDX-License-Identifier: Apache-2.0 */
/*
 * template.h - chat messages to token ids.
 *
 * The file's template is recognised by its form (not interpreted): ChatML, with or without a default system
 * message. Control tokens come from the scaffold only, never from content. Another template is refused
 * with its first line.
 */
#ifndef RUNTIME_TEXT_TEMPLATE_H
#define RUNTIME_TEXT_TEMPLATE_H

#include "runtime/text/bpe.h"

struct template;

struct message {
    uint32_t role; /* enum tkr_role's numbers: 0 system, 1 user, 2 assistant, 3 tool */
    const uint8_t *text;
    size_t n;
};

/* chat_template: NUL-terminated, as in tokenizer.chat_template. -ENOTSUP: not recognised (diag has its first line). */
int template_new(struct template **ret_template, const char *chat_template, const struct vocab *vocab, struct diag *diag);
void template_free(struct template *t);

/* Renders and tokenises messages[n] with the generation prompt: errors as bpe_encode; -EINVAL: no message, or a role that
 * the template does not know. */
int template_encode(const struct template *t, struct bpe *bpe, const struct message *messages, uint32_t n,
                    uint32_t *ids, uint32_t *n_ids, uint32_t max);

#endif
