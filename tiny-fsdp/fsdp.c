/* FSDP: each unit is one flat run of memory, sharded evenly. So one all-gather moves a whole unit, and the weights
 * arrive in the buffer that the kernels read. While a unit computes, the next one is gathered. While a layer's
 * backward pass runs, the gradients of the previous one are reduced:
 *
 *              forward                             backward
 *   gather     | unit 1 | unit 2 | unit 3 |        | unit 3 | unit 2 | unit 1 |                    one ahead
 *   compute    | root   | unit 1 | unit 2 | unit 3 | head   | unit 3 | unit 2 | unit 1 | root |
 *   reduce                                                           | unit 3 | unit 2 | unit 1 | root     one behind
 *
 * With --reshard 1 and --accumulate-sharded 1 at most two layers are in memory. There are two slots for layers;
 * layers take them in turn. A layer is resharded when it has been used: its slot becomes free, and then the gather of
 * the next layer that needs this slot starts. The root has a slot of its own. It is gathered before the forward pass
 * and stays to the end of the backward pass.
 *
 * HSDP does the same inside each shard group. Then the ranks that own the same shard, one in each group, all-reduce
 * its gradients. */
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "sharding.h"

/* A buffer for one unit's gathered weights. Invariant: unit >= 0 if its gather has finished or is in flight. */
typedef struct {
    int unit;      /* -1: free */
    real *weights; /* [padded] */
    Work *gather;  /* in flight, or NULL */
} WeightSlot;

/* Buffers for one unit's gradients and for their reduce-scatter. */
typedef struct {
    acc *grads;   /* [padded]  this rank's gradients of the whole unit: partial, to be summed over the ranks */
    acc *reduced; /* [shard]   result of the reduce-scatter, then added to the shard; NULL: the shard is the result */
    real *narrow, *narrow_reduced; /* --reduce real: grads and reduced in the type in which they travel; else NULL */
    Work *reduce;                  /* in flight, or NULL */
    int unit;                      /* the unit that `reduce` reduces */
} GradSlot;

typedef struct {
    WeightSlot *weight; /* [1 + weight_layers]  slot 0 is the root's */
    GradSlot *grad;     /* [1 + grad_layers] */
    int weight_layers, grad_layers;
    Work **replicate; /* [units]  HSDP: all-reduces over dp in flight, or NULL */
    bool narrow;      /* gradients travel as real, which is narrower than acc in this build */
} Fsdp;

static size_t padded(const Sharding *s, int unit)
{
    return s->params->unit[unit].shard->padded * (size_t)group_size(s->groups.reduce);
}

static WeightSlot *weight_slot(const Fsdp *f, int unit)
{
    return &f->weight[unit == 0 ? 0 : 1 + (unit - 1) % f->weight_layers];
}

static GradSlot *grad_slot(const Fsdp *f, int unit)
{
    return &f->grad[unit == 0 ? 0 : 1 + (unit - 1) % f->grad_layers];
}

/* Does a rank keep the gradients of whole layers until the last micro-step (--accumulate-sharded 0)? */
static bool accumulates_whole(const Sharding *s)
{
    return s->accumulate > 1 && !s->options.accumulate_sharded;
}

/* --- buffers --- */

/* Elements of the largest shard of the units that use this slot. The root uses slot 0, layer l uses slot 1 + l mod
 * `layers`. */
static size_t largest_shard(const Sharding *s, int slot, int layers)
{
    size_t largest = slot == 0 ? s->params->unit[0].shard->padded : 0;
    for (int u = slot; u < s->params->units && slot > 0; u += layers)
        if (s->params->unit[u].shard->padded > largest) largest = s->params->unit[u].shard->padded;
    return largest;
}

