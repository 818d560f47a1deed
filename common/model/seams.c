#include "model/seams.h"

#include <stddef.h>

bool backward_is_last(const MicroStep *m)
{
    return m->index == m->count - 1;
}

bool backward_reduces(const MicroStep *m)
{
    return m->reduces_each || backward_is_last(m);
}

static void call(void (*hook)(void *, int), void *self, int unit)
{
    if (hook) hook(self, unit);
}

static void before_forward(void *self, int unit)
{
    SeamChain *c = self;
    call(c->outer.before_forward, c->outer.self, unit);
    call(c->inner.before_forward, c->inner.self, unit);
}

static void after_forward(void *self, int unit)
{
    SeamChain *c = self;
    call(c->inner.after_forward, c->inner.self, unit);
    call(c->outer.after_forward, c->outer.self, unit);
}

static void before_backward(void *self, int unit)
{
    SeamChain *c = self;
    call(c->outer.before_backward, c->outer.self, unit);
    call(c->inner.before_backward, c->inner.self, unit);
}

static void after_backward(void *self, int unit)
{
    SeamChain *c = self;
    call(c->inner.after_backward, c->inner.self, unit);
    call(c->outer.after_backward, c->outer.self, unit);
}

ParameterSeam seam_chain(SeamChain *chain, ParameterSeam inner, ParameterSeam outer)
{
    *chain = (SeamChain){inner, outer};
    return (ParameterSeam){chain, before_forward, after_forward, before_backward, after_backward};
}
