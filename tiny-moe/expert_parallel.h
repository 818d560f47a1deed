/* Expert parallelism: the experts of each layer are dealt over ranks. A row's copies travel to the ranks of its experts,
 * and the results travel back. All other parameters are replicated, as in data parallelism.
 *
 * Why: a model with many experts has many more weights than one device can hold, but a row uses only k of its E experts.
 *
 * Invariant: every row gets the results of the experts that it chose, on whichever rank these are. No row is dropped
 * unless --capacity says so.
 *
 * ep is not an axis of the mesh: a rank's expert coordinate is rank mod ep. The ranks of one `ep` group, ep neighbours,
 * hold all experts together: rank r of them holds experts [r E/ep, (r + 1) E/ep) of each layer. Ranks with the same
 * coordinate hold the same experts (group "edp"); only they sum the gradients of experts. Dense gradients are summed over
 * all ranks (group "dp").
 *
 * Communication of a rank, per layer and micro-step; S: rows of the micro-step on this rank, w = sizeof(real):
 *
 *   counts    an all-gather of E ints over ep: how many rows of each rank go to each expert
 *   rows      4 all-to-alls of S k C w bytes over ep: to the experts and back, in the forward and in the backward pass.
 *             A rank sends (ep-1)/ep of that to others if all experts get equally many rows.
 *   --recompute: the forward pass's communication twice.
 *
 * Per micro-step an all-reduce of L (E + 1) int64 over all ranks, for the balance of experts (common/model/balance.c).
 * Per step the gradients: dense ones over dp, those of experts over edp.
 *
 * Memory: experts / ep. With --expert-room X a rank has room for X S k rows that go to its experts: activations
 * room (C + 3 F) w for each layer, and once more for gradients. Buffers: room C w for rows that arrive, and `room` ints
 * for each layer, for their order.
 *
 * Methods: Lepikhin et al., "GShard", 2020, for all-to-all; Fedus et al., "Switch Transformers", 2021; Gale et al.,
 * "MegaBlocks", 2022, for dropless experts; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, for the sigmoid router and its bias.
 */
#pragma once

#include "base/options.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "observe/ledger.h"

typedef struct {
    long ep;                                   /* ranks over which the experts are dealt; 0: as many as possible */
    long experts, top_k, expert_ff, shared_ff; /* 0, shared_ff -1: the model's */
    const char *router, *balance;              /* softmax, sigmoid; aux, seq-aux, bias, none; or "": the model's, aux */
    long renormalize;                          /* -1: the model's */
    double aux_coef, bias_rate;                /* -1: the model's */
    double z_loss, capacity;                   /* 0: none */
    double room;                               /* --expert-room; 0: the worst case on a CPU, 2 on a GPU */
    long overlap;                              /* rows travel in two chunks */
} ExpertOptions;

/* The routes of one chunk of rows in one layer: rows that go to each rank of ep, and that come from it. */
typedef struct {
    int *sent, *received; /* [ep]  elements: rows times C */
    int *order;           /* [room]  in the backend's memory: the place of each arriving row among the experts' rows */
    int rows;             /* that arrive */
} Route;

typedef struct {
    Kernels kernels;
    Group *ep;
    int experts, local; /* E, E / ep */
    int top_k, width;
    int chunks, room; /* room: rows that may arrive in each chunk */
    int step_rows;    /* S k / chunks, rounded up: the balanced load */
    Route *route;     /* [layers, chunks] */
    int layers;
    int *counts;   /* [ep, E]  on the host: rows of each rank for each expert */
    int *orders;   /* [layers, chunks, room] */
    real *arrived; /* [chunks, room, C]  rows in order of their ranks */
    Work *work[EXPERT_CHUNKS_MAX];
} ExpertParallel;

/* [all ranks of ep] For models created with a ModelPart of this placement. `rows`: S at most. */
ExpertParallel experts_parallel(Model *model, Group *ep, int rows);
void experts_free(ExpertParallel *p);

/* For model->seams.experts. `p` must not move while the seam is used. */
ExpertSeam experts_seam(ExpertParallel *p);

/* --- expert_plan.c: the flags and the formulas, from the configuration alone --- */

OptionTable experts_options(ExpertOptions *options);

/* Gives the model the experts that the flags ask for. `folder`: that of the model's weights, whose shapes no flag may
 * change; NULL: the weights are drawn. NULL, or a complaint. */
const char *experts_apply(const ExpertOptions *options, ModelConfig *model, const char *folder);

/* Fills in --ep. NULL, or a complaint if the experts cannot be dealt over the ranks. Call when the model is known. */
const char *experts_check(ExpertOptions *options, const ModelConfig *model, int ranks);

/* The placement and the room for experts, for ModelPart. `rows`: of a micro-step on this rank. NULL, or a complaint if the
 * room is more than a collective takes. */
const char *experts_place(const ExpertOptions *options, const ModelConfig *model, bool on_gpu, int rows,
                          ModelPart *part);

/* Adds this scheme's communication and buffers to what --ledger expects: `steps` steps of `accumulate` micro-steps of
 * `rows` rows on this rank. */
void experts_expect(Expected *expected, const ModelConfig *model, const ModelPart *part, int rows, int accumulate,
                    long steps);

/* Prints one layer's compute and collectives (--show plan). `gradients`: how the trainer sums them. */
void experts_show_plan(const ModelConfig *model, const ExpertOptions *options, const char *gradients);

/* Prints how many rows chose each expert, and how many choices --capacity dropped (--ledger). Call on one rank: the
 * counts are those of all. */
void experts_print_load(const Model *model);
