/* AdamW and SGD over the flat buffers, clipping by the global norm, and the learning rate's schedule. */
#pragma once

#include "kernels/kernels.h"
#include "model/params.h"

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD } OptimizerKind;

typedef struct {
    OptimizerKind kind;
    double lr;           /* the peak */
    long warmup, steps;  /* linear rise over `warmup` steps, then a cosine to a tenth of the peak at `steps` */
    double weight_decay; /* of matrices, decoupled; vectors are never decayed */
    double clip;         /* largest global norm of the gradient; 0: no clipping */
    double beta1, beta2, eps;
} OptimizerConfig;

typedef struct {
    OptimizerConfig config;
    Kernels kernels;
    acc *m, *v;           /* [held]  AdamW's moments of this rank's shards; NULL for SGD */
    StepScalars *scalars; /* [1] */
} Optimizer;

/* State for `params`: 2 * held * sizeof(acc) bytes, zeroed, for AdamW, none for SGD; and the scalars. */
Optimizer optimizer_create(OptimizerConfig config, const Params *params, const Kernels *kernels);
void optimizer_free(Optimizer *optimizer);

/* Learning rate of step 0, 1, ... */
double optimizer_lr(const OptimizerConfig *config, long step);

/* [all ranks of the parameters' model_group] Prepares step `step` (from 0): its learning rate, and the sum of the squares of
 * all gradients of the model, each counted once. */
void optimizer_measure(Optimizer *optimizer, const Params *params, long step);

/* Updates the weights from the gradients, scaled down so that their norm is at most `clip`. Call after
 * optimizer_measure. As torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW compute it. */
void optimizer_step(Optimizer *optimizer, Params *params);

/* The norm that optimizer_measure found. Waits for the backend. */
double optimizer_read_norm(const Optimizer *optimizer);
