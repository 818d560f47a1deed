/* Sharded data parallel: every rank trains on its own rows, as in tiny-ddp. But each of N ranks keeps only its shard of the
 * optimizer state (zero1), of the gradients too (zero2), of the parameters too (zero3, fsdp). hsdp shards within groups of N
 * ranks, and every group holds a copy.
 *
 * Why: tiny-ddp holds N equal copies of everything, and one would do. A rank gathers a weight when it needs it. The sum of a
 * gradient need only reach the rank that updates the weight.
 *
 * Invariant: between steps each element of the model has one owner among the N ranks of a shard group. The owner holds its
 * master weight, its gradient and its moments. A step does three things: an all-gather brings the owners' weights to all
 * ranks, a reduce-scatter brings the sum of all ranks' gradients to the owner, and the owner updates.
 *
 * Communication per step and rank, times (N-1)/N. Letters here: N ranks of a shard group, M groups; P elements, of which P_r
 * in the root unit and P_l in layers; A micro-steps; w = sizeof(real), g = sizeof(acc). Sizes are padded to N parts of whole
 * multiples of SHARD_ALIGN elements:
 *
 *            all-gather on `gather`              reduce-scatter on `reduce`
 *   zero1    P w                 in 1 call       P g      in 1 call
 *   zero2    P w                 a unit each     A P g    a unit each
 *   zero3    A (P_r + 2 P_l) w   a view each     A P g    a view each
 *   fsdp     A (P_r + 2 P_l) w   a unit each     A P g    a unit each
 *            --reshard 0: P w                    --accumulate-sharded 0: P g
 *   hsdp     as fsdp, and a shard of P g is all-reduced on `dp` over the M groups, a unit each (times 2 (M-1)/M)
 *
 * zero1 and zero2 gather after the optimizer, the others before use.
 *
 * Memory per rank, s = P/N, u = the largest layer (zero3: P_r and u not padded); m = g in bf16, where master weights are
 * apart, else 0:
 *
 *            parameters    gradients   AdamW    buffers
 *   ddp      P (w + m)     P g         2 P g
 *   zero1    P w + s m     P g + s g   2 s g
 *   zero2    P w + s m     s g         2 s g    (P_r + u) g                          (*)
 *   zero3    s (w + m)     s g         2 s g    (P_r + u)(w + g) + one view (w + g)  (*)
 *   fsdp     s (w + m)     s g         2 s g    (P_r + 2u)(w + g)                    (*)
 *            --reshard 0: P w for weights; --accumulate-sharded 0: P g for gradients, where fsdp has P_r + 2u
 *   (*) with A > 1 also, for the sums that are added to the shard, an N-th of the units (zero3: view) whose gradients are there;
 *       --reduce real: the same gradients and sums once more, as they travel. A model of one layer has u where it says 2u
 *
 * Methods: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020; Zhao et al.,
 * "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.
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
    long prefetch;           /* fsdp: gather one unit ahead, reduce behind; 0: wait for each at once */
    long reshard;            /* fsdp: give gathered layers back after each use; 0: keep them to the end of the step */
    long accumulate_sharded; /* fsdp: reduce in every micro-step; 0: keep whole gradients and reduce in the last */
    const char *reduce;      /* fsdp: gradients travel as acc or real */
} ShardingOptions;

/* The groups that a strategy communicates over. */
typedef struct {
    Group *gather, *reduce; /* the N ranks of a shard group, twice: gathers and reductions run side by side */
    Group *replicate;       /* the ranks that hold the same shard, one from each shard group */
} ShardGroups;

typedef struct Sharding Sharding;

/* One strategy. A member that is NULL does nothing. `state` belongs to the strategy. */
typedef struct {
    const char *name;
    Placement placement;
    void *(*create)(Sharding *);
    void (*free)(void *state);
    ParameterSeam seam;          /* with a Sharding as self */
    void (*finish)(Sharding *);  /* after the last backward pass: gradients reach their owners */
    bool replicates;             /* it sums over the replicas itself, as shards get ready; else sharding_finish does */
    void (*publish)(Sharding *); /* after the optimizer: weights reach all ranks */
} Strategy;
extern const Strategy strategy_ddp, strategy_zero1, strategy_zero2, strategy_zero3, strategy_fsdp, strategy_hsdp;

struct Sharding {
    const Strategy *strategy;
    Params *params;
    Kernels kernels;
    ShardGroups groups;
    ShardingOptions options;
    int accumulate;              /* micro-steps in a step */
    const MicroStep *micro_step; /* the one under way */
    void *state;
};

/* NULL if there is no such strategy. */
const Strategy *strategy_find(const char *name);

/* [all ranks of the mesh] */
ShardGroups sharding_groups(const Mesh *mesh);

/* [all ranks] Takes the buffers, plugs nothing in. `params` were created under the strategy's placement and drawn; where
 * whole weights are kept, they are gathered here for the first time, not counted. Steps have `accumulate` micro-steps. */
Sharding sharding_create(Params *params, MicroStep *micro_step, const Kernels *kernels, ShardGroups groups,
                         ShardingOptions options, int accumulate);
void sharding_free(Sharding *sharding);

/* For model->seams.parameters. `sharding` stays where it is. */
ParameterSeam sharding_seam(Sharding *sharding);

/* [all ranks] Call after the last backward pass: then each shard's gradients are complete. */
void sharding_finish(Sharding *sharding);

/* [all ranks] Call after the optimizer. */
void sharding_publish(Sharding *sharding);

/* Adds what must be equal on which ranks. */
void sharding_replicas(const Sharding *sharding, Replicas *replicas);

/* --- sharding_plan.c, sharding_show.c: the flags, and what the strategies promise, from the configuration alone --- */

OptionTable sharding_options(ShardingOptions *options);

/* NULL, or a complaint about flags that do not go together, with this many ranks. */
const char *sharding_check(const ShardingOptions *options, int ranks);

/* How many ranks along fsdp and dp. Call after sharding_check. */
Shape sharding_shape(const ShardingOptions *options, int ranks);

/* Does every micro-step reduce, rather than only the last? */
bool sharding_reduces_each(const ShardingOptions *options);

/* What --ledger expects of `steps` steps, beside what every trainer has. `params`: the table of the model, or of a slice of
 * it along tp. */
void sharding_expect(Expected *expected, const Params *params, const ShardingOptions *options, Shape shape,
                     int accumulate, long steps);

/* Draws one step's compute and collectives (--show plan). */
void sharding_show_plan(const ModelConfig *model, const ShardingOptions *options, Shape shape, int accumulate);
