/* The seams: tables of functions that the model calls, so that a scheme of parallelism can plug itself in.
 *
 * An empty member means the single-device behaviour. A model whose seams are all empty is an ordinary program on one
 * device. Every function gets the scheme's own state as `self`.
 *
 *   parameters   who holds this unit's weights, who must hear about its gradients?       every trainer
 *   features     which slice of the hidden dimension, which rows of the stream are mine?  tiny-megatron
 *   sequence     which keys and values must my queries see?                              tiny-cp
 *   experts      which rank holds the expert that this row goes to?                      tiny-moe
 */
#pragma once

#include <stdbool.h>

#include "base/precision.h"
#include "data/rows.h"

/* The micro-step that is running. The model owns it and model_begin sets it; schemes keep a pointer to it and read
 * it. */
typedef struct {
    int index, count;  /* number of this micro-step, from 0, and micro-steps in a step */
    bool reduces_each; /* a scheme sets it if it keeps no whole gradients from one micro-step to the next */
} MicroStep;

/* Is this the last micro-step of the step? */
bool backward_is_last(const MicroStep *micro_step);

/* Does the running backward pass reduce gradients over ranks? With reduces_each every pass does. Without it,
 * gradients add up on each rank and the pass of the last micro-step reduces the sum. All schemes ask this function,
 * so all of them reduce in the same passes. */
bool backward_reduces(const MicroStep *micro_step);

/* Hooks around the forward and backward pass of each unit, called in the order of computation. The root's hooks enclose
 * those of all layers: its before-hook comes first (unit 0), its after-hook last. */
typedef struct {
    void *self;
    void (*before_forward)(void *self, int unit);
    void (*after_forward)(void *self, int unit);
    void (*before_backward)(void *self, int unit);
    void (*after_backward)(void *self, int unit); /* the unit's gradients are complete on this rank */
} ParameterSeam;

/* Two parameter seams that act as one. Around a unit the hooks run in the order
 *     outer before, inner before, (the unit computes), inner after, outer after.
 * With tensor parallelism as inner and data parallelism as outer, a gradient is summed over tp first, then over dp.
 * Either seam may itself be a chain. */
typedef struct {
    ParameterSeam inner, outer;
} SeamChain;

/* Fills `chain` and returns the seam that calls it. The caller keeps `chain` as long as the seam is used. */
ParameterSeam seam_chain(SeamChain *chain, ParameterSeam inner, ParameterSeam outer);

/* A weight matrix and its gradient, for the product y[rows, out] = x[rows, in] w^T. */
typedef struct {
    const real *w; /* [out, in] */
    acc *dw;       /* [out, in]  gradients are added to it; NULL if the unit has no gradient buffer now */
    int in, out;
} Linear;

/* Which gradients a backward product computes. A pipeline schedule computes the gradient of the input first, because
 * the previous stage waits for it, and the gradient of the weight later. */
enum { GRADIENT_OF_INPUT = 1, GRADIENT_OF_WEIGHT = 2, GRADIENTS = 3 };

/* Products with matrices that are split over ranks. A split region is a pair of them: the first is split by column (a
 * rank has some of the outputs), the second by row (a rank has some of the inputs). Between the regions is the
 * residual stream, of which a rank may keep only some of the rows. Below, `mine` are these rows, [rows / parts,
 * width]; `full` are all rows, [rows, width].
 *
 * The scheme communicates where a split region begins and where it ends. It also computes the products, so that it
 * can overlap them with the communication. A returned pointer points into a buffer of the scheme, or into the scratch
 * argument. It is valid until the next call of the same function. */
typedef struct {
    void *self;
    /* y[rows, out] = full x w^T; the argument x is mine, [rows / parts, in] */
    void (*column_forward)(void *self, real *y, const real *x, Linear linear, int rows);
    /* Adds dy^T (full x) to dw, and returns the gradient of x, mine [rows / parts, in]. dy is [rows, out]; dx [rows,
     * in] is scratch. `gradients` chooses which of the two; without GRADIENT_OF_INPUT dx may be NULL and the result
     * is not used. */
    const real *(*column_backward)(void *self, real *dx, const real *dy, const real *x, Linear linear, int rows,
                                   unsigned gradients);
    /* Returns my rows of the sum over ranks of x w^T. x is [rows, in]; y [rows, out] is scratch */
    const real *(*row_forward)(void *self, real *y, const real *x, Linear linear, int rows);
    /* dx[rows, in] = (full dy) w, and adds (full dy)^T x to dw. The argument dy is mine, [rows / parts, out] */
    void (*row_backward)(void *self, real *dx, const real *dy, const real *x, Linear linear, int rows,
                         unsigned gradients);
    /* The embedding, split over ranks by tokens. Forward: returns my rows of the sum over ranks of y [rows, width]; y
     * may be overwritten. Backward: dy is mine; returns the full gradient [rows, width]. */
    const real *(*embedding_forward)(void *self, real *y, int rows, int width);
    const real *(*embedding_backward)(void *self, const real *dy, int rows, int width);
    /* Like cross_entropy of kernels.h, for logits that are split by column over the ranks. */
    void (*loss)(void *self, acc *loss, real *logits, const int *label, double scale, int rows);
    /* The number in the micro-step, of `rows` rows on this rank, of row i of this rank's part of the stream. */
    int (*stream_row)(void *self, int i, int rows);
    /* Collects one row of logits: whole[vocabulary], in the backend's memory. `mine` is this rank's part of the row. */
    void (*whole_logits)(void *self, real *whole, const real *mine);
} FeatureSeam;

/* Attention of this rank's rows over all keys of their sequences. Buffers are those of kernels.h; q, k and v of a row
 * are side by side in qkv, and their gradients in dqkv. */
typedef struct {
    void *self;
    void (*forward)(void *self, real *out, acc *lse, const real *qkv, const Rows *rows);
    void (*backward)(void *self, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const real *qkv, const Rows *rows);
} SequenceSeam;

/* The way of rows to the ranks of their experts and back. A row's copies lie in slots, in order of the experts that they
 * go to (expert_slots in kernels.h). A rank may send its rows in several chunks, so that one chunk travels while another
 * is computed. Calls of one layer and chunk: plan, then send, receive, send_back, receive_back in the forward pass, and
 * these four again in the backward pass, for gradients. Buffers stay as they are from a send to its receive. */
typedef struct {
    void *self;
    /* Tells all ranks how many rows go to each expert. first[E + 1] has this rank's slots. Fills in
     * expert_first[local experts + 1], the rows that each of this rank's experts gets, and returns their number. Both
     * arrays lie in the backend's memory. */
    int (*plan)(void *self, int layer, int chunk, int *expert_first, const int *first);
    void (*send)(void *self, int layer, int chunk, const real *slots);
    void (*receive)(void *self, int layer, int chunk, real *expert_rows); /* in order of the experts */
    void (*send_back)(void *self, int layer, int chunk, real *slots, const real *expert_rows);
    void (*receive_back)(void *self, int layer, int chunk); /* fills the slots given to send_back */
} ExpertSeam;

typedef struct {
    ParameterSeam parameters;
    FeatureSeam features;
    SequenceSeam sequence;
    ExpertSeam experts;
} Seams;
