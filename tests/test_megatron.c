/* ranks: 16  builds: fp64 fp32 fp64-debug
 *
 * tiny-megatron against a single device, on random configurations of tp and dp: tensor parallelism with and without
 * sequence parallelism, in one chunk or several; fewer kv heads than tp, as many, or more; odd vocabularies. Bytes
 * sent and held equal the formulas. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/memory.h"
#include "case.h"
#include "settings/presets.h"

/* The bound for step 1. In fp32 the partial sums of activations are rounded before the sum; errors reach 3e-5. */
static const double FIRST = sizeof(acc) == 8 ? 1e-12 : 1e-4;

#ifdef DEBUG
enum { CASES = 35 }; /* fewer: debug builds are slow and compare every collective over its group */
#else
enum { CASES = 168 };
#endif

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 71};
    double gradient = 0, weight = 0;
    int padded = 0, shared = 0, sp = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case c = random_tensor_case(&r, i);
        Outcome out = check_case(&c, i, FIRST);
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
        padded += c.t.model.vocab % c.tp != 0;
        shared += c.t.model.kv_heads < c.tp;
        sp += c.tensor.sp != 0;
    }
    printf("%d configurations (SP in %d, a padded vocabulary in %d, shared kv heads in %d): gradients off by at most "
           "%.1e, weights after two steps by %.1e\n",
           CASES * testing_grid(), sp, padded, shared, gradient, weight);
}

/* Small shapes that catch known mistakes: V = 31 on two ranks has one padded word, and two ranks share one kv head. */
static void small_traps(void **state)
{
    (void)state;
    Random r = {.seed = 72};
    for (int sp = 0; sp < 2; sp++)
        for (int tied = 0; tied < 2; tied++) {
            Case c = random_tensor_case(&r, 1);
            c.dp = 1;
            c.t.model.vocab = 31; /* rank 0 has 16 words, rank 1 has 15 and one of padding */
            c.t.model.tied = tied;
            c.t.model.heads = 4;
            c.t.model.kv_heads = 1;
            c.t.model.qk_norm = true;
            c.tensor.sp = sp;
            c.tensor.overlap_chunks = 1;
            c.t.seq = c.t.model.max_seq = 8;
            c.t.ignore = 0;
            check_case(&c, sp * 2 + tied, FIRST);
        }
}

/* The blocks of 2, 4 and 8 ranks, put back, give the whole parameter. The ranks count each element exactly once. */
static void blocks_make_the_whole(void **state)
{
    (void)state;
    ModelConfig c = preset_find("nano")->model;
    c.vocab = 251;
    c.tied = false;
    Params whole = params_table(&c);
    for (int tp = 2; tp <= 8; tp *= 2)
        for (int n = 0; n < whole.views; n++) {
            size_t count = params_whole_size(&whole.view[n]);
            acc *from = malloc(count * sizeof *from), *to = calloc(count, sizeof *to);
            for (size_t i = 0; i < count; i++) from[i] = (acc)(i + 1);
            size_t counted = 0;
            for (int r = 0; r < tp; r++) {
                Params slice = params_table_split(&c, tp, r);
                const View *v = &slice.view[n];
                acc *block = malloc(v->size * sizeof *block);
                params_take_block(v, from, block);
                if (params_counts(v)) {
                    params_put_block(v, block, to);
                    counted += (size_t)v->valid_rows * (size_t)v->cols;
                }
                free(block);
                params_free(&slice);
            }
            assert_memory_equal(from, to, count * sizeof *from);
            assert_int_equal(counted, count);
            free(from), free(to);
        }
    params_free(&whole);
}

/* A model that tp ranks cannot split is refused. The complaint names both numbers. */
static void refused_models(void **state)
{
    (void)state;
    ModelConfig c = preset_find("nano")->model;
    c.heads = 12, c.kv_heads = 4, c.ff = 24;
    assert_null(model_config_check_slice(&c, 4));
    assert_non_null(strstr(model_config_check_slice(&c, 8), "--tp 8: must divide the model's heads, 12"));
    assert_non_null(
        strstr(model_config_check_slice(&c, 6), "--tp 6: must divide the model's kv heads, 4, or be a multiple"));
    c.ff = 26;
    assert_non_null(strstr(model_config_check_slice(&c, 4), "--tp 4: must divide the feed-forward width, 26"));
}

/* Activations take less memory with more tp ranks. Under SP almost all of them fall to 1/tp. */
static void activations_fall(void **state)
{
    (void)state;
    const ModelConfig *c = &preset_find("1b")->model;
    size_t rows = 4096, before = model_activation_bytes(c, rows, false, 1);
    for (int tp = 2; tp <= 8; tp *= 2) {
        ModelConfig slice = model_config_slice(c, tp);
        size_t plain = model_activation_bytes(&slice, rows, false, 1);
        size_t sp = model_activation_bytes(&slice, rows, false, (size_t)tp);
        assert_true(plain < before && sp < plain);
        assert_true((double)sp < 1.15 * (double)before / tp); /* RoPE's table, dn, embedded and delta stay whole */
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device), cmocka_unit_test(small_traps),    cmocka_unit_test(blocks_make_the_whole),
    cmocka_unit_test(activations_fall),     cmocka_unit_test(refused_models),
};

TESTING_MAIN(tests)
