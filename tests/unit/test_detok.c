/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include "runtime/text/detok.h"
#include "runtime/text/utf8.h"
#include "tests/unit/vocab_fixture.h"

#define B(c)    (FIXTURE_BYTE + (uint8_t)(c)) /* the token of one byte */
#define M(i)    (FIXTURE_MERGED + (i))        /* what merge i makes */
#define ALL_MAX 8192u

/* As ck_assert, for what is asked many thousand times: Check makes a system call of each of its
 * own. */
#define MUST(holds)                                                                                \
    do {                                                                                           \
        if (!(holds))                                                                              \
            ck_abort_msg("not so: %s", #holds);                                                    \
    } while (0)

/* "é" is the bytes C3 A9; "😀" F0 9F 98 80. In GPT-2's alphabet: Ã ©, ð Ł ĺ Ģ. */
static const char *const merges[] = {"S T", "O P", "x ST", "ST OP", "Ã ©", "ð Ł",
                                     "ĺ Ģ", "a b", "ab c", "Ã Ã",   "© b"};
enum { ST, OP, X_ST, STOP, E_ACUTE, F0_9F, N98_80, AB, ABC, C3_C3, A9_B, N_MERGES };

static struct vocab *vocab;
static struct detok *detok;

static void setup(void)
{
    struct tiny tiny = {.pre = "smollm", .merges = merges, .n_merges = N_MERGES};

    vocab = fixture_vocab_new(&tiny);
    detok = malloc(sizeof *detok);
    ck_assert_ptr_nonnull(detok);
    detok_init(detok, vocab);
}

static void teardown(void)
{
    free(detok);
    vocab_free(vocab);
}

static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    return (uint32_t)(seed >> 33) % n;
}

static void stop(const char *text)
{
    MUST(detok_add_stop(detok, (const uint8_t *)text, (uint32_t)strlen(text)) == 0);
}

/* ---- what came out, as a client joins it ---------------------------------------------- */

struct got {
    uint8_t text[ALL_MAX];
    uint32_t n_bytes;
    uint32_t ids[ALL_MAX];
    uint32_t n_ids;
    uint32_t n_raw; /* bytes flagged raw */
    int stopped;
};

static void got_piece(struct got *got, const struct detok_piece *piece)
{
    MUST(piece->n_bytes <= ALL_MAX - got->n_bytes);
    MUST(piece->n_ids <= ALL_MAX - got->n_ids);
    if (!piece->raw) /* each piece is whole characters by itself */
        MUST(utf8_span(piece->text, piece->n_bytes) == piece->n_bytes);
    else
        got->n_raw += piece->n_bytes;
    memcpy(got->text + got->n_bytes, piece->text, piece->n_bytes);
    memcpy(got->ids + got->n_ids, piece->ids, piece->n_ids * sizeof *piece->ids);
    got->n_bytes += piece->n_bytes;
    got->n_ids += piece->n_ids;
}

static void got_all(struct got *got, int rc, struct detok_piece *piece)
{
    for (; rc == 1; rc = detok_more(detok, piece)) {
        MUST(piece->n_bytes > 0 || piece->n_ids > 0);
        got_piece(got, piece);
    }
    got_piece(got, piece);
    MUST(rc == DETOK_STOPPED || (piece->n_bytes == 0 && piece->n_ids == 0));
    got->stopped |= rc == DETOK_STOPPED;
}

static void feed(struct got *got, uint32_t id)
{
    struct detok_piece piece;

    got_all(got, detok_feed(detok, id, &piece), &piece);
}

static void flush(struct got *got, int cut)
{
    struct detok_piece piece;
    int stopped = got->stopped;

    got_all(got, detok_flush(detok, cut, &piece), &piece);
    MUST(got->stopped == stopped);
}

static void expect(const struct got *got, const char *text, uint32_t n_ids)
{
    ck_assert_msg(got->n_bytes == strlen(text) && !memcmp(got->text, text, got->n_bytes),
                  "got '%.*s', expected '%s'", (int)got->n_bytes, (const char *)got->text, text);
    ck_assert_uint_eq(got->n_ids, n_ids);
}

