/* The parameters of a model: a table of named views, and the shards of them that this rank holds.
 *
 * Invariant: the table is the only description of the parameters. Initialization, the optimizer, --verify, files and
 * printing all walk it. No other code knows which parameters a layer has.
 *
 * A unit is the group of parameters that a scheme moves together: unit 0 is the root (embedding, final norm, head),
 * unit 1 + l is layer l. The flat model is all units one after the other, the root first. The backward pass begins
 * with the last layer and ends with the embedding. So gradients are completed from the end of the flat model to its
 * start, and the units that are complete are always one contiguous run of memory.
 *
 * The placement says what a rank holds: the whole flat model (tiny-ddp), shards of it (tiny-fsdp), a slice of every
 * layer (tiny-megatron), or shards of that slice. Under tensor parallelism "the flat model" is this rank's slice.
 *
 * Between steps a rank holds a list of shards. A shard is a run of the flat model with its master weights and its
 * reduced gradients. The optimizer, initialization, comparison and files walk views and shards, and act on their
 * overlaps.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "model/model_config.h"

/* Why a gradient is partial over tp. Ranks that hold the same weight but use it on different data have different
 * gradients of it; the sum over these ranks is the gradient. */
typedef enum {
    PARTIAL_NEVER,    /* the ranks hold different blocks, or use the weight on the same data */
    PARTIAL_BY_ROWS,  /* norms, router, shared expert: under sequence parallelism each rank uses them on its own rows */
    PARTIAL_BY_HEADS, /* QK-norm: each rank uses it on its own heads */
    PARTIAL_BY_KV_HEADS, /* K and V, if several ranks share a kv head: each rank has its own query heads */
} Partial;

/* A run of the flat model that this rank owns: elements [begin, begin + count). */
typedef struct {
    size_t begin, count; /* count may be 0 */
    size_t padded;       /* elements with padding; the same on all ranks of the shard group */
    size_t at;           /* where this shard begins in a buffer of Params.held elements, e.g. the moments */
    acc *master;         /* [padded]  the weights that the optimizer updates */
    real *weights;       /* [padded]  the master weights rounded to real; the same memory if real is acc */
    acc *grads;          /* [padded]  reduced over all ranks before the optimizer reads them */
} Shard;

/* One parameter. Under tensor parallelism: this rank's block of it. */
typedef struct {
    char name[64]; /* Hugging Face's name: model.layers.0.self_attn.q_proj.weight */
    int unit;
    int rows, cols;  /* [rows, cols]; a vector is [1, cols] */
    bool vector;     /* the weight of a norm: it has one dimension, starts as ones and is not decayed */
    double init_std; /* standard deviation of a matrix's first weights */
    size_t offset;   /* elements from the start of the flat model */
    size_t size;     /* rows * cols */
    Shard *shard;    /* SHARD_VIEWS: this rank's shard of it; else NULL */

    int whole_rows, whole_cols; /* shape of the whole parameter */
    int row0, col0;             /* where the block begins in the whole parameter */
    int valid_rows;             /* rows of the block that are in the parameter; the rest is padding and stays zero */
    Partial partial;
    int replica; /* this rank's number, 0, 1, ..., among the ranks along tp that hold the same block */
} View;

typedef struct {
    size_t offset, count;  /* elements [offset, offset + count) of the flat model */
    int first_view, views; /* its parameters */
    Shard *shard;          /* SHARD_UNITS: this rank's shard of it; else NULL */
    real *weights;         /* [count]  the weights that the passes read; schemes set it; NULL: not gathered now */
    acc *grads;            /* [count]  the gradients that the backward pass adds to; schemes set it */
} Unit;

/* What is sharded: split evenly into one shard for each rank of the shard group. Each shard is padded to a multiple of
 * SHARD_ALIGN elements. Padding is not a parameter: it is not initialized at random, not counted and not updated. */
typedef enum {
    SHARD_NOTHING, /* every rank holds everything */
    SHARD_MODEL,   /* the flat model, as one run */
    SHARD_UNITS,   /* each unit on its own */
    SHARD_VIEWS,   /* each parameter on its own */
} ShardBy;
enum { SHARD_ALIGN = 8 }; /* 16 bytes in bf16 */

/* What a rank holds of the model. All zero: everything. */
typedef struct {
    ShardBy by;
    int ranks, rank;    /* size of the shard group, and this rank's number in it; ranks 0 means 1 */
    bool whole_weights; /* the rank keeps the weights of all shards, not only of its own */
    bool whole_grads;   /* SHARD_MODEL only: the rank keeps the gradients of the whole flat model */
    int tp, tp_rank;    /* tensor-parallel ranks, and this rank's number among them; tp 0 means 1 */
    int ep, ep_rank;    /* of experts: ranks over which they are dealt, and this rank's number; ep 0 means 1 */
    Group *model_group; /* the ranks that together hold one copy of the model; NULL: this rank holds all of it */
    int replica;        /* this rank's number, 0, 1, ..., among those of model_group that hold the same shards */
} Placement;

typedef struct Params Params;
struct Params {
    View *view; /* [views] */
    int views, view_room;
    Unit *unit;   /* [units] */
    int units;    /* 1 + L */
    size_t count; /* elements of the flat model */

