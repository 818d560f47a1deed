/* The transformer: a Llama / Qwen3 decoder, with forward and backward passes written by hand. It reads as a
 * single-device program; begin with layer.c. A parallel scheme enters at the seams (seams.h) only. */
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"
#include "model/params.h"
#include "model/seams.h"

enum { EXPERT_CHUNKS_MAX = 2 };

/* What a feed-forward of experts keeps for its backward pass (moe.c). S as in LayerKept below; room: rows for which this
 * rank's experts have room in a chunk. All NULL in a dense model. */
typedef struct {
    real *logits;                    /* [S, E]  the router's */
    int *choice;                     /* [S, k]  the experts of each row */
    acc *weight;                     /* [S, k]  what their results are multiplied by */
    int *slot;                       /* [S, k]  where the row's copies lie among the chunk's slots */
    int *first;                      /* [chunks, E + 1]  the slots of each expert */
    int *expert_first;               /* [chunks, local experts + 1]  the rows of each expert of this rank */
    real *x;                         /* [chunks, room, C]  the rows that reached this rank's experts */
    real *gate_up;                   /* [chunks, room, 2F] */
    real *hidden;                    /* [chunks, room, F] */
    real *results;                   /* [S, k, C]  the experts' results, in slots */
    int received[EXPERT_CHUNKS_MAX]; /* how many rows of x there are in each chunk */
} MoeKept;

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
    MoeKept moe;
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
    /* with experts, else NULL; the last four, and slots and rows, as in MoeKept */
    real *slots;       /* [S, k, C]        rows, or their gradients, on the way to the experts */
    real *expert_rows; /* [chunks, room, C]  results of this rank's experts, or gradients; NULL if no row travels */
    real *dexpert_gate_up, *dexpert_hidden;
    real *dlogits;      /* [S, E] */
    acc *dweight, *aux; /* [S, k], [S] */
    acc *slope;         /* [1, E], or with BALANCE_SEQ_AUX [sequences, E]; room for [S, E] */
} Scratch;

/* The router's numbers of all layers: how many rows chose each expert, and what follows from it (balance.c). */
typedef struct {
    Group *group;     /* the ranks with different rows, over which counts are summed; NULL: this rank has all rows */
    double rows;      /* of a micro-step, on all ranks */
    double sequences; /* likewise */
    int seq;          /* rows of a sequence */
    int64_t *count; /* [L, E + 1]  choices of each expert in this micro-step, by this rank's rows; last, dropped ones */
    int64_t *summed; /* [L, E + 1]  the same on all ranks */
    int64_t *total;  /* [L, E + 1]  `summed` added up over the step's micro-steps */
    int64_t *load;   /* [L, E + 1]  `summed` added up over all steps, on the host */
    acc *bias;       /* [L, E]  BALANCE_BIAS: what the choice adds to the scores; else NULL */
    double *aux_sum; /* [1]  auxiliary losses of all micro-steps since model_zero_grads, of this rank's rows */

    /* If set: called when layer l has made the choices [rows, k] of this rank's rows. Returns NULL, or other choices, which
     * the rows then follow; both lie in the backend's memory (observe/routes.h). */
    const int *(*chosen)(void *self, int l, const int *choice, int rows);
    void *self;
} Router;

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
    size_t norm1, norm2, q_norm, k_norm, qkv, o, gate_up, down, router;
    size_t expert_gate_up, expert_down; /* in the unit of experts */
} LayerLayout;

/* Which part of the model this rank has. All zero: the whole model. */
typedef struct {
    Placement placement;
    bool recompute;
    int stream_parts; /* ranks over which the rows of the residual stream are split; 0 means 1 */
    int row_chunks;   /* chunks of rows that the scheme multiplies one by one; --autotune measures that; 0 means 1 */

    Placement experts; /* of the experts; the rest of the model lies as `placement` says */
    int expert_rows;   /* rows for which this rank's experts have room in a chunk; 0: all of its own rows */
    int expert_chunks; /* chunks in which a micro-step's rows go to their experts; 0 means 1 */
} ModelPart;

typedef struct {
    ModelConfig whole;  /* the constants of the whole model */
    ModelConfig config; /* those of this rank's slice along tp: its heads, kv heads, ff and tokens */
    int stream_parts;
    Params params; /* all but the experts; params.next are the experts, if the model has any */
    Params experts;
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
    Router router;
    int expert_rows, expert_chunks; /* as in ModelPart; at least 1 */
    double *loss_sum;               /* [1]  of all micro-steps since model_zero_grads, on this rank */
    void *workspace;                /* scratch memory of the kernels (kernels.h), or NULL */
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
 * gradient. With experts, also sums their counts over the ranks with different rows [all ranks of router.group]. Call
 * after model_forward. scale = 1 / (counted labels of the whole step, over all ranks and micro-steps).
 * So the sum of the gradients over micro-steps and ranks is the gradient of the mean loss, even if ranks have
 * different numbers of labels. */
void model_loss(Model *model, Activations *activations, double scale);

/* Adds the gradients of the loss to each unit's grads. Call after model_loss. */
void model_backward(Model *model, Activations *activations);

/* The loss of this rank's rows since model_zero_grads. It waits for the GPU, so call it once a step, after all other
 * work has been launched. */
double model_read_loss(Model *model);

/* [all ranks of router.group] With experts: the auxiliary losses of all ranks' rows since model_zero_grads; else 0. Call
 * after the last backward pass. */
double model_read_aux(Model *model);

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
 * with recompute, and not with experts. */
void layer_backward_inputs(Model *model, Activations *activations, int l, LayerGrads *later);
void layer_backward_weights(Model *model, Activations *activations, int l, const LayerGrads *later);

LayerGrads layer_grads_create(const Model *model);
void layer_grads_free(LayerGrads *grads);

/* --- moe.c: the feed-forward of a layer with experts --- */

/* Returns what the feed-forward adds to the residual stream, [S, C]; layer[l].n2 is its input. */
const real *moe_forward(Model *model, Activations *activations, int l);
/* scratch.dx is the gradient of that; returns the gradient of n2. */
const real *moe_backward(Model *model, Activations *activations, int l);

/* --- balance.c: the router's counts, the losses and the bias that balance the experts --- */

/* Says what a step consists of: micro-steps of `sequences` sequences of `seq` rows, on all ranks of `group` together.
 * Does nothing without experts. */
void router_share(Model *model, Group *group, double sequences, int seq);

/* [all ranks of router.group] Sums the counts of this micro-step. Call after the last layer's forward pass. */
void router_count(Model *model);

/* The slopes of the balance loss, for the router's backward pass in layer l (kernels.h, router_backward). Returns NULL,
 * or a table with one row of [E] for each `group_rows` rows. */
const acc *router_slope(Model *model, const MoeKept *kept, int rows, int *group_rows);

/* Elements of the table of counts, [L, E + 1]. */
size_t router_table_size(const Model *model);

/* Call after the optimizer's step: updates the bias by the step's counts. Does nothing without experts. */
void router_end_step(Model *model);

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
