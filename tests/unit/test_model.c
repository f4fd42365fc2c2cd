/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/gguf.h"
#include "runtime/model/load.h"
#include "runtime/model/model.h"
#include "tests/unit/tiny_model.h"

static struct team *team;

static void setup(void)
{
    ck_assert_int_eq(team_new(&team, 2), 0);
}

static void teardown(void)
{
    team_free(team);
}

static struct model *open_model(const char *path)
{
    struct diag diag = {""};
    struct model *model = NULL;
    int err = model_open(&model, path, 0, NULL, team, &diag);

    ck_assert_msg(err == 0, "%s", diag.text);
    return model;
}

static void assert_refused(const char *path, const char *names)
{
    struct diag diag = {""};
    struct model *model = NULL;

    ck_assert_msg(model_open(&model, path, 0, NULL, team, &diag) == -EINVAL, "%s (%s) was opened",
                  path, names);
    ck_assert_ptr_null(model);
    ck_assert_msg(strstr(diag.text, names) != NULL, "'%s' does not name '%s'", diag.text, names);
}

/* Rows 22 and 47 to 55 of the case list. */
START_TEST(every_broken_file_is_refused_with_a_message_that_names_the_fault)
{
    char list_path[256], line[512];
    unsigned n = 0;
    FILE *list;

    tiny_broken();
    snprintf(list_path, sizeof list_path, "%s/list.txt", tiny_folder());
    list = fopen(list_path, "re");
    ck_assert_ptr_nonnull(list);
    while (fgets(line, sizeof line, list)) {
        char path[512], *name = strtok(line, "\t"), *says;

        strtok(NULL, "\t");
        says = strtok(NULL, "\n");
        ck_assert_ptr_nonnull(says);
        snprintf(path, sizeof path, "%s/%s.gguf", tiny_folder(), name);
        /* Names of keys and tensors have to be in the message; other words only describe the
         * fault. */
        assert_refused(path, strchr(says, '.') ? says : ".gguf: ");
        n++;
    }
    fclose(list);
    ck_assert_uint_ge(n, 93);
}
END_TEST

/* Expected values: the arguments given to make_gguf.py and its defaults. */
START_TEST(a_model_has_the_shape_that_its_file_says)
{
    struct model *model = open_model(
        tiny_model("layers=3, embd=192, heads=6, kv_heads=2, ffn=320, ctx=100, name='a b'", ""));
    const struct hparams *hp = &model->hp;

    ck_assert_uint_eq(hp->n_layer, 3);
    ck_assert_uint_eq(hp->n_embd, 192);
    ck_assert_uint_eq(hp->n_head, 6);
    ck_assert_uint_eq(hp->n_head_kv, 2);
    ck_assert_uint_eq(hp->head_dim, 32);
    ck_assert_uint_eq(hp->rope_dim, 32);
    ck_assert_uint_eq(hp->n_ff, 320);
    ck_assert_uint_eq(hp->n_vocab, 293); /* 3 control tokens, 256 bytes, 34 merges */
    ck_assert_uint_eq(hp->n_ctx_train, 100);
    ck_assert_uint_eq(model->n_ctx, 100);
    ck_assert_str_eq(model->name, "a b");
    ck_assert_str_eq(model->arch, "llama");
    ck_assert_ptr_nonnull(model->vocab);
    ck_assert_ptr_nonnull(strstr(model->chat_template, "<|im_start|>"));
    ck_assert_uint_eq(model->layers[2].qkv.n_rows, (6 + 2 + 2) * 32);
    ck_assert_ptr_eq(model->embd.data, model->head.data);
    model_free(model);
}
END_TEST

START_TEST(a_head_of_another_width_than_embedding_over_heads_is_read_from_its_key)
{
    /* 2 heads of 32 on 128 columns: attention is 64 wide. */
    struct model *model =
        open_model(tiny_model("layers=1, embd=128, heads=4, kv_heads=2",
                              "f.set('llama.attention.head_count', m.U32, 2)\n"
                              "f.set('llama.attention.head_count_kv', m.U32, 2)\n"
                              "f.put('llama.attention.key_length', m.U32, 32)\n"
                              "t = f.tensor('blk.0.attn_q.weight'); t.shape[1] = 64; t.data = "
                              "t.data[:64 * 128 // 32 * 20]\n"
                              "t = f.tensor('blk.0.attn_output.weight'); t.shape[0] = 64; t.data = "
                              "t.data[:64 * 128 // 32 * 20]"));

    ck_assert_uint_eq(model->hp.head_dim, 32);
    ck_assert_uint_eq(model->layers[0].o.n_cols, 64);
    model_free(model);
}
END_TEST

