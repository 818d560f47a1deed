/* Bugs of real frameworks, which the user can switch on.
 *
 * A test that cannot fail proves nothing. In builds with BUGS=1 the code has each of these mistakes beside the right
 * line, behind if (BUG(name)). `--bug name` switches it on, and the test that the table names must fail. In all other
 * builds BUG(name) is the constant 0, and the compiler removes the mistake.
 *
 * `--bug skip=GROUP.KIND[.N]` makes the collectives of one kind on one group do nothing, or only the N-th of them,
 * counted from 1. A test of a reduction must fail if the reduction is skipped.
 */
#pragma once

#include <stdbool.h>

typedef enum {
    BUG_none,
    BUG_mean_of_means,
    BUG_reduce_every_micro_step,
    BUG_forget_last_bucket,
    BUG_rank_seeded_init,
    BUG_norm_of_my_shard,
    BUG_decay_by_flat_shape,
    BUG_overwrite_shard,
    BUG_count_copies_in_norm,
    BUG_skip_norm_sum,
    BUG_local_softmax,
    BUG_shift_after_cut,
    BUG_local_positions,
    BUG_lse_not_merged,
    BUG_balance_of_my_rows,
    BUG_expert_sum_over_all,
    BUGS_KNOWN
} BugName;

#ifdef BUGS
#define BUG(name) bug_is_on(BUG_##name)
#else
#define BUG(name) 0
#endif

/* Switches on the bug that `--bug` names, and all others off. NULL switches all off. "list" prints the table, and
 * "reveal:SEED" the name of the bug that "random:SEED" switches on: one of those that tiny-hybrid can make (make quiz).
 * Returns NULL or a complaint. */
const char *bug_set(const char *text);

/* Is this bug switched on? Also notes, for bug_acted, that the run has reached it. */
bool bug_is_on(BugName name);

/* Has this rank made the mistake? If not, the run has not reached its line. */
bool bug_acted(void);

/* Must the caller skip this collective? `number` counts the calls of its kind on its group, from 1. */
bool bug_skips(const char *group, const char *kind, long number);
