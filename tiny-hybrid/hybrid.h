/* All schemes at once. This folder holds no scheme of its own: it links the modules of the other folders and says in which
 * order they act, on which groups of ranks, and what each rank holds.
 *
 *   parameters   FSDP (or another strategy of tiny-fsdp) shards all weights but the experts over fsdp x cp, and sums over dp;
 *                the same module, a second time, shards experts over the ranks of a replica that hold the same ones
 *   features     tiny-megatron splits matrices over tp, and the rows between them
 *   sequence     tiny-cp cuts sequences over cp
 *   experts      tiny-moe deals experts over ep neighbours
 *
 * Ranks are numbered tp, cp, fsdp, dp, fastest first. A replica is tp x cp x fsdp neighbours: they hold one copy of the
 * model. ep is not an axis: a rank's expert coordinate is rank mod ep.
 *
 * The order of the parameter hooks, when a unit's backward pass is done: the experts' sharding reduces the experts'
 * gradients; tensor parallelism sums gradients that are partial over tp; the dense sharding reduces the others. The last
 * two must run in this order, because after the dense sharding a rank has no whole gradient of the unit any more. The
 * experts have gradients of their own, so their place is free.
 *
 * Which rank holds what, for 8 ranks, fsdp 2 x cp 2 x tp 2, ep 4 (w: a weight outside the experts):
 *
 *   rank                     0        1        2        3        4        5        6        7
 *   tp cp fsdp              0 0 0    1 0 0    0 1 0    1 1 0    0 0 1    1 0 1    0 1 1    1 1 1
 *   w, split along tp       half 0   half 1   half 0   half 1   half 0   half 1   half 0   half 1
 *     a shard of it         1 of 4   1 of 4   2 of 4   2 of 4   3 of 4   3 of 4   4 of 4   4 of 4
 *   of 8 experts            0 1      2 3      4 5      6 7      0 1      2 3      4 5      6 7
 *     a shard of them       1 of 2   1 of 2   1 of 2   1 of 2   2 of 2   2 of 2   2 of 2   2 of 2
 *
 * Communication, memory: the sums of the schemes' formulas, in their headers.
 */
#pragma once

#include "context_parallel.h"
#include "expert_parallel.h"
#include "sharding.h"
#include "tensor_parallel.h"

typedef struct {
    long dp, fsdp; /* 0: dp 1; fsdp all ranks that are left */
    ShardingOptions sharding;
    TensorOptions tensor;
    ContextOptions context;
    ExpertOptions experts;
} HybridOptions;

enum { HYBRID_TABLES = 5 };

/* The groups of this rank that the schemes communicate on. */
typedef struct {
    ShardGroups dense, same_experts;
    Group *tp, *kv, *ep;
    ContextGroups context;
} HybridGroups;

typedef struct {
    TensorParallel tensor;
    ContextParallel context;
    ExpertParallel experts;
    Sharding dense, expert_shards; /* expert_shards: not used without experts */
    bool has_experts;
    SeamChain chain[2];
} Hybrid;

/* [all ranks of the mesh] `model`: the whole one's constants. */
HybridGroups hybrid_groups(const Mesh *mesh, const HybridOptions *options, const ModelConfig *model);

/* [all ranks of the mesh] Creates the schemes and plugs them into the model, which was created with hybrid_part. A
 * step has `accumulate` micro-steps of `rows` rows on this rank. `hybrid` must not move while the model is used. */
void hybrid_plug(Hybrid *hybrid, Model *model, HybridGroups groups, const HybridOptions *options, DataOrder order,
                 int rows, int accumulate);
void hybrid_free(Hybrid *hybrid);

/* [all ranks] Call after the last backward pass: completes the gradients of this rank's shards. */
void hybrid_finish(Hybrid *hybrid);

/* [all ranks] Call after the optimizer: strategies that keep whole weights gather the updated shards. */
void hybrid_publish(Hybrid *hybrid);

/* Adds the rules of all schemes of what ranks hold alike. */
void hybrid_replicas(const Hybrid *hybrid, Replicas *replicas);

/* --- hybrid_plan.c: flags, checks, formulas, pictures, from the configuration alone --- */

/* Fills table[HYBRID_TABLES] with the flags of the mesh and of the four schemes. */
void hybrid_options(HybridOptions *options, OptionTable *table);

/* Fills in the sizes of the mesh that are not given, all but ep. NULL, or a complaint. */
const char *hybrid_check(HybridOptions *options, int ranks);
Shape hybrid_shape(const HybridOptions *options);

/* Call when the model is known. Gives it the experts that the flags ask for, and fills in ep. NULL, or a complaint if the
 * schemes cannot cut the model, the sequence or a micro-step of `rows` rows on this rank in this way. `folder`: as in
 * experts_apply. */
const char *hybrid_check_model(HybridOptions *options, ModelConfig *model, const char *folder, long batch, long seq,
                               int rows);

/* What a rank holds. NULL, or a complaint if experts need more room than a collective takes. */
const char *hybrid_part(const HybridOptions *options, const ModelConfig *model, bool on_gpu, int rows, ModelPart *part);

/* Adds the schemes' communication and buffers to what --ledger expects: `steps` steps of `accumulate` micro-steps of
 * `rows` rows on this rank. */
void hybrid_expect(Expected *expected, const ModelConfig *model, const HybridOptions *options, const ModelPart *part,
                   DataOrder order, int rows, int accumulate, long steps);

/* Prints the mesh: the coordinates of each rank, and which groups there are, and what each carries. */
void hybrid_show_mesh(const ModelConfig *model, const HybridOptions *options);

/* [all ranks] Prints, on rank 0, the payload of its groups by scheme and axes, beside what the formulas say (--ledger). */
void hybrid_print_schemes(const Expected *expected, bool rank0);

/* Prints the schemes' schedules one after the other (--show plan). */
void hybrid_show_plan(const ModelConfig *model, const HybridOptions *options, DataOrder order, int accumulate);