START_TEST(a_context_beyond_what_the_file_allows_is_refused_and_a_shorter_one_is_kept)
{
    const char *path = tiny_model("ctx=100", "");
    struct model *model = NULL;
    struct diag diag;

    ck_assert_int_eq(model_open(&model, path, 101, NULL, team, &diag), -EINVAL);
    ck_assert_ptr_null(model);
    ck_assert_ptr_nonnull(strstr(diag.text, "llama.context_length"));
    ck_assert_int_eq(model_open(&model, path, 64, NULL, team, &diag), 0);
    ck_assert_uint_eq(model->n_ctx, 64);
    model_free(model);
}
END_TEST

static const struct {
    const char *edit, *names;
} not_run[] = {
    {"f.put('llama.expert_count', m.U32, 8)", "llama.expert_count"},
    {"f.put('llama.attention.sliding_window', m.U32, 64)", "llama.attention.sliding_window"},
    {"f.put('llama.attn_logit_softcapping', m.F32, 50.0)", "llama.attn_logit_softcapping"},
    {"f.put('llama.rope.scaling.type', m.STR, 'yarn')", "yarn"},
    {"f.put('llama.rope.scaling.type', m.STR, 'linear')", "llama.rope.scaling.factor"},
    {"f.put('llama.attention.value_length', m.U32, 32)", "llama.attention.value_length"},
    {"f.set('general.architecture', m.STR, 'mamba')", "mamba"},
    {"f.tensors.append(m.Tensor('blk.0.attn_q.bias', 'F32', [128], bytes(512)))",
     "blk.0.attn_q.bias"},
    {"f.tensors.append(m.Tensor('rope_freqs.weight', 'F32', [32], bytes(128)))",
     "rope_freqs.weight"},
    {"f.tensors.append(m.Tensor('rope_freqs.weight', 'F32', [16], bytes(64)))",
     "rope_freqs.weight"},
    {"f.set('llama.context_length', m.U32, 2**32 - 1)", "llama.context_length"},
    {"f.put('general.alignment', m.U32, 4)", "general.alignment"},
    {"f.set('tokenizer.chat_template', m.STR, 'a\\0b')", "tokenizer.chat_template"},
};

START_TEST(what_would_change_the_arithmetic_and_is_not_run_is_refused_by_name)
{
    assert_refused(tiny_model("", not_run[_i].edit), not_run[_i].names);
}
END_TEST

#define W256 "layers=1, embd=256, heads=4, kv_heads=1, ffn=256, " /* for blocks of 256 */

static const char *const weight_types[] = {
    "type='F32'",
    "type='F16'",
    "type='BF16'",
    "type='Q8_0'",
    "type='Q4_0'",
    "type='Q4_1', untied=True",
    "type='Q5_0', embd_type='Q5_1'",
    "type='IQ4_NL', embd_type='MXFP4'",
    W256 "type='Q4_K', embd_type='Q6_K'",
    W256 "type='Q5_K', embd_type='IQ4_XS'",
    W256 "type='Q3_K', embd_type='Q2_K'",
};

/* Every packed row has to give back what the file holds, also when Q, K and V have become one
 * matrix. */
