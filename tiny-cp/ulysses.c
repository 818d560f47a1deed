/* Rows for heads: an all-to-all inside a team of U ranks.
 *
 *   before    rank i has its own rows, all heads         after    rank i has the team's rows, the heads of part i
 *
 *             heads 0 1                                           heads 0 1
 *   rows of rank 0  a b   on rank 0                               rows of rank 0  a | b
 *   rows of rank 1  c d   on rank 1                               rows of rank 1  c | d
 *                                                                       rank 0 ^   ^ rank 1
 *
 * A buffer of the all-to-all has one piece for each member of the team. Before it, piece i has this rank's rows and the
 * heads of member i; after it, the rows of member i and this rank's heads. So the pieces that arrive are the team's rows,
 * rank by rank.
 *
 * With fewer kv heads than members, U / K neighbouring members attend with the same kv head. Each gets a copy of it, and
 * the gradients of the copies are summed. */
#include "context_parallel.h"

static int part_heads(const ContextParallel *c)
{
    return c->heads / c->cut.sharers;
}

static int part_kv_heads(const ContextParallel *c)
{
    return c->kv_heads < c->cut.sharers ? 1 : c->kv_heads / c->cut.sharers;
}

/* The first kv head of a member's part. */
static int first_kv_head(const ContextParallel *c, int member)
{
    return member * c->kv_heads / c->cut.sharers;
}

/* Copies between the columns of a member's part in a matrix of N rows of all heads, q | k | v, and its piece. */
static void copy_part(ContextParallel *c, int member, real *all, real *piece, int N, bool to_piece, bool kv)
{
    const Kernels *kernels = &c->kernels;
    int D = c->head_dim, h = part_heads(c), k = part_kv_heads(c);
    size_t all_stride = (size_t)((c->heads + 2 * c->kv_heads) * D), piece_stride = (size_t)((h + 2 * k) * D);
    real *columns[] = {all + member * h * D, all + (c->heads + first_kv_head(c, member)) * D,
                       all + (c->heads + c->kv_heads + first_kv_head(c, member)) * D};
    real *part[] = {piece, piece + h * D, piece + (h + k) * D};
    int width[] = {h * D, k * D, k * D};
    for (int i = 0; i < (kv ? 3 : 1); i++)
        if (to_piece)
            kernels->copy_block(part[i], piece_stride, columns[i], all_stride, N, width[i]);
        else
            kernels->copy_block(columns[i], all_stride, part[i], piece_stride, N, width[i]);
}

Queries ulysses_enter(ContextParallel *c, const real *qkv, const Rows *rows)
{
    int N = rows->count, U = c->cut.sharers, D = c->head_dim, h = part_heads(c), k = part_kv_heads(c);
    size_t stride = (size_t)((h + 2 * k) * D), piece = (size_t)N * stride;
    for (int i = 0; i < U; i++) copy_part(c, i, (real *)qkv, c->sent + (size_t)i * piece, N, true, true);
    comm_all_to_all(c->team, c->received, c->sent, piece, COMM_REAL);
    const real *q = c->received;
    return (Queries){U * N, h, k, D, q, q + h * D, q + (h + k) * D, stride, rows->team_lo, rows->team_hi};
}

/* Exchanges a matrix [N, H D] for [M, h D] at `to`. */
static void enter_output(ContextParallel *c, real *to, const real *all, int N)
{
    int U = c->cut.sharers, width = part_heads(c) * c->head_dim;
    size_t piece = (size_t)N * (size_t)width;
    for (int i = 0; i < U; i++)
        c->kernels.copy_block(c->sent + (size_t)i * piece, (size_t)width, all + i * width, (size_t)(U * width), N,
                              width);
    comm_all_to_all(c->team, to, c->sent, piece, COMM_REAL);
}

void ulysses_enter_outputs(ContextParallel *c, const real **out, const real **dout, const real *attended,
                           const real *dattended, int N)
{
    int h = part_heads(c), k = part_kv_heads(c);
    size_t rows = (size_t)(c->cut.sharers * N), D = (size_t)c->head_dim;
    real *first = c->received + rows * (size_t)(h + 2 * k) * D, *second = first + rows * (size_t)h * D;
    enter_output(c, first, attended, N);
    enter_output(c, second, dattended, N);
    *out = first;
    *dout = second;
}

void ulysses_leave(ContextParallel *c, real *attended, int N)
{
    int U = c->cut.sharers, width = part_heads(c) * c->head_dim;
    size_t piece = (size_t)N * (size_t)width;
    comm_all_to_all(c->team, c->received, c->sent, piece, COMM_REAL);
    for (int i = 0; i < U; i++)
        c->kernels.copy_block(attended + i * width, (size_t)(U * width), c->received + (size_t)i * piece, (size_t)width,
                              N, width);
}

/* The gradient of kv head `head`: the sum over the members that attended with it. `at`: the column of k or v in a
 * piece. */
static void sum_shared(ContextParallel *c, real *dhead, int head, int at, int N)
{
    const Kernels *k = &c->kernels;
    int D = c->head_dim, sharing = c->cut.sharers / c->kv_heads;
    size_t stride = (size_t)((part_heads(c) + 2) * D), all_stride = (size_t)((c->heads + 2 * c->kv_heads) * D);
    size_t count = (size_t)N * (size_t)D;
    real *one = c->sent; /* scratch */
    k->fill(c->shared, 0, count * sizeof *c->shared);
    for (int i = head * sharing; i < (head + 1) * sharing; i++) {
        k->copy_block(one, (size_t)D, c->received + (size_t)i * (size_t)N * stride + at, stride, N, D);
        k->add_real(c->shared, one, count);
    }
    k->cast(one, c->shared, count);
    k->copy_block(dhead, all_stride, one, (size_t)D, N, D);
}

void ulysses_leave_gradients(ContextParallel *c, real *dqkv, int N)
{
    int D = c->head_dim, h = part_heads(c), k = part_kv_heads(c);
    size_t piece = (size_t)N * (size_t)((h + 2 * k) * D);
    bool shared = c->kv_heads < c->cut.sharers;
    comm_all_to_all(c->team, c->received, c->sent, piece, COMM_REAL);
    for (int i = 0; i < c->cut.sharers; i++) copy_part(c, i, dqkv, c->received + (size_t)i * piece, N, false, !shared);
    for (int head = 0; shared && head < c->kv_heads; head++) {
        sum_shared(c, dqkv + (c->heads + head) * D, head, h * D, N);
        sum_shared(c, dqkv + (c->heads + c->kv_heads + head) * D, head, (h + 1) * D, N);
    }
}
