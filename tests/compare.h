/* What a rank holds of the model, compared with the single device's. */
#pragma once

#include "case.h"

typedef enum { GRADS, MASTERS, WHOLE_WEIGHTS } What;

/* The worst error over all tensors, of what this rank holds. `theirs`: the single device's, whole, of the table `whole`. If the
 * error is the worst so far, the tensor's name goes to out->where. */
double worst_error(const Params *p, What what, const Params *whole, const acc *theirs, Outcome *out);

/* Are the rows of a block that are no rows of the parameter zero, weights and gradients? */
bool padding_is_zero(const Params *p);

/* A hash of this rank's shards. */
uint64_t bits_of(const Params *p);
