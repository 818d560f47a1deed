/* ranks: 16  builds: fp64-bugs
 *
 * Collectives of every scheme in a composition of all of them, dropped in turn: the comparison with a single device must
 * notice. And the bugs of make quiz. */
#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "case.h"

/* Two ranks along each axis and eight experts; uneven labels, clipped gradients, two micro-steps, two kv heads for two
 * ranks along tp, so that U = 2 teams share one. */
static Case case_of(const char *method, int ep)
{
    Random r = {.seed = 96};
    Case c = random_composed_case(&r, 1); /* tp, cp and fsdp 2 */
    c.fsdp = c.dp = c.tp = c.cp = 2;
    c.sharding = sharding_defaults("fsdp");
    c.tensor = (TensorOptions){.tp = 2, .sp = 1, .overlap_chunks = 1};
    c.context = (ContextOptions){.cp = 2, .method = method, .layout = "zigzag", .ulysses_size = 1};
    if (strcmp(method, "ulysses") == 0) c.context.ulysses_size = 2;
    c.experts = (ExpertOptions){.ep = ep};
    c.t.model.layers = 2;
    c.t.model.heads = 4;
    c.t.model.kv_heads = strcmp(method, "ring") == 0 ? 1 : 2;
    c.t.model.qk_norm = true;
    c.t.model.tied = false;
    c.t.model.ff = 5;
    c.t.model.moe = (MoeConfig){.experts = 8,
                                .top_k = 3,
                                .ff = 6,
                                .renormalize = true,
                                .balance = BALANCE_AUX,
                                .aux_coef = 0.3,
                                .z_coef = 0.01};
    c.t.seq = c.t.model.max_seq = 16;
    c.t.sequences = 1;
    c.t.window = c.t.prefix = c.t.pack = 0;
    c.t.ignore = 0.5;
    c.t.clip = 0.1;
    c.t.accumulate = 2;
    c.t.optimizer = OPTIMIZER_ADAMW;
    c.recompute = false;
    return c;
}

static void without_bugs_all_is_well(void **state)
{
    (void)state;
    static const char *const methods[] = {"ring", "allgather", "ulysses"};
    for (int i = 0; i < 3; i++)
        for (int ep = 4; ep <= 16; ep *= 2) {
            Case c = case_of(methods[i], ep == 16 ? 2 : ep);
            check_case(&c, i, ROUNDING);
        }
}

/* The calls made so far on this group. Counters are not reset, so the numbers of the next calls begin after these. */
static long calls_so_far(const char *group, CommKind kind, const Case *c)
{
    const CaseGroups *g = case_groups(c);
    const HybridGroups *of = &g->of;
    Group *all[] = {of->dense.gather,
                    of->dense.reduce,
                    of->dense.replicate,
                    of->tp,
                    of->kv,
                    of->context.team,
                    of->context.teams,
                    of->ep,
                    of->same_experts.gather,
                    of->same_experts.reduce,
                    of->same_experts.replicate,
                    g->model,
                    g->stream};
    for (int i = 0; i < 13; i++)
        if (strcmp(group_name(all[i]), group) == 0) return group_count(all[i], kind).calls;
    fail_msg("no group is called %s", group);
    return 0;
}

/* Drops the first and the last call of each kind on each group in a step, each one alone. Those of counts on ep are
 * left out: without them a rank does not know how many rows arrive, and the job ends. */
static int drop_calls(Case c)
{
    int dropped = 0;
    Expected e = case_expected(&c);
    for (int row = 0; row < e.comm_rows; row++) {
        const ExpectedComm *comm = &e.comm[row];
        if (comm->payload == 0 || (strcmp(comm->group, "ep") == 0 && comm->kind == COMM_ALL_GATHER)) continue;
        long calls = (long)comm->calls, number[] = {1, calls};
        for (int i = 0; i < 2; i++) {
            char bug[96];
            if (i > 0 && calls == 1) continue;
            snprintf(bug, sizeof bug, "skip=%s.%s.%ld", comm->group, comm_kind_name(comm->kind),
                     calls_so_far(comm->group, comm->kind, &c) + number[i]);
            Outcome out = outcome_with(bug, c);
            if (!case_is_wrong(&out)) fail_msg("%s, call %ld of a step, went unnoticed", bug, number[i]);
            dropped++;
        }
    }
    return dropped;
}

static void skipped_collectives(void **state)
{
    (void)state;
    int dropped = drop_calls(case_of("ring", 4)); /* experts are sharded in a replica, and summed over two */
    dropped += drop_calls(case_of("ulysses", 8));
    dropped += drop_calls(case_of("allgather", 8));
    printf("%d dropped collectives, all noticed\n", dropped);
}

static void named_bugs(void **state)
{
    (void)state;
    static const char *const names[] = {"mean_of_means",        "norm_of_my_shard",   "decay_by_flat_shape",
                                        "overwrite_shard",      "skip_norm_sum",      "local_softmax",
                                        "count_copies_in_norm", "balance_of_my_rows", "shift_after_cut",
                                        "local_positions",      "lse_not_merged"};
    for (int i = 0; i < 11; i++) {
        Outcome out = outcome_with(names[i], case_of("ring", 4));
        if (!case_is_wrong(&out)) fail_msg("%s went unnoticed", names[i]);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_bugs_all_is_well),
    cmocka_unit_test(skipped_collectives),
    cmocka_unit_test(named_bugs),
};
TESTING_MAIN(tests)
