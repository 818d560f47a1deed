/* The places where the model calls out, so that a parallelism scheme can plug itself in.
 *
 * An empty member is the single-device behaviour: a model whose seams are all empty is an ordinary program on one device.
 * Every function gets its scheme's own state as `self`.
 *
 *   parameters   who holds this unit's weights, who must hear about its gradients?       every trainer
 *   features     which slice of the hidden dimension, which rows of the stream are mine?  tiny-megatron
 *   sequence     which keys and values must my queries see?                              tiny-cp, to come
 *
 * The fourth seam, experts, comes with the mixture-of-experts layer that it belongs to (tiny-moe, to come).
 */
#pragma once

#include "data/data.h"
#include "base/precision.h"

/* Called around each unit, in the order of computation. Unit 0, the root, embraces all others. */
typedef struct {
    void *self;
    void (*before_forward)(void *self, int unit);
    void (*after_forward)(void *self, int unit);
    void (*before_backward)(void *self, int unit);
    void (*after_backward)(void *self, int unit); /* the unit's gradients are complete on this rank */
} ParameterSeam;

/* The matrices that are split over ranks: by column (each rank has some of the outputs), then by row (some of the inputs).
 * Around them lies the residual stream, of which a rank may keep only a part of the rows. `mine` is that part,
 * [rows / parts, width]; `full` has all rows.
 *
 * A scheme enters a split region and leaves it with its own communication. It does the products itself, so that it can
 * overlap the two. Results that are returned lie in a buffer of the scheme, or in the scratch that was handed in, and
 * are valid until the next call of the same function. */
typedef struct {
    void *self;
    /* y[rows, out] = full x w^T, for x mine [rows / parts, in] */
    void (*column_forward)(void *self, real *y, const real *x, const real *w, int rows, int in, int out);
    /* dw adds dy^T full x; returns the gradient of my x, for dy [rows, out]. dx [rows, in]: scratch */
    const real *(*column_backward)(void *self, real *dx, acc *dw, const real *dy, const real *x, const real *w,
                                   int rows, int in, int out);
    /* Returns my rows of the sum over ranks of x w^T, for x [rows, in]. y [rows, out]: scratch */
    const real *(*row_forward)(void *self, real *y, const real *x, const real *w, int rows, int in, int out);
    /* With dy mine [rows / parts, out]: dx[rows, in] = full dy w; dw adds full dy^T x */
    void (*row_backward)(void *self, real *dx, acc *dw, const real *dy, const real *x, const real *w, int rows, int in,
                         int out);
    /* The split embedding: returns my rows of the sum over ranks of y [rows, width], which may be overwritten; and the full
     * gradient of what is mine. */
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
