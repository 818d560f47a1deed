/* ranks: 8  builds: fp64 fp32 fp64-debug
 *
 * Every strategy of tiny-fsdp against a single device, on random configurations of the first 1 to 8 ranks. Bytes sent
 * and held equal the formulas. The bits are the same if only the time of waiting changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/memory.h"
#include "case.h"
#include "settings/presets.h"

#if !defined(PRECISION_FP64) || defined(DEBUG)
enum { CASES = 35 }; /* fewer: debug builds are slow, and the proof is that of fp64 */
#else
enum { CASES = 140 };
#endif

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 51};
    double gradient = 0, weight = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        Case drawn = random_shard_case(&r, i), *c = &drawn;
        Outcome out = check_case(c, i, ROUNDING);
        bool gives_back = strcmp(c->sharding.strategy, "zero3") == 0 || strcmp(c->sharding.strategy, "fsdp") == 0;
        if (gives_back && c->sharding.reshard)
            assert_together(out.most_layers == 1, "case %d: %d layers at one time: %s", i, out.most_layers,
                            describe_case(c));
        gradient = fmax(gradient, out.gradient);
        weight = fmax(weight, out.weight);
    }
    printf("%d configurations: gradients off by at most %.1e, weights after two steps by %.1e\n",
           CASES * testing_grid(), gradient, weight);
}

/* A case of four ranks; hsdp has two shard groups of two. */
static Case case_of(const char *strategy, uint64_t seed)
{
    Random r = {.seed = seed};
    Case c = random_shard_case(&r, 3);
    bool replicated = strcmp(strategy, "ddp") == 0;
    c.sharding = sharding_defaults(strategy);
    c.fsdp = replicated ? 1 : strcmp(strategy, "hsdp") == 0 ? 2 : 4;
    c.dp = 4 / c.fsdp;
    return c;
}

/* With prefetch the next layer's gather is in flight when a layer's forward pass begins; without prefetch it is not. */
static void gathers_ahead(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 2; prefetch++)
        for (int hsdp = 0; hsdp < 2; hsdp++) {
            Case c = case_of(hsdp ? "hsdp" : "fsdp", 54);
            c.t.model.layers = 3;
            c.sharding.prefetch = prefetch;
            int ahead = run_case(&c, training_tokens()).ahead;
            assert_together(ahead == prefetch, "prefetch %d: %d gathers ahead", prefetch, ahead);
        }
}

/* The test of replicas notices if one rank has another weight, under every strategy in which ranks hold the same
 * weights. */
static void replicas_are_compared(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "hsdp"};
    static const char *const tampered[] = {"", "model.norm.weight", "model.layers.0.mlp.down_proj.weight"};
    for (int s = 0; s < 4; s++)
        for (int t = 0; t < 3; t++) {
            Case c = case_of(strategies[s], 55);
            if (t > 0) c.tampered = tampered[t];
            Outcome out = run_case(&c, training_tokens());
            assert_together(out.replicas_equal == !c.tampered && strcmp(out.unequal, tampered[t]) == 0,
                            "%s, tampered %s: %s differs", strategies[s], tampered[t], out.unequal);
        }
}

/* Many layers, so that many collectives are in flight together. */
static void many_layers(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "hsdp"};
    for (int s = 0; s < 2; s++) {
        Case c = case_of(strategies[s], 56);
        c.t.model.layers = 70;
        c.t.model.init_std = 0.02;
        check_case(&c, s, ROUNDING);
    }
}

