/* The sequence seam of context parallelism. forward and backward below show the whole path of a layer's attention; the
 * methods are in ring.c, allgather.c and ulysses.c. */
#include "context_parallel.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "kernels/memory.h"

static int team_count(const ContextParallel *c)
{
    return group_size(c->teams);
}

/* --- the seam --- */

static Queries own_queries(const ContextParallel *c, const real *qkv, const Rows *rows)
{
    const real *k = qkv + c->heads * c->head_dim, *v = k + c->kv_heads * c->head_dim;
    size_t stride = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim;
    return (Queries){rows->count, c->heads, c->kv_heads, c->head_dim, qkv, k, v, stride, rows->lo, rows->hi};
}

static void forward(void *self, real *attended, acc *lse, const real *qkv, const Rows *rows)
{
    ContextParallel *c = self;
    if (c->cut.sharers == 1) {
        Queries q = own_queries(c, qkv, rows);
        c->method.forward(c, attended, lse, &q);
        return;
    }
    Queries q = ulysses_enter(c, qkv, rows);
    c->method.forward(c, c->sent, lse, &q);
    ulysses_leave(c, attended, rows->count);
}

static void backward(void *self, real *dqkv, acc *dot, const real *dattended, const real *attended, const acc *lse,
                     const real *qkv, const Rows *rows)
{
    ContextParallel *c = self;
    if (c->cut.sharers == 1) {
        Queries q = own_queries(c, qkv, rows);
        c->method.backward(c, dqkv, dot, dattended, attended, lse, &q);
        return;
    }
    const real *out, *dout;
    Queries q = ulysses_enter(c, qkv, rows);
    ulysses_enter_outputs(c, &out, &dout, attended, dattended, rows->count);
    c->method.backward(c, c->sent, dot, dout, out, lse, &q);
    ulysses_leave_gradients(c, dqkv, rows->count);
}

SequenceSeam context_seam(ContextParallel *c)
{
    return (SequenceSeam){.self = c, .forward = forward, .backward = backward};
}

/* --- attention to the keys of one team --- */

int context_owner(const ContextParallel *c, int step)
{
    int R = team_count(c);
    return (group_rank(c->teams) - step + R) % R;
}

static bool teams_meet(Cut cut, int seq, Reach reach, int team, int keys)
{
    int begin[2], end[2], key_begin[2], key_end[2];
    Cut theirs = cut;
    cut.rank = team * cut.sharers;
    theirs.rank = keys * cut.sharers;
    int chunks = cut_chunks(cut, seq, begin, end);
    cut_chunks(theirs, seq, key_begin, key_end);
    for (int a = 0; a < chunks; a++)
        for (int b = 0; b < chunks; b++)
            if (key_begin[b] <= end[a] - 1 + reach.ahead && key_end[b] - 1 >= begin[a] - reach.back) return true;
    return false;
}

static bool sees(const ContextParallel *c, int step)
{
    return teams_meet(c->cut, c->seq, c->reach, group_rank(c->teams), context_owner(c, step));
}

/* A rank always attends to its own block, at step 0: the first of the fold. The last is at the last step it sees. */
static unsigned flags_of(const ContextParallel *c, int step)
{
    int last = team_count(c) - 1;
    while (!sees(c, last)) last--;
    return (step == 0 ? ATTENTION_FIRST : 0u) | (step == last ? ATTENTION_LAST : 0u);
}

int context_last_step(Cut cut, int seq, Reach reach)
{
    int R = cut.ranks / cut.sharers, last = 0;
    for (int team = 0; team < R; team++)
        for (int s = 1; s < R; s++)
            if (s > last && teams_meet(cut, seq, reach, team, (team - s + R) % R)) last = s;
    return last;
}

/* Block b of the keys of a team: the ids ascend within it. */
static AttentionShape shape_of(const ContextParallel *c, const Queries *q, int keys, int b, size_t kv_stride,
                               unsigned flags)
{
    if (b > 0) flags &= ~(unsigned)ATTENTION_FIRST;
    if (b < c->blocks - 1) flags &= ~(unsigned)ATTENTION_LAST;
    int first = keys * c->cut.sharers + b; /* the rank that holds the block, or its first one */
    return (AttentionShape){.heads = q->heads,
                            .kv_heads = q->kv_heads,
                            .head_dim = q->head_dim,
                            .queries = q->rows,
                            .keys = q->rows / c->blocks,
                            .lo = q->lo,
                            .hi = q->hi,
                            .key_id = c->id + (size_t)first * (size_t)c->rows_max,
                            .q_stride = q->stride,
                            .kv_stride = kv_stride,
                            .flags = flags};
}

