/* One configuration of tiny-megatron, trained for two steps beside a single device and compared block by block. Shared by
 * test_megatron (all must agree) and test_megatron_bugs (with a bug switched on they must not). */
#pragma once

#include "tensor_parallel.h"
#include "training.h"

typedef struct {
    int tp, dp;
    Training t;
    int window; /* keys that a row sees at most; 0: all before it */
    TensorOptions options;
    bool recompute;
} TensorCase;

/* The worst error of each kind, in verify's metric, over the ranks of the case. */
typedef struct {
    double loss, gradient, norm;   /* of step 1, before any update */
    double later_gradient, weight; /* of step 2, and after it */
    bool replicas_equal;           /* bit for bit, along dp and along tp */
    bool same_numbers;             /* loss and norm, on all ranks along tp, to the bit */
    bool padding_is_zero;          /* weights and gradients of words that are not there */
    char ledger[160];              /* the first count or number of bytes that is not what the formula says; or empty */
} TensorOutcome;

/* The index runs through tp and dp. */
TensorCase random_tensor_case(Random *random, int index);

/* [all ranks of the world] `data`: a token file whose vocabulary is at most the model's. */
TensorOutcome run_tensor_case(const TensorCase *c, const char *data);

const char *describe_tensor_case(const TensorCase *c);

/* [all ranks of the world] The mesh and groups of the case, made once for each shape; NULL on ranks that are not in it. */
const Mesh *tensor_case_mesh(const TensorCase *c, Group **tp, Group **kv, Group **dp);
