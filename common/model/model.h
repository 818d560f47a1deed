/* The transformer: a Llama / Qwen3 decoder, with forward and backward passes written by hand. It reads as a
 * single-device program; begin with layer.c. A parallel scheme enters at the seams (seams.h) only. */
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"
#include "model/params.h"
#include "model/seams.h"

/* What a layer keeps from its forward pass for its backward pass. With --recompute each layer keeps its own x1, and
 * all layers share one set of the other buffers.
 * N: rows of the micro-step. S = N / stream_parts: rows of the residual stream that this rank keeps. H, K, F: this
 * rank's heads, kv heads and feed-forward features; under tensor parallelism these are fewer than the model's. */
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

/* The activations of one micro-step, from its forward pass to its backward pass. A pipeline has several micro-steps
 * in flight, so it needs several of these. */
typedef struct {
    Rows rows;             /* of the micro-step; the caller of model_forward owns their arrays */
    LayerKept *layer;      /* [L] */
    real *x_final;         /* [S, C]  the residual stream after the last layer */
    acc *rstd_final;       /* [S] */
    real *n_final;         /* [S, C] */
    real *logits;          /* [N, V]  model_loss overwrites them with their gradient */
    acc *loss;             /* [N] */
    const real *x, *delta; /* during the forward pass: x + delta is the residual stream after the layers done so far */
} Activations;

/* Scratch buffers that all layers use in turn. Only dx carries a value from one layer's backward pass to the next. */
typedef struct {
    real *dx;        /* [S, C]  gradient of the residual stream */
    real *dn;        /* [N, C] */
    real *dqkv;      /* [N, (H+2K) D] */
    real *dattended; /* [N, H D] */
    real *dgate_up;  /* [N, 2F] */
    real *dhidden;   /* [N, F] */
    acc *dot;        /* [N, H] */
    real *embedded;  /* [N, C]  forward pass: the embeddings of the tokens */
    real *delta;     /* [N, C]  forward pass: what the last product adds to the residual stream */
} Scratch;

/* The gradients of the outputs of a layer's four products. layer_backward_inputs leaves them here, and
 * layer_backward_weights computes the gradients of the weights from them. */
typedef struct {
    real *ddown;    /* [S, C] */
    real *dgate_up; /* [N, 2F] */
    real *dout;     /* [S, C] */
    real *dqkv;     /* [N, (H+2K) D] */
} LayerGrads;

/* Where each weight lies in its layer's unit, in elements. All layers have the same layout. */
typedef struct {
    size_t norm1, norm2, q_norm, k_norm, qkv, o, gate_up, down;
} LayerLayout;

/* Which part of the model this rank has. All zero: the whole model. */
typedef struct {
    Placement placement;
    bool recompute;
    int stream_parts; /* ranks over which the rows of the residual stream are split; 0 means 1 */
    int row_chunks;   /* chunks of rows that the scheme multiplies one by one; --autotune measures that; 0 means 1 */
} ModelPart;

typedef struct {
    ModelConfig whole;  /* the constants of the whole model */
    ModelConfig config; /* those of this rank's slice along tp: its heads, kv heads, ff and tokens */
    int stream_parts;
    Params params;
    Kernels kernels;
    Seams seams;
    MicroStep micro_step;
    int rows_max; /* N at most */
    /* Each layer keeps x1 only. Its backward pass first runs the forward pass again (Chen et al., "Training Deep Nets
     * with Sublinear Memory Cost", 2016). */
    bool recompute;

    LayerLayout layout;
    size_t embedding, final_norm, head; /* offsets in the root unit; with tied embeddings head = embedding */

    acc *rope;                /* [max_seq, D]  cosines | sines */
    Activations *activations; /* for one micro-step; activations_create makes more */
    Scratch scratch;
    double *loss_sum; /* [1]  of all micro-steps since model_zero_grads, on this rank */
    void *workspace;  /* scratch memory of the kernels (kernels.h), or NULL */
    size_t workspace_bytes;
} Model;

