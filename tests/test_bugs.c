/* ranks: 4  builds: fp64-bugs fp32-bugs
 *
 * A test that cannot fail proves nothing. Here each named bug of tiny-ddp is switched on, and each collective is
 * dropped. The comparison with a single device must notice each of them. */
#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"

static Case uneven_case(void)
{
    Random r = {.seed = 41};
    Case c = random_ddp_case(&r, 3);
    c.dp = 4;
    c.t.seq = 12;
    c.t.model.max_seq = 12;
    c.t.ignore = 0.5;
    c.t.accumulate = 2;
    c.ddp = (DdpOptions){.overlap = 1, .bucket_mb = 0.0001};
    return c;
}

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    Outcome out = outcome_with(NULL, uneven_case());
    assert_true(out.gradient <= ROUNDING && out.replicas_equal && !*out.ledger);
}

static void mean_of_means(void **state)
{
    (void)state;
    Outcome out = outcome_with("mean_of_means", uneven_case());
    assert_true(out.gradient > 1e-3);
}

static void reduce_every_micro_step(void **state)
{
    (void)state;
    Outcome out = outcome_with("reduce_every_micro_step", uneven_case());
    assert_true(out.gradient > 1e-3);
    assert_true(*out.ledger); /* it also sends twice as much */
}

static void forget_last_bucket(void **state)
{
    (void)state;
    Outcome out = outcome_with("forget_last_bucket", uneven_case());
    assert_true(out.gradient > 1e-3);
    assert_false(out.replicas_equal);
}

static void rank_seeded_init(void **state)
{
    (void)state;
    assert_false(outcome_with("rank_seeded_init", uneven_case()).replicas_equal);
}

/* Drops every all-reduce of the step: all of them together, and each one alone. */
static void skipped_collectives(void **state)
{
    (void)state;
    Case c = uneven_case();
    assert_true(outcome_with("skip=dp.all_reduce", c).gradient > 1e-3);
    /* The case has one bucket for each unit. Counters are not reset, so call numbers begin after the calls so far. */
    int buckets = 1 + c.t.model.layers;
    for (int b = 0; b < buckets; b++) {
        long calls = 0;
        for (int g = 0; comm_group(g); g++)
            if (strcmp(group_name(comm_group(g)), "dp") == 0) calls = group_count(comm_group(g), COMM_ALL_REDUCE).calls;
        int64_t first = calls; /* the same on all ranks, since all four are in the group */
        char bug[64];
        snprintf(bug, sizeof bug, "skip=dp.all_reduce.%ld", (long)first + 1 + b);
        Outcome out = outcome_with(bug, c);
        if (!(out.gradient > 1e-3)) fail_msg("%s went unnoticed: gradient off by %.1e", bug, out.gradient);
        assert_false(out.replicas_equal);
    }
}

static void unknown_bugs_are_refused(void **state)
{
    (void)state;
    assert_non_null(strstr(bug_set("no_such_bug"), "no such bug"));
    static const char *const malformed[] = {"skip=dp",
                                            "skip=dp.all_reduce.x",
                                            "skip=dp.all_reduce.0",
                                            "skip=dp.all_reduce.-1",
                                            "skip=dp.all_reduce.1.2",
                                            "skip=.all_reduce"};
    for (size_t b = 0; b < sizeof malformed / sizeof malformed[0]; b++) {
        const char *complaint = bug_set(malformed[b]);
        if (!complaint || !strstr(complaint, "must be skip=GROUP.KIND")) fail_msg("%s is accepted", malformed[b]);
        assert_false(bug_skips("dp", "all_reduce", 1));
    }
    bug_set(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_bugs_all_is_well), cmocka_unit_test(mean_of_means),
    cmocka_unit_test(reduce_every_micro_step),  cmocka_unit_test(forget_last_bucket),
    cmocka_unit_test(rank_seeded_init),         cmocka_unit_test(skipped_collectives),
    cmocka_unit_test(unknown_bugs_are_refused),
};
TESTING_MAIN(tests)
