/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/template.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_IDS_MAX  1024u /* of a template's default system message */
#define SCAFFOLD_IDS_MAX 16u   /* of "\n" and "assistant\n" */

/* Around string literals in a canonical form: characters that no template needs, so that they are
 * no text. */
#define OPEN '\x01'
#define SHUT '\x02'

struct stretch { /* ids of scaffold text between control tokens */
    uint32_t ids[SCAFFOLD_IDS_MAX];
    uint32_t n;
};

struct template
{
    uint32_t bos;                          /* VOCAB_NONE: none */
    uint32_t start, end;                   /* <|im_start|>, <|im_end|> */
    struct stretch newline, answer;        /* "\n" after each message, "assistant\n" */
    uint32_t default_ids[DEFAULT_IDS_MAX]; /* of "system\n" and the default system message */
    uint32_t n_default;                    /* 0: the template has none */
};

/* ---- the canonical form of a template ----------------------------------------
 *
 * Every literal text and every {{ output }} becomes part of an output, neighbouring outputs become
 * one joined by +, literals that meet there become one; white space inside tags goes (one space
 * stays between two words); a.b becomes a['b']. Two templates with the same form say the same, as
 * far as the forms that we know go: those have no operators but +. White space around block tags
 * follows Jinja with trim_blocks and lstrip_blocks, as chat templates are written for. Source:
 * Jinja's documentation, "Template Designer Documentation".
 */

struct form {
    char *text; /* NUL-terminated */
    size_t n;
};

static void form_put(struct form *form, char c)
{
    form->text[form->n++] = c;
    form->text[form->n] = 0;
}

static int form_ends(const struct form *form, const char *with)
{
    size_t n = strlen(with);

    return form->n >= n && !memcmp(form->text + form->n - n, with, n);
}

static int word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Starts a literal, or goes on with the one that a + was put after. */
static void literal_open(struct form *form)
{
    const char joined[] = {SHUT, '+', 0};

    if (form_ends(form, joined))
        form->n -= 2;
    else
        form_put(form, OPEN);
}

/* Starts an output, or goes on with the one just before. */
static void output_open(struct form *form)
{
    if (form_ends(form, "}}")) {
        form->n -= 2;
        form_put(form, '+');
    } else {
        form_put(form, '{');
        form_put(form, '{');
    }
}

static void output_shut(struct form *form)
{
    form_put(form, '}');
    form_put(form, '}');
}

static int put_literal(struct form *form, const char **src)
{
    const char *s = *src;
    char quote = *s++;

    literal_open(form);
    for (; *s != quote; s++) {
        char c = *s;

        if (c == '\\') {
            c = *++s;
            if (c == 'n')
                c = '\n';
            else if (c == 't')
                c = '\t';
            else if (c == 'r')
                c = '\r';
            else if (c != '\\' && c != '\'' && c != '"')
                return -EINVAL;
        }
        if (c == 0 || c == OPEN || c == SHUT)
            return -EINVAL;
        form_put(form, c);
    }
    form_put(form, SHUT);
    *src = s + 1;
    return 0;
}

/* Puts what is inside a tag, up to its end mark ("%}" or "}}"); *src then stands after it. */
static int put_inside(struct form *form, const char **src, const char *mark, int *ret_trims)
{
    const char *s = *src;
    int space = 0;

    for (;;) {
        int trims = *s == '-' && !strncmp(s + 1, mark, 2);

        if (*s == 0)
            return -EINVAL;
        if (trims || !strncmp(s, mark, 2)) {
            *ret_trims = trims;
            *src = s + trims + 2;
            return 0;
        }
        if (isspace((unsigned char)*s)) {
            space = 1;
            s++;
            continue;
        }
        if (strchr("{}%#", *s))
            return -EINVAL; /* of no form that we know; and "% }" must not become a mark */
        if (*s == '\'' || *s == '"') {
            if (put_literal(form, &s) < 0)
                return -EINVAL;
        } else if (*s == '.' && form->n > 0 && word_char(form->text[form->n - 1]) &&
                   !isdigit((unsigned char)s[1])) {
            form_put(form, '[');
            form_put(form, OPEN);
            for (s++; word_char(*s); s++)
                form_put(form, *s);
            form_put(form, SHUT);
            form_put(form, ']');
        } else {
            if (space && form->n > 0 && word_char(form->text[form->n - 1]) && word_char(*s))
                form_put(form, ' ');
            form_put(form, *s++);
        }
        space = 0;
    }
}

/* The literal text s[n] as an output. */
static int put_text(struct form *form, const char *s, size_t n)
{
    if (n == 0)
        return 0;
    output_open(form);
    literal_open(form);
    for (size_t i = 0; i < n; i++) {
        if (s[i] == OPEN || s[i] == SHUT)
            return -EINVAL;
        form_put(form, s[i]);
    }
    form_put(form, SHUT);
    output_shut(form);
    return 0;
}

