/* ZeRO-2: gradients are sharded too. After a unit's backward pass a reduce-scatter sums its gradients to their
 * owners, and the next layer uses the same buffer. The price: every micro-step must reduce, so A micro-steps send A
 * times as much. */
#include <stdlib.h>

#include "base/bug.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "sharding.h"

typedef struct {
    acc *root, *layer; /* [padded]  this rank's gradients of the root, and of the layer in its backward pass */
    acc *reduced;      /* [shard]   result of a reduce-scatter, then added to the shard; NULL: it is the shard */
} Zero2;

static size_t padded(const Sharding *s, int unit)
{
    return s->params->unit[unit].shard->padded * (size_t)group_size(s->groups.reduce);
}

static void *create(Sharding *s)
{
    Zero2 *z = calloc(1, sizeof *z);
    if (!z) fatal("out of memory");
    size_t largest_layer = 0, largest_shard = 0;
    for (int u = 0; u < s->params->units; u++) {
        if (u > 0 && padded(s, u) > largest_layer) largest_layer = padded(s, u);
        if (s->params->unit[u].shard->padded > largest_shard) largest_shard = s->params->unit[u].shard->padded;
    }
    z->root = memory_alloc(padded(s, 0) * sizeof *z->root, MEMORY_BUFFERS);
    z->layer = memory_alloc(largest_layer * sizeof *z->layer, MEMORY_BUFFERS);
    if (s->accumulate > 1) z->reduced = memory_alloc(largest_shard * sizeof *z->reduced, MEMORY_BUFFERS);
    return z;
}

static void end(void *state)
{
    Zero2 *z = state;
    memory_free(z->root);
    memory_free(z->layer);
    memory_free(z->reduced);
    free(z);
}

static void before_backward(void *self, int unit)
{
    Sharding *s = self;
    Zero2 *z = s->state;
    acc *grads = unit == 0 ? z->root : z->layer;
    s->kernels.fill(grads, 0, padded(s, unit) * sizeof *grads);
    s->params->unit[unit].grads = grads;
}

static void after_backward(void *self, int unit)
{
    Sharding *s = self;
    Zero2 *z = s->state;
    Shard *mine = s->params->unit[unit].shard;
    if (mine->padded == 0) return; /* the root unit of experts is empty */
    bool adds = z->reduced && !BUG(overwrite_shard);
    comm_reduce_scatter(s->groups.reduce, adds ? z->reduced : mine->grads, s->params->unit[unit].grads, mine->padded,
                        COMM_ACC, COMM_SUM);
    if (adds) s->kernels.add(mine->grads, z->reduced, mine->padded);
    s->params->unit[unit].grads = NULL;
}

static void publish(Sharding *s)
{
    for (int u = 0; u < s->params->units; u++) {
        const Shard *mine = s->params->unit[u].shard;
        if (mine->padded > 0)
            comm_all_gather(s->groups.gather, s->params->unit[u].weights, mine->weights, mine->padded, COMM_REAL);
    }
}

const Strategy strategy_zero2 = {
    .name = "zero2",
    .placement = {.by = SHARD_UNITS, .whole_weights = true},
    .create = create,
    .free = end,
    .seam = {.before_backward = before_backward, .after_backward = after_backward},
    .publish = publish,
};
