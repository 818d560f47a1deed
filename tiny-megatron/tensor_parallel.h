/* Tensor parallelism: every layer's matrices are split over the tp ranks of a group. So a layer that is too large, or too
 * slow, for one device runs on several at once. A plain split leaves the residual stream and its norms whole on every rank;
 * sequence parallelism splits them by rows.
 *
 * Why: matrices come in pairs. The first of a pair (QKV; gate and up) is split by column: each rank computes some of the
 * outputs, whole heads or neighbouring features, and needs all of the input. The second (output; down) is split by row: each
 * rank's inputs are the outputs that it computed, and its result is a partial sum of all outputs. So a pair needs one sum
 * over the ranks, and nothing in between.
 *
 * Invariant: outside the split regions all ranks have the same rows (or, under SP, each has its part of the same rows);
 * weights that are not split are the same bits on all of them.
 *
 * Communication per micro-step and rank, for N rows of width C in L layers, w = sizeof(real), each times its factor:
 *
 *   SP off   all-reduce of N C w: in each layer two forward (after the output and down projections) and two backward (of the
 *            gradients of the inputs of QKV and of gate and up); one forward for the embedding, one backward for the head
 *   SP on    the same sums as reduce-scatters, 4 L + 2; and all-gathers of N C w where rows enter a split region: 2 L + 1
 *            forward; 2 L + 1 backward of gradients, and 2 L + 1 of the inputs again, for the gradients of the weights
 *            --recompute: a layer's forward part once more
 *   loss     all-reduce of the largest logit of each row, N acc, and of two sums, 2 N acc: in training, logits never travel
 *
 * Per step: gradients that are partial although the weights are the same: QK-norm always; all norms under SP; K and V on
 * the ranks that share a kv head (tp > kv heads).
 *
 * Memory per rank: a tp-th of every split matrix, its gradients and moments; of activations, a tp-th of what lies between the
 * two matrices of a pair, and under SP of the residual stream and its norms; three scratch buffers [N, C], the loss of each row
 * and RoPE's table stay whole (README has the table). Buffers: 3 N acc for the loss; under SP
 * N C w for gathered rows and 2 (N / tp) C w for results.
 *
 * Methods: Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
 * Models", 2022, for SP; the vocabulary-parallel loss is Megatron-LM's.
 */
#pragma once

#include "kernels/kernels.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "base/options.h"

typedef struct {
    long tp;             /* ranks that share each layer; 0: all of them */
    long sp;             /* 1: sequence parallelism */
    long overlap_chunks; /* under SP: parts in which rows travel while others are multiplied */
} TensorOptions;

enum { CHUNKS_MAX = 16 };

typedef struct {
    Kernels kernels;
    Params *params;
    const MicroStep *micro_step; /* the one under way */
    Group *tp, *kv;              /* the ranks of a layer; those of them that share a kv head (perhaps just this one) */
    bool sp;
    int chunks;
    real *full;             /* [N, C]      SP: rows that were gathered */
    real *summed, *dsummed; /* [N / tp, C] SP: what reduce-scatters leave, forward and backward */
    acc *top, *sums;        /* [N], [2 N]  of the loss */
} TensorParallel;

/* [all ranks of tp] Of the ranks along tp those that share a kv head with this one; perhaps it is alone. */
Group *tensor_kv_group(Group *tp, const ModelConfig *whole);

/* [all ranks of tp] Takes the buffers for micro-steps of at most `rows` rows. */
TensorParallel tensor_create(Model *model, Group *tp, Group *kv, TensorOptions options, int rows);
void tensor_free(TensorParallel *t);

/* For model->seams.features. `t` stays where it is. */
FeatureSeam tensor_seam(TensorParallel *t);

/* For model->seams.parameters, inside the seams that reduce over data-parallel ranks: sums gradients that are partial over
 * tp, in the backward passes that reduce. */
ParameterSeam tensor_parameter_seam(TensorParallel *t);

/* Adds what must be equal on which ranks. */
void tensor_replicas(const TensorParallel *t, Replicas *replicas);

/* --- tensor_plan.c: flags, and what the scheme promises, from the configuration alone --- */

OptionTable tensor_options(TensorOptions *options);

/* Fills in what is not given. Returns NULL or a complaint. */
const char *tensor_check(TensorOptions *options, int ranks);

/* With the model known: NULL, or a complaint about a model, a sequence, or rows of a micro-step, that cannot be cut so. */
const char *tensor_check_model(const TensorOptions *options, const ModelConfig *model, long batch, long seq, long rows);

/* What --ledger expects of `steps` steps of `accumulate` micro-steps of `rows` rows, beside what every trainer has. `reduces`:
 * the backward passes of a step that reduce gradients: 1, or all (seams.h). */
void tensor_expect(Expected *expected, const ModelConfig *model, const TensorOptions *options, int rows, bool recompute,
                   int accumulate, int reduces, long steps);

/* Draws one micro-step of a layer (--show plan). */
void tensor_show_plan(const ModelConfig *model, const TensorOptions *options, Shape shape);
