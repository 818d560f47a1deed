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
#include "capture.h"
#include "case.h"
#include "observe/sample.h"
#include "settings/presets.h"

/* The bound for step 1. In fp32 the partial sums of activations are rounded before the sum; errors reach 3e-5. */
static const double FIRST = sizeof(acc) == 8 ? 1e-12 : 1e-4;

#if !defined(PRECISION_FP64) || defined(DEBUG)
enum { CASES = 35 }; /* fewer: debug builds are slow, and the proof is that of fp64 */
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

/* A case of small sizes: two ranks share each of two kv heads. */
static Case shared_heads(int dp)
{
    Random r = {.seed = 73};
    Case c = random_tensor_case(&r, 2);
    c.dp = dp;
    c.t.model.heads = 4;
    c.t.model.kv_heads = 2;
    c.t.model.qk_norm = true;
    return c;
}

/* The test of replicas names the parameter in which the last rank differs: along tp a norm or a kv head's weights that
 * its neighbour has too; along dp every parameter. What this rank alone has is compared with nothing. */
static void replicas_are_compared(void **state)
{
    (void)state;
#define LAYER "model.layers.0."
    static const struct {
        const char *tampered;
        bool along_tp;
    } cases[] = {
        {"model.norm.weight", true},
        {LAYER "input_layernorm.weight", true},
        {LAYER "self_attn.q_norm.weight", true},
        {LAYER "self_attn.k_proj.weight", true},
        {LAYER "self_attn.v_proj.weight", true},
        {LAYER "self_attn.q_proj.weight", false},
        {LAYER "mlp.down_proj.weight", false},
        {"model.embed_tokens.weight", false},
    };
    for (int dp = 1; dp <= 2; dp++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            Case c = shared_heads(dp);
            CHECK(c.tp == 4);
            c.tampered = cases[i].tampered;
            Outcome out = run_case(&c, training_tokens());
            bool seen = cases[i].along_tp || dp > 1;
            assert_together(out.replicas_equal == !seen && strcmp(out.unequal, seen ? c.tampered : "") == 0,
                            "dp %d, tampered %s: \"%s\" differs", dp, c.tampered, out.unequal);
        }
}

/* params_collect gives the whole gradient, and the whole weight, of parameters of which ranks along tp hold slices or
 * copies, each with and without shards along fsdp. --dump writes what it gives. */
static void collected_from_copies(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    ModelConfig c = preset_find("nano")->model;
    c.vocab = 251, c.tied = false, c.qk_norm = true;
    static Group *model[2][2];
    for (int t = 0; t < 2; t++)
        for (int f = 0; f < 2; f++) {
            int tp = t ? 8 : 2, fsdp = f ? 2 : 1, me = comm_world_rank();
            if (!model[t][f]) model[t][f] = group_split(comm_world(), me / (tp * fsdp), "model");
            Placement place = {.by = f ? SHARD_UNITS : SHARD_NOTHING,
                               .ranks = fsdp,
                               .rank = me / tp % fsdp,
                               .tp = tp,
                               .tp_rank = me % tp,
                               .model_group = model[t][f]};
            Params p = params_create(&c, place, &kernels);
            bool good = true;
            for (int n = 0; n < p.views; n++) {
                size_t size = params_whole_size(&p.view[n]);
                acc *grad = malloc(size * sizeof *grad), *weight = malloc(size * sizeof *weight);
                acc *got = malloc(size * sizeof *got), *block = malloc(p.view[n].size * sizeof *block);
                for (size_t i = 0; i < size; i++) grad[i] = (acc)(i + 1), weight[i] = -(acc)i - 2;
                params_take_block(&p.view[n], grad, block);
                for (int s = 0; s < p.shards; s++) {
                    Overlap o = params_overlap(&p.view[n], &p.shard[s]);
                    for (size_t e = 0; e < o.count; e++) p.shard[s].grads[o.in_shard + e] = block[o.in_view + e];
                }
                params_upload(&p, &kernels, &p.view[n], weight);
                params_collect(&p, &kernels, &p.view[n], true, got);
                good = good && memcmp(got, grad, size * sizeof *got) == 0;
                params_collect(&p, &kernels, &p.view[n], false, got);
                good = good && memcmp(got, weight, size * sizeof *got) == 0;
                free(grad), free(weight), free(got), free(block);
            }
            assert_together(good, "tp %d, fsdp %d: what came out is not what went in", tp, fsdp);
            params_free(&p);
        }
}

/* --sample with a vocabulary that tp does not divide: tp ranks write the tokens that one rank writes. */
static void sample_of_a_split_vocabulary(void **state)
{
    (void)state;
    enum { SEQ = 12, TOKENS = 40 };
    Kernels kernels = kernels_cpu();
    ModelConfig c = preset_find("nano")->model;
    c.vocab = 131, c.max_seq = SEQ, c.init_std = 0.5;
    char want[1000], got[1000];
    for (int tp = 1; tp <= 8; tp *= 2) { /* of 8 ranks, the last has 17 words less 5 of padding */
        static Group *groups[9];
        if (!groups[tp]) groups[tp] = group_split(comm_world(), comm_world_rank() / tp, "tp");
        Group *kv = tensor_kv_group(groups[tp], &c);
        Placement place = {.tp = tp, .tp_rank = comm_world_rank() % tp};
        Model *m = model_create_part(&c, &kernels, SEQ, (ModelPart){.placement = place});
        params_init(&m->params, &kernels, 4);
        TensorOptions options = {.tp = tp, .overlap_chunks = 1};
        TensorParallel tensor = tensor_create(m, groups[tp], kv, options, SEQ);
        if (tp > 1) m->seams.features = tensor_seam(&tensor);
        Batch batch = {.order = {.seed = 9, .seq = SEQ}, .share = {.cut = {.ranks = 1, .sharers = 1}}};
        capture_begin();
        sample_print(m, "ab", TOKENS, &batch, true);
        capture_end(tp == 1 ? want : got, sizeof want);
        bool last = strstr(want, " 130") != NULL;
        assert_together(tp > 1 || last, "the last word of the vocabulary is not drawn");
        assert_together(tp == 1 || strcmp(got, want) == 0, "tp %d: %s not %s", tp, got, want);
        tensor_free(&tensor);
        model_free(m);
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
                if (params_counts(&slice, v)) {
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
    cmocka_unit_test(equals_single_device),
    cmocka_unit_test(small_traps),
    cmocka_unit_test(replicas_are_compared),
    cmocka_unit_test(collected_from_copies),
    cmocka_unit_test(sample_of_a_split_vocabulary),
    cmocka_unit_test(blocks_make_the_whole),
    cmocka_unit_test(activations_fall),
    cmocka_unit_test(refused_models),
};

TESTING_MAIN(tests)