START_TEST(packed_rows_equal_the_rows_of_the_file)
{
    const char *path = tiny_model(weight_types[_i], "");
    struct model *model = open_model(path);
    const struct layer *layer = &model->layers[model->hp.n_layer - 1];
    const uint32_t q_rows = model->hp.n_head * model->hp.head_dim,
                   k_rows = model->hp.n_head_kv * model->hp.head_dim;
    const int untied = model->embd.data != model->head.data;
    const struct {
        const char *name;
        const struct packed_matrix *matrix;
        uint32_t row0;
    } cases[] = {
        {"attn_q", &layer->qkv, 0},
        {"attn_k", &layer->qkv, q_rows},
        {"attn_v", &layer->qkv, q_rows + k_rows},
        {"attn_output", &layer->o, 0},
        {"ffn_gate", &layer->gate, 0},
        {"ffn_up", &layer->up, 0},
        {"ffn_down", &layer->down, 0},
        {"token_embd.weight", &model->embd, 0},
        {untied ? "output.weight" : "token_embd.weight", &model->head, 0},
    };
    struct diag diag;
    struct gguf *g;

    ck_assert_int_eq(gguf_open(&g, path, &diag), 0);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char name[64];
        const struct gguf_tensor *t;
        float expected[256], packed[256];
        uint32_t cols;

        if (strchr(cases[c].name, '.'))
            snprintf(name, sizeof name, "%s", cases[c].name);
        else
            snprintf(name, sizeof name, "blk.%u.%s.weight", model->hp.n_layer - 1, cases[c].name);
        t = gguf_tensor(g, name);
        ck_assert_ptr_nonnull(t);
        cols = (uint32_t)t->dims[0];
        for (uint32_t r = 0; r < t->dims[1]; r++) {
            dequantize_row(expected, (enum dtype)t->type, t->data + r * (t->bytes / t->dims[1]),
                           cols);
            packed_row(packed, cases[c].matrix, cases[c].row0 + r);
            ck_assert_msg(memcmp(expected, packed, cols * sizeof(float)) == 0, "row %u of %s", r,
                          cases[c].name);
        }
    }
    gguf_close(g);
    model_free(model);
}
END_TEST

START_TEST(q_k_and_v_of_different_types_stay_apart)
{
    struct model *model = open_model(tiny_model(
        "type='F32'",
        "t = f.tensor('blk.0.attn_v.weight'); t.dtype_id = 1; t.data = t.data[:len(t.data) // 2]"));

    ck_assert_uint_eq(model->layers[0].qkv.n_rows, 0);
    ck_assert_uint_eq(model->layers[0].q.n_rows, 128);
    ck_assert_uint_eq(model->layers[0].k.n_rows, 64);
    ck_assert_int_eq(model->layers[0].v.type, DTYPE_F16);
    ck_assert_uint_eq(model->layers[1].qkv.n_rows, 256);
    model_free(model);
}
END_TEST

START_TEST(another_form_of_keys_and_values_gives_another_hash)
{
    struct model *a = open_model(tiny_model("seed=1", ""));
    struct model *b = open_model(tiny_model("seed=2", ""));
    uint8_t file[sizeof a->hash];

    memcpy(file, a->hash, sizeof file);
    model_keep_kv(a, KV_F16);
    ck_assert_mem_eq(a->hash, file, sizeof file);
    model_keep_kv(a, KV_Q8);
    model_keep_kv(b, KV_Q8);
    ck_assert_mem_ne(a->hash, file, 16);
    ck_assert_mem_ne(a->hash + 16, file + 16, 16);
    ck_assert_mem_ne(a->hash, a->hash + 16, 16);
    ck_assert_mem_ne(a->hash, b->hash, sizeof file);
    model_free(a);
    model_free(b);
}
END_TEST

START_TEST(equal_files_have_equal_hashes_and_one_changed_weight_another)
{
    struct model *a = open_model(tiny_model("seed=1", "")), *b;
    struct team *one;
    struct diag diag;

    ck_assert_int_eq(team_new(&one, 1), 0);
    ck_assert_int_eq(model_open(&b, tiny_model("seed=1", ""), 32, NULL, one, &diag), 0);
    ck_assert_mem_eq(a->hash, b->hash, sizeof a->hash);
    model_free(b);
    b = open_model(
        tiny_model("seed=1", "t = f.tensors[5]; t.data = t.data[:-1] + bytes([t.data[-1] ^ 1])"));
    ck_assert_mem_ne(a->hash, b->hash, sizeof a->hash);
    ck_assert_mem_ne(a->hash, a->hash + 16, 16);
    model_free(b);
    model_free(a);
    team_free(one);
}
END_TEST

/* ---- rotation ---- */

static double ulp_of(float x)
{
    return (double)(nextafterf(fabsf(x), INFINITY) - fabsf(x));
}

/* Against libm's double cos, sin and pow, which are right to well under a float's last bit. */
static void assert_rotation(const struct hparams *hp, const struct rope_opt *opt, uint32_t pos)
{
    float c[MODEL_HEAD_DIM_MAX / 2], s[MODEL_HEAD_DIM_MAX / 2];

    rope_table(c, s, pos, pos + 1, hp, opt);
    for (uint32_t i = 0; i < hp->rope_dim / 2; i++) {
        double freq = pow((double)hp->rope_base, -2.0 * i / hp->rope_dim) /
                      (opt->freqs ? (double)opt->freqs[i] : 1);
        double angle = pos / (double)opt->linear * freq;

        /* Half an ulp for the rounding, and what libm's own angle may be off by. */
        ck_assert_double_le(fabs((double)c[i] - cos(angle)), 0.51 * ulp_of(c[i]) + 1e-9);
        ck_assert_double_le(fabs((double)s[i] - sin(angle)), 0.51 * ulp_of(s[i]) + 1e-9);
    }
}

