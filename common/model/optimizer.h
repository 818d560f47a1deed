/* AdamW and SGD on this rank's shards, gradient clipping by the global norm, and the schedule of the learning rate. */
#pragma once

#include "kernels/kernels.h"
#include "model/params.h"

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD } OptimizerKind;

typedef struct {
    OptimizerKind kind;
    double lr;           /* the peak */
    long warmup, steps;  /* the rate rises linearly for `warmup` steps, then falls as a cosine to lr / 10 at `steps` */
    double weight_decay; /* decoupled; matrices only, vectors are not decayed */
    double clip;         /* the largest allowed norm of the whole gradient; 0: no clipping */
    double beta1, beta2, eps;
} OptimizerConfig;

typedef struct {
    OptimizerConfig config;
    Kernels kernels;
    acc *m, *v;           /* [held]  AdamW's moments of this rank's shards of the model; NULL for SGD */
    StepScalars *scalars; /* [1] */
} Optimizer;

/* Allocates the state for this rank's shards of the model: for AdamW 2 * held * sizeof(acc) bytes, set to zero; for SGD nothing.
 * Both also hold the scalars. */
Optimizer optimizer_create(OptimizerConfig config, const Params *params, const Kernels *kernels);
void optimizer_free(Optimizer *optimizer);

/* The learning rate of step `step`; the first is 0. */
double optimizer_lr(const OptimizerConfig *config, long step);

/* [all ranks of the placement's model_group] Prepares step `step` (from 0): computes its learning rate, and sums the
 * squares of all gradients of the model. Each element counts once, also where several ranks hold it. */
void optimizer_measure(Optimizer *optimizer, const Params *params, long step);

/* Updates the weights of this rank's shards. Gradients are scaled down first so that their global norm is at most
 * `clip`. If the norm is not finite, the weights stay as they are. Call after optimizer_measure. The formulas are
 * those of torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW. */
void optimizer_step(Optimizer *optimizer, Params *params);

/* The norm that optimizer_measure computed. It waits for the GPU. */
double optimizer_read_norm(const Optimizer *optimizer);
