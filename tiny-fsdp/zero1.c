/* ZeRO-1: only the optimizer state is sharded. Each rank adds up whole gradients over the micro-steps. After the last
 * one a reduce-scatter gives each rank the summed gradients of its shard. The rank updates its shard of the weights,
 * and an all-gather gives all shards to all ranks. An all-reduce is a reduce-scatter and an all-gather, so this sends
 * as many elements as tiny-ddp, with the optimizer in between. */
#include "sharding.h"

static void reduce(Sharding *s)
{
    Params *p = s->params;
    const Shard *mine = &p->shard[0];
    comm_reduce_scatter(s->groups.reduce, mine->grads, p->grads, mine->padded, COMM_ACC, COMM_SUM);
}

static void publish(Sharding *s)
{
    Params *p = s->params;
    const Shard *mine = &p->shard[0];
    comm_all_gather(s->groups.gather, p->weights, mine->weights, mine->padded, COMM_REAL);
}

const Strategy strategy_zero1 = {
    .name = "zero1",
    .placement = {.by = SHARD_MODEL, .whole_weights = true, .whole_grads = true},
    .finish = reduce,
    .publish = publish,
};
