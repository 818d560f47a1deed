/* The transformer: a Llama / Qwen3 decoder, forward and backward by hand. Read as a single-device program, layer.c
 * first; the seams (seams.h) are the only places where a parallel scheme enters. */
#pragma once

#include "data/data.h"
#include "kernels/kernels.h"
#include "model/model_config.h"
#include "model/params.h"
#include "model/seams.h"

/* What a layer keeps from its forward pass for its backward pass. Under recompute all layers share all but x1. S = N /
 * stream_parts: rows of the residual stream that this rank keeps; H, K, F are its own, where layers are split. */
typedef struct {
    real *x1;       /* [S, C]         the residual stream where the layer begins */
    acc *rstd1;     /* [S] */
    real *n1;       /* [S, C]         norm(x1) */
    real *qkv;      /* [N, (H+2K) D]  q, k, v side by side, after QK-norm and RoPE */
    real *raw;      /* [N, (H+K) D]   q, k before QK-norm; NULL without it */
    acc *raw_rstd;  /* [N, H+K] */
    real *attended; /* [N, H D] */
    acc *lse;       /* [N, H]         log of the softmax's denominators */
    real *x2;       /* [S, C]         the residual stream after attention */
    acc *rstd2;     /* [S] */
    real *n2;       /* [S, C]         norm(x2) */
    real *gate_up;  /* [N, 2F] */
    real *hidden;   /* [N, F]         silu(gate) up */
} LayerKept;

/* What backward passes need for a while; only dx goes from one layer to the next. */
typedef struct {
    real *dx;        /* [S, C]  gradient of the residual stream */
    real *dn;        /* [N, C] */
    real *dqkv;      /* [N, (H+2K) D] */
    real *dattended; /* [N, H D] */
    real *dgate_up;  /* [N, 2F] */
    real *dhidden;   /* [N, F] */
    acc *dot;        /* [N, H] */
} Scratch;

/* Where a layer's matrices lie in its unit, in elements; the same in every layer. */
typedef struct {
    size_t norm1, norm2, q_norm, k_norm, qkv, o, gate_up, down;
} LayerLayout;

/* What of a model this rank has; zero: everything. */
typedef struct {
    Holding holding;
    bool recompute;
    int stream_parts; /* ranks over which the rows of the residual stream are split; 0 stands for 1 */
} ModelPart;

typedef struct {
    ModelConfig whole;  /* the model */
    ModelConfig config; /* this rank's slice of it, along tp: with its own heads, kv heads, ff and tokens */
    int stream_parts;
    Params params;
    Kernels kernels;
    Seams seams;
    int rows_max; /* N at most */
    bool
        recompute; /* keep only x1 of each layer; its backward pass begins with its forward pass once more (Chen et al.,
                     * "Training Deep Nets with Sublinear Memory Cost", 2016) */

    LayerLayout layout;
    size_t embedding, final_norm, head; /* in the root unit; head is embedding when tied */

    acc *rope;        /* [max_seq, D]  cosines | sines */
    LayerKept *layer; /* [L] */
    Scratch scratch;
    real *embedded;   /* [N, C] */
    real *delta;      /* [N, C]  what the layer before added to its x2 */
    real *x_final;    /* [S, C]  the residual stream after the last layer */
    acc *rstd_final;  /* [S] */
    real *n_final;    /* [S, C] */
    real *logits;     /* [N, V]  after model_loss: their gradient */
    acc *loss;        /* [N] */
    double *loss_sum; /* [1]  over the micro-steps since model_zero_grads */
    void *workspace;  /* the kernels' own memory (kernels.h), or NULL */
    size_t workspace_bytes;
} Model;

/* Allocates everything a model needs for micro-steps of at most `rows_max` rows; weights undefined. The second form says
 * what of it this rank has; the first: all. */
Model *model_create(const ModelConfig *config, const Kernels *kernels, int rows_max);
Model *model_create_part(const ModelConfig *config, const Kernels *kernels, int rows_max, ModelPart part);
void model_free(Model *model);

/* Call before a step's first micro-step: gradients and loss add up from zero. */
void model_zero_grads(Model *model);

/* Computes model->logits for `rows`. */
void model_forward(Model *model, const Rows *rows);

/* Adds sum over counted rows of -log p(label), times scale, to the step's loss; the logits become their gradient. Call
 * after model_forward. With scale = 1 / (counted labels of the whole step, all ranks and micro-steps) every gradient is a sum:
 * adding up micro-steps and ranks gives the gradient of the mean, whoever held how many labels. */
void model_loss(Model *model, const Rows *rows, double scale);

/* Adds the gradients of the loss to params.grads. Call after model_loss, with the same rows. */
void model_backward(Model *model, const Rows *rows);

/* The loss of this step's rows so far. Waits for the backend: call it once, when everything else is under way. */
double model_read_loss(Model *model);

/* --- layer.c: one layer. The residual stream comes in as a pair: x + delta (delta NULL: just x). --- */

/* Leaves x2 in layer[l].x2 and returns what the feed-forward adds to it, valid until the next call. */
const real *layer_forward(Model *model, int l, const real *x, const real *delta, const Rows *rows);

/* y = x w^T and its gradients, of a matrix that is split by column (seams.h). */
void model_column_forward(Model *model, real *y, const real *x, const real *w, int rows, int in, int out);
const real *model_column_backward(Model *model, real *dx, acc *dw, const real *dy, const real *x, const real *w,
                                  int rows, int in, int out);

/* scratch.dx enters as the gradient of x2 + delta and leaves as the gradient of the layer's x + delta. */
void layer_backward(Model *model, int l, const Rows *rows);
