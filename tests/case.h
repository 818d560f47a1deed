/* A case: one configuration of the schemes, alone or together. The test trains it for two steps beside a single
 * device and compares element by element. Layers are split along tp, sequences along cp; along cp, fsdp and dp runs a
 * strategy of tiny-fsdp, or tiny-ddp. */
#pragma once

#include "context_parallel.h"
#include "ddp.h"
#include "expert_parallel.h"
#include "hybrid.h"
#include "sharding.h"
#include "tensor_parallel.h"
#include "training.h"

typedef struct {
    int tp, cp, fsdp, dp; /* it runs on the first tp x cp x fsdp x dp ranks of the world */
    Training t;
    ShardingOptions sharding; /* strategy NULL: tiny-ddp runs along dp */
    DdpOptions ddp;
    TensorOptions tensor;
    ContextOptions context;
    ExpertOptions experts; /* ep and overlap; t.model.moe says which experts there are */
    bool one_expert;       /* the router's bias sends every row to expert 0 of each layer; with BALANCE_BIAS */
    bool recompute;
    int steps;            /* compared: 2 or more */
    int slow_rank;        /* this rank sleeps in its hooks; -1: no rank does */
    const char *tampered; /* after the last step the test changes the last rank's values of this parameter; or NULL */
} Case;

/* The largest error of each kind over the ranks of the case, in the metric of --verify. */
typedef struct {
    double loss, gradient, norm;   /* in step 1, before any update; the loss, or the auxiliary loss of experts */
    double later_gradient, weight; /* gradients of later steps, and weights after the last */
    double whole;                  /* the same weights, on ranks that keep whole weights */
    char where[64];                /* the parameter with the largest error */
    bool replicas_equal;           /* replicas have the same weights, bit for bit */
    char unequal[64];              /* the parameter in which the last rank's replicas differ; or empty */
    bool same_numbers;             /* all ranks along tp have the same loss and norm, bit for bit */
    bool same_counts;              /* rows of each expert, and the router's bias, are those of the single device */
    bool padding_is_zero;          /* weights and gradients of the vocabulary's padding */
    char ledger[160];              /* the first count or number of bytes that differs from its formula; or empty */
    int most_layers;               /* the largest number of layers whose weights were gathered at one time */
    int ahead;                     /* the largest number of gathers in flight when a layer's forward pass began */
    uint64_t bits;                 /* a hash of this rank's shards at the end */
} Outcome;

/* Random cases: of each folder alone, and of all schemes together. `index` chooses the number of ranks and the
 * strategy. */
Case random_ddp_case(Random *random, int index);
Case random_shard_case(Random *random, int index);
Case random_tensor_case(Random *random, int index);
Case random_context_case(Random *random, int index);
Case random_expert_case(Random *random, int index);
Case random_composed_case(Random *random, int index);

/* All axes at once, on at most 16 ranks: dense models and models of experts. */
Case random_hybrid_case(Random *random);

/* The options of a strategy, with prefetch, reshard and sharded accumulation switched on, as by default. */
ShardingOptions sharding_defaults(const char *strategy);

int case_ranks(const Case *c);

/* [all ranks of the world] Trains the case and returns its errors. `data`: a token file whose vocabulary is at most the
 * model's. */
Outcome run_case(const Case *c, const char *data);

/* [all ranks of the world] The same with a named bug switched on; NULL: none. */
Outcome outcome_with(const char *bug, Case c);

/* [all ranks of the world] Runs the case and asserts that it equals the single device. The bound is `first` for loss,
 * gradients and norm of step 1, and TRAINING_LATER for step 2. Replicas must be equal bit for bit, and the ledger
 * must be right. */
Outcome check_case(const Case *c, int index, double first);

/* Is any error above its bound? */
bool case_is_wrong(const Outcome *outcome);

/* One line that describes the case, for the message of a failed test. */
const char *describe_case(const Case *c);

/* The groups of a case: those of its mesh, and those that the schemes use. */
typedef struct {
    Mesh mesh;
    HybridGroups of;       /* of.dense.replicate is the group along dp */
    Group *model, *stream; /* model NULL: each rank holds everything */
} CaseGroups;

/* [all ranks of the world] The groups are made once for each shape. NULL on ranks that are not in the case. */
const CaseGroups *case_groups(const Case *c);

/* The case as tiny-hybrid's flags, and what a rank holds, without its coordinates. tiny-ddp is strategy ddp. */
HybridOptions case_options(const Case *c);
ModelPart case_part(const Case *c);

/* What one step of the case sends and holds, by formula. */
Expected case_expected(const Case *c);

/* [all ranks of the world] The group of the first `ranks` ranks of the world, made once. NULL on the other ranks. */
Group *first_ranks(int ranks);
