/* Context parallelism by all-gather: each rank gathers the keys and values of all ranks, and attends to them block by
 * block. Its own block comes first, while the others are on their way. */
#include "context_parallel.h"

static size_t block_size(const Queries *q)
{
    return 2 * (size_t)q->rows * (size_t)q->kv_heads * (size_t)q->head_dim;
}

static unsigned flags_of(int step, int last)
{
    return (step == 0 ? ATTENTION_FIRST : 0u) | (step == last ? ATTENTION_LAST : 0u);
}

/* Starts gathering the blocks of all teams into kv[0]. */
static Work *gather(ContextParallel *c, const Queries *q)
{
    real *mine = c->kv[0] + (size_t)group_rank(c->teams) * block_size(q);
    context_pack(c, mine, q);
    return comm_start_all_gather(c->teams, c->kv[0], mine, block_size(q), COMM_REAL);
}

static void forward(ContextParallel *c, real *out, acc *lse, const Queries *q)
{
    int last = context_last(c);
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim;
    Work *work = gather(c, q);
    for (int s = 0; s <= last; s++) {
        int owner = context_owner(c, s);
        const real *block = c->kv[0] + (size_t)owner * block_size(q);
        if (s == 1) comm_wait(work);
        if (context_sees(c, group_rank(c->teams), owner))
            context_attend(c, out, lse, q, owner, block, block + width, 2 * width, flags_of(s, last));
    }
    if (last == 0) comm_wait(work);
}

static void backward(ContextParallel *c, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const Queries *q)
{
    int last = context_last(c);
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim, size = block_size(q);
    Work *work = gather(c, q);
    c->kernels.fill(c->dkv[0], 0, (size_t)group_size(c->teams) * size * sizeof(acc));
    for (int s = 0; s <= last; s++) {
        int owner = context_owner(c, s);
        const real *block = c->kv[0] + (size_t)owner * size;
        if (s == 1) comm_wait(work);
        if (context_sees(c, group_rank(c->teams), owner))
            context_attend_backward(c, dqkv, c->dkv[0] + (size_t)owner * size, dot, dout, out, lse, q, owner, block,
                                    block + width, 2 * width, flags_of(s, last));
    }
    if (last == 0) comm_wait(work);
    comm_reduce_scatter(c->teams, c->dkv[1], c->dkv[0], size, COMM_ACC, COMM_SUM);
    context_unpack(c, dqkv, c->kv[1], c->dkv[1], q);
}

const Method method_allgather = {forward, backward};
