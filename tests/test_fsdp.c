/* ranks: 8  builds: fp64 fp32 fp64-debug
 *
 * Every strategy of tiny-fsdp against a single device, on random configurations of the first 1 to 8 ranks; bytes sent and
 * held by formula; the same bits whenever only waits move. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/memory.h"
#include "shard_case.h"
#include "settings/presets.h"

#ifdef DEBUG
enum { CASES = 35 }; /* unoptimized, and each collective is compared first */
#else
enum { CASES = 140 };
#endif

static void check(const ShardCase *c, int i, double *gradient, double *weight)
{
    ShardOutcome out = run_shard_case(c, training_tokens());
    assert_together(out.loss <= ROUNDING && out.gradient <= ROUNDING && out.norm <= ROUNDING,
                    "case %d: loss %.1e gradient %.1e norm %.1e: %s", i, out.loss, out.gradient, out.norm,
                    describe_shard_case(c));
    assert_together(out.later_gradient <= TRAINING_LATER && out.weight <= TRAINING_LATER && out.whole <= TRAINING_LATER,
                    "case %d: later %.1e weights %.1e whole %.1e: %s", i, out.later_gradient, out.weight, out.whole,
                    describe_shard_case(c));
    assert_together(out.replicas_equal, "case %d: replicas differ: %s", i, describe_shard_case(c));
    *gradient = fmax(*gradient, out.gradient);
    *weight = fmax(*weight, out.weight);
}

static void equals_single_device(void **state)
{
    (void)state;
    Random r = {.seed = 51};
    double gradient = 0, weight = 0;
    for (int i = 0; i < CASES * testing_grid(); i++) {
        ShardCase c = random_shard_case(&r, i);
        check(&c, i, &gradient, &weight);
    }
    printf("%d configurations: gradients off by at most %.1e, weights after two steps by %.1e\n",
           CASES * testing_grid(), gradient, weight);
}

/* Calls and bytes sent, bytes held, and that layers are given back. */
static void sends_and_holds_what_it_promises(void **state)
{
    (void)state;
    Random r = {.seed = 51};
    for (int i = 0; i < CASES; i++) {
        ShardCase drawn = random_shard_case(&r, i), *c = &drawn;
        ShardOutcome out = run_shard_case(c, training_tokens());
        assert_together(!*out.ledger, "case %d: %s: %s", i, out.ledger, describe_shard_case(c));
        bool gives_back = strcmp(c->options.strategy, "zero3") == 0 || strcmp(c->options.strategy, "fsdp") == 0;
        if (gives_back && c->options.reshard)
            assert_together(out.most_layers == 1, "case %d: %d layers at one time: %s", i, out.most_layers,
                            describe_shard_case(c));
    }
}

/* With prefetch the next layer is on its way when a layer begins, without it is not. */
static void gathers_ahead(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 2; prefetch++)
        for (int hsdp = 0; hsdp < 2; hsdp++) {
            Random r = {.seed = 54};
            ShardCase c = random_shard_case(&r, 3);
            c.ranks = 4;
            c.t.model.layers = 3;
            c.options = (ShardingOptions){.strategy = hsdp ? "hsdp" : "fsdp",
                                          .prefetch = prefetch,
                                          .reshard = 1,
                                          .accumulate_sharded = 1,
                                          .reduce = "acc"};
            int ahead = comm_world_rank() < c.ranks ? run_shard_case(&c, training_tokens()).ahead
                                                    : (run_shard_case(&c, training_tokens()), prefetch);
            assert_together(ahead == prefetch, "prefetch %d: %d gathers ahead", prefetch, ahead);
        }
}

/* What is held alike is compared: a rank with another weight is found out, where others have the same. */
static void replicas_are_compared(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "hsdp"};
    for (int s = 0; s < 4; s++)
        for (int tampered = 0; tampered < 2; tampered++) {
            Random r = {.seed = 55};
            ShardCase c = random_shard_case(&r, 3);
            c.ranks = 4;
            c.options = (ShardingOptions){
                .strategy = strategies[s], .prefetch = 1, .reshard = 1, .accumulate_sharded = 1, .reduce = "acc"};
            c.tampered = tampered;
            assert_together(run_shard_case(&c, training_tokens()).replicas_equal == !tampered, "%s, tampered %d",
                            strategies[s], tampered);
        }
}

/* More layers than anybody had collectives in flight for. */
static void many_layers(void **state)
{
    (void)state;
    double gradient = 0, weight = 0;
    static const char *const strategies[] = {"ddp", "hsdp"};
    for (int s = 0; s < 2; s++) {
        Random r = {.seed = 56};
        ShardCase c = random_shard_case(&r, 3);
        c.ranks = 4;
        c.t.model.layers = 70;
        c.t.model.init_std = 0.02;
        c.options = (ShardingOptions){
            .strategy = strategies[s], .prefetch = 1, .reshard = 1, .accumulate_sharded = 1, .reduce = "acc"};
        check(&c, s, &gradient, &weight);
    }
}

