/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile text, templates and ids: the first byte chooses. Besides the sanitizers it checks that
 * ids decode to the text they came from, and that a detokenised stream without stop strings is the
 * joined bytes of its ids.
 */
#include "runtime/text/detok.h"
#include "runtime/text/template.h"
#include "tests/unit/vocab_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TEXT_MAX 65536u

static struct vocab *vocabs[3];
static struct bpe *bpes[3];

static void check(int holds)
{
    if (!holds)
        abort();
}

static void init(void)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe"};
    static const char *const merges[] = {"h e",   "l l", "he ll", "hell o", "Ġ t", "Ġ Ġ",
                                         "ĠĠ ĠĠ", "Ã ©", "ð Ł",   "1 2",    "Ċ Ċ"};
    static const char *const user[] = {"<tool>", "<tool></tool>", "  "};

    for (int i = 0; i < 3; i++) {
        struct tiny tiny = {.pre = pres[i],
                            .merges = merges,
                            .n_merges = 11,
                            .user = user,
                            .n_user = i == 1 ? 3 : 0};
        struct diag diag;

        vocabs[i] = fixture_vocab_new(&tiny);
        check(bpe_new(&bpes[i], vocabs[i], TEXT_MAX, &diag) == 0);
    }
}

static void fuzz_encode(int family, const uint8_t *text, size_t n)
{
    static uint32_t ids[TEXT_MAX];
    uint32_t n_ids = 0;
    size_t at = 0, bytes;

    check(bpe_encode(bpes[family], text, n, ids, &n_ids, TEXT_MAX) == 0);
    for (uint32_t i = 0; i < n_ids; i++) {
        const uint8_t *token = vocab_bytes(vocabs[family], ids[i], &bytes);

        check(bytes <= n - at && !memcmp(token, text + at, bytes));
        at += bytes;
    }
    check(at == n);
}

static void fuzz_template(const uint8_t *text, size_t n)
{
    static const struct message message = {1, (const uint8_t *)"hello", 5};
    struct template *template = NULL;
    struct diag diag;
    uint32_t ids[256], n_ids = 0;
    char *source = strndup((const char *)text, n);

    check(source != NULL);
    if (template_new(&template, source, vocabs[0], &diag) == 0)
        template_encode(template, bpes[0], &message, 1, ids, &n_ids, 256);
    template_free(template);
    free(source);
}

/* Two bytes an id. The first byte is the number of bytes of a stop string that follows it; 0: none. */
static void fuzz_detok(const uint8_t *data, size_t n)
{
    static struct detok detok;
    static uint8_t all[TEXT_MAX], out[TEXT_MAX];
    struct detok_piece piece;
    size_t n_all = 0, n_out = 0, bytes;
    int rc = 0, stops = 0;

    detok_init(&detok, vocabs[1]);
    if (n > 0 && data[0] < n) {
        stops = detok_add_stop(&detok, data + 1, data[0]) == 0;
        n -= data[0] + 1u;
        data += data[0] + 1;
    }
    for (size_t i = 0; i + 1 < n && n_all < TEXT_MAX - 8 && rc != DETOK_STOPPED; i += 2) {
        uint32_t id = (data[i] | (uint32_t)data[i + 1] << 8) % 280;
        const uint8_t *token = vocab_bytes(vocabs[1], id, &bytes);

        check(bytes <= TEXT_MAX - n_all);
        memcpy(all + n_all, token, bytes);
        n_all += bytes;
        for (rc = detok_feed(&detok, id, &piece);; rc = detok_more(&detok, &piece)) {
            check(piece.n_bytes <= TEXT_MAX - n_out);
            memcpy(out + n_out, piece.text, piece.n_bytes);
            n_out += piece.n_bytes;
            if (rc != 1)
                break;
        }
    }
    if (rc != DETOK_STOPPED)
        for (rc = detok_flush(&detok, 0, &piece); rc == 1; rc = detok_more(&detok, &piece)) {
            memcpy(out + n_out, piece.text, piece.n_bytes);
            n_out += piece.n_bytes;
        }
    check(n_out <= n_all && !memcmp(out, all, n_out) && (stops || n_out == n_all));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!vocabs[0])
        init();
    if (size == 0 || size > TEXT_MAX)
        return 0;
    if (data[0] < 128)
        fuzz_encode(data[0] % 3, data + 1, size - 1);
    else if (data[0] < 192)
        fuzz_template(data + 1, size - 1);
    else
        fuzz_detok(data + 1, size - 1);
    return 0;
}
