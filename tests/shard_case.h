/* One configuration of tiny-fsdp, trained for two steps beside a single device and compared piece by piece. Shared by
 * test_fsdp (all must agree) and test_fsdp_bugs (with a bug switched on they must not). */
#pragma once

#include "sharding.h"
#include "training.h"

typedef struct {
    int ranks; /* the first so many of the world */
    Training t;
    ShardingOptions options;
    bool recompute;
    int slow_rank; /* sleeps in its hooks; -1: nobody */
    bool tampered; /* at the end one rank has another weight */
} ShardCase;

/* The worst error of each kind, in verify's metric, over the ranks of the case. */
typedef struct {
    double loss, gradient, norm;   /* of step 1, before any update */
    double later_gradient, weight; /* of step 2, and after it */
    double whole;                  /* where whole weights are kept: those, against the owners' */
    bool replicas_equal;           /* bit for bit */
    char ledger[160];              /* the first count or number of bytes that is not what the formula says; or empty */
    int most_layers;               /* whose gathered weights could be used at one time */
    int ahead;                     /* gathers that were under way, at most, when a layer's forward pass began */
    uint64_t bits;                 /* of this rank's pieces at the end */
} ShardOutcome;

/* The index runs through the strategies and numbers of ranks. */
ShardCase random_shard_case(Random *random, int index);

/* [all ranks of the world] `data`: a token file whose vocabulary is at most the model's. */
ShardOutcome run_shard_case(const ShardCase *c, const char *data);

/* One line that says what the case is, for a failing test. */
const char *describe_shard_case(const ShardCase *c);

/* [all ranks of the world] Groups of the case, made once for each shape; NULL on ranks that are not in it. */
const Mesh *shard_case_mesh(const ShardCase *c, ShardGroups *groups);
