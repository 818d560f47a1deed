#include "model/optimizer.h"

#include <math.h>

#include "base/bug.h"
#include "comm/comm.h"
#include "kernels/memory.h"

static acc *zeros(const Kernels *kernels, size_t count)
{
    acc *x = memory_alloc(count * sizeof *x, MEMORY_OPTIMIZER);
    kernels->fill(x, 0, count * sizeof *x);
    comm_progress(); /* a sign of life: a large model takes long */
    return x;
}

Optimizer optimizer_create(OptimizerConfig config, const Params *params, const Kernels *kernels)
{
    Optimizer o = {.config = config, .kernels = *kernels};
    if (config.kind == OPTIMIZER_ADAMW) {
        o.m = zeros(kernels, params->held);
        o.v = zeros(kernels, params->held);
    }
    o.scalars = memory_alloc(sizeof *o.scalars, MEMORY_OPTIMIZER);
    return o;
}

void optimizer_free(Optimizer *o)
{
    memory_free(o->m);
    memory_free(o->v);
    memory_free(o->scalars);
    o->m = o->v = NULL;
    o->scalars = NULL;
}

double optimizer_lr(const OptimizerConfig *c, long step)
{
    const double pi = 3.14159265358979323846, floor = 0.1;
    if (step < c->warmup) return c->lr * (double)(step + 1) / (double)c->warmup;
    if (c->steps <= c->warmup) return c->lr;
    double progress = (double)(step - c->warmup) / (double)(c->steps - c->warmup);
    return c->lr * (floor + (1 - floor) * 0.5 * (1 + cos(pi * progress)));
}

/* Of what the piece holds, each parameter on one of the ranks that hold it. */
static void add_squares(Optimizer *o, const Params *params, const Piece *piece)
{
    double *squares = &o->scalars->squares;
    if (params->holding.tp == 1) {
        o->kernels.sum_squares(squares, piece->grads, piece->count);
        return;
    }
    for (int n = 0; n < params->views; n++) {
        const View *view = &params->view[n];
        Overlap part = params_overlap(view, piece);
        if (part.count > 0 && (!view->copy || BUG(count_copies_in_norm)))
            o->kernels.sum_squares(squares, piece->grads + part.in_piece, part.count);
    }
}

void optimizer_measure(Optimizer *o, const Params *params, long step)
{
    const OptimizerConfig *c = &o->config;
    StepScalars scalars = {
        .lr = optimizer_lr(c, step),
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .correction1 = 1 - pow(c->beta1, (double)step + 1),
        .correction2 = 1 - pow(c->beta2, (double)step + 1),
        .clip = c->clip,
        .squares = 0,
    };
    o->kernels.upload(o->scalars, &scalars, sizeof scalars);
    for (int i = 0; i < params->pieces; i++) add_squares(o, params, &params->piece[i]);
    if (o->shards && !BUG(norm_of_my_shard)) comm_all_reduce(o->shards, &o->scalars->squares, 1, COMM_DOUBLE, COMM_SUM);
}

/* What of the view lies in the piece. */
static void update(Optimizer *o, const Params *params, const Piece *piece, const View *view)
{
    Overlap part = params_overlap(view, piece);
    if (part.count == 0) return;
    real *w = piece->weights + part.in_piece;
    acc *master = piece->master + part.in_piece, *g = piece->grads + part.in_piece;
    bool flat = params->holding.cut != CUT_NOTHING && BUG(decay_by_flat_shape);
    double decay = view->vector && !flat ? 0 : o->config.weight_decay;
    size_t at = piece->at + part.in_piece;
    if (o->config.kind == OPTIMIZER_ADAMW)
        o->kernels.adamw(w, master, o->m + at, o->v + at, g, part.count, decay, o->scalars);
    else
        o->kernels.sgd(w, master, g, part.count, decay, o->scalars);
}

void optimizer_step(Optimizer *o, Params *params)
{
    for (int i = 0; i < params->pieces; i++)
        for (int n = 0; n < params->views; n++) {
            update(o, params, &params->piece[i], &params->view[n]);
            comm_progress();
        }
}

double optimizer_read_norm(const Optimizer *o)
{
    StepScalars scalars;
    o->kernels.download(&scalars, o->scalars, sizeof scalars);
    return sqrt(scalars.squares);
}
