/* SPDX-License-Identifier: Apache-2.0 */
/*
 * template.h - chat messages to token ids.
 *
 * The file's template is recognised by its form (not interpreted): ChatML, with or without a
 * default system message, with or without BOS before it. White space inside tags, quotes,
 * `message.role` for message['role'] and how the text is cut into tags do not matter; anything else
 * does. Control tokens come from the scaffold only, never from content. Another template is refused
 * with its first line.
 *
 * As ChatML itself, a role is only a word in the text: a system message may stand anywhere, and a
 * tool's answer is a message of role "tool". Text between two control tokens is tokenised as one
 * piece (role, line end and content together), as the reference does with the rendered chat.
 */
#ifndef RUNTIME_TEXT_TEMPLATE_H
#define RUNTIME_TEXT_TEMPLATE_H

#include "runtime/text/bpe.h"

struct template;

#define TEMPLATE_BYTES_MAX (64u << 10) /* the longest published templates have 20 KB */

struct message {
    uint32_t role; /* enum tkr_role's numbers: 0 system, 1 user, 2 assistant, 3 tool */
    const uint8_t *text;
    size_t n;
};

/* chat_template: NUL-terminated, as in tokenizer.chat_template. -ENOTSUP: not recognised (diag has
 * its first line), or the vocabulary lacks its control tokens. */
int template_new(struct template **ret_template, const char *chat_template,
                 const struct vocab *vocab, struct diag *diag);
void template_free(struct template *t);

/* Renders and tokenises messages[n] with the generation prompt: errors as bpe_encode (bytes_max is
 * for each content); -EINVAL: no message, or a role that the template does not know. The ids are
 * the whole prompt: exactly one BOS comes first when the template writes one or the model adds one,
 * also when the caller put it there before. */
int template_encode(const struct template *t, struct bpe *bpe, const struct message *messages,
                    uint32_t n, uint32_t *ids, uint32_t *n_ids, uint32_t max);

#endif
