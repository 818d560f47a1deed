/* ranks: 4  builds: fp64-bugs
 *
 * Each named bug of tiny-fsdp, and each dropped collective, must be noticed by the comparison with a single device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "shard_case.h"

static ShardCase case_of(const char *strategy)
{
    Random r = {.seed = 61};
    ShardCase c = random_shard_case(&r, 3);
    c.ranks = 4;
    c.t.model.layers = 2;
    c.t.seq = 12;
    c.t.model.max_seq = 12;
    c.t.ignore = 0.5;
    c.t.clip = 0.1;
    c.t.accumulate = 2;
    c.t.optimizer = OPTIMIZER_ADAMW;
    c.options =
        (ShardingOptions){.strategy = strategy, .prefetch = 1, .reshard = 1, .accumulate_sharded = 1, .reduce = "acc"};
    if (strcmp(strategy, "hsdp") == 0) c.options.shard_size = 2;
    return c;
}

static ShardOutcome outcome_with(const char *bug, ShardCase c)
{
    const char *complaint = bug_set(bug);
    if (complaint) fail_msg("%s", complaint);
    ShardOutcome out = run_shard_case(&c, training_tokens());
    bug_set(NULL);
    return out;
}

static bool noticed(const ShardOutcome *o)
{
    bool right = o->loss <= ROUNDING && o->gradient <= ROUNDING && o->norm <= ROUNDING && o->later_gradient <= 1e-9 &&
                 o->weight <= 1e-9 && o->whole <= 1e-9 && o->replicas_equal;
    return !right;
}

static const char *const strategies[] = {"zero1", "zero2", "zero3", "fsdp", "hsdp"};

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        ShardOutcome out = outcome_with(NULL, case_of(strategies[s]));
        assert_false(noticed(&out));
    }
}

static void norm_of_my_shard(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        ShardOutcome out = outcome_with("norm_of_my_shard", case_of(strategies[s]));
        assert_true(out.gradient <= ROUNDING && out.norm > 1e-2 && out.weight > 1e-6);
    }
}

static void decay_by_flat_shape(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        ShardOutcome out = outcome_with("decay_by_flat_shape", case_of(strategies[s]));
        assert_true(out.gradient <= ROUNDING && out.norm <= ROUNDING && out.weight > 1e-6);
    }
}

static void overwrite_shard(void **state)
{
    (void)state;
    for (int s = 1; s < 5; s++) {
        ShardOutcome out = outcome_with("overwrite_shard", case_of(strategies[s]));
        assert_true(out.gradient > 1e-3);
    }
}

/* Counters go on over the whole test, so a call's number is taken from where they stand. */
static long calls_so_far(const ShardCase *c, const char *group, CommKind kind)
{
    ShardGroups groups;
    shard_case_mesh(c, &groups);
    Group *g = strcmp(group, "gather") == 0   ? groups.gather
               : strcmp(group, "reduce") == 0 ? groups.reduce
                                              : groups.replicate;
    return group_count(g, kind).calls;
}

/* Every collective of the first step, one at a time. */
static void skipped_collectives(void **state)
{
    (void)state;
    int dropped = 0;
    for (int s = 0; s < 5; s++) {
        ShardCase c = case_of(strategies[s]);
        Expected e = {0};
        sharding_expect(&e, &c.t.model, &c.options, sharding_shape(&c.options, c.ranks), c.t.accumulate, 1);
        for (int row = 0; row < e.comm_rows; row++)
            for (long n = 1; n <= (long)e.comm[row].calls; n++) {
                const char *kind = comm_kind_name(e.comm[row].kind);
                char bug[96];
                snprintf(bug, sizeof bug, "skip=%s.%s.%ld", e.comm[row].group, kind,
                         calls_so_far(&c, e.comm[row].group, e.comm[row].kind) + n);
                ShardOutcome out = outcome_with(bug, c);
                if (!noticed(&out)) fail_msg("%s: %s, call %ld of a step, went unnoticed", c.options.strategy, bug, n);
                dropped++;
            }
    }
    printf("%d dropped collectives, all noticed\n", dropped);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_bugs_all_is_well), cmocka_unit_test(norm_of_my_shard),
    cmocka_unit_test(decay_by_flat_shape),      cmocka_unit_test(overwrite_shard),
    cmocka_unit_test(skipped_collectives),
};
TESTING_MAIN(tests)
