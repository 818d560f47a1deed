/* ranks: 4  builds: fp64-bugs
 *
 * Each named bug of tiny-megatron, and each dropped collective, must be noticed by the comparison with a single
 * device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"

static Case case_of(int sp)
{
    Random r = {.seed = 81};
    Case c = random_tensor_case(&r, 2);
    c.tp = 4;
    c.dp = 1;
    c.t.model.layers = 2;
    c.t.model.heads = 4;
    c.t.model.kv_heads = 2; /* shared by two ranks */
    c.t.model.ff = 12;
    c.t.model.vocab = 33;
    c.t.model.qk_norm = true;
    c.t.seq = c.t.model.max_seq = 16;
    c.t.window = 0;
    c.t.ignore = 0.5;
    c.t.clip = 0.1;
    c.t.accumulate = 2;
    c.recompute = false;
    c.t.optimizer = OPTIMIZER_ADAMW;
    c.tensor = (TensorOptions){.tp = 4, .sp = sp, .overlap_chunks = sp ? 2 : 1};
    return c;
}

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    for (int sp = 0; sp < 2; sp++) {
        Outcome out = outcome_with(NULL, case_of(sp));
        assert_false(case_is_wrong(&out));
    }
}

static void count_copies_in_norm(void **state)
{
    (void)state;
    Outcome out = outcome_with("count_copies_in_norm", case_of(1));
    assert_true(out.gradient <= ROUNDING && out.norm > 1e-3 && out.weight > 1e-6);
}

static void skip_norm_sum(void **state)
{
    (void)state;
    Outcome out = outcome_with("skip_norm_sum", case_of(1));
    assert_true(out.gradient > 1e-3);
    assert_false(out.replicas_equal);
    Outcome without_sp = outcome_with("skip_norm_sum", case_of(0)); /* without SP norms are not partial */
    assert_false(case_is_wrong(&without_sp));
}

static void local_softmax(void **state)
{
    (void)state;
    for (int sp = 0; sp < 2; sp++) assert_true(outcome_with("local_softmax", case_of(sp)).loss > 1e-2);
}

/* The calls made so far on this group. Counters are not reset, so the numbers of the next calls begin after these. */
static long calls_so_far(const Case *c, const char *group, CommKind kind)
{
    const CaseGroups *g = case_groups(c);
    Group *all[] = {g->of.tp, g->of.kv, g->model};
    for (int i = 0; i < 3; i++)
        if (strcmp(group_name(all[i]), group) == 0) return group_count(all[i], kind).calls;
    fail_msg("no group is called %s", group);
    return 0;
}

/* Drops every collective of the first step, each one alone. */
static void skipped_collectives(void **state)
{
    (void)state;
    int dropped = 0;
    for (int sp = 0; sp < 2; sp++) {
        Case c = case_of(sp);
        Expected e = case_expected(&c);
        for (int row = 0; row < e.comm_rows; row++) {
            if (strcmp(e.comm[row].group, "dp") == 0) continue; /* dp has one rank here; test_bugs drops its calls */
            for (long n = 1; n <= (long)e.comm[row].calls; n++) {
                char bug[96];
                snprintf(bug, sizeof bug, "skip=%s.%s.%ld", e.comm[row].group, comm_kind_name(e.comm[row].kind),
                         calls_so_far(&c, e.comm[row].group, e.comm[row].kind) + n);
                Outcome out = outcome_with(bug, c);
                if (!case_is_wrong(&out)) fail_msg("sp %d: %s, call %ld of a step, went unnoticed", sp, bug, n);
                dropped++;
            }
        }
    }
    printf("%d dropped collectives, all noticed\n", dropped);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_bugs_all_is_well),
    cmocka_unit_test(count_copies_in_norm),
    cmocka_unit_test(skip_norm_sum),
    cmocka_unit_test(local_softmax),
    cmocka_unit_test(skipped_collectives),
};
TESTING_MAIN(tests)