static void *create(Sharding *s)
{
    int layers = s->params->units - 1, two = layers < 2 ? layers : 2;
    Fsdp *f = calloc(1, sizeof *f);
    if (!f) fatal("out of memory");
    f->weight_layers = s->options.reshard ? two : layers;
    f->grad_layers = accumulates_whole(s) ? layers : two;
    f->narrow = strcmp(s->options.reduce, "real") == 0 && MASTER_BYTES;
    f->weight = calloc(1 + (size_t)f->weight_layers, sizeof *f->weight);
    f->grad = calloc(1 + (size_t)f->grad_layers, sizeof *f->grad);
    f->replicate = calloc((size_t)s->params->units, sizeof(Work *));
    if (!f->weight || !f->grad || !f->replicate) fatal("out of memory");
    size_t ranks = (size_t)group_size(s->groups.reduce);
    for (int i = 0; i <= f->weight_layers; i++) {
        size_t whole = largest_shard(s, i, f->weight_layers) * ranks;
        f->weight[i] = (WeightSlot){.unit = -1, .weights = memory_alloc(whole * sizeof(real), MEMORY_BUFFERS)};
    }
    for (int i = 0; i <= f->grad_layers; i++) {
        GradSlot *g = &f->grad[i];
        size_t shard = largest_shard(s, i, f->grad_layers), whole = shard * ranks;
        g->grads = memory_alloc(whole * sizeof(acc), MEMORY_BUFFERS);
        if (f->narrow) {
            g->narrow = memory_alloc(whole * sizeof(real), MEMORY_BUFFERS);
            g->narrow_reduced = memory_alloc(shard * sizeof(real), MEMORY_BUFFERS);
        } else if (s->accumulate > 1 && s->options.accumulate_sharded) {
            g->reduced = memory_alloc(shard * sizeof(acc), MEMORY_BUFFERS);
        }
    }
    return f;
}

static void end(void *state)
{
    Fsdp *f = state;
    for (int i = 0; i <= f->weight_layers; i++) memory_free(f->weight[i].weights);
    for (int i = 0; i <= f->grad_layers; i++) {
        GradSlot *g = &f->grad[i];
        void *all[] = {g->grads, g->reduced, g->narrow, g->narrow_reduced};
        for (int n = 0; n < 4; n++) memory_free(all[n]);
    }
    free(f->weight);
    free(f->grad);
    free(f->replicate);
    free(f);
}

/* --- weights --- */

static void start_gather(Sharding *s, int unit)
{
    WeightSlot *slot = weight_slot(s->state, unit);
    const Shard *mine = s->params->unit[unit].shard;
    if (slot->unit == unit) return;
    CHECK(slot->unit < 0);
    slot->unit = unit;
    if (mine->padded == 0) return; /* the root unit of experts is empty */
    slot->gather = comm_start_all_gather(s->groups.gather, slot->weights, mine->weights, mine->padded, COMM_REAL);
}

/* Waits until the unit's weights are gathered; kernels launched after this call may read them. With --prefetch 1 it
 * then starts to gather unit `next`, if that is a layer. */
static void unshard(Sharding *s, int unit, int next)
{
    WeightSlot *slot = weight_slot(s->state, unit);
    start_gather(s, unit);
    comm_wait(slot->gather);
    slot->gather = NULL;
    s->params->unit[unit].weights = slot->weights;
    if (s->options.prefetch && next > 0 && next < s->params->units) start_gather(s, next);
}

/* Frees the slot. The rank keeps only its shard of the unit's weights. */
static void reshard(Sharding *s, int unit)
{
    WeightSlot *slot = weight_slot(s->state, unit);
    slot->unit = -1;
    s->params->unit[unit].weights = NULL;
    memory_poison(slot->weights, padded(s, unit) * sizeof *slot->weights);
}

/* --- gradients --- */

