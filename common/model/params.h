/* The parameters of a model: the table of named views, and what this rank holds of them.
 *
 * Invariant: the table is the only description of the parameters. Initialization, the optimizer, --verify, files and
 * printing walk it; nothing else knows what a layer holds.
 *
 * Schemes move a unit as a whole: unit 0 is the root (embedding, final norm, head), unit 1 + l is layer l. In the
 * flat model all units lie one after the other, the root first. The backward pass ends with the embedding, so it
 * completes gradients from the end to the start, and any run of complete units is one run of memory.
 *
 * A rank holds all of the flat model, or a part of it (tiny-fsdp), or its own slice of every layer (tiny-megatron),
 * or a part of that slice: its placement says which. What it holds between steps is a list of shards, each a run of
 * the flat model with its master weights and its reduced gradients. The optimizer, drawing, comparing and saving walk
 * shards and views together.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "model/model_config.h"

/* Over which ranks along tp a gradient is partial, although each of them holds the same weights. */
typedef enum {
    PARTIAL_NEVER,       /* split over tp, or used on the same data by all */
    PARTIAL_BY_ROWS,     /* norms: under sequence parallelism each rank uses them on its own rows */
    PARTIAL_BY_HEADS,    /* QK-norm: each rank uses it on its own heads */
    PARTIAL_BY_KV_HEADS, /* K and V, where ranks share a kv head and have query heads of their own */
} Partial;

/* A run of the flat model that this rank owns: elements [begin, begin + count). */
typedef struct {
    size_t begin, count; /* count may be 0 */
    size_t padded;       /* count with padding; the same on all ranks of the shard group */
    size_t at;           /* where the optimizer's moments begin, of Params.held */
    acc *master;         /* [padded]  what the optimizer updates */
    real *weights;       /* [padded]  the same, as the forward pass wants it; the same memory where real is acc */
    acc *grads;          /* [padded]  complete when the optimizer looks */
} Shard;

/* A parameter, or, under tensor parallelism, this rank's block of it. */
typedef struct {
    char name[64]; /* as Hugging Face names it: model.layers.0.self_attn.q_proj.weight */
    int unit;
    int rows, cols;  /* [rows, cols]; a vector is [1, cols] */
    bool vector;     /* one dimension: a norm's weight, starts as ones, is not decayed */
    double init_std; /* of a matrix */
    size_t offset;   /* elements from the start of the flat model */
    size_t size;     /* rows * cols */
    Shard *shard;    /* SHARD_VIEWS: this rank's part of it; else NULL */

    int whole_rows, whole_cols; /* of the parameter */
    int row0, col0;             /* where the block begins in it */
    int valid_rows;             /* the rows after them are padding: zero, and stay so */
    Partial partial;
    int replica; /* which of the ranks along tp that hold this same block this one is: 0, 1, ... */
} View;

typedef struct {
    size_t offset, count;  /* elements [offset, offset + count) of the flat model */
    int first_view, views; /* its parameters */
    Shard *shard;          /* SHARD_UNITS: this rank's part of it; else NULL */
    real *weights;         /* [count]  where the unit's weights are while it is used, or NULL; schemes repoint it */
    acc *grads;            /* [count]  likewise for the gradients of its backward pass */
} Unit;

/* What is split into equal shards, one for each rank of the shard group. A shard is padded to a multiple of SHARD_ALIGN
 * elements. Padding is no parameter: it is never drawn, counted or updated. */
typedef enum {
    SHARD_NOTHING, /* every rank holds everything */
    SHARD_MODEL,   /* the flat model as a whole */
    SHARD_UNITS,   /* each unit */
    SHARD_VIEWS,   /* each parameter */
} ShardBy;
enum { SHARD_ALIGN = 8 }; /* 16 bytes in bf16 */

/* What a rank holds of the model; all zero: everything. */
typedef struct {
    ShardBy by;
    int ranks, rank;    /* of the shard group, over which shards are dealt; ranks 0 stands for 1 */
    bool whole_weights; /* beside its shards the rank keeps all weights, laid out shard by shard ... */
    bool whole_grads;   /* ... and (SHARD_MODEL) the gradients of the whole model */
    int tp, tp_rank;    /* tensor parallelism: the flat model is this rank's slice of every layer; tp 0 stands for 1 */
    Group *model_group; /* the ranks that together hold one copy of the model; NULL: this rank holds all of it */
} Placement;

