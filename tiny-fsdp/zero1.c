/* ZeRO-1: the optimizer state is sharded, nothing else. Gradients add up whole over the micro-steps, and after the last one
 * each rank gets the sum of its shard. It updates that shard of the weights, and all shards are gathered. An all-reduce is a
 * reduce-scatter and an all-gather: the same bytes as tiny-ddp's, with the optimizer in between. */
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
