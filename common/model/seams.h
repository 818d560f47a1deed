/* The places where the model calls out, so that a parallelism scheme can plug itself in.
 *
 * An empty member is the single-device behaviour: a model whose seams are all empty is an ordinary program on one
 * device. Every function gets its scheme's own state as `self`.
 *
 *   parameters   who holds this unit's weights, who must hear about its gradients?       every trainer
 *   features     which slice of the hidden dimension, which rows of the stream are mine?  tiny-megatron
 *   sequence     which keys and values must my queries see?                              tiny-cp, to come
 *
 * The fourth seam, experts, comes with the mixture-of-experts layer that it belongs to (tiny-moe, to come).
 */
#pragma once

#include <stdbool.h>

#include "base/precision.h"
#include "data/rows.h"

/* The micro-step under way. The model owns it and model_begin sets it; schemes keep a pointer to it and ask. */
typedef struct {
    int index, count;  /* the index-th, from 0, of a step's count */
    bool reduces_each; /* set by a scheme that keeps no whole gradients from one micro-step to the next */
} MicroStep;

/* Is this the last micro-step of the step? */
bool backward_is_last(const MicroStep *micro_step);

/* Are gradients reduced over ranks in the backward pass under way? In every pass if a scheme asked for it, else in
 * the last one, to which they add up. All schemes ask here, so that all reduce in the same passes. */
bool backward_reduces(const MicroStep *micro_step);

/* Called around each unit, in the order of computation. Unit 0, the root, embraces all others. */
typedef struct {
    void *self;
    void (*before_forward)(void *self, int unit);
    void (*after_forward)(void *self, int unit);
    void (*before_backward)(void *self, int unit);
    void (*after_backward)(void *self, int unit); /* the unit's gradients are complete on this rank */
} ParameterSeam;

/* Two parameter seams as one. `inner` is the nearer to the computation: its before-hooks run last and its after-hooks
 * run first. So with tensor parallelism inside and data parallelism outside, a gradient is summed over tp, then over
 * dp. An outer seam may itself be a chain. */
typedef struct {
    ParameterSeam inner, outer;
} SeamChain;

/* Fills `chain`, which the caller keeps as long as the seam is used. */
ParameterSeam seam_chain(SeamChain *chain, ParameterSeam inner, ParameterSeam outer);

/* A weight matrix, and its gradient, as products use them: y[rows, out] = x[rows, in] w^T. */
typedef struct {
    const real *w; /* [out, in] */
    acc *dw;       /* [out, in]  adds up; NULL in a forward pass */
    int in, out;
} Linear;

/* Which gradients a backward product computes. A pipeline schedule asks for those of the inputs first, which the stage
 * before waits for, and for those of the weights later. */
enum { GRADIENT_OF_INPUT = 1, GRADIENT_OF_WEIGHT = 2, GRADIENTS = 3 };

/* The matrices that are split over ranks: by column (each rank has some of the outputs), then by row (some of the
 * inputs). Around them lies the residual stream, of which a rank may keep only a part of the rows. `mine` is that
 * part, [rows / parts, width]; `full` has all rows.
 *
 * A scheme enters a split region and leaves it with its own communication. It does the products itself, so that it
 * can overlap the two. Results that are returned lie in a buffer of the scheme, or in the scratch that was handed in,
 * and are valid until the next call of the same function. */
typedef struct {
    void *self;
    /* y[rows, out] = full x w^T, for x mine [rows / parts, in] */
    void (*column_forward)(void *self, real *y, const real *x, Linear linear, int rows);
    /* dw adds dy^T full x; returns the gradient of my x, for dy [rows, out]. dx [rows, in]: scratch. `gradients` says
     * which of the two; without that of the input, dx is not used and NULL returned */
    const real *(*column_backward)(void *self, real *dx, const real *dy, const real *x, Linear linear, int rows,
                                   unsigned gradients);
    /* Returns my rows of the sum over ranks of x w^T, for x [rows, in]. y [rows, out]: scratch */
    const real *(*row_forward)(void *self, real *y, const real *x, Linear linear, int rows);
    /* With dy mine [rows / parts, out]: dx[rows, in] = full dy w; dw adds full dy^T x */
    void (*row_backward)(void *self, real *dx, const real *dy, const real *x, Linear linear, int rows,
                         unsigned gradients);
    /* The split embedding: returns my rows of the sum over ranks of y [rows, width], which may be overwritten; and
     * the full gradient of what is mine. */
    const real *(*embedding_forward)(void *self, real *y, int rows, int width);
    const real *(*embedding_backward)(void *self, const real *dy, int rows, int width);
    /* As the cross_entropy of kernels.h, of logits that are split by column. */
    void (*loss)(void *self, acc *loss, real *logits, const int *label, double scale, int rows);
    /* whole[vocabulary] = one row of logits, of which this rank has `mine`; in the backend's memory */
    void (*whole_logits)(void *self, real *whole, const real *mine);
} FeatureSeam;

/* Attention of this rank's rows over all keys of their sequences. Buffers as in kernels.h, qkv and dqkv fused. */
typedef struct {
    void *self;
    void (*forward)(void *self, real *out, acc *lse, const real *qkv, const Rows *rows);
    void (*backward)(void *self, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const real *qkv, const Rows *rows);
} SequenceSeam;

typedef struct {
    ParameterSeam parameters;
    FeatureSeam features;
    SequenceSeam sequence;
} Seams;
