/* The parameters of a model: the table of named views, and what a rank holds of them.
 *
 * Invariant: the table is the only description of the parameters. Initialization, the optimizer, --verify, files and
 * printing walk it; nothing else knows what a layer holds.
 *
 * A unit is what schemes move as a whole: unit 0 is the root (embedding, final norm, head), unit 1 + l is layer l. In the
 * flat model all units lie one after the other, the root first; so the backward pass, which ends with the embedding,
 * finishes gradients from the end to the start, and any run of finished units is one run of memory.
 *
 * A rank may hold all of it, or a part (tiny-fsdp). What it holds between steps is a list of pieces, each a run of the
 * flat model, with its master weights and its reduced gradients; who updates, draws, compares or saves parameters walks
 * pieces and views together.
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

/* A parameter, or, under tensor parallelism, this rank's block of it. */
typedef struct {
    char name[64]; /* as Hugging Face names it: model.layers.0.self_attn.q_proj.weight */
    int unit;
    int rows, cols;  /* [rows, cols]; a vector is [1, cols] */
    bool vector;     /* one dimension: a norm's weight, starts as ones, is not decayed */
    double init_std; /* of a matrix */
    size_t offset;   /* elements from the start of the flat model */
    size_t size;     /* rows * cols */

    int whole_rows, whole_cols; /* of the parameter */
    int row0, col0;             /* where the block begins in it */
    int valid_rows;             /* the rows after them are padding: zero, and stay so */
    Partial partial;
    bool copy; /* another rank along tp holds the same block, and speaks for it in norms and files */
} View;

typedef struct {
    size_t offset, count; /* elements [offset, offset + count) of the flat model */
    real *weights;        /* [count]  where the unit's weights are while it is used, or NULL; schemes repoint it */
    acc *grads;           /* [count]  likewise for the gradients of its backward pass */
} Unit;

/* What is cut into equal parts, one for each of `ranks` ranks. A part is padded to a multiple of PART_ALIGN elements, the
 * same on all of them; padding is no parameter: it is never drawn, counted or updated. */
typedef enum {
    CUT_NOTHING, /* every rank holds everything */
    CUT_MODEL,   /* the flat model as a whole */
    CUT_UNITS,   /* each unit */
    CUT_VIEWS,   /* each parameter */
} Cut;
enum { PART_ALIGN = 8 }; /* 16 bytes in bf16 */

typedef struct {
    Cut cut;
    int ranks, rank;    /* ranks 0 stands for 1 */
    bool whole_weights; /* whoever holds a part keeps everyone's weights too, laid out part by part ... */
    bool whole_grads;   /* ... and (CUT_MODEL) gradients of the whole model */
    bool copy;          /* another rank holds the same pieces, and speaks for them in files */
    int tp, tp_rank; /* tensor parallelism: the model itself is this rank's slice of every layer; tp 0 stands for 1 */
} Holding;

/* A run of the flat model that this rank holds: elements [begin, begin + count). */
typedef struct {
    size_t begin, count; /* count may be 0 */
    size_t part;         /* with padding; the same on all ranks */
    size_t at;           /* where the optimizer's moments begin, of `held` */
    acc *master;         /* [part]  what the optimizer updates */
    real *weights;       /* [part]  the same, as the forward pass wants it; the same memory where real is acc */
    acc *grads;          /* [part]  complete when the optimizer looks */
} Piece;

typedef struct {
    View *view; /* [views] */
    int views;
    Unit *unit;   /* [units] */
    int units;    /* 1 + L */
    size_t count; /* elements of the flat model */

    Holding holding;
    Piece *piece; /* [pieces]  one, or one for each unit, or one for each view */
    int pieces;
    size_t held; /* the sum of their parts */

    real *weights;     /* the whole model's, or this rank's parts one after the other */
    acc *master;       /* [held]  NULL where real is acc: then the pieces' master weights are the weights */
    acc *grads;        /* what adds up over micro-steps: whole (CUT_NOTHING, whole_grads), or this rank's parts */
    size_t grad_count; /* its elements */
    acc *part_grads;   /* [held]  with whole_grads: where the reduced ones go */
} Params;

/* Bytes of a weight's master copy; none where real is acc. */
enum { MASTER_BYTES = sizeof(real) == sizeof(acc) ? 0 : sizeof(acc) };

/* The table for `config`, with neither pieces nor buffers: enough to count and to draw. The second form: of what rank
 * `tp_rank` of `tp` has of each layer. */
Params params_table(const ModelConfig *config);
Params params_table_split(const ModelConfig *config, int tp, int tp_rank);

/* Adds the pieces that a rank holds, without buffers. */
void params_cut(Params *params, Holding holding);

/* The table with pieces and buffers, whose contents are undefined but for padding, which is zero. */
Params params_create(const ModelConfig *config, Holding holding, const Kernels *kernels);
void params_free(Params *params);

/* Elements of one of `ranks` equal parts of `count`, padding included. */
size_t params_part(size_t count, int ranks);

/* The view called `name`; NULL if there is none. */
const View *params_find(const Params *params, const char *name);

/* What a view and a piece have in common: `count` elements (perhaps 0), from element `in_view` of the one and `in_piece` of
 * the other. */
typedef struct {
    size_t count, in_view, in_piece;
} Overlap;
Overlap params_overlap(const View *view, const Piece *piece);

/* Draws every weight that this rank holds from (seed, its parameter's name, its index there): the same values wherever
 * they are drawn. Whole weights that others hold are not there yet. */
void params_init(Params *params, const Kernels *kernels, uint64_t seed);

size_t params_whole_size(const View *view); /* elements of the whole parameter */

/* Between a whole parameter on the host and this rank's block of it [rows, cols]. */
void params_take_block(const View *view, const acc *whole, acc *block);
void params_put_block(const View *view, const acc *block, acc *whole);

/* To the pieces: this rank's part of the whole parameter host[whole size] becomes master weights, and weights. */
void params_upload(Params *params, const Kernels *kernels, const View *view, const acc *host);

/* [all ranks] From the pieces of all ranks: the whole parameter's master weights, or gradients, in host[whole size], on all
 * ranks. Not counted. */
void params_collect(const Params *params, const Kernels *kernels, const View *view, bool grads, acc *host);

/* Ranks whose weights must be equal to each other bit for bit, between steps; NULL: there are none. */
typedef struct {
    Group *pieces; /* they hold the same pieces */
    Group *whole;  /* they keep whole weights */
    Group *tp;     /* they have the same norms */
    Group *kv;     /* and share a kv head */
} Replicas;

/* [all ranks of the groups] The name of the first parameter that is not, or NULL. */
const char *params_unequal(const Params *params, const Kernels *kernels, Replicas replicas);

/* [all ranks of the groups] NULL, or a complaint if these ranks do not start from the same weights. Nothing was sent to
 * make them equal: each rank draws them from the seed. */
const char *params_check_start(const Params *params, const Kernels *kernels, Replicas replicas);
