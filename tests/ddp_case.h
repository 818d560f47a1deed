/* One configuration of tiny-ddp, trained for two steps beside a single device and compared gradient by gradient. Shared by
 * test_ddp (all must agree) and test_bugs (with a bug switched on they must not). */
#pragma once

#include "ddp.h"
#include "training.h"

typedef struct {
    int ranks; /* the first so many of the world */
    Training t;
    DdpOptions options;
} DdpCase;

/* The worst error of each kind, in verify's metric, over the ranks of the case. */
typedef struct {
    double loss, gradient;             /* of step 1, before any update */
    double later_gradient, weight;     /* of step 2, and after it */
    double norm;                       /* the gradient norm of step 1, the same on all ranks */
    bool replicas_equal, counts_equal; /* weights bit for bit; the collectives' counts and payload by formula */
    long calls, calls_expected;        /* of a step */
} DdpOutcome;

/* [all ranks of the world] A group called dp of the first `ranks` ranks; NULL on the others. Made once for each size. */
Group *first_ranks(int ranks);

DdpCase random_ddp_case(Random *random, int index);

/* [all ranks of the world] `data`: a token file whose vocabulary is at most the model's. */
DdpOutcome run_ddp_case(const DdpCase *c, const char *data);

/* One line that says what the case is, for a failing test. */
const char *describe_ddp_case(const DdpCase *c);