/* What is put into the pieces comes out of them. */
static void loaded_and_collected(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    ModelConfig c = preset_find("nano")->model;
    Group *world = comm_world();
    const Cut cuts[] = {CUT_NOTHING, CUT_MODEL, CUT_UNITS, CUT_VIEWS};
    for (int k = 0; k < 4; k++)
        for (int copies = 1; copies <= 2; copies++) {
            if (cuts[k] == CUT_NOTHING && copies == 2) continue;
            int ranks = group_size(world) / copies, me = group_rank(world);
            Holding h = {.cut = cuts[k], .ranks = ranks, .rank = me % ranks, .copy = me >= ranks};
            if (cuts[k] == CUT_NOTHING) h = (Holding){.cut = CUT_NOTHING};
            Params p = params_create(&c, h, &kernels);
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
            assert_together(good, "cut %d, %d copies: what came out is not what went in", (int)cuts[k], copies);
            params_free(&p);
        }
}

/* Two replicas of two shards, two micro-steps: the smallest case of a trap. */
static void hsdp_two_by_two(void **state)
{
    (void)state;
    Random r = {.seed = 52};
    double gradient = 0, weight = 0;
    for (int i = 0; i < 6; i++) {
        ShardCase c = random_shard_case(&r, 3);
        c.options.strategy = "hsdp";
        c.options.shard_size = 2;
        c.options.accumulate_sharded = i % 2;
        c.ranks = 4;
        c.t.accumulate = 2;
        c.t.ignore = 0.5;
        check(&c, i, &gradient, &weight);
    }
}

/* Prefetching or not, keeping layers or gathering them again, a rank that lags: only waits move. */
static void same_bits(void **state)
{
    (void)state;
    const int ranks[] = {1, 2, 3, 4, 8};
    for (int n = 0; n < 5; n++)
        for (int hsdp = 0; hsdp < 2; hsdp++) {
            Random r = {.seed = 53};
            ShardCase c = random_shard_case(&r, 3);
            c.ranks = ranks[n];
            c.t.model.layers = 3;
            c.t.accumulate = 1 + n % 2;
            c.t.ignore = 0.3;
            c.options = (ShardingOptions){
                .strategy = "fsdp", .prefetch = 1, .reshard = 1, .accumulate_sharded = 1, .reduce = "acc"};
            if (hsdp && c.ranks % 2 == 0) c.options.strategy = "hsdp";
            uint64_t bits[6];
            for (int k = 0; k < 6; k++) {
                ShardCase run = c;
                run.options.prefetch = k != 2;
                run.options.reshard = k != 3;
                run.recompute = k == 4;
                if (k == 5) run.slow_rank = c.ranks - 1;
                bits[k] = run_shard_case(&run, training_tokens()).bits;
                assert_together(bits[k] == bits[0], "%d ranks, run %d has other bits: %s", c.ranks, k,
                                describe_shard_case(&run));
            }
        }
}

/* A rank draws what it holds, and what it draws is what a single device would have drawn there. */
static void drawn_where_they_live(void **state)
{
    (void)state;
    Kernels kernels = kernels_cpu();
    ModelConfig c = preset_find("nano")->model;
    Params all = params_create(&c, (Holding){.cut = CUT_NOTHING}, &kernels);
    params_init(&all, &kernels, 7);
    const Cut cuts[] = {CUT_MODEL, CUT_UNITS, CUT_VIEWS};
    for (int k = 0; k < 3; k++)
        for (int ranks = 1; ranks <= 5; ranks += 2) {
            size_t held = 0;
            for (int rank = 0; rank < ranks; rank++) {
                size_t before = memory_held(MEMORY_PARAMETERS);
                Params part = params_create(&c, (Holding){.cut = cuts[k], .ranks = ranks, .rank = rank}, &kernels);
                params_init(&part, &kernels, 7);
                assert_int_equal(memory_held(MEMORY_PARAMETERS) - before, part.held * sizeof(real));
                for (int i = 0; i < part.pieces; i++) {
                    const Piece *p = &part.piece[i];
                    assert_memory_equal(p->master, all.piece[0].master + p->begin, p->count * sizeof(acc));
                    for (size_t e = p->count; e < p->part; e++) assert_true(p->master[e] == 0);
                    assert_int_equal(p->part % PART_ALIGN, 0);
                    held += p->count;
                }
                params_free(&part);
            }
            assert_int_equal(held, all.count); /* each element once */
        }
    params_free(&all);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_single_device),  cmocka_unit_test(sends_and_holds_what_it_promises),
    cmocka_unit_test(gathers_ahead),         cmocka_unit_test(replicas_are_compared),
    cmocka_unit_test(many_layers),           cmocka_unit_test(loaded_and_collected),
    cmocka_unit_test(hsdp_two_by_two),       cmocka_unit_test(same_bits),
    cmocka_unit_test(drawn_where_they_live),
};

TESTING_MAIN(tests)
