#include "base/bug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"

static const struct {
    const char *name, *where, *story, *caught_by;
} table[BUGS_KNOWN] = {
    [BUG_mean_of_means] =
        {"mean_of_means", "every trainer",
         "each rank divides its loss by its own count of labels, and the ranks average their gradients: a label on "
         "a rank with few labels weighs more than one on a rank with many",
         "test_bugs: gradients of uneven labels; --verify with --ignore 0.5"},
    [BUG_reduce_every_micro_step] =
        {"reduce_every_micro_step", "tiny-ddp",
         "the ranks reduce their gradients after each micro-step, so a sum that already covers all ranks is summed "
         "over the ranks again",
         "test_bugs: gradients under accumulation; --verify with --accumulate 2"},
    [BUG_forget_last_bucket] = {"forget_last_bucket", "tiny-ddp",
                                "the bucket that is not full when the backward pass ends is never reduced",
                                "test_bugs: gradients of the root unit; --verify"},
    [BUG_rank_seeded_init] =
        {"rank_seeded_init", "every trainer",
         "each rank seeds its generator with seed + rank, so the replicas start with different weights",
         "test_bugs: initial weights; where ranks hold the same weights, the check at every start"},
    [BUG_norm_of_my_shard] =
        {"norm_of_my_shard", "tiny-fsdp, tiny-moe",
         "each rank clips by the norm of its own part of the gradient, because the sum over the ranks that hold the "
         "model together is missing: the norm is too small, and differs between ranks",
         "test_fsdp_bugs: the norm, and weights after clipped steps; test_moe_bugs; --verify"},
    [BUG_decay_by_flat_shape] =
        {"decay_by_flat_shape", "tiny-fsdp",
         "weight decay is decided by the shape of a flat shard, which hides that it holds the weights of norms: "
         "these decay, too, and shrink",
         "test_fsdp_bugs: weights after a step; --verify in fp64"},
    [BUG_overwrite_shard] =
        {"overwrite_shard", "tiny-fsdp",
         "the reduce-scatter of each micro-step overwrites the shard's gradient instead of adding to it: the "
         "gradients of all micro-steps but the last are lost",
         "test_fsdp_bugs: gradients under accumulation; --verify with --accumulate 2"},
    [BUG_count_copies_in_norm] = {"count_copies_in_norm", "tiny-megatron",
                                  "a weight that is replicated over tp is counted tp times in the gradient's norm",
                                  "test_megatron_bugs: the norm; --verify"},
    [BUG_skip_norm_sum] =
        {"skip_norm_sum", "tiny-megatron",
         "under sequence parallelism a rank computes the gradient of a norm's weights from its own rows only; the "
         "sum over tp is missing, so the replicas drift apart",
         "test_megatron_bugs: gradients of norms; --verify"},
    [BUG_local_softmax] = {"local_softmax", "tiny-megatron",
                           "each rank normalizes the softmax over its own part of the vocabulary instead of the whole",
                           "test_megatron_bugs: the loss; --verify"},
    [BUG_shift_after_cut] = {"shift_after_cut", "tiny-cp",
                             "a rank takes the next token of its own rows for the label, after the sequence was cut: "
                             "the last row of each chunk learns a wrong token",
                             "test_cp_bugs: the loss; --verify"},
    [BUG_local_positions] = {"local_positions", "tiny-cp",
                             "RoPE turns by the place of a row on its rank instead of its place in the sequence",
                             "test_cp_bugs: the loss; --verify"},
    [BUG_lse_not_merged] =
        {"lse_not_merged", "tiny-cp",
         "attention loses the running log-sum-exp between blocks of keys: each block is merged as if "
         "the exponentials of all blocks before it had the sum 1",
         "test_cp_bugs: the loss; --verify"},
    [BUG_balance_of_my_rows] = {"balance_of_my_rows", "tiny-moe",
                                "each rank computes the balance loss from the choices of its own rows: the mean of the "
                                "ranks' losses is not the loss of all rows, because it is a product of two means",
                                "test_moe_bugs: the auxiliary loss; --verify"},
    [BUG_expert_sum_over_all] =
        {"expert_sum_over_all", "tiny-moe",
         "the gradients of experts are summed over all ranks, like dense ones, though each rank of a replica holds "
         "other experts: gradients of different experts are added up",
         "test_moe_bugs: gradients of experts; --verify"},
};

#ifdef BUGS
static const bool built_in = true;
#else
static const bool built_in = false;
#endif

/* Those that tiny-hybrid can make on one replica, whose weights are sharded. */
static const BugName quiz[] = {BUG_mean_of_means,   BUG_norm_of_my_shard, BUG_decay_by_flat_shape,  BUG_overwrite_shard,
                               BUG_skip_norm_sum,   BUG_local_softmax,    BUG_count_copies_in_norm, BUG_shift_after_cut,
                               BUG_local_positions, BUG_lse_not_merged,   BUG_balance_of_my_rows};

static BugName active;
static bool acted;
static char skip_group[32], skip_kind[32];
static long skip_number; /* 0: every call */

const char *bug_set(const char *text)
{
    active = BUG_none;
    acted = false;
    skip_group[0] = skip_kind[0] = '\0';
    skip_number = 0;
    if (!text) return NULL;
    if (!built_in && strcmp(text, "list") != 0)
        return complain("--bug %s: this build has no bugs; build with make BUGS=1", text);
    if (strcmp(text, "list") == 0) {
        for (int b = BUG_none + 1; b < BUGS_KNOWN; b++)
            printf("%s (%s)\n    %s\n    caught by %s\n", table[b].name, table[b].where, table[b].story,
                   table[b].caught_by);
        printf("skip=GROUP.KIND[.N] (every trainer; --ledger names the groups)\n    the collectives of that kind on "
               "that group do nothing (with .N: only the N-th of them)\n"
               "    caught by test_bugs: the skip mutation; --verify\n");
        return NULL;
    }
    const char *seed = strchr(text, ':');
    if (seed && (strncmp(text, "random:", 7) == 0 || strncmp(text, "reveal:", 7) == 0)) {
        char *end;
        uint64_t number = strtoull(++seed, &end, 10);
        if (*seed < '0' || *seed > '9' || *end) return complain("--bug %s: must end with a whole number", text);
        active = quiz[rng_below(number, rng_stream("quiz"), 0, sizeof quiz / sizeof quiz[0])];
        if (text[1] == 'e') printf("%s\n", table[active].name);
        return NULL;
    }
    if (strncmp(text, "skip=", 5) == 0) {
        int end = 0;
        int fields = sscanf(text, "skip=%31[^.].%31[^.]%n.%ld%n", skip_group, skip_kind, &end, &skip_number, &end);
        if (fields >= 2 && !text[end] && (fields == 2 || skip_number > 0)) return NULL;
        skip_group[0] = '\0';
        return complain("--bug %s: must be skip=GROUP.KIND or skip=GROUP.KIND.N, with N from 1", text);
    }
    for (int b = BUG_none + 1; b < BUGS_KNOWN; b++)
        if (strcmp(text, table[b].name) == 0) active = (BugName)b;
    if (active == BUG_none) return complain("--bug %s: no such bug; --bug list names them", text);
    return NULL;
}

bool bug_is_on(BugName name)
{
    if (active != name) return false;
    acted = true;
    return true;
}

bool bug_acted(void)
{
    return acted;
}

bool bug_skips(const char *group, const char *kind, long number)
{
    bool skips = skip_group[0] && strcmp(skip_group, group) == 0 && strcmp(skip_kind, kind) == 0 &&
                 (skip_number == 0 || skip_number == number);
    acted = acted || skips;
    return skips;
}
