/* Sharded data parallel: every rank trains on its own rows, as in tiny-ddp. But each of N ranks keeps only its shard
 * of the optimizer state (zero1), of the gradients too (zero2), and of the parameters too (zero3, fsdp). hsdp shards
 * within groups of N ranks, and the groups are replicas of each other.
 *
 * Why: in tiny-ddp all N ranks hold the same weights and the same optimizer state, and one copy would do. Here a rank
 * gathers weights that it does not own when it needs them. The sum of a gradient goes only to the rank that owns and
 * updates that weight.
 *
 * Invariant: between steps each element of the model has one owner among the N ranks of a shard group. The owner
 * holds its master weight, its gradient and its moments. A step has three parts: all ranks get the owners' weights
 * (all-gather), the owners get the sum of all ranks' gradients (reduce-scatter), and each owner updates its shard.
 *
 * Communication per step and rank; each size in the table is multiplied by (N-1)/N. Letters: N ranks in a shard
 * group, M groups; P elements in the model, P_r of them in the root unit and P_l in layers; A micro-steps; w =
 * sizeof(real), g = sizeof(acc). What is sharded is padded to N equal shards, each a multiple of SHARD_ALIGN
 * elements:
 *
 *            all-gather on `gather`              reduce-scatter on `reduce`
 *   zero1    P w                 in 1 call       P g      in 1 call
 *   zero2    P w                 a unit each     A P g    a unit each
 *   zero3    A (P_r + 2 P_l) w   a view each     A P g    a view each
 *   fsdp     A (P_r + 2 P_l) w   a unit each     A P g    a unit each
 *            --reshard 0: P w                    --accumulate-sharded 0: P g
 *   hsdp     as fsdp, and an all-reduce of P/N g on `dp` over the M groups, a unit each (times 2 (M-1)/M)
 *
 * "A unit each" means one call for each unit. zero1 and zero2 gather after the optimizer, the others before a unit is
 * used. zero1, zero2 and zero3 with M > 1 groups (test_compose; not a flag) all-reduce P/N g on `dp` in one call,
 * after the last backward pass.
 *
 * Memory per rank; s = P/N elements, u = elements of the largest layer (zero3: P_r and u without padding). In bf16
 * owners keep master weights, so m = g; else m = 0:
 *
 *            parameters    gradients   AdamW    buffers
 *   ddp      P (w + m)     P g         2 P g
 *   zero1    P w + s m     P g + s g   2 s g
 *   zero2    P w + s m     s g         2 s g    (P_r + u) g                          (*)
 *   zero3    s (w + m)     s g         2 s g    (P_r + u)(w + g) + one view (w + g)  (*)
 *   fsdp     s (w + m)     s g         2 s g    (P_r + 2u)(w + g)                    (*)
 *            --reshard 0: P w for weights; --accumulate-sharded 0 with A > 1: P g for gradients, in place of P_r + 2u
 *   (*) A > 1: also a buffer for the result of a reduce-scatter, which is then added to the shard.
 *       zero2: max(P_r, u)/N g; zero3: one view/N g; fsdp: (P_r + 2u)/N g, and none with --accumulate-sharded 0.
 *       fsdp with --reduce real in bf16: in place of that, for any A, buffers for gradients as they travel: the
 *       elements of the gradient buffers times (1 + 1/N) w.
 *       "One view" is the largest view, padded. A model of one layer has u in place of 2u.
 *
 * Methods: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020; Zhao
 * et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.
 */
#pragma once

#include "kernels/kernels.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "base/options.h"
#include "model/params.h"
#include "model/seams.h"

typedef struct {
    const char *strategy;    /* ddp, zero1, zero2, zero3, fsdp, hsdp */
    long shard_size;         /* hsdp: N; 0: half of the ranks */
    long prefetch;           /* fsdp: 1: gather one unit ahead, reduce one behind; 0: wait; ddp: overlap */
    long reshard;            /* fsdp: 1: free gathered layers after each use; 0: keep them to the end of the step */
    long accumulate_sharded; /* fsdp: 1: every micro-step reduces; 0: gradients stay whole, and the last one reduces */
    const char *reduce;      /* fsdp: gradients travel as acc or real */
} ShardingOptions;

/* The groups that a strategy communicates on. */
typedef struct {
    Group *gather, *reduce; /* two groups of the same N ranks: a gather does not wait for a reduction */
    Group *replicate;       /* the ranks that hold the same shards, one from each shard group */
} ShardGroups;