static void attend(ContextParallel *c, real *out, acc *lse, const Queries *q, int keys, const real *k, const real *v,
                   size_t kv_stride, unsigned flags)
{
    for (int b = 0; b < c->blocks; b++) {
        AttentionShape shape = shape_of(c, q, keys, b, kv_stride, flags);
        bool first = shape.flags & ATTENTION_FIRST;
        if (!first && BUG(lse_not_merged)) /* the mistake: all blocks before weigh exp(0) */
            c->kernels.fill(lse, 0, (size_t)q->rows * (size_t)q->heads * sizeof *lse);
        size_t at = (size_t)b * (size_t)shape.keys * kv_stride;
        c->kernels.attention_forward(out, c->fold, lse, q->q, k + at, v + at, shape);
        comm_progress();
    }
}

/* Adds to dkv, or writes to dqkv if dkv is NULL. */
static void attend_backward(ContextParallel *c, real *dqkv, acc *dkv, acc *dot, const real *dout, const real *out,
                            const acc *lse, const Queries *q, int keys, const real *k, const real *v, size_t kv_stride,
                            unsigned flags)
{
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim;
    real *dk = dqkv + q->heads * q->head_dim, *dv = dk + width;
    acc *dk_fold = dkv, *dv_fold = dkv ? dkv + (size_t)q->rows * width : NULL;
    for (int b = 0; b < c->blocks; b++) {
        AttentionShape shape = shape_of(c, q, keys, b, kv_stride, flags);
        size_t row = (size_t)b * (size_t)shape.keys, at = row * kv_stride;
        c->kernels.attention_backward(dqkv, c->fold, dkv ? NULL : dk + row * q->stride,
                                      dkv ? NULL : dv + row * q->stride, dkv ? dk_fold + row * width : NULL,
                                      dkv ? dv_fold + row * width : NULL, dot, dout, out, lse, q->q, k + at, v + at,
                                      shape);
        comm_progress();
    }
}

/* Of one team: there is nothing to bring, and keys and values are read where they are. */
static void local_forward(ContextParallel *c, real *out, acc *lse, const Queries *q)
{
    attend(c, out, lse, q, 0, q->k, q->v, q->stride, ATTENTION_FIRST | ATTENTION_LAST);
}

static void local_backward(ContextParallel *c, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                           const Queries *q)
{
    attend_backward(c, dqkv, NULL, dot, dout, out, lse, q, 0, q->k, q->v, q->stride, ATTENTION_FIRST | ATTENTION_LAST);
}

const Method method_local = {local_forward, local_backward};

void context_attend(ContextParallel *c, real *out, acc *lse, const Queries *q, int step, const real *block)
{
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim;
    if (sees(c, step))
        attend(c, out, lse, q, context_owner(c, step), block, block + width, 2 * width, flags_of(c, step));
}

void context_attend_backward(ContextParallel *c, real *dqkv, acc *dkv, acc *dot, const real *dout, const real *out,
                             const acc *lse, const Queries *q, int step, const real *block)
{
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim;
    if (sees(c, step))
        attend_backward(c, dqkv, dkv, dot, dout, out, lse, q, context_owner(c, step), block, block + width, 2 * width,
                        flags_of(c, step));
}

/* --- blocks --- */

size_t context_block_size(const Queries *q)
{
    return 2 * (size_t)q->rows * (size_t)q->kv_heads * (size_t)q->head_dim;
}

void context_pack(ContextParallel *c, real *block, const Queries *q)
{
    int width = q->kv_heads * q->head_dim;
    c->kernels.copy_block(block, 2 * (size_t)width, q->k, q->stride, q->rows, 2 * width); /* k and v are neighbours */
}

void context_unpack(ContextParallel *c, real *dqkv, real *block, const acc *dkv, const Queries *q)
{
    size_t width = (size_t)q->kv_heads * (size_t)q->head_dim, count = (size_t)q->rows * width;
    real *dk = dqkv + q->heads * q->head_dim, *dv = dk + width;
    c->kernels.cast(block, dkv, 2 * count);
    c->kernels.copy_block(dk, q->stride, block, width, q->rows, (int)width);
    c->kernels.copy_block(dv, q->stride, block + count, width, q->rows, (int)width);
}