/* params_collect returns the values that params_upload put into the shards. */
static void loaded_and_collected(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    ModelConfig c = preset_find("nano")->model;
    Group *world = comm_world();
    const ShardBy by[] = {SHARD_NOTHING, SHARD_MODEL, SHARD_UNITS, SHARD_VIEWS};
    for (int k = 0; k < 4; k++)
        for (int copies = 1; copies <= 2; copies++) {
            if (by[k] == SHARD_NOTHING && copies == 2) continue;
            int ranks = group_size(world) / copies, me = group_rank(world);
            Group *model = group_split(world, me / ranks, "model");
            Placement place = {.by = by[k], .ranks = ranks, .rank = me % ranks, .model_group = model};
            if (by[k] == SHARD_NOTHING) place = (Placement){.by = SHARD_NOTHING};
            Params p = params_create(&c, place, &kernels);
            bool good = true;
            for (int n = 0; n < p.views; n++) {
                size_t size = p.view[n].size;
                acc *put = malloc(size * sizeof *put), *got = malloc(size * sizeof *got);
                for (size_t i = 0; i < size; i++) put[i] = (acc)(i % 8191 + (size_t)n);
                params_upload(&p, &kernels, &p.view[n], put);
                params_collect(&p, &kernels, &p.view[n], false, got);
                good = good && memcmp(put, got, size * sizeof *put) == 0;
                free(put), free(got);
            }
            assert_together(good, "sharded by %d, %d copies: what came out is not what went in", (int)by[k], copies);
            params_free(&p);
        }
}

/* hsdp with two replicas of two shards and two micro-steps: the smallest case in which gradients could be summed over
 * the replicas twice. */
static void hsdp_two_by_two(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        Case c = case_of("hsdp", 520 + (uint64_t)i);
        c.sharding.accumulate_sharded = i % 2;
        c.t.accumulate = 2;
        c.t.ignore = 0.5;
        check_case(&c, i, ROUNDING);
    }
}

/* The bits are the same with prefetch and without, with reshard and without, with recompute, and with a slow rank. */
static void same_bits(void **state)
{
    (void)state;
    const int ranks[] = {1, 2, 3, 4, 8};
    for (int n = 0; n < 5; n++)
        for (int hsdp = 0; hsdp < 2; hsdp++) {
            Case c = case_of("fsdp", 53);
            c.fsdp = ranks[n];
            c.t.model.layers = 3;
            c.t.accumulate = 1 + n % 2;
            c.t.ignore = 0.3;
            if (hsdp && c.fsdp % 2 == 0) {
                c.sharding.strategy = "hsdp";
                c.fsdp /= 2;
                c.dp = 2;
            }
            uint64_t bits[6];
            for (int k = 0; k < 6; k++) {
                Case run = c;
                run.sharding.prefetch = k != 2;
                run.sharding.reshard = k != 3;
                run.recompute = k == 4;
                if (k == 5) run.slow_rank = case_ranks(&c) - 1;
                bits[k] = run_case(&run, training_tokens()).bits;
                assert_together(bits[k] == bits[0], "run %d has other bits: %s", k, describe_case(&run));
            }
        }
}

/* A rank initializes only its shards, with the values that a single device has there. */
static void drawn_where_they_live(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    ModelConfig c = preset_find("nano")->model;
    Params all = params_create(&c, (Placement){0}, &kernels);
    params_init(&all, &kernels, 7);
    const ShardBy by[] = {SHARD_MODEL, SHARD_UNITS, SHARD_VIEWS};
    for (int k = 0; k < 3; k++)
        for (int ranks = 1; ranks <= 5; ranks += 2) {
            size_t held = 0;
            for (int rank = 0; rank < ranks; rank++) {
                size_t before = memory_held(MEMORY_PARAMETERS);
                Params part = params_create(&c, (Placement){.by = by[k], .ranks = ranks, .rank = rank}, &kernels);
                params_init(&part, &kernels, 7);
                assert_int_equal(memory_held(MEMORY_PARAMETERS) - before, part.held * sizeof(real));
                for (int i = 0; i < part.shards; i++) {
                    const Shard *p = &part.shard[i];
                    assert_memory_equal(p->master, all.shard[0].master + p->begin, p->count * sizeof(acc));
                    for (size_t e = p->count; e < p->padded; e++) assert_true(p->master[e] == 0);
                    assert_int_equal(p->padded % SHARD_ALIGN, 0);
                    held += p->count;
                }
                params_free(&part);
            }
            assert_int_equal(held, all.count); /* each element is in exactly one shard */
        }
    params_free(&all);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),
    cmocka_unit_test(gathers_ahead),
    cmocka_unit_test(replicas_are_compared),
    cmocka_unit_test(many_layers),
    cmocka_unit_test(loaded_and_collected),
    cmocka_unit_test(hsdp_two_by_two),
    cmocka_unit_test(same_bits),
    cmocka_unit_test(drawn_where_they_live),
};

TESTING_MAIN(tests)