/* ---- characters ----------------------------------------------------------------------- */

START_TEST(a_character_over_several_tokens_comes_whole_with_the_last_of_them)
{
    struct got got = {.n_ids = 0};

    feed(&got, B('a'));
    expect(&got, "a", 1);
    feed(&got, M(F0_9F));
    expect(&got, "a", 1);
    feed(&got, B(0x98));
    expect(&got, "a", 1);
    feed(&got, B(0x80));
    expect(&got, "a😀", 4);
    feed(&got, B(0xc3));
    feed(&got, M(A9_B)); /* ends the character and goes on */
    expect(&got, "a😀éb", 6);
    flush(&got, 0);
    expect(&got, "a😀éb", 6);
    ck_assert_uint_eq(got.n_raw, 0);
}
END_TEST

START_TEST(a_token_limit_inside_a_character_ends_at_the_last_whole_one)
{
    struct got got = {.n_ids = 0};

    feed(&got, B('a'));
    feed(&got, M(F0_9F));
    feed(&got, B(0x98));
    flush(&got, 1);
    expect(&got, "a", 3); /* the ids were generated */
    ck_assert_uint_eq(got.n_raw, 0);
}
END_TEST

START_TEST(an_end_inside_a_character_gives_its_bytes_raw)
{
    struct got got = {.n_ids = 0};

    feed(&got, B('a'));
    feed(&got, M(F0_9F));
    flush(&got, 0);
    expect(&got, "a\xf0\x9f", 2);
    ck_assert_uint_eq(got.n_raw, 2);
}
END_TEST

START_TEST(a_piece_after_a_prompt_that_ended_inside_a_character_is_the_new_bytes_only)
{
    struct got got = {.n_ids = 0};

    feed(&got, M(N98_80)); /* the prompt had F0 9F */
    expect(&got, "\x98\x80", 1);
    ck_assert_uint_eq(got.n_raw, 2);
    feed(&got, B('a'));
    expect(&got,
           "\x98\x80"
           "a",
           2);
    ck_assert_uint_eq(got.n_raw, 2);
}
END_TEST

START_TEST(bytes_that_are_not_utf8_come_raw_and_never_share_a_piece_with_text)
{
    struct detok_piece piece;

    ck_assert_int_eq(detok_feed(detok, B(0xc3), &piece), 0);
    ck_assert_int_eq(detok_feed(detok, M(C3_C3), &piece),
                     1); /* C3 C3 C3: the last may still become é */
    ck_assert_int_eq(piece.raw, 1);
    ck_assert_uint_eq(piece.n_bytes, 2);
    ck_assert_uint_eq(piece.n_ids, 1); /* the second one's text is not out */
    ck_assert_int_eq(detok_more(detok, &piece), 0);
    ck_assert_int_eq(detok_feed(detok, M(A9_B), &piece), 1);
    ck_assert_int_eq(piece.raw, 0);
    ck_assert_mem_eq(piece.text, "éb", 3);
    ck_assert_uint_eq(piece.n_ids, 2);
    ck_assert_int_eq(detok_more(detok, &piece), 0);
    ck_assert_int_eq(detok_feed(detok, B(0xff), &piece), 1);
    ck_assert_int_eq(piece.raw, 1);
    ck_assert_uint_eq(piece.n_ids, 1);
}
END_TEST

START_TEST(control_tokens_come_without_text_and_after_the_text_before_them)
{
    struct got got = {.n_ids = 0};

    feed(&got, FIXTURE_START);
    expect(&got, "", 1);
    feed(&got, M(F0_9F));
    feed(&got, FIXTURE_BOS);
    expect(&got, "", 1);
    feed(&got, M(N98_80));
    expect(&got, "😀", 4);
    feed(&got, UINT32_MAX); /* no such id: no text */
    expect(&got, "😀", 5);
}
END_TEST

/* ---- stop strings --------------------------------------------------------------------- */