/* --- groups and buffers --- */

Cut context_cut(const ContextOptions *options)
{
    return (Cut){.ranks = (int)options->cp,
                 .sharers = (int)options->ulysses_size,
                 .layout = strcmp(options->layout, "zigzag") == 0 ? LAYOUT_ZIGZAG : LAYOUT_CONTIGUOUS};
}

/* The ids of the rows of all ranks. They count the rows of a micro-step's sequences, so they are always the same. */
static int *ids_of_all(const ContextParallel *c)
{
    int ranks = c->cut.ranks, N = c->rows_max, kept = c->seq / ranks;
    int *host = malloc((size_t)ranks * (size_t)N * sizeof *host);
    int *id = memory_alloc((size_t)ranks * (size_t)N * sizeof *id, MEMORY_BUFFERS);
    if (!host) fatal("out of memory for %d ids", ranks * N);
    Cut cut = c->cut;
    for (cut.rank = 0; cut.rank < ranks; cut.rank++)
        for (int i = 0; i < N; i++) host[cut.rank * N + i] = i / kept * c->seq + cut_place(cut, c->seq, i % kept);
    c->kernels.upload(id, host, (size_t)ranks * (size_t)N * sizeof *id);
    free(host);
    return id;
}

static void *buffer(size_t elements, size_t size)
{
    return elements ? memory_alloc(elements * size, MEMORY_BUFFERS) : NULL;
}

ContextGroups context_groups(const Mesh *mesh, const ContextOptions *options)
{
    int U = (int)options->ulysses_size, cp = mesh->shape.size[AXIS_CP], mine = mesh->coordinate[AXIS_CP];
    int line =
        shape_index(mesh->shape, group_rank(mesh->world), ALL_AXES & ~(unsigned)ALONG_CP); /* other coordinates */
    return (ContextGroups){.team = group_split(mesh->world, line * cp + mine / U, "ulysses"),
                           .teams = group_split(mesh->world, line * cp + mine % U, "cp")};
}

ContextParallel context_create(Model *model, ContextGroups groups, const ContextOptions *options, DataOrder order,
                               int rows)
{
    const ModelConfig *m = &model->config;
    ContextParallel c = {.kernels = model->kernels,
                         .team = groups.team,
                         .teams = groups.teams,
                         .cut = context_cut(options),
                         .seq = order.seq,
                         .reach = data_reach(order),
                         .rows_max = rows,
                         .heads = m->heads,
                         .kv_heads = m->kv_heads,
                         .head_dim = m->head_dim};
    int U = c.cut.sharers, R = c.cut.ranks / U;
    bool ring = strcmp(options->method, "allgather") != 0;
    c.method = R == 1 ? method_local : ring ? method_ring : method_allgather;
    c.blocks = U > 1 && rows > order.seq / c.cut.ranks ? U : 1; /* one sequence: its team's rows are in order */

    size_t N = (size_t)rows, M = N * (size_t)U, D = (size_t)m->head_dim, H = (size_t)m->heads, K = (size_t)m->kv_heads;
    size_t h = H / (size_t)U, k = K > (size_t)U ? K / (size_t)U : U > 1 ? 1 : K;
    if (c.cut.ranks > 1) c.id = ids_of_all(&c);
    if (U > 1) {
        c.sent = buffer(M * (h + 2 * k) * D, sizeof(real));
        c.received = buffer(M * (3 * h + 2 * k) * D, sizeof(real));
        if (K < (size_t)U) c.shared = buffer(N * D, sizeof(acc));
    }
    if (R > 1 || c.blocks > 1) c.fold = buffer(M * h * D, sizeof(acc));
    if (R > 1) {
        size_t block = 2 * M * k * D, first = ring ? block : block * (size_t)R;
        c.kv[0] = buffer(first, sizeof(real));
        c.kv[1] = buffer(block, sizeof(real));
        c.dkv[0] = buffer(first, sizeof(acc));
        c.dkv[1] = buffer(block, sizeof(acc));
        group_open_device(c.teams, c.kv[0]);
    }
    if (U > 1) group_open_device(c.team, c.sent);
    return c;
}

void context_free(ContextParallel *c)
{
    void *all[] = {c->id, c->sent, c->received, c->shared, c->fold, c->kv[0], c->kv[1], c->dkv[0], c->dkv[1]};
    for (int i = 0; i < 9; i++) memory_free(all[i]);
    *c = (ContextParallel){0};
}
