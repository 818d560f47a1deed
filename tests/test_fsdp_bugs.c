/* ranks: 4  builds: fp64-bugs
 *
 * Each named bug of tiny-fsdp, and each dropped collective, must be noticed by the comparison with a single device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"

static Case case_of(const char *strategy)
{
    Random r = {.seed = 61};
    Case c = random_shard_case(&r, 3);
    c.t.model.layers = 2;
    c.t.seq = 12;
    c.t.model.max_seq = 12;
    c.t.ignore = 0.5;
    c.t.clip = 0.1;
    c.t.accumulate = 2;
    c.t.optimizer = OPTIMIZER_ADAMW;
    c.sharding = sharding_defaults(strategy);
    c.fsdp = strcmp(strategy, "hsdp") == 0 ? 2 : 4;
    c.dp = 4 / c.fsdp;
    return c;
}

static const char *const strategies[] = {"zero1", "zero2", "zero3", "fsdp", "hsdp"};

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        Outcome out = outcome_with(NULL, case_of(strategies[s]));
        assert_false(case_is_wrong(&out));
    }
}

static void norm_of_my_shard(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        Outcome out = outcome_with("norm_of_my_shard", case_of(strategies[s]));
        assert_true(out.gradient <= ROUNDING && out.norm > 1e-2 && out.weight > 1e-6);
    }
}

static void decay_by_flat_shape(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        Outcome out = outcome_with("decay_by_flat_shape", case_of(strategies[s]));
        assert_true(out.gradient <= ROUNDING && out.norm <= ROUNDING && out.weight > 1e-6);
    }
}

static void overwrite_shard(void **state)
{
    (void)state;
    for (int s = 1; s < 5; s++) {
        Outcome out = outcome_with("overwrite_shard", case_of(strategies[s]));
        assert_true(out.gradient > 1e-3);
    }
}

/* The calls made so far on this group. Counters are not reset, so the numbers of the next calls begin after these. */
static long calls_so_far(const Case *c, const char *group, CommKind kind)
{
    const CaseGroups *g = case_groups(c);
    Group *all[] = {g->of.dense.gather, g->of.dense.reduce, g->of.dense.replicate, g->model};
    for (int i = 0; i < 4; i++)
        if (strcmp(group_name(all[i]), group) == 0) return group_count(all[i], kind).calls;
    fail_msg("no group is called %s", group);
    return 0;
}

/* Drops every collective of the first step, each one alone. */
static void skipped_collectives(void **state)
{
    (void)state;
    int dropped = 0;
    for (int s = 0; s < 5; s++) {
        Case c = case_of(strategies[s]);
        Expected e = case_expected(&c);
        for (int row = 0; row < e.comm_rows; row++)
            for (long n = 1; n <= (long)e.comm[row].calls; n++) {
                const char *kind = comm_kind_name(e.comm[row].kind);
                char bug[96];
                snprintf(bug, sizeof bug, "skip=%s.%s.%ld", e.comm[row].group, kind,
                         calls_so_far(&c, e.comm[row].group, e.comm[row].kind) + n);
                Outcome out = outcome_with(bug, c);
                if (!case_is_wrong(&out))
                    fail_msg("%s: %s, call %ld of a step, went unnoticed", c.sharding.strategy, bug, n);
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