/* Allocates all that a model needs for micro-steps of at most `rows_max` rows. The weights are undefined.
 * model_create makes the whole model, model_create_part only the part that this rank has. */
Model *model_create(const ModelConfig *config, const Kernels *kernels, int rows_max);
Model *model_create_part(const ModelConfig *config, const Kernels *kernels, int rows_max, ModelPart part);
void model_free(Model *model);

/* Activations for one more micro-step in flight, beside the model's own. The caller frees them before the model. */
Activations *activations_create(const Model *model);
void activations_free(const Model *model, Activations *activations);

/* Sets the gradients and the loss to zero. Call before the first micro-step of each step. */
void model_zero_grads(Model *model);

/* Call before each micro-step: it is number `index`, from 0, of the `count` micro-steps of this step. */
void model_begin(Model *model, int index, int count);

/* Computes activations->logits for `rows`. The backward pass reads the arrays of `rows` again, so keep them until
 * then. */
void model_forward(Model *model, Activations *activations, const Rows *rows);

/* Adds scale * (sum over counted rows of -log p(label)) to the step's loss, and overwrites the logits with their
 * gradient. Call after model_forward. scale = 1 / (counted labels of the whole step, over all ranks and micro-steps).
 * So the sum of the gradients over micro-steps and ranks is the gradient of the mean loss, even if ranks have
 * different numbers of labels. */
void model_loss(Model *model, Activations *activations, double scale);

/* Adds the gradients of the loss to each unit's grads. Call after model_loss. */
void model_backward(Model *model, Activations *activations);

/* The loss of this rank's rows since model_zero_grads. It waits for the GPU, so call it once a step, after all other
 * work has been launched. */
double model_read_loss(Model *model);

/* --- the passes in parts: a pipeline stage runs layers [first, end) only --- model_forward runs embed, all layers,
 * head. model_backward runs head, all layers, embed. scratch.dx carries the gradient of the residual stream from one
 * part to the next. */
void model_embed(Model *model, Activations *activations, const Rows *rows);
void model_forward_layers(Model *model, Activations *activations, int first, int end);
void model_forward_head(Model *model, Activations *activations);
void model_backward_head(Model *model, Activations *activations);
void model_backward_layers(Model *model, Activations *activations, int first, int end);
void model_backward_embed(Model *model, Activations *activations);

/* --- layer.c: one layer. Its input is a pair, x + delta; delta NULL means zero. --- */

/* Leaves x2 in layer[l].x2, and returns what the feed-forward adds to it. The result is valid until the next call. */
const real *layer_forward(Model *model, Activations *activations, int l, const real *x, const real *delta);

/* Before the call, scratch.dx is the gradient of the layer's output; after it, of the layer's input. */
void layer_backward(Model *model, Activations *activations, int l);

/* The same in two halves. layer_backward_inputs computes all but the gradients of the four matrices, and leaves in
 * `later` what these need. layer_backward_weights computes them later, before the activations are used again. Not
 * with recompute. */
void layer_backward_inputs(Model *model, Activations *activations, int l, LayerGrads *later);
void layer_backward_weights(Model *model, Activations *activations, int l, const LayerGrads *later);

LayerGrads layer_grads_create(const Model *model);
void layer_grads_free(LayerGrads *grads);

/* --- linear.c: products with matrices that may be split over ranks (seams.h has the shapes) --- */

void model_column_forward(Model *model, real *y, const real *x, Linear linear, int rows);
const real *model_column_backward(Model *model, real *dx, const real *dy, const real *x, Linear linear, int rows,
                                  unsigned gradients);
const real *model_row_forward(Model *model, real *y, const real *x, Linear linear, int rows);
void model_row_backward(Model *model, real *dx, const real *dy, const real *x, Linear linear, int rows,
                        unsigned gradients);

/* --- model_memory.c: the buffers --- */

void model_allocate(Model *model);
void model_release(Model *model);
