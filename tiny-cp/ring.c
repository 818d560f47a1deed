/* Ring attention: blocks of keys and values travel from rank to rank. At step s a rank holds the block of the rank s
 * places before it. Each rank sends its block on and receives the next one while it attends to the block it holds.
 *
 *   3 ranks   step 0    step 1    step 2        the block that each rank holds
 *   rank 0    0         2         1
 *   rank 1    1         0         2
 *   rank 2    2         1         0
 *
 * All ranks take the same number of steps, derived from what all of them need, also a rank that needs no block of the
 * later ones: it passes blocks on. */
#include "context_parallel.h"

static void swap(real **a, real **b)
{
    real *t = *a;
    *a = *b;
    *b = t;
}

/* Elements of a block of keys and values. */
static size_t block_size(const Queries *q)
{
    return 2 * (size_t)q->rows * (size_t)q->kv_heads * (size_t)q->head_dim;
}

static unsigned flags_of(int step, int last)
{
    return (step == 0 ? ATTENTION_FIRST : 0u) | (step == last ? ATTENTION_LAST : 0u);
}

static void forward(ContextParallel *c, real *out, acc *lse, const Queries *q)
{
    int steps = context_ring_steps(c->cut, c->seq, c->reach), last = context_last(c);
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim;
    real *block = c->kv[0], *next = c->kv[1];
    context_pack(c, block, q);
    for (int s = 0; s <= steps; s++) {
        int owner = context_owner(c, s);
        Work *work = NULL;
        if (s < steps) work = comm_start_send_receive(c->teams, next, block, block_size(q), COMM_REAL, 1);
        if (context_sees(c, group_rank(c->teams), owner))
            context_attend(c, out, lse, q, owner, block, block + width, 2 * width, flags_of(s, last));
        comm_wait(work);
        swap(&block, &next);
    }
}

/* The gradients of a block travel one step behind it: a rank adds its own to what the ranks before it have added, and
 * sends the sum on. After the last step they are `steps` ranks from home. */
static void backward(ContextParallel *c, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const Queries *q)
{
    int steps = context_ring_steps(c->cut, c->seq, c->reach), last = context_last(c);
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim;
    real *block = c->kv[0], *next = c->kv[1];
    acc *sum = c->dkv[0], *arriving = c->dkv[1];
    context_pack(c, block, q);
    c->kernels.fill(sum, 0, block_size(q) * sizeof *sum);
    for (int s = 0; s <= steps; s++) {
        int owner = context_owner(c, s);
        Work *work = NULL;
        if (s < steps) work = comm_start_send_receive(c->teams, next, block, block_size(q), COMM_REAL, 1);
        if (context_sees(c, group_rank(c->teams), owner))
            context_attend_backward(c, dqkv, sum, dot, dout, out, lse, q, owner, block, block + width, 2 * width,
                                    flags_of(s, last));
        comm_wait(work);
        swap(&block, &next);
        if (steps == 0) break; /* the block never left */
        comm_send_receive(c->teams, arriving, sum, block_size(q), COMM_ACC, s < steps ? 1 : -steps);
        acc *t = sum;
        sum = arriving;
        arriving = t;
    }
    context_unpack(c, dqkv, block, sum, q);
}

const Method method_ring = {forward, backward};
