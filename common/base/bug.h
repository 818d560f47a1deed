/* Bugs that real frameworks shipped, kept as switches.
 *
 * A test that cannot fail proves nothing. In builds made with BUGS=1 the line where a framework once went wrong carries
 * the mistake beside the right code, behind if (BUG(name)); `--bug name` switches it on, and the test named in the table
 * must notice. In every other build BUG(name) is the constant 0 and the mistake is not even compiled in.
 *
 * `--bug skip=GROUP.KIND[.N]` drops the collectives of that kind on that group (or only the N-th, from 1), one place
 * for all: the mutation check of every reduction.
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
    BUGS_KNOWN
} BugName;

#ifdef BUGS
#define BUG(name) bug_is_on(BUG_##name)
#else
#define BUG(name) 0
#endif

/* Switches on what `--bug` names; NULL switches everything off. Returns NULL or a complaint. "list" prints the table
 * and returns NULL. */
const char *bug_set(const char *text);

bool bug_is_on(BugName name);

/* Has the mistake been made on this rank? If not, the run never came to its place. */
bool bug_acted(void);

/* Must this collective be dropped? `number` counts the calls of its kind on its group, from 1. */
bool bug_skips(const char *group, const char *kind, long number);
