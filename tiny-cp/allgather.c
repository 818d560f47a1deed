/* Context parallelism by all-gather: each rank gathers the keys and values of all ranks, and attends to them block by
 * block. Its own block comes first, while the others are on their way. */
#include "context_parallel.h"

/* Starts gathering the blocks of all teams into kv[0]. */
static Work *gather(ContextParallel *c, const Queries *q)
{
    size_t size = context_block_size(q);
    real *mine = c->kv[0] + (size_t)group_rank(c->teams) * size;
    context_pack(c, mine, q);
    return comm_start_all_gather(c->teams, c->kv[0], mine, size, COMM_REAL);
}

static void forward(ContextParallel *c, real *out, acc *lse, const Queries *q)
{
    Work *work = gather(c, q);
    for (int s = 0; s < group_size(c->teams); s++) {
        if (s == 1) comm_wait(work);
        context_attend(c, out, lse, q, s, c->kv[0] + (size_t)context_owner(c, s) * context_block_size(q));
    }
}

static void backward(ContextParallel *c, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const Queries *q)
{
    size_t size = context_block_size(q);
    Work *work = gather(c, q);
    c->kernels.fill(c->dkv[0], 0, (size_t)group_size(c->teams) * size * sizeof(acc));
    for (int s = 0; s < group_size(c->teams); s++) {
        size_t at = (size_t)context_owner(c, s) * size;
        if (s == 1) comm_wait(work);
        context_attend_backward(c, dqkv, c->dkv[0] + at, dot, dout, out, lse, q, s, c->kv[0] + at);
    }
    comm_reduce_scatter(c->teams, c->dkv[1], c->dkv[0], size, COMM_ACC, COMM_SUM);
    context_unpack(c, dqkv, c->kv[1], c->dkv[1], q);
}

const Method method_allgather = {forward, backward};
