/* Compares what a rank holds of the model with the single device's model. */
#pragma once

#include "case.h"

typedef enum { GRADS, MASTERS, WHOLE_WEIGHTS } What;

/* The largest error of all elements of the model that this rank holds. `theirs`: the single device's. If the error is larger than those in `out`, the name of its tensor goes to out->where. */
double worst_error(const Params *p, What what, const Params *theirs, Outcome *out);

/* Are the weights and the gradients of padding rows zero? Padding rows are rows of a block past the parameter's last
 * row. */
bool padding_is_zero(const Params *p);

/* A hash of the master weights of this rank's shards. */
uint64_t bits_of(const Params *p);
