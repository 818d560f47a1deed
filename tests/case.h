/* One configuration of the schemes, alone or together, trained for two steps beside a single device and compared element
 * by element: layers split along tp; along fsdp and dp a strategy of tiny-fsdp, or tiny-ddp's module. */
#pragma once

#include "ddp.h"
#include "sharding.h"
#include "tensor_parallel.h"
#include "training.h"

typedef struct {
    int tp, fsdp, dp; /* the first tp x fsdp x dp ranks of the world */
    Training t;
    int window;               /* keys that a row sees at most; 0: all before it */
    ShardingOptions sharding; /* strategy NULL: tiny-ddp along dp */
    DdpOptions ddp;
    TensorOptions tensor;
    bool recompute;
    int slow_rank; /* sleeps in its hooks; -1: none does */
    bool tampered; /* at the end one rank has another weight */
} Case;

/* The worst error of each kind, in verify's metric, over the ranks of the case. */
typedef struct {
    double loss, gradient, norm;   /* of step 1, before any update */
    double later_gradient, weight; /* of step 2, and after it */
    double whole;                  /* where whole weights are kept: those, against the single device's */
    char where[64];                /* the parameter with the worst gradient or weight */
    bool replicas_equal;           /* bit for bit */
    bool same_numbers;             /* loss and norm, on all ranks along tp, to the bit */
    bool padding_is_zero;          /* weights and gradients of words that are not there */
    char ledger[160];              /* the first count or number of bytes that is not what the formula says; or empty */
    int most_layers;               /* whose gathered weights could be used at one time */
    int ahead;                     /* gathers that were under way, at most, when a layer's forward pass began */
    uint64_t bits;                 /* of this rank's shards at the end */
} Outcome;

/* A case of each folder alone; the index runs through numbers of ranks and strategies. And all together. */
Case random_ddp_case(Random *random, int index);
Case random_shard_case(Random *random, int index);
Case random_tensor_case(Random *random, int index);
Case random_composed_case(Random *random, int index);

/* Options of a strategy with everything that hides communication switched on. */
ShardingOptions sharding_defaults(const char *strategy);

int case_ranks(const Case *c);

/* [all ranks of the world] `data`: a token file whose vocabulary is at most the model's. */
Outcome run_case(const Case *c, const char *data);

/* [all ranks of the world] Runs the case and asserts that it equals the single device: loss, gradients and norm of step 1 to
 * `first`, the rest to TRAINING_LATER, replicas to the bit. */
Outcome check_case(const Case *c, int index, double first);

/* Is anything wrong at all? */
bool case_is_wrong(const Outcome *outcome);

/* One line that says what the case is, for a failing test. */
const char *describe_case(const Case *c);

/* The groups of a case: those that its mesh cuts, and what the schemes use of them. */
typedef struct {
    Mesh mesh;
    ShardGroups shard; /* shard.replicate is the group along dp */
    Group *tp, *kv, *model;
} CaseGroups;

/* [all ranks of the world] Made once for each shape; NULL on ranks that are not in it. */
const CaseGroups *case_groups(const Case *c);

/* What one step of the case sends and holds, by formula. */
Expected case_expected(const Case *c);

/* [all ranks of the world] The first so many ranks of the world, made once; NULL on the others. */
Group *first_ranks(int ranks);