START_TEST(text_ends_before_a_stop_string_and_ids_that_start_in_it_are_dropped)
{
    struct got got = {.n_ids = 0};

    stop("STOP");
    feed(&got, B('a'));
    feed(&got, M(X_ST));
    expect(&got, "ax", 1); /* x can be in no match; its id waits for the rest of its text */
    feed(&got, B('O'));
    feed(&got, B('P'));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "ax", 2); /* the id of "xST" starts before the match */
    ck_assert_uint_eq(got.ids[1], M(X_ST));
}
END_TEST

START_TEST(nothing_after_a_match_is_delivered_or_counted)
{
    struct got got = {.n_ids = 0};

    stop("b");
    feed(&got, M(ABC));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "a", 1);
    feed(&got, B('z')); /* the engine ran a step ahead */
    feed(&got, FIXTURE_START);
    flush(&got, 0);
    flush(&got, 1);
    expect(&got, "a", 1);
}
END_TEST

START_TEST(only_what_can_still_match_is_held_back)
{
    struct got got = {.n_ids = 0};

    stop("aab");
    stop("abac");
    feed(&got, B('a'));
    expect(&got, "", 0);
    feed(&got, B('a'));
    expect(&got, "", 0);
    feed(&got, B('a')); /* "aaa": the first can match no more */
    expect(&got, "a", 1);
    feed(&got, B('x'));
    expect(&got, "aaax", 4);
    feed(&got, M(AB));
    feed(&got, B('a')); /* "aba" begins the second stop */
    expect(&got, "aaax", 4);
    feed(&got, B('a')); /* "abaa": now only "aa" */
    expect(&got, "aaaxab", 5);
    feed(&got, B('b'));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "aaaxab", 5);
}
END_TEST

START_TEST(of_stop_strings_where_one_begins_with_the_other_the_shorter_matches_first)
{
    struct got got = {.n_ids = 0};

    stop("abc");
    stop("ab");
    feed(&got, B('x'));
    feed(&got, B('a'));
    expect(&got, "x", 1);
    feed(&got, B('b'));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "x", 1);
}
END_TEST

START_TEST(of_stop_strings_that_end_together_the_longest_counts)
{
    struct got got = {.n_ids = 0};

    stop("c");
    stop("abc");
    stop("bc");
    feed(&got, B('x'));
    feed(&got, M(ABC));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "x", 1);
}
END_TEST

START_TEST(a_begun_stop_string_is_flushed_at_the_end)
{
    struct got got = {.n_ids = 0};

    stop("STOP");
    feed(&got, B('a'));
    feed(&got, M(ST));
    feed(&got, B('O'));
    expect(&got, "a", 1);
    flush(&got, 0);
    expect(&got, "aSTO", 3);
    ck_assert_int_eq(got.stopped, 0);
}
END_TEST

START_TEST(a_stop_string_that_begins_inside_a_character_s_bytes_holds_the_character)
{
    struct got got = {.n_ids = 0};

    stop("é!");
    feed(&got, B(0xc3));
    feed(&got, B(0xa9));
    expect(&got, "", 0);
    feed(&got, B('x'));
    expect(&got, "éx", 3);
    feed(&got, M(E_ACUTE));
    feed(&got, B('!'));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "éx", 3);
}
END_TEST

START_TEST(a_match_after_raw_bytes_delivers_them_first)
{
    struct detok_piece piece;

    stop("ab");
    ck_assert_int_eq(detok_feed(detok, B(0xc3), &piece), 0);
    ck_assert_int_eq(detok_feed(detok, M(ABC), &piece), DETOK_STOPPED);
    ck_assert_int_eq(piece.raw, 1);
    ck_assert_uint_eq(piece.n_bytes, 1);
    ck_assert_uint_eq(piece.n_ids, 1);
    ck_assert_int_eq(detok_more(detok, &piece), 0);
}
END_TEST

START_TEST(a_match_with_nothing_before_it_is_an_empty_last_piece)
{
    struct detok_piece piece;

    stop("STOP");
    ck_assert_int_eq(detok_feed(detok, M(STOP), &piece), DETOK_STOPPED);
    ck_assert_uint_eq(piece.n_bytes, 0);
    ck_assert_uint_eq(piece.n_ids, 0);
}
END_TEST

