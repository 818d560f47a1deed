/* ranks: 4  builds: fp64-bugs
 *
 * Each named bug of tiny-moe, and each dropped collective, must be noticed by the comparison with a single device. */
#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"

/* Eight experts on two ranks, two copies of each expert; two micro-steps, uneven labels. */
static Case case_of(BalanceKind balance)
{
    Random r = {.seed = 95};
    Case c = random_expert_case(&r, 0);
    c.dp = 4;
    c.experts = (ExpertOptions){.ep = 2};
    c.t.model.layers = 2;
    c.t.model.ff = 5;
    c.t.model.moe = (MoeConfig){.experts = 8,
                                .top_k = 3,
                                .ff = 6,
                                .renormalize = true,
                                .balance = balance,
                                .aux_coef = 0.3,
                                .z_coef = 0.01,
                                .bias_rate = 0.05};
    c.t.seq = c.t.model.max_seq = 9;
    c.t.sequences = 2;
    c.t.ignore = 0.5;
    c.t.clip = 0.1;
    c.t.accumulate = 2;
    c.recompute = c.one_expert = false;
    c.t.optimizer = OPTIMIZER_ADAMW;
    c.ddp = (DdpOptions){.bucket_mb = 0.0001, .overlap = 1};
    return c;
}

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    for (int b = BALANCE_NONE; b <= BALANCE_BIAS; b++) {
        Outcome out = outcome_with(NULL, case_of((BalanceKind)b));
        assert_false(case_is_wrong(&out));
        assert_string_equal(out.ledger, "");
    }
}

static void balance_of_my_rows(void **state)
{
    (void)state;
    assert_true(outcome_with("balance_of_my_rows", case_of(BALANCE_AUX)).loss > 1e-3);
    assert_false(outcome_with("balance_of_my_rows", case_of(BALANCE_BIAS)).same_counts);
}

static void expert_sum_over_all(void **state)
{
    (void)state;
    assert_true(outcome_with("expert_sum_over_all", case_of(BALANCE_AUX)).gradient > 1e-3);
}

/* Each rank clips by the norm of dense parameters and of its own experts. */
static void norm_of_my_experts(void **state)
{
    (void)state;
    assert_true(outcome_with("norm_of_my_shard", case_of(BALANCE_AUX)).norm > 1e-3);
}

/* The calls made so far on this group. Counters are not reset, so the numbers of the next calls begin after these. */
static long calls_so_far(const Case *c, const char *group, CommKind kind)
{
    const CaseGroups *g = case_groups(c);
    Group *all[] = {g->of.ep, g->of.same_experts.replicate, g->of.dense.replicate, g->model, g->stream};
    for (int i = 0; i < 5; i++)
        if (strcmp(group_name(all[i]), group) == 0) return group_count(all[i], kind).calls;
    fail_msg("no group is called %s", group);
    return 0;
}

/* Drops every collective of the first step, each one alone. Those of counts on ep are left out: without them a rank does
 * not know how many rows arrive, and the job ends. */
static void skipped_collectives(void **state)
{
    (void)state;
    int dropped = 0;
    Case c = case_of(BALANCE_BIAS);
    Expected e = case_expected(&c);
    for (int row = 0; row < e.comm_rows; row++) {
        if (e.comm[row].kind == COMM_ALL_GATHER || strcmp(e.comm[row].group, "stream") == 0) continue;
        for (long n = 1; n <= (long)e.comm[row].calls; n++) {
            char bug[96];
            snprintf(bug, sizeof bug, "skip=%s.%s.%ld", e.comm[row].group, comm_kind_name(e.comm[row].kind),
                     calls_so_far(&c, e.comm[row].group, e.comm[row].kind) + n);
            Outcome out = outcome_with(bug, c);
            if (!case_is_wrong(&out)) fail_msg("%s, call %ld of a step, went unnoticed", bug, n);
            dropped++;
        }
    }
    /* the counts of choices, one all-reduce in each micro-step; then that of the auxiliary loss */
    for (int balance = BALANCE_AUX; balance <= BALANCE_BIAS; balance += BALANCE_BIAS - BALANCE_AUX)
        for (long n = 1; n <= c.t.accumulate + (balance == BALANCE_AUX); n++) {
            c = case_of((BalanceKind)balance);
            char bug[96];
            snprintf(bug, sizeof bug, "skip=stream.all_reduce.%ld", calls_so_far(&c, "stream", COMM_ALL_REDUCE) + n);
            Outcome out = outcome_with(bug, c);
            if (!case_is_wrong(&out)) fail_msg("%s: call %ld of a step went unnoticed", bug, n);
            dropped++;
        }
    printf("%d dropped collectives, all noticed\n", dropped);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_bugs_all_is_well), cmocka_unit_test(balance_of_my_rows),
    cmocka_unit_test(expert_sum_over_all),      cmocka_unit_test(norm_of_my_experts),
    cmocka_unit_test(skipped_collectives),
};
TESTING_MAIN(tests)
