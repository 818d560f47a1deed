/* ranks: 4  builds: fp64-bugs
 *
 * Each named bug of tiny-cp, and each dropped collective, must be noticed by the comparison with a single
 * device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"

typedef struct {
    const char *method;
    int team;
} Way;
static const Way ways[] = {{"ring", 1}, {"allgather", 1}, {"ulysses", 4}, {"ring", 2}};
enum { WAYS = 4 };

/* Causal rows of two sequences on four ranks, two micro-steps; two ranks of a team of four share each kv head. */
static Case case_of(Way way)
{
    Random r = {.seed = 81};
    Case c = random_context_case(&r, 1);
    c.cp = 4;
    c.dp = 1;
    c.context = (ContextOptions){.cp = 4, .method = way.method, .layout = "zigzag", .ulysses_size = way.team};
    c.t.model.layers = 2;
    c.t.model.heads = 4;
    c.t.model.kv_heads = 2;
    c.t.model.qk_norm = true;
    c.t.seq = c.t.model.max_seq = 16;
    c.t.window = c.t.prefix = c.t.pack = 0;
    c.t.sequences = 2;
    c.t.ignore = 0.5;
    c.t.clip = 0.1;
    c.t.accumulate = 2;
    c.recompute = false;
    c.t.optimizer = OPTIMIZER_ADAMW;
    return c;
}

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        Outcome out = outcome_with(NULL, case_of(ways[w]));
        assert_false(case_is_wrong(&out));
    }
}

static void shift_after_cut(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) assert_true(outcome_with("shift_after_cut", case_of(ways[w])).loss > 1e-3);
}

static void local_positions(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) assert_true(outcome_with("local_positions", case_of(ways[w])).loss > 1e-5);
}

static void lse_not_merged(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) assert_true(outcome_with("lse_not_merged", case_of(ways[w])).loss > 1e-5);
}

/* The calls made so far on this group. Counters are not reset, so the numbers of the next calls begin after these. */
static long calls_so_far(const Case *c, const char *group, CommKind kind)
{
    const CaseGroups *g = case_groups(c);
    Group *all[] = {g->of.context.teams, g->of.context.team, g->of.dense.replicate};
    for (int i = 0; i < 3; i++)
        if (strcmp(group_name(all[i]), group) == 0) return group_count(all[i], kind).calls;
    fail_msg("no group is called %s", group);
    return 0;
}

/* The backward pass of the last layer brings the keys that the forward pass of this layer, just before, has brought. Two
 * ways have them in the same buffer still, so dropping the call changes nothing: calls 3 of the 4 all-gathers of a
 * micro-step, and of its 8 send_receives if the ring has two teams. */
static bool changes_nothing(Way way, CommKind kind, long n)
{
    if (kind == COMM_ALL_GATHER) return n % 4 == 3;
    return kind == COMM_SEND_RECEIVE && way.team == 2 && n % 8 == 3;
}

/* Drops every collective of the first step, each one alone. */
static void skipped_collectives(void **state)
{
    (void)state;
    int dropped = 0;
    for (int w = 0; w < WAYS; w++) {
        Case c = case_of(ways[w]);
        Expected e = case_expected(&c);
        for (int row = 0; row < e.comm_rows; row++) {
            for (long n = 1; n <= (long)e.comm[row].calls; n++) {
                if (changes_nothing(ways[w], e.comm[row].kind, n)) continue;
                char bug[96];
                snprintf(bug, sizeof bug, "skip=%s.%s.%ld", e.comm[row].group, comm_kind_name(e.comm[row].kind),
                         calls_so_far(&c, e.comm[row].group, e.comm[row].kind) + n);
                Outcome out = outcome_with(bug, c);
                if (!case_is_wrong(&out))
                    fail_msg("%s in teams of %d: %s, call %ld of a step, went unnoticed", ways[w].method, ways[w].team,
                             bug, n);
                dropped++;
            }
        }
    }
    printf("%d dropped collectives, all noticed\n", dropped);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_bugs_all_is_well), cmocka_unit_test(shift_after_cut),
    cmocka_unit_test(local_positions),          cmocka_unit_test(lse_not_merged),
    cmocka_unit_test(skipped_collectives),
};
TESTING_MAIN(tests)
