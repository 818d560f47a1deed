/* The parameters of a model: flat buffers and the table of named views on them.
 *
 * Invariant: the table is the only description of the parameters. Initialization, the optimizer, --verify, files and
 * printing walk it; nothing else knows what a layer holds.
 *
 * A unit is what schemes move as a whole: unit 0 is the root (embedding, final norm, head), unit 1 + l is layer l. All
 * units lie in one buffer, the root first; so the backward pass, which ends with the embedding, finishes the gradients
 * from the end of the buffer to its start, and any run of finished units is one run of memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm.h"
#include "kernels.h"
#include "model_config.h"

typedef struct {
    char name[64]; /* as Hugging Face names it: model.layers.0.self_attn.q_proj.weight */
    int unit;
    int rows, cols;  /* [rows, cols]; a vector is [1, cols] */
    bool vector;     /* one dimension: a norm's weight, starts as ones, is not decayed */
    double init_std; /* of a matrix */
    size_t offset;   /* elements from the start of the flat buffer */
    size_t size;     /* rows * cols */
} View;

typedef struct {
    size_t offset, count; /* elements [offset, offset + count) of the flat buffers */
    real *weights;        /* [count]  where the unit's weights are while it is used; a sharding scheme repoints it */
    acc *grads;           /* [count]  likewise for its gradients */
} Unit;

typedef struct {
    View *view; /* [views] */
    int views;
    Unit *unit;    /* [units] */
    int units;     /* 1 + L */
    size_t count;  /* elements in all */
    real *weights; /* [count]  same on all data-parallel ranks */
    acc *master;   /* [count]  what the optimizer updates; the weights themselves where real is acc */
    acc *grads;    /* [count]  partial over the ranks that see other rows, until summed */
} Params;

/* Bytes of a weight's master copy; none where real is acc. */
enum { MASTER_BYTES = sizeof(real) == sizeof(acc) ? 0 : sizeof(acc) };

/* The table for `config`, without buffers: enough to count and to draw. */
Params params_table(const ModelConfig *config);

/* The same with both buffers, contents undefined. */
Params params_create(const ModelConfig *config);
void params_free(Params *params);

/* The view called `name`; NULL if there is none. */
const View *params_find(const Params *params, const char *name);

/* Draws every weight from (seed, its parameter's name, its index there): the same values wherever they are drawn. */
void params_init(Params *params, const Kernels *kernels, uint64_t seed);

/* [all ranks of the group] The name of the first parameter whose weights are not the same bits on all ranks, or NULL. */
const char *params_unequal(const Params *params, const Kernels *kernels, Group *group);