    Placement placement;
    Shard *shard; /* [shards]  one, or one for each unit, or one for each view */
    int shards;
    size_t held; /* elements of this rank's shards, with padding */

    real *weights;      /* with whole_weights the shards of all ranks; else this rank's shards, one after the other */
    acc *master;        /* [held]  NULL if real is acc: then the weights are the master weights */
    acc *grads;         /* [grad_count]  add up over micro-steps: of the whole model, or of this rank's shards */
    size_t grad_count;  /* whole model with whole_grads (padding included); else held */
    acc *reduced_grads; /* [held]  with whole_grads: the reduced gradients of this rank's shard */

    /* Further parameters of the model, with units of the same numbers but a placement of their own: the experts. NULL:
     * there are none. Functions that say "of the model" walk both. */
    Params *next;
};

/* Bytes of a weight's master copy; 0 if real is acc. */
enum { MASTER_BYTES = sizeof(real) == sizeof(acc) ? 0 : sizeof(acc) };

/* The table for `config`, without shards and buffers: enough for formulas and pictures. The second form makes the
 * table of the slice that rank `tp_rank` of `tp` has. */
Params params_table(const ModelConfig *config);
Params params_table_split(const ModelConfig *config, int tp, int tp_rank);

/* The table of the experts that rank `ep_rank` of `ep` has: E / ep neighbouring ones of each layer. Unit 0 is empty. */
Params experts_table(const ModelConfig *config, int ep, int ep_rank);

/* Parameters of the model, experts included. */
size_t model_parameters(const ModelConfig *config);

/* Adds to a table the shards that a rank of this placement holds, without buffers. */
void params_place(Params *params, Placement placement);

/* The table with shards and buffers, of all parameters but experts, or of the experts. Padding is set to zero; all else
 * in the buffers is undefined. */
Params params_create(const ModelConfig *config, Placement placement, const Kernels *kernels);
Params experts_create(const ModelConfig *config, Placement placement, const Kernels *kernels);

/* Adds the buffers. Call after params_place. */
void params_allocate(Params *params, const Kernels *kernels);
void params_free(Params *params);

/* Elements of one shard, padding included, if `count` elements are split over `ranks` ranks. */
size_t shard_padded(size_t count, int ranks);

/* The view of the model called `name`; NULL if there is none. */
const View *params_find(const Params *params, const char *name);

/* The elements that a view and a shard have in common: `count` of them (perhaps 0), from element `in_view` of the
 * view and element `in_shard` of the shard. */
typedef struct {
    size_t count, in_view, in_shard;
} Overlap;
Overlap params_overlap(const View *view, const Shard *shard);

/* Does this rank count its elements of `view`? Exactly one rank of model_group counts each element of the model. The
 * norm of the gradient and params_collect (so --dump too) use only elements that a rank counts. */
bool params_counts(const Params *params, const View *view);

/* --- values: params_values.c --- */

/* Initializes every weight of the model that this rank owns. The value depends only on (seed, parameter name, index in the
 * parameter), so it is the same under every placement. With whole_weights the shards of other ranks must still be
 * gathered. */
void params_init(Params *params, const Kernels *kernels, uint64_t seed);

size_t params_whole_size(const View *view); /* elements of the whole parameter */

/* Copy from a whole parameter to this rank's block of it [rows, cols], and back. Both are in host memory. */
void params_take_block(const View *view, const acc *whole, acc *block);
void params_put_block(const View *view, const acc *block, acc *whole);

/* Sets master weights and weights of this rank's shards from the whole parameter host[params_whole_size]. */
void params_upload(Params *params, const Kernels *kernels, const View *view, const acc *host);

/* [all ranks of model_group] Collects a whole parameter from the shards of all ranks: its master weights, or with
 * `grads` its gradients. All ranks get it, in host[params_whole_size]. The ledger does not count this communication. */
void params_collect(const Params *params, const Kernels *kernels, const View *view, bool grads, acc *host);

/* What the ranks of a group must hold bit for bit alike between steps. */
typedef enum {
    EQUAL_SHARDS,        /* the master weights of all shards: replicas along dp */
    EQUAL_WHOLE_WEIGHTS, /* the whole weights that every rank keeps: the ranks of a shard group */
    EQUAL_OVER_TP,       /* weights that tp does not split: norms, the router, the shared expert */
    EQUAL_KV_HEADS,      /* K and V: the ranks along tp that share a kv head */
} Equality;

typedef struct {
    struct {
        const Params *params; /* the row concerns these */
        Group *group;
        Equality equal;
    } row[8];
    int rows;
} Replicas;

/* Adds a row. A group of one rank (or NULL) has nothing to compare, and no row is added. */
void replicas_add(Replicas *replicas, const Params *params, Group *group, Equality equal);

/* [all ranks of the groups] The name of the model's first parameter that differs between ranks of a row's group, or NULL. */
const char *params_unequal(const Params *params, const Kernels *kernels, const Replicas *replicas);

/* [all ranks of the groups] NULL, or a complaint if replicas start from different weights. Replicas are not
 * broadcast: each rank draws its weights from the seed, or reads them from the file. */
const char *params_check_start(const Params *params, const Kernels *kernels, const Replicas *replicas);
