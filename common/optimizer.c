#include "optimizer.h"

#include <math.h>

#include "memory.h"

static acc *zeros(const Kernels *kernels, size_t count)
{
    acc *x = memory_alloc(count * sizeof *x, MEMORY_OPTIMIZER);
    kernels->fill(x, 0, count * sizeof *x);
    return x;
}

Optimizer optimizer_create(OptimizerConfig config, const Params *params, const Kernels *kernels)
{
    Optimizer o = {.config = config, .kernels = *kernels};
    if (config.kind == OPTIMIZER_ADAMW) {
        o.m = zeros(kernels, params->count);
        o.v = zeros(kernels, params->count);
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
    for (int u = 0; u < params->units; u++)
        o->kernels.sum_squares(&o->scalars->squares, params->unit[u].grads, params->unit[u].count);
}

void optimizer_step(Optimizer *o, Params *params)
{
    for (int n = 0; n < params->views; n++) {
        const View *view = &params->view[n];
        size_t at = view->offset;
        double decay = view->vector ? 0 : o->config.weight_decay;
        if (o->config.kind == OPTIMIZER_ADAMW)
            o->kernels.adamw(params->weights + at, params->master + at, o->m + at, o->v + at, params->grads + at,
                             view->size, decay, o->scalars);
        else
            o->kernels.sgd(params->weights + at, params->master + at, params->grads + at, view->size, decay,
                           o->scalars);
    }
}

double optimizer_read_norm(const Optimizer *o)
{
    StepScalars scalars;
    o->kernels.download(&scalars, o->scalars, sizeof scalars);
    return sqrt(scalars.squares);
}
