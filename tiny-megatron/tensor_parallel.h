/* Tensor parallelism: the matrices of every layer are split over the tp ranks of a group. So several devices together
 * run a layer that is too large or too slow for one. A plain split leaves the residual stream and its norms whole on
 * every rank; sequence parallelism (SP) splits them by rows.
 *
 * Why: the first matrix of a pair (QKV; gate and up) is split by column. Each rank computes some of the outputs,
 * which are whole heads or neighbouring features, from the whole input. The second matrix (output; down) is split by
 * row. Its inputs on a rank are the outputs that this rank computed, and its result is a partial sum of all outputs.
 * So a pair of matrices needs one sum over the ranks at its end, and no communication in between.
 *
 * Invariant: outside the split regions all ranks have the same rows; under SP each rank has its own part of these
 * rows. Weights that are not split are the same on all ranks, bit for bit.
 *
 * Communication per micro-step and rank, for N rows of width C in L layers; w = sizeof(real). A rank sends 2
 * (tp-1)/tp of an all-reduce's size, and (tp-1)/tp of an all-gather's or a reduce-scatter's:
 *
 *   SP off   4 L + 2 all-reduces of N C w. In each layer two forward (after the output and down projections) and two
 *            backward (of the gradients of the inputs of QKV and of gate and up). One forward for the embedding, one
 *            backward for the head.
 *   SP on    the same 4 L + 2 sums, as reduce-scatters of N C w; and 6 L + 3 all-gathers of N C w, where rows enter a
 *            split region: 2 L + 1 forward, 2 L + 1 backward of gradients, 2 L + 1 backward of the inputs again, for
 *            the gradients of the weights.
 *            --recompute: 2 L of each kind again, for the layers' second forward pass.
 *   loss     an all-reduce of each row's largest logit, N acc, and one of two sums, 2 N acc. Training sends no logits.
 *
 * Communication per step: sums of gradients that are partial although all ranks of a group hold the same weight.
 * QK-norm always; all other norms under SP; K and V over the ranks that share a kv head (tp > kv heads).
 *
 * Memory per rank: 1/tp of every split matrix, its gradients and moments. Of the activations: 1/tp of those between
 * the two matrices of a pair and of the logits; under SP also 1/tp of the residual stream and its norms. Three
 * scratch buffers [N, C], the loss of each row and RoPE's table stay whole (README has the table). Buffers: 3 N acc
 * for the loss; under SP N C w for gathered rows and 2 (N / tp) C w for the results of reduce-scatters.
 *
 * Methods: Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation Recomputation in Large
 * Transformer Models", 2022, for SP; the vocabulary-parallel loss is Megatron-LM's.
 */
#pragma once

#include "kernels/kernels.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "base/options.h"

typedef struct {
    long tp;             /* ranks that share each layer; 0: all ranks */
    long sp;             /* 1: sequence parallelism */
    long overlap_chunks; /* SP: rows travel in so many chunks; one chunk travels while another is multiplied */
} TensorOptions;

enum { CHUNKS_MAX = 16 };

typedef struct {
    Kernels kernels;
    Params *params;
    const MicroStep *micro_step; /* the one that is running */
    Group *tp, *kv;              /* the ranks that share a layer; those of them that share this rank's kv head */
    bool sp;
    int chunks;
    real *full;             /* [N, C]      SP: gathered rows */
    real *summed, *dsummed; /* [N / tp, C] SP: results of reduce-scatters, forward and backward */
    acc *top, *sums;        /* [N], [2 N]  loss: largest logits; sums of exponentials, logits of labels */
} TensorParallel;

/* [all ranks of tp] The ranks along tp that share a kv head with this rank. A group of one if none does. */
Group *tensor_kv_group(Group *tp, const ModelConfig *whole);

/* [all ranks of tp] Allocates the buffers for micro-steps of at most `rows` rows. */
TensorParallel tensor_create(Model *model, Group *tp, Group *kv, TensorOptions options, int rows);
void tensor_free(TensorParallel *t);

/* For model->seams.features. `t` must not move while the seam is used. */
FeatureSeam tensor_seam(TensorParallel *t);

/* For model->seams.parameters, as the inner seam of a chain: the outer one reduces over data-parallel ranks. Sums
 * gradients that are partial over tp, in the backward passes that reduce. */
ParameterSeam tensor_parameter_seam(TensorParallel *t);

/* Adds the rules of what ranks hold alike: norms along tp, and K and V on ranks that share a kv head. */
void tensor_replicas(const TensorParallel *t, Replicas *replicas);

/* --- tensor_plan.c: the flags, the formulas, and the schedule, all from the configuration alone --- */

OptionTable tensor_options(TensorOptions *options);

/* Fills in --tp if it is not given, and switches SP off if tp is 1. Returns NULL or a complaint. */
const char *tensor_check(TensorOptions *options, int ranks);

/* Call when the model is known. NULL, or a complaint if the model or the sequence cannot be split so, or if a
 * micro-step has too many rows for one collective. */
const char *tensor_check_model(const TensorOptions *options, const ModelConfig *model, long batch, long seq, long rows);

/* Adds this scheme's communication and buffers to what --ledger expects: `steps` steps of `accumulate` micro-steps of
 * `rows` rows. `reduces`: how many backward passes of a step reduce gradients, 1 or all (backward_reduces in
 * seams.h). */
void tensor_expect(Expected *expected, const ModelConfig *model, const TensorOptions *options, int rows, bool recompute,
                   int accumulate, int reduces, long steps);

/* Prints one micro-step's compute and collectives (--show plan). */
void tensor_show_plan(const ModelConfig *model, const TensorOptions *options, Shape shape);
