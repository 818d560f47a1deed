/* ZeRO-3 in its plain form: every parameter is sharded on its own. Before a unit is used, its parameters are gathered
 * one by one, and the rank waits for each call. There are many small calls and nothing overlaps, but every line can
 * be stepped in gdb. fsdp.c is the fast form.
 *
 * A gathered parameter may have padding at its end, but in the unit's buffer parameters lie without gaps. So each is
 * gathered into a buffer of its own and then copied. */
#include <stdlib.h>

#include "base/bug.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "sharding.h"

typedef struct {
    real *weights[2]; /* gathered weights: of the root; of the layer that is running */
    acc *grads[2];    /* gradients: of the root; of the layer that is running */
    real *gathered;   /* [largest padded view]  result of an all-gather */
    acc *to_reduce;   /* [largest padded view]  input of a reduce-scatter */
    acc *reduced;     /* [largest shard]  its result, then added to the shard; NULL: the shard is the result */
} Zero3;

static size_t padded(const Sharding *s, int view)
{
    return s->params->view[view].shard->padded * (size_t)group_size(s->groups.reduce);
}

static void *create(Sharding *s)
{
    const Params *p = s->params;
    Zero3 *z = calloc(1, sizeof *z);
    if (!z) fatal("out of memory");
    size_t largest_layer = 0, largest_view = 0, largest_shard = 0;
    for (int u = 1; u < p->units; u++)
        if (p->unit[u].count > largest_layer) largest_layer = p->unit[u].count;
    for (int n = 0; n < p->views; n++) {
        if (padded(s, n) > largest_view) largest_view = padded(s, n);
        if (p->view[n].shard->padded > largest_shard) largest_shard = p->view[n].shard->padded;
    }
    for (int i = 0; i < 2; i++) {
        size_t count = i == 0 ? p->unit[0].count : largest_layer;
        z->weights[i] = memory_alloc(count * sizeof(real), MEMORY_BUFFERS);
        z->grads[i] = memory_alloc(count * sizeof(acc), MEMORY_BUFFERS);
    }
    z->gathered = memory_alloc(largest_view * sizeof(real), MEMORY_BUFFERS);
    z->to_reduce = memory_alloc(largest_view * sizeof(acc), MEMORY_BUFFERS);
    if (s->accumulate > 1) z->reduced = memory_alloc(largest_shard * sizeof(acc), MEMORY_BUFFERS);
    return z;
}

static void end(void *state)
{
    Zero3 *z = state;
    void *all[] = {z->weights[0], z->weights[1], z->grads[0], z->grads[1], z->gathered, z->to_reduce, z->reduced};
    for (int i = 0; i < 7; i++) memory_free(all[i]);
    free(z);
}

static void gather(Sharding *s, int unit)
{
    Params *p = s->params;
    Zero3 *z = s->state;
    Unit *u = &p->unit[unit];
    u->weights = z->weights[unit > 0];
    for (int n = u->first_view; n < u->first_view + u->views; n++) {
        const View *v = &p->view[n];
        comm_all_gather(s->groups.gather, z->gathered, v->shard->weights, v->shard->padded, COMM_REAL);
        s->kernels.copy(u->weights + (v->offset - u->offset), z->gathered, v->size * sizeof(real));
        memory_poison(z->gathered, padded(s, n) * sizeof(real));
    }
}

static void before_forward(void *self, int unit)
{
    gather(self, unit);
}

static void reshard(Sharding *s, int unit)
{
    Unit *u = &s->params->unit[unit];
    memory_poison(u->weights, u->count * sizeof *u->weights);
    u->weights = NULL;
}

static void after_forward(void *self, int unit)
{
    if (unit > 0) reshard(self, unit); /* the root stays: the backward pass begins with it */
}

static void before_backward(void *self, int unit)
{
    Sharding *s = self;
    Zero3 *z = s->state;
    Unit *u = &s->params->unit[unit];
    if (unit > 0) gather(s, unit);
    u->grads = z->grads[unit > 0];
    s->kernels.fill(u->grads, 0, u->count * sizeof *u->grads);
}

static void after_backward(void *self, int unit)
{
    Sharding *s = self;
    Params *p = s->params;
    Zero3 *z = s->state;
    Unit *u = &p->unit[unit];
    for (int n = u->first_view; n < u->first_view + u->views; n++) {
        const View *v = &p->view[n];
        Shard *mine = v->shard;
        s->kernels.copy(z->to_reduce, u->grads + (v->offset - u->offset), v->size * sizeof(acc));
        s->kernels.fill(z->to_reduce + v->size, 0, (padded(s, n) - v->size) * sizeof(acc));
        bool adds = z->reduced && !BUG(overwrite_shard);
        comm_reduce_scatter(s->groups.reduce, adds ? z->reduced : mine->grads, z->to_reduce, mine->padded, COMM_ACC,
                            COMM_SUM);
        if (adds) s->kernels.add(mine->grads, z->reduced, mine->padded);
    }
    reshard(s, unit);
    u->grads = NULL;
}

const Strategy strategy_zero3 = {
    .name = "zero3",
    .placement = {.by = SHARD_VIEWS},
    .create = create,
    .free = end,
    .seam = {.before_forward = before_forward,
             .after_forward = after_forward,
             .before_backward = before_backward,
             .after_backward = after_backward},
};