START_TEST(rotation_tables_agree_with_libm)
{
    static const uint32_t positions[] = {0, 1, 2, 63, 64, 511, 8191, 131071, 1048575};
    static const float bases[] = {1, 10000, 100000, 500000, 1e6F};

    for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
        for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++) {
            struct hparams hp = {.rope_base = bases[b], .rope_dim = b % 2 ? 128 : 64};
            struct rope_opt plain = {1, NULL}, linear = {4, NULL};

            assert_rotation(&hp, &plain, positions[p]);
            assert_rotation(&hp, &linear, positions[p]);
        }
    }
}
END_TEST

START_TEST(position_nought_is_not_rotated)
{
    struct hparams hp = {.rope_base = 10000, .rope_dim = 64};
    struct rope_opt opt = {1, NULL};
    float c[32], s[32];

    rope_table(c, s, 0, 1, &hp, &opt);
    for (int i = 0; i < 32; i++) {
        ck_assert_float_eq(c[i], 1);
        ck_assert_float_eq(s[i], 0);
    }
}
END_TEST

/*
 * On paper, for base 10000, 64 wide, position 10: the divisors of Llama 3 leave fast frequencies
 * alone and divide the slow ones by 8. Frequency 0 is 1: cos 10 = -0.8390715. Frequency 31 is
 * 10000^(-62/64) = 1.3335214e-4, divided by 8 1.6669018e-5: sin(1.6669018e-4) = 1.6669018e-4.
 */
START_TEST(the_rotation_scaling_of_llama_3_divides_frequencies)
{
    struct model *model = open_model(tiny_model("rope_scaling=True", ""));

    ck_assert_float_eq_tol(model->rope_cos[10 * 32], -0.8390715F, 1e-6F);
    ck_assert_float_eq_tol(model->rope_sin[10 * 32 + 31], 1.6669018e-4F, 1e-10F);
    model_free(model);
}
END_TEST

/* Position 10 with factor 4 is turned as far as position 2.5: cos 2.5 = -0.8011436. */
START_TEST(linear_rotation_scaling_divides_positions)
{
    struct model *model =
        open_model(tiny_model("", "f.put('llama.rope.scaling.type', m.STR, 'linear')\n"
                                  "f.put('llama.rope.scaling.factor', m.F32, 4.0)"));

    ck_assert_float_eq_tol(model->rope_cos[10 * 32], -0.8011436F, 1e-6F);
    model_free(model);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("model");
    TCase *tc = tcase_create("model");
    SRunner *sr = srunner_create(suite);
    int failed;

    if (argc != 2)
        return 2;
    tiny_init(argv[1]);
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, every_broken_file_is_refused_with_a_message_that_names_the_fault);
    tcase_add_test(tc, a_model_has_the_shape_that_its_file_says);
    tcase_add_test(tc, a_head_of_another_width_than_embedding_over_heads_is_read_from_its_key);
    tcase_add_test(tc, a_context_beyond_what_the_file_allows_is_refused_and_a_shorter_one_is_kept);
    tcase_add_loop_test(tc, what_would_change_the_arithmetic_and_is_not_run_is_refused_by_name, 0,
                        (int)(sizeof not_run / sizeof not_run[0]));
    tcase_add_loop_test(tc, packed_rows_equal_the_rows_of_the_file, 0,
                        (int)(sizeof weight_types / sizeof weight_types[0]));
    tcase_add_test(tc, q_k_and_v_of_different_types_stay_apart);
    tcase_add_test(tc, another_form_of_keys_and_values_gives_another_hash);
    tcase_add_test(tc, equal_files_have_equal_hashes_and_one_changed_weight_another);
    tcase_add_test(tc, rotation_tables_agree_with_libm);
    tcase_add_test(tc, position_nought_is_not_rotated);
    tcase_add_test(tc, the_rotation_scaling_of_llama_3_divides_frequencies);
    tcase_add_test(tc, linear_rotation_scaling_divides_positions);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    tiny_fini();
    return failed != 0;
}