static void start_reduce(Sharding *s, int unit)
{
    Fsdp *f = s->state;
    GradSlot *slot = grad_slot(f, unit);
    Shard *mine = s->params->unit[unit].shard;
    if (mine->padded == 0) return;
    slot->unit = unit;
    if (f->narrow) {
        s->kernels.cast(slot->narrow, slot->grads, padded(s, unit));
        slot->reduce = comm_start_reduce_scatter(s->groups.reduce, slot->narrow_reduced, slot->narrow, mine->padded,
                                                 COMM_REAL, COMM_SUM);
    } else {
        acc *to = slot->reduced && !BUG(overwrite_shard) ? slot->reduced : mine->grads;
        slot->reduce = comm_start_reduce_scatter(s->groups.reduce, to, slot->grads, mine->padded, COMM_ACC, COMM_SUM);
    }
}

/* Waits for the slot's reduce-scatter, if one is in flight, and adds the result to the shard. In the last micro-step
 * of HSDP it then starts the all-reduce of the shard over dp. */
static void finish_reduce(Sharding *s, GradSlot *slot)
{
    Fsdp *f = s->state;
    if (!slot->reduce) return;
    Shard *mine = s->params->unit[slot->unit].shard;
    comm_wait(slot->reduce);
    slot->reduce = NULL;
    if (f->narrow)
        s->kernels.add_real(mine->grads, slot->narrow_reduced, mine->padded);
    else if (slot->reduced && !BUG(overwrite_shard))
        s->kernels.add(mine->grads, slot->reduced, mine->padded);
    if (backward_is_last(s->micro_step) && group_size(s->groups.replicate) > 1)
        f->replicate[slot->unit] =
            comm_start_all_reduce(s->groups.replicate, mine->grads, mine->padded, COMM_ACC, COMM_SUM);
}

/* --- the seam --- */

static void before_forward(void *self, int unit)
{
    unshard(self, unit, unit + 1);
}

static void after_forward(void *self, int unit)
{
    Sharding *s = self;
    if (unit > 0 && s->options.reshard) reshard(s, unit);
}

static void before_backward(void *self, int unit)
{
    Sharding *s = self;
    GradSlot *slot = grad_slot(s->state, unit);
    unshard(s, unit, unit == 0 ? s->params->units - 1 : unit - 1); /* after the root's head comes the last layer */
    finish_reduce(s, slot);                                        /* of the unit that used this slot before */
    if (s->micro_step->index == 0 || !accumulates_whole(s))
        s->kernels.fill(slot->grads, 0, padded(s, unit) * sizeof *slot->grads);
    s->params->unit[unit].grads = slot->grads;
}

static void after_backward(void *self, int unit)
{
    Sharding *s = self;
    Fsdp *f = s->state;
    if (s->options.reshard || backward_is_last(s->micro_step)) reshard(s, unit);
    s->params->unit[unit].grads = NULL;
    if (!backward_reduces(s->micro_step)) return;
    start_reduce(s, unit);
    if (!s->options.prefetch) finish_reduce(s, grad_slot(f, unit));
    if (unit > 0) return;
    /* the root is the last unit of the backward pass: wait for all reduce-scatters that are still in flight */
    for (int i = 1; i <= f->grad_layers; i++) finish_reduce(s, &f->grad[i]);
    finish_reduce(s, &f->grad[0]);
}

static void finish(Sharding *s)
{
    Fsdp *f = s->state;
    for (int u = 0; u < s->params->units; u++) {
        comm_wait(f->replicate[u]);
        f->replicate[u] = NULL;
    }
}

#define FSDP(NAME)                                                                                                     \
    {                                                                                                                  \
        .name = NAME, .placement = {.by = SHARD_UNITS}, .create = create, .free = end,                                 \
        .seam = {.before_forward = before_forward,                                                                     \
                 .after_forward = after_forward,                                                                       \
                 .before_backward = before_backward,                                                                   \
                 .after_backward = after_backward},                                                                    \
        .finish = finish, .replicates = true                                                                           \
    }
const Strategy strategy_fsdp = FSDP("fsdp"), strategy_hsdp = FSDP("hsdp");