START_TEST(a_control_token_before_a_match_counts_and_one_inside_does_not)
{
    struct got got = {.n_ids = 0};

    stop("STOP");
    feed(&got, B('x'));
    feed(&got, FIXTURE_BOS);
    feed(&got, M(ST));
    feed(&got, FIXTURE_BOS);
    expect(&got, "x", 2);
    feed(&got, M(OP));
    ck_assert_int_eq(got.stopped, 1);
    expect(&got, "x", 2);
}
END_TEST

START_TEST(endless_control_tokens_inside_a_begun_stop_string_stay_bounded_and_lose_nothing)
{
    struct got got = {.n_ids = 0};

    stop("STOP");
    feed(&got, M(ST));
    for (int i = 0; i < 3000; i++)
        feed(&got, FIXTURE_BOS);
    feed(&got, B('x'));
    flush(&got, 0);
    expect(&got, "STx", 3002);
}
END_TEST

START_TEST(stop_strings_of_no_or_too_many_bytes_and_one_too_many_are_refused)
{
    uint8_t text[DETOK_STOP_BYTES + 1] = {1};

    ck_assert_int_eq(detok_add_stop(detok, text, 0), -EINVAL);
    ck_assert_int_eq(detok_add_stop(detok, text, DETOK_STOP_BYTES + 1), -EINVAL);
    for (int i = 0; i < DETOK_STOPS; i++)
        ck_assert_int_eq(detok_add_stop(detok, text, DETOK_STOP_BYTES), 0);
    ck_assert_int_eq(detok_add_stop(detok, text, 1), -ENOSPC);
}
END_TEST

/* ---- against a naive reading of the whole text ---------------------------------------- */

struct naive {
    uint8_t text[ALL_MAX];
    uint32_t n_bytes;
    uint32_t end; /* of the text before the match, or all of it */
    int stopped;
    uint32_t n_ids; /* that count */
};

/* Joins everything first, then looks for the match whose end comes first, of those the longest. */
static void naive_run(struct naive *naive, const uint32_t *ids, uint32_t n, char stops[][8],
                      uint32_t n_stops)
{
    uint32_t from[256], best_end = UINT32_MAX, best_bytes = 0;
    size_t bytes;

    naive->n_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *text = vocab_bytes(vocab, ids[i], &bytes);

        from[i] = naive->n_bytes;
        memcpy(naive->text + naive->n_bytes, text, bytes);
        naive->n_bytes += (uint32_t)bytes;
    }
    for (uint32_t s = 0; s < n_stops; s++) {
        size_t length = strlen(stops[s]);
        const uint8_t *at = memmem(naive->text, naive->n_bytes, stops[s], length);
        uint32_t end = at ? (uint32_t)(at - naive->text + (ptrdiff_t)length) : UINT32_MAX;

        if (end < best_end || (at && end == best_end && length > best_bytes)) {
            best_end = end;
            best_bytes = (uint32_t)length;
        }
    }
    naive->stopped = best_end != UINT32_MAX;
    naive->end = naive->stopped ? best_end - best_bytes : naive->n_bytes;
    for (naive->n_ids = 0; naive->n_ids < n; naive->n_ids++) {
        uint32_t i = naive->n_ids;

        vocab_bytes(vocab, ids[i], &bytes);
        if (naive->stopped && (from[i] > naive->end || (from[i] == naive->end && bytes > 0)))
            break;
    }
}

