/* Ring attention: blocks of keys and values travel from rank to rank. At step s, rank r holds the block of rank r - s. It
 * sends the block on and receives the next one while it attends to the block.
 *
 *   3 ranks   step 0    step 1    step 2        the block that each rank holds
 *   rank 0    0         2         1
 *   rank 1    1         0         2
 *   rank 2    2         1         0
 *
 * All ranks end with the same step, the last one that any of them needs. A rank that needs no later block passes blocks
 * on. */
#include "context_parallel.h"

static void forward(ContextParallel *c, real *out, acc *lse, const Queries *q)
{
    int last = context_last_step(c->cut, c->seq, c->reach);
    size_t size = context_block_size(q);
    real *block = c->kv[0], *next = c->kv[1], *swap;
    context_pack(c, block, q);
    for (int s = 0; s <= last; s++) {
        Work *work = s < last ? comm_start_send_receive(c->teams, next, block, size, COMM_REAL, 1) : NULL;
        context_attend(c, out, lse, q, s, block);
        comm_wait(work);
        swap = block, block = next, next = swap;
    }
}

/* The gradients of a block travel behind it: a rank adds its own to what the ranks before it have added, and sends the
 * sum on. After the last step they are `last` ranks from home. */
static void backward(ContextParallel *c, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                     const Queries *q)
{
    int last = context_last_step(c->cut, c->seq, c->reach);
    size_t size = context_block_size(q);
    real *block = c->kv[0], *next = c->kv[1], *swap;
    acc *sum = c->dkv[0], *arriving = c->dkv[1], *swap_sum;
    context_pack(c, block, q);
    c->kernels.fill(sum, 0, size * sizeof *sum);
    for (int s = 0; s <= last; s++) {
        Work *work = s < last ? comm_start_send_receive(c->teams, next, block, size, COMM_REAL, 1) : NULL;
        context_attend_backward(c, dqkv, sum, dot, dout, out, lse, q, s, block);
        comm_wait(work);
        swap = block, block = next, next = swap;
        if (last == 0) break; /* the block never left */
        comm_send_receive(c->teams, arriving, sum, size, COMM_ACC, s < last ? 1 : -last);
        swap_sum = sum, sum = arriving, arriving = swap_sum;
    }
    context_unpack(c, dqkv, block, sum, q);
}

const Method method_ring = {forward, backward};