typedef struct {
    View *view; /* [views] */
    int views, view_room;
    Unit *unit;   /* [units] */
    int units;    /* 1 + L */
    size_t count; /* elements of the flat model */

    Placement placement;
    Shard *shard; /* [shards]  one, or one for each unit, or one for each view */
    int shards;
    size_t held; /* elements of all shards, with padding */

    real *weights;      /* the whole model's, or this rank's shards one after the other */
    acc *master;        /* [held]  NULL where real is acc: then the shards' master weights are the weights */
    acc *grads;         /* what adds up over micro-steps: whole (SHARD_NOTHING, whole_grads), or this rank's shards */
    size_t grad_count;  /* its elements */
    acc *reduced_grads; /* [held]  with whole_grads: where this rank's reduced ones go */
} Params;

/* Bytes of a weight's master copy; none where real is acc. */
enum { MASTER_BYTES = sizeof(real) == sizeof(acc) ? 0 : sizeof(acc) };

/* The table for `config`, with neither shards nor buffers: enough to count and to draw. The second form: of what rank
 * `tp_rank` of `tp` has of each layer. */
Params params_table(const ModelConfig *config);
Params params_table_split(const ModelConfig *config, int tp, int tp_rank);

/* Adds to a table the shards that a rank holds, without buffers. */
void params_place(Params *params, Placement placement);

/* The table with shards and buffers, whose contents are undefined but for padding, which is zero. */
Params params_create(const ModelConfig *config, Placement placement, const Kernels *kernels);

/* Adds buffers to a table that has been placed. */
void params_allocate(Params *params, const Kernels *kernels);
void params_free(Params *params);

/* Elements of one of `ranks` equal shards of `count`, padding included. */
size_t shard_padded(size_t count, int ranks);

/* The view called `name`; NULL if there is none. */
const View *params_find(const Params *params, const char *name);

/* What a view and a shard have in common: `count` elements (perhaps 0), from element `in_view` of the one and
 * `in_shard` of the other. */
typedef struct {
    size_t count, in_view, in_shard;
} Overlap;
Overlap params_overlap(const View *view, const Shard *shard);

/* Does this rank count the elements it holds of `view`? Of the ranks in model_group exactly one counts each element
 * of the model: in the norm of the gradient, when a parameter is collected, and so in files. */
bool params_counts(const View *view);

/* --- values: params_values.c --- */

/* Draws every weight that this rank owns from (seed, its parameter's name, its index there): the same values wherever
 * they are drawn. Whole weights that other ranks own are not there yet. */
void params_init(Params *params, const Kernels *kernels, uint64_t seed);

size_t params_whole_size(const View *view); /* elements of the whole parameter */

/* Between a whole parameter on the host and this rank's block of it [rows, cols]. */
void params_take_block(const View *view, const acc *whole, acc *block);
void params_put_block(const View *view, const acc *block, acc *whole);

/* To the shards: what this rank owns of the whole parameter host[whole size] becomes master weights, and weights. */
void params_upload(Params *params, const Kernels *kernels, const View *view, const acc *host);

/* [all ranks of model_group] From all their shards: the whole parameter's master weights, or gradients, in
 * host[whole size], on all of them. Not counted. */
void params_collect(const Params *params, const Kernels *kernels, const View *view, bool grads, acc *host);

/* What must be equal bit for bit between steps, on all ranks of a group. */
typedef enum {
    EQUAL_SHARDS,        /* they own the same shards */
    EQUAL_WHOLE_WEIGHTS, /* they keep whole weights */
    EQUAL_NORMS,         /* they have the same vectors: along tp */
    EQUAL_KV_HEADS,      /* they share a kv head: its K and V */
} Equality;

typedef struct {
    struct {
        Group *group;
        Equality equal;
    } row[8];
    int rows;
} Replicas;

/* Adds a row. A group of one rank has no replicas, and adds nothing. */
void replicas_add(Replicas *replicas, Group *group, Equality equal);

/* [all ranks of the groups] The name of the first parameter that is not equal on all ranks of a row's group, or NULL. */
const char *params_unequal(const Params *params, const Kernels *kernels, const Replicas *replicas);

/* [all ranks of the groups] NULL, or a complaint if these ranks do not start from the same weights. Nothing was sent to
 * make them equal: each rank draws them from the seed. */
const char *params_check_start(const Params *params, const Kernels *kernels, const Replicas *replicas);