START_TEST(streamed_text_and_ids_are_those_of_the_whole_text)
{
    static const uint32_t pool[] = {B('a'),      B('b'),   B('c'),    M(AB),      M(ABC),
                                    M(ST),       M(OP),    M(X_ST),   M(E_ACUTE), B(0xc3),
                                    B(0xa9),     M(F0_9F), M(N98_80), M(C3_C3),   M(A9_B),
                                    FIXTURE_BOS, B('S'),   B('O'),    B(0x80),    B(0xff)};
    static const char *const parts[] = {"a", "b",    "c",    "ab", "ST", "OP",
                                        "é", "\xc3", "\xa9", "x",  "😀"};
    static struct got got;
    static struct naive naive;
    uint32_t n_stopped = 0;

    for (int round = 0; round < 40000; round++) {
        uint32_t ids[100], n = 1 + draw(100), n_stops = draw(4),
                           narrow = 2 + draw(sizeof pool / sizeof pool[0] - 1);
        char stops[3][8];
        int cut = (int)draw(2);

        detok_init(detok, vocab);
        memset(&got, 0, sizeof got);
        for (uint32_t s = 0; s < n_stops; s++) {
            stops[s][0] = 0;
            do {
                const char *part = parts[draw(sizeof parts / sizeof parts[0])];

                if (strlen(stops[s]) + strlen(part) < sizeof stops[s])
                    strcat(stops[s], part);
            } while (draw(3) > 0);
            stop(stops[s]);
        }
        for (uint32_t i = 0; i < n; i++) {
            ids[i] = pool[draw(narrow)];
            feed(&got, ids[i]);
        }
        if (!got.stopped)
            flush(&got, cut);
        naive_run(&naive, ids, n, stops, n_stops);
        MUST(got.stopped == naive.stopped);
        if (!naive.stopped &&
            cut) { /* without an incomplete last character, which is 1 to 3 bytes */
            for (uint32_t k = 3; k > 0; k--)
                if (k <= naive.end && utf8_char(naive.text + naive.end - k, k) == UTF8_CUT) {
                    naive.end -= k;
                    break;
                }
        }
        MUST(got.n_bytes == naive.end);
        MUST(!memcmp(got.text, naive.text, naive.end));
        MUST(got.n_ids == naive.n_ids);
        MUST(!memcmp(got.ids, ids, got.n_ids * sizeof *ids));
        n_stopped += (uint32_t)got.stopped;
    }
    ck_assert_uint_gt(n_stopped, 5000); /* both kinds of round were many */
    ck_assert_uint_lt(n_stopped, 35000);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("detok");
    TCase *tc = tcase_create("detok");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_character_over_several_tokens_comes_whole_with_the_last_of_them);
    tcase_add_test(tc, a_token_limit_inside_a_character_ends_at_the_last_whole_one);
    tcase_add_test(tc, an_end_inside_a_character_gives_its_bytes_raw);
    tcase_add_test(tc, a_piece_after_a_prompt_that_ended_inside_a_character_is_the_new_bytes_only);
    tcase_add_test(tc, bytes_that_are_not_utf8_come_raw_and_never_share_a_piece_with_text);
    tcase_add_test(tc, control_tokens_come_without_text_and_after_the_text_before_them);
    tcase_add_test(tc, text_ends_before_a_stop_string_and_ids_that_start_in_it_are_dropped);
    tcase_add_test(tc, nothing_after_a_match_is_delivered_or_counted);
    tcase_add_test(tc, only_what_can_still_match_is_held_back);
    tcase_add_test(tc, of_stop_strings_where_one_begins_with_the_other_the_shorter_matches_first);
    tcase_add_test(tc, of_stop_strings_that_end_together_the_longest_counts);
    tcase_add_test(tc, a_begun_stop_string_is_flushed_at_the_end);
    tcase_add_test(tc, a_stop_string_that_begins_inside_a_character_s_bytes_holds_the_character);
    tcase_add_test(tc, a_match_after_raw_bytes_delivers_them_first);
    tcase_add_test(tc, a_match_with_nothing_before_it_is_an_empty_last_piece);
    tcase_add_test(tc, a_control_token_before_a_match_counts_and_one_inside_does_not);
    tcase_add_test(tc,
                   endless_control_tokens_inside_a_begun_stop_string_stay_bounded_and_lose_nothing);
    tcase_add_test(tc, stop_strings_of_no_or_too_many_bytes_and_one_too_many_are_refused);
    tcase_add_test(tc, streamed_text_and_ids_are_those_of_the_whole_text);
    suite_add_tcase(suite, tc);
    sr = srunner_create(suite);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