/* Puts the tag at *src, of the kind that its second character says. */
static int put_tag(struct form *form, const char **src, int *ret_trims)
{
    char kind = (*src)[1];
    const char *end;
    int err;

    *src += (*src)[2] == '-' || (*src)[2] == '+' ? 3 : 2;
    if (kind == '#') {
        end = strstr(*src, "#}");
        if (!end)
            return -EINVAL;
        *ret_trims = end > *src && end[-1] == '-';
        *src = end + 2;
        return 0;
    }
    if (kind == '{') {
        output_open(form);
        err = put_inside(form, src, "}}", ret_trims);
        output_shut(form);
        return err;
    }
    form_put(form, '{');
    form_put(form, '%');
    err = put_inside(form, src, "%}", ret_trims);
    form_put(form, '%');
    form_put(form, '}');
    return err;
}

/* The first tag at or after s, or the end of the text. */
static const char *tag_find(const char *s)
{
    while (*s && !(*s == '{' && s[1] && strchr("%{#", s[1])))
        s++;
    return s;
}

/* A new string, or NULL: no memory, or no template of the kind that could be known. */
static char *form_new(const char *template)
{
    size_t n = strlen(template);
    /* A character of text between two tags grows most: to {{'x'}} from x. */
    struct form form = {.text = malloc(6 * n + 8)};
    const char *s = template, *text_end = template + n;
    int trims = 0, block = 0; /* of the tag just before the text */

    if (!form.text)
        return NULL;
    form.text[0] = 0;
    if (n > 0 && text_end[-1] == '\n')
        text_end--; /* a template's last line end is not part of it */
    while (*s) {
        const char *tag = tag_find(s), *end = *tag || tag < text_end ? tag : text_end;

        if (trims)
            while (s < end && isspace((unsigned char)*s))
                s++;
        else if (block && s < end && *s == '\n')
            s++;
        if (*tag && tag[2] == '-') {
            while (end > s && isspace((unsigned char)end[-1]))
                end--;
        } else if (*tag && tag[1] != '{' && tag[2] != '+') {
            const char *line = end;

            while (line > s && (line[-1] == ' ' || line[-1] == '\t'))
                line--;
            if (line == template || line[-1] == '\n')
                end = line; /* only blanks stand before the block tag on its line */
        }
        if (end > s && put_text(&form, s, (size_t)(end - s)) < 0)
            goto fail;
        s = tag;
        block = *tag && tag[1] != '{';
        if (*tag && put_tag(&form, &s, &trims) < 0)
            goto fail;
    }
    return form.text;

fail:
    free(form.text);
    return NULL;
}

/* ---- the forms that we know ----------------------------------------------------------- */

#define CHATML_MESSAGE                                                                             \
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% "  \
    "endfor %}"                                                                                    \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
#define HOLE "\x03" /* where the default system message stands */

/* Takes the canonical form of `known` off the front of *form, if it begins so. */
static int form_take(const char **form, const char *known)
{
    char *expect = form_new(known);
    size_t n = expect ? strlen(expect) : 0;
    int same = expect && !strncmp(*form, expect, n);

    if (same)
        *form += n;
    free(expect);
    return same;
}

/* ChatML whose first message, unless it is a system message, gets one before it: finds that
 * message's text in form. */
static int form_default(const char *form, const char **ret_text, size_t *ret_n)
{
    char *expect = form_new(
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\n" HOLE "<|im_end|>\n' }}{% endif %}" CHATML_MESSAGE);
    const char *hole = expect ? strchr(expect, HOLE[0]) : NULL;
    size_t n = strlen(form), before, after;
    int found = 0;

    if (hole) {
        before = (size_t)(hole - expect);
        after = strlen(hole + 1);
        found = n >= before + after && !memcmp(form, expect, before) &&
                !memcmp(form + n - after, hole + 1, after);
        if (found) {
            *ret_text = form + before;
            *ret_n = n - before - after;
        }
    }
    free(expect);
    return found;
}

/* What stands in the hole is one literal without control tokens. */
static int text_is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] == OPEN || text[i] == SHUT ||
            (text[i] == '<' && i + 1 < n && text[i + 1] == '|'))
            return 0;
    return 1;
}

/* ---- scaffold ------------------------------------------------------------------------- */

static int scaffold_encode(struct template *t, const struct vocab *vocab, const char *system,
                           size_t n_system, struct diag *diag)
{
    struct bpe *bpe = NULL;
    int err = bpe_new(&bpe, vocab, n_system + 1, diag);

    if (err < 0)
        return err;
    err = bpe_encode_after(bpe, "\n", NULL, 0, t->newline.ids, &t->newline.n, SCAFFOLD_IDS_MAX);
    if (err == 0)
        err = bpe_encode_after(bpe, "assistant\n", NULL, 0, t->answer.ids, &t->answer.n,
                               SCAFFOLD_IDS_MAX);
    if (err == 0 && system)
        err = bpe_encode_after(bpe, "system\n", (const uint8_t *)system, n_system, t->default_ids,
                               &t->n_default, DEFAULT_IDS_MAX);
    if (err == -EILSEQ)
        diag_set(diag, "chat template: the vocabulary has no token for byte 0x%02x of it",
                 bpe_unknown_byte(bpe));
    else if (err < 0)
        diag_set(diag, "chat template: its default system message has over %u tokens",
                 DEFAULT_IDS_MAX);
    bpe_free(bpe);
    return err < 0 ? -ENOTSUP : 0;
}

