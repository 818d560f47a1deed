/* The places where the model calls out, so that a parallelism scheme can plug itself in.
 *
 * An empty member is the single-device behaviour: a model whose seams are all empty is an ordinary program on one device.
 * Every function gets its scheme's own state as `self`.
 *
 *   parameters   who holds this unit's weights, who must hear about its gradients?       tiny-ddp, tiny-fsdp
 *   features     which slice of the hidden dimension is mine?                            tiny-megatron
 *   sequence     which keys and values must my queries see?                              tiny-cp
 *
 * The fourth seam, experts, comes with the mixture-of-experts layer that it belongs to (tiny-moe).
 */
#pragma once

#include "data.h"
#include "precision.h"

/* Called around each unit, in the order of computation. Unit 0, the root, embraces all others. */
typedef struct {
    void *self;
    void (*before_forward)(void *self, int unit);
    void (*after_forward)(void *self, int unit);
    void (*before_backward)(void *self, int unit);
    void (*after_backward)(void *self, int unit); /* the unit's gradients are complete on this rank */
} ParameterSeam;

/* Around the matrices that are split by column, then by row. Each function takes rows [rows, width] and returns where
 * its result lies, in a buffer of the scheme that is valid until the next call of the same function. */
typedef struct {
    void *self;
    const real *(*enter)(void *self, const real *mine, int rows, int width);    /* before the column split */
    const real *(*leave)(void *self, const real *partial, int rows, int width); /* after the row split */
    const real *(*enter_backward)(void *self, const real *dfull, int rows, int width);
    const real *(*leave_backward)(void *self, const real *dmine, int rows, int width);
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