/* The same in numbers, for formulas: the size of a shard group, the number of ranks that hold the same shards, and the
 * groups' names. With SHARD_NOTHING: 1, and all replicas. */
typedef struct {
    int ranks, copies;
    const char *gather, *reduce, *replicate;
} ShardLayout;

typedef struct Sharding Sharding;

/* One strategy. An empty member does nothing. `create` returns the strategy's own state, Sharding.state. */
typedef struct {
    const char *name;
    Placement placement;
    void *(*create)(Sharding *);
    void (*free)(void *state);
    ParameterSeam seam;          /* its functions get the Sharding as self */
    void (*finish)(Sharding *);  /* after the last backward pass: completes the gradients of the shards */
    bool replicates;             /* the strategy sums over the replicas; else sharding_finish does, in one call */
    void (*publish)(Sharding *); /* after the optimizer: all ranks get the owners' new weights */
} Strategy;
extern const Strategy strategy_ddp, strategy_zero1, strategy_zero2, strategy_zero3, strategy_fsdp, strategy_hsdp;

struct Sharding {
    const Strategy *strategy;
    Params *params;
    Kernels kernels;
    ShardGroups groups;
    ShardingOptions options;
    int accumulate;              /* micro-steps in a step */
    const MicroStep *micro_step; /* the one that is running */
    void *state;
};

/* The strategy called `name`; NULL if there is none. */
const Strategy *strategy_find(const char *name);

/* [all ranks of the mesh] Makes the groups: along fsdp and cp twice, and along dp; a placement that shards nothing has
 * its replicas along all three. Ranks along cp compute different rows with the same weights, so they shard these like
 * ranks along fsdp. */
ShardGroups sharding_groups(const Mesh *mesh, ShardBy by);
ShardLayout sharding_layout(Shape shape, ShardBy by);

/* The same for experts that are dealt over ep ranks (mesh.h): the ranks of one copy with the same experts share them. */
ShardGroups sharding_expert_groups(const Mesh *mesh, int ep, ShardBy by);
ShardLayout sharding_expert_layout(Shape shape, int ep, ShardBy by);

/* [all ranks] Allocates the strategy's buffers; sharding_seam then gives the hooks. `params` must be created with the
 * strategy's placement, and initialized. A strategy that keeps whole weights gathers them here for the first time;
 * the ledger does not count that. A step has `accumulate` micro-steps. Sets micro_step->reduces_each. */
Sharding sharding_create(Params *params, MicroStep *micro_step, const Kernels *kernels, ShardGroups groups,
                         ShardingOptions options, int accumulate);
void sharding_free(Sharding *sharding);

/* For model->seams.parameters. `sharding` must not move while the seam is used. */
ParameterSeam sharding_seam(Sharding *sharding);

/* [all ranks] Call after the last backward pass. When it returns, the gradients of each shard are the sum over all
 * ranks. */
void sharding_finish(Sharding *sharding);

/* [all ranks] Call after the optimizer. Strategies that keep whole weights gather the updated shards. */
void sharding_publish(Sharding *sharding);

/* Adds the rules of what ranks hold alike: replicas their shards; a shard group the whole weights, if it keeps them. */
void sharding_replicas(const Sharding *sharding, Replicas *replicas);

/* --- sharding_plan.c, sharding_show.c: flags, formulas and schedule, all from the configuration alone --- */

OptionTable sharding_options(ShardingOptions *options);

/* NULL, or a complaint if the flags do not fit together or do not fit the number of ranks. */
const char *sharding_check(const ShardingOptions *options, int ranks);

/* The grid of ranks: how many are along fsdp and along dp. Call after sharding_check. */
Shape sharding_shape(const ShardingOptions *options, int ranks);

/* Does every micro-step reduce gradients? If not, only the last one does. */
bool sharding_reduces_each(const ShardingOptions *options);

/* Adds this scheme's communication in `steps` steps, and its buffers, to what --ledger expects. `params` is the table
 * of the whole model, or of one rank's slice along tp, or of one rank's experts. */
void sharding_expect(Expected *expected, const Params *params, const ShardingOptions *options, ShardLayout layout,
                     int accumulate, long steps);

/* Prints one step's compute and collectives (--show plan). */
void sharding_show_plan(const ModelConfig *model, const ShardingOptions *options, Shape shape, int accumulate);
