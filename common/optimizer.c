#include "optimizer.h"

#include <math.h>
#include <string.h>

#include "memory.h"

static acc *zeros(size_t count)
{
    acc *x = memory_alloc(count * sizeof *x, MEMORY_OPTIMIZER);
    memset(x, 0, count * sizeof *x);
    return x;
}

Optimizer optimizer_create(OptimizerConfig config, const Params *params)
{
    Optimizer o = {.config = config};
    if (config.kind == OPTIMIZER_ADAMW) {
        o.m = zeros(params->count);
        o.v = zeros(params->count);
    }
    return o;
}

void optimizer_free(Optimizer *o)
{
    memory_free(o->m);
    memory_free(o->v);
    o->m = o->v = NULL;
}

double optimizer_lr(const OptimizerConfig *c, long step)
{
    const double pi = 3.14159265358979323846, floor = 0.1;
    if (step < c->warmup) return c->lr * (double)(step + 1) / (double)c->warmup;
    if (c->steps <= c->warmup) return c->lr;
    double progress = (double)(step - c->warmup) / (double)(c->steps - c->warmup);
    return c->lr * (floor + (1 - floor) * 0.5 * (1 + cos(pi * progress)));
}

double optimizer_grad_norm(const Params *params, const Kernels *kernels)
{
    double squares = 0;
    for (int u = 0; u < params->units; u++)
        squares += kernels->sum_squares(params->unit[u].grads, params->unit[u].count);
    return sqrt(squares);
}

void optimizer_step(Optimizer *o, Params *params, const Kernels *kernels, long step, double norm)
{
    const OptimizerConfig *c = &o->config;
    double scale = c->clip > 0 ? fmin(1, c->clip / (norm + 1e-6)) : 1;
    AdamWStep adamw = {
        .lr = optimizer_lr(c, step),
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .scale = scale,
        .correction1 = 1 - pow(c->beta1, (double)step + 1),
        .correction2 = 1 - pow(c->beta2, (double)step + 1),
    };
    for (int n = 0; n < params->views; n++) {
        const View *view = &params->view[n];
        acc *w = params->weights + view->offset; /* real is acc: the weights are their own master copy */
        const acc *g = params->grads + view->offset;
        adamw.weight_decay = view->vector ? 0 : c->weight_decay;
        if (c->kind == OPTIMIZER_ADAMW)
            kernels->adamw(w, o->m + view->offset, o->v + view->offset, g, view->size, adamw);
        else
            kernels->sgd(w, g, view->size, adamw.lr, adamw.weight_decay, scale);
    }
}