static int template_unknown(const char *chat_template, struct diag *diag)
{
    diag_set(diag, "chat template is not ChatML, the only one known; its first line: %.*s",
             (int)strcspn(chat_template, "\r\n"), chat_template);
    return -ENOTSUP;
}

static int controls_find(struct template *t, const struct vocab *vocab, int writes_bos,
                         struct diag *diag)
{
    t->start = vocab_control_id(vocab, "<|im_start|>");
    t->end = vocab_control_id(vocab, "<|im_end|>");
    t->bos = writes_bos ? vocab_bos_named(vocab) : vocab_bos(vocab);
    if (!writes_bos && t->bos == t->start)
        t->bos = VOCAB_NONE; /* the first message begins with it: exactly one */
    if (t->start == VOCAB_NONE || t->end == VOCAB_NONE) {
        diag_set(diag, "chat template is ChatML, but the vocabulary has no control token %s",
                 t->start == VOCAB_NONE ? "<|im_start|>" : "<|im_end|>");
        return -ENOTSUP;
    }
    if (writes_bos && t->bos == VOCAB_NONE) {
        diag_set(
            diag,
            "chat template begins with BOS, but the file names no 'tokenizer.ggml.bos_token_id'");
        return -ENOTSUP;
    }
    return 0;
}

int template_new(struct template **ret_template, const char *chat_template,
                 const struct vocab *vocab, struct diag *diag)
{
    struct template *t = NULL;
    const char *rest, *system = NULL;
    size_t n_system = 0;
    char *form = NULL;
    int err = -ENOTSUP, writes_bos;

    /* Jinja makes line feeds of carriage returns first; no published template has any. */
    if (strnlen(chat_template, TEMPLATE_BYTES_MAX + 1) > TEMPLATE_BYTES_MAX ||
        strchr(chat_template, '\r'))
        return template_unknown(chat_template, diag);
    form = form_new(chat_template);
    if (!form)
        return template_unknown(chat_template, diag);
    rest = form;
    /* Old Jinja environments did not define it; it is a no-op here, where it always is. */
    form_take(&rest, "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = "
                     "false %}{% endif %}");
    writes_bos = form_take(&rest, "{{ bos_token }}");
    if (form_default(rest, &system, &n_system) && !text_is_plain(system, n_system))
        system = NULL;
    if (!system && (!form_take(&rest, "{% for message in messages %}" CHATML_MESSAGE) || *rest)) {
        err = template_unknown(chat_template, diag);
        goto fail;
    }
    t = calloc(1, sizeof *t);
    err = t ? controls_find(t, vocab, writes_bos, diag) : -ENOMEM;
    if (err == 0)
        err = scaffold_encode(t, vocab, system, n_system, diag);
    if (err < 0)
        goto fail;
    free(form);
    *ret_template = t;
    return 0;

fail:
    free(form);
    template_free(t);
    return err;
}

void template_free(struct template *t)
{
    free(t);
}

/* ---- a chat --------------------------------------------------------------------------- */

static void put_ids(uint32_t *ids, uint32_t *n_ids, uint32_t max, const uint32_t *more, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (*n_ids < max)
            ids[*n_ids] = more[i];
        if (*n_ids < UINT32_MAX)
            ++*n_ids;
    }
}

static void put_end(const struct template *t, uint32_t *ids, uint32_t *n_ids, uint32_t max)
{
    put_ids(ids, n_ids, max, &t->end, 1);
    put_ids(ids, n_ids, max, t->newline.ids, t->newline.n);
}

int template_encode(const struct template *t, struct bpe *bpe, const struct message *messages,
                    uint32_t n, uint32_t *ids, uint32_t *n_ids, uint32_t max)
{
    static const char *const heads[] = {"system\n", "user\n", "assistant\n", "tool\n"};
    uint32_t n_out = *n_ids;

    if (n == 0)
        return -EINVAL;
    if (t->bos != VOCAB_NONE && !(n_out > 0 && n_out <= max && ids[n_out - 1] == t->bos))
        put_ids(ids, &n_out, max, &t->bos, 1);
    if (t->n_default > 0 && messages[0].role != 0) {
        put_ids(ids, &n_out, max, &t->start, 1);
        put_ids(ids, &n_out, max, t->default_ids, t->n_default);
        put_end(t, ids, &n_out, max);
    }
    for (uint32_t i = 0; i < n; i++) {
        int err;

        if (messages[i].role >= sizeof heads / sizeof heads[0])
            return -EINVAL;
        put_ids(ids, &n_out, max, &t->start, 1);
        err = bpe_encode_after(bpe, heads[messages[i].role], messages[i].text, messages[i].n, ids,
                               &n_out, max);
        if (err < 0 && err != -E2BIG)
            return err;
        put_end(t, ids, &n_out, max);
    }
    put_ids(ids, &n_out, max, &t->start, 1);
    put_ids(ids, &n_out, max, t->answer.ids, t->answer.n);
    *n_ids = n_out;
    return n_out > max ? -E2BIG : 0;
}
