/* The transformer: a Llama / Qwen3 decoder, forward and backward by hand. Read as a single-device program, layer.c
 * first; the seams (seams.h) are the only places where a parallel scheme enters. */
#pragma once

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

/* The activations of one micro-step. One object for each micro-step between its forward and its backward pass: a pipeline
 * has several. */
typedef struct {
    Rows rows;             /* of the micro-step; the caller of model_forward owns them */
    LayerKept *layer;      /* [L] */
    real *x_final;         /* [S, C]  the residual stream after the last layer */
    acc *rstd_final;       /* [S] */
    real *n_final;         /* [S, C] */
    real *logits;          /* [N, V]  after model_loss: their gradient */
    acc *loss;             /* [N] */
    const real *x, *delta; /* during the forward pass: the residual stream after the layers so far, x + delta */
} Activations;

/* What backward passes need for a while; only dx goes from one layer to the next. */
typedef struct {
    real *dx;        /* [S, C]  gradient of the residual stream */
    real *dn;        /* [N, C] */
    real *dqkv;      /* [N, (H+2K) D] */
    real *dattended; /* [N, H D] */
    real *dgate_up;  /* [N, 2F] */
    real *dhidden;   /* [N, F] */
    acc *dot;        /* [N, H] */
    real *embedded;  /* [N, C]  of the forward pass: the embedding */
    real *delta;     /* [N, C]  likewise: what the layer before adds to its x2 */
} Scratch;

/* The gradients of a layer's four products' outputs, kept so that the gradients of its weights can be computed later. */
typedef struct {
    real *ddown;    /* [S, C] */
    real *dgate_up; /* [N, 2F] */
    real *dout;     /* [S, C] */
    real *dqkv;     /* [N, (H+2K) D] */
} LayerGrads;

/* Where a layer's matrices lie in its unit, in elements; the same in every layer. */
typedef struct {
    size_t norm1, norm2, q_norm, k_norm, qkv, o, gate_up, down;
} LayerLayout;

/* What of a model this rank has; zero: everything. */
typedef struct {
    Placement placement;
    bool recompute;
    int stream_parts; /* ranks over which the rows of the residual stream are split; 0 stands for 1 */
    int row_chunks;   /* the scheme multiplies rows in so many parts, for the tuner; 0 stands for 1 */
} ModelPart;

typedef struct {
    ModelConfig whole;  /* the model */
    ModelConfig config; /* this rank's slice of it, along tp: with its own heads, kv heads, ff and tokens */
    int stream_parts;
    Params params;
    Kernels kernels;
    Seams seams;
    MicroStep micro_step;
    int rows_max; /* N at most */
    bool
        recompute; /* keep only x1 of each layer; its backward pass begins with its forward pass once more (Chen et al.,
                     * "Training Deep Nets with Sublinear Memory Cost", 2016) */

    LayerLayout layout;
    size_t embedding, final_norm, head; /* in the root unit; head is embedding when tied */

    acc *rope;                /* [max_seq, D]  cosines | sines */
    Activations *activations; /* of one micro-step; activations_create makes more */
    Scratch scratch;
    double *loss_sum; /* [1]  over the micro-steps since model_zero_grads */
    void *workspace;  /* the kernels' own memory (kernels.h), or NULL */
    size_t workspace_bytes;
} Model;

/* Allocates everything a model needs for micro-steps of at most `rows_max` rows; weights undefined. The second form says
 * what of it this rank has; the first: all. */
Model *model_create(const ModelConfig *config, const Kernels *kernels, int rows_max);
Model *model_create_part(const ModelConfig *config, const Kernels *kernels, int rows_max, ModelPart part);
void model_free(Model *model);

/* Activations beside the model's own, for one more micro-step in flight; the caller frees them before the model. */
Activations *activations_create(const Model *model);
void activations_free(const Model *model, Activations *activations);

/* Call before a step's first micro-step: gradients and loss add up from zero. */
void model_zero_grads(Model *model);

/* Call before each micro-step, the `index`-th, from 0, of the step's `count`. */
void model_begin(Model *model, int index, int count);

/* Computes activations->logits for `rows`, whose arrays the backward pass reads again. */
void model_forward(Model *model, Activations *activations, const Rows *rows);

/* Adds sum over counted rows of -log p(label), times scale, to the step's loss; the logits become their gradient. Call
 * after model_forward. With scale = 1 / (counted labels of the whole step, all ranks and micro-steps) every gradient is a sum:
 * adding up micro-steps and ranks gives the gradient of the mean, however the labels are spread. */
void model_loss(Model *model, Activations *activations, double scale);

/* Adds the gradients of the loss to params.grads. Call after model_loss. */
void model_backward(Model *model, Activations *activations);

/* The loss of this step's rows so far. Waits for the backend: call it once, when everything else is under way. */
double model_read_loss(Model *model);

/* --- the passes in parts: a pipeline stage runs some layers [first, end) ---
 * model_forward is embed, all layers, head; model_backward the same from the end to the start. scratch.dx carries the
 * gradient of the residual stream from one part to the next. */
void model_embed(Model *model, Activations *activations, const Rows *rows);
void model_forward_layers(Model *model, Activations *activations, int first, int end);
void model_forward_head(Model *model, Activations *activations);
void model_backward_head(Model *model, Activations *activations);
void model_backward_layers(Model *model, Activations *activations, int first, int end);
void model_backward_embed(Model *model, Activations *activations);

/* --- layer.c: one layer. The residual stream comes in as a pair: x + delta (delta NULL: just x). --- */

/* Leaves x2 in layer[l].x2 and returns what the feed-forward adds to it, valid until the next call. */
const real *layer_forward(Model *model, Activations *activations, int l, const real *x, const real *delta);

/* scratch.dx enters as the gradient of x2 + delta and leaves as the gradient of the layer's x + delta. */
void layer_backward(Model *model, Activations *activations, int l);

/* The same in two halves: first everything but the gradients of the four matrices, leaving in `later` what these need;
 * then those, at any later time before the activations are used again. Not under recompute. */
void layer_backward_inputs(Model *model, Activations *activations, int l, LayerGrads *later);
void layer_backward_weights(Model *model, Activations *activations, int l, const LayerGrads *later);

LayerGrads layer_grads_create(const Model *model);
void layer_grads_free(LayerGrads *grads);

/* --- linear.c: products of matrices that may be split over ranks (seams.h) --- */

void model_column_forward(Model *model, real *y, const real *x, Linear linear, int rows);
const real *model_column_backward(Model *model, real *dx, const real *dy, const real *x, Linear linear, int rows,
                                  unsigned gradients);
const real *model_row_forward(Model *model, real *y, const real *x, Linear linear, int rows);
void model_row_backward(Model *model, real *dx, const real *dy, const real *x, Linear linear, int rows,
                        unsigned gradients);

/* --- model_memory.c: the buffers --- */

void model_allocate(Model *model);
void model_release(Model *model);
