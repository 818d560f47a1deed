#include "model/optimizer.h"

#include <math.h>

#include "base/bug.h"
#include "comm/comm.h"
#include "comm/trace.h"
#include "kernels/memory.h"

static acc *zeros(const Kernels *kernels, size_t count)
{
    acc *x = memory_alloc(count * sizeof *x, MEMORY_OPTIMIZER);
    kernels->fill(x, 0, count * sizeof *x);
    comm_progress(); /* tells the watchdog that this rank works: a large model takes long */
    return x;
}

Optimizer optimizer_create(OptimizerConfig config, const Params *params, const Kernels *kernels)
{
    Optimizer o = {.config = config, .kernels = *kernels};
    if (config.kind == OPTIMIZER_ADAMW) {
        size_t held = params->held + (params->next ? params->next->held : 0);
        o.m = zeros(kernels, held);
        o.v = zeros(kernels, held);
    }
    o.scalars = memory_alloc(sizeof *o.scalars, MEMORY_OPTIMIZER);
    if (params->placement.model_group) group_open_device(params->placement.model_group, o.scalars);
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

/* Adds the squares of this shard's gradients. A parameter that several ranks of the model group hold counts on one of
 * them only. */
static void add_squares(Optimizer *o, const Params *params, const Shard *shard)
{
    double *squares = &o->scalars->squares;
    if (params->placement.tp == 1 && params->placement.replica == 0) { /* this rank counts all of it */
        o->kernels.sum_squares(squares, shard->grads, shard->count);
        return;
    }
    for (int n = 0; n < params->views; n++) {
        const View *view = &params->view[n];
        Overlap part = params_overlap(view, shard);
        if (part.count > 0 && (params_counts(params, view) || BUG(count_copies_in_norm)))
            o->kernels.sum_squares(squares, shard->grads + part.in_shard, part.count);
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
    for (const Params *p = params; p; p = p->next)
        for (int i = 0; i < p->shards; i++) add_squares(o, p, &p->shard[i]);
    if (params->placement.model_group && !BUG(norm_of_my_shard))
        comm_all_reduce(params->placement.model_group, &o->scalars->squares, 1, COMM_DOUBLE, COMM_SUM);
}

/* Updates the elements of the view that lie in this shard. The moments of `params` begin at element `first`. */
static void update(Optimizer *o, const Params *params, size_t first, const Shard *shard, const View *view)
{
    Overlap part = params_overlap(view, shard);
    if (part.count == 0) return;
    real *w = shard->weights + part.in_shard;
    acc *master = shard->master + part.in_shard, *g = shard->grads + part.in_shard;
    bool flat = params->placement.by != SHARD_NOTHING && BUG(decay_by_flat_shape);
    double decay = view->vector && !flat ? 0 : o->config.weight_decay;
    size_t at = first + shard->at + part.in_shard;
    if (o->config.kind == OPTIMIZER_ADAMW)
        o->kernels.adamw(w, master, o->m + at, o->v + at, g, part.count, decay, o->scalars);
    else
        o->kernels.sgd(w, master, g, part.count, decay, o->scalars);
}

void optimizer_step(Optimizer *o, Params *params)
{
    trace_begin("optimizer");
    size_t first = 0;
    for (const Params *p = params; p; first += p->held, p = p->next)
        for (int i = 0; i < p->shards; i++)
            for (int n = 0; n < p->views; n++) {
                update(o, p, first, &p->shard[i], &p->view[n]);
                comm_progress();
            }
    trace_end();
}

double optimizer_read_norm(const Optimizer *o)
{
    StepScalars scalars;
    o->kernels.download(&scalars, o->scalars, sizeof scalars);
    return sqrt(scalars.squares);
}
