#include "tensor_parallel.h"

#include "base/bug.h"
#include "kernels/memory.h"

/* --- rows in chunks ---
 *
 * N rows are split into k chunks: chunk c is rows [c N/k, (c+1) N/k). Each rank keeps 1/tp of the rows of every
 * chunk, in the order of ranks. So one call on one run of memory gathers or reduce-scatters a chunk, and rows keep
 * their order:
 *
 *   k = 2, tp = 2:   rows   0 1 | 2 3 | 4 5 | 6 7          rank 0 has rows 0 1 4 5, rank 1 has 2 3 6 7
 *                           chunk 0     chunk 1
 */

/* Offset of a row, in elements. */
static size_t at(int row, int width)
{
    return (size_t)row * (size_t)width;
}

static int rows_of_chunk(const TensorParallel *t, int rows)
{
    return rows / t->chunks;
}

static int my_rows_of_chunk(const TensorParallel *t, int rows)
{
    return rows_of_chunk(t, rows) / group_size(t->tp);
}

/* Starts to gather all ranks' rows into t->full, one call for each chunk. `mine` are this rank's rows. */
static void start_gathers(TensorParallel *t, Work *work[CHUNKS_MAX], const real *mine, int rows, int width)
{
    int n = rows_of_chunk(t, rows), own = my_rows_of_chunk(t, rows);
    for (int c = 0; c < t->chunks; c++)
        work[c] = comm_start_all_gather(t->tp, t->full + at(c * n, width), mine + at(c * own, width), at(own, width),
                                        COMM_REAL);
}

/* The gathered rows have been used. They are not kept: the backward pass gathers them again. */
static void forget(const TensorParallel *t, int rows, int width)
{
    memory_poison(t->full, at(rows, width) * sizeof *t->full);
}

/* Starts the reduce-scatter of chunk c of `partial`. This rank's rows of the sum go to `mine`. */
static Work *start_reduce(TensorParallel *t, real *mine, const real *partial, int c, int rows, int width)
{
    int n = rows_of_chunk(t, rows), own = my_rows_of_chunk(t, rows);
    return comm_start_reduce_scatter(t->tp, mine + at(c * own, width), partial + at(c * n, width), at(own, width),
                                     COMM_REAL, COMM_SUM);
}

static void wait_all(const TensorParallel *t, Work *work[CHUNKS_MAX])
{
    for (int c = 0; c < t->chunks; c++) comm_wait(work[c]);
}

/* --- split by column: the input of the product is all rows, on every rank --- */

static void column_forward(void *self, real *y, const real *x, Linear l, int rows)
{
    TensorParallel *t = self;
    if (!t->sp) { /* every rank has all rows already */
        t->kernels.linear_forward(y, x, l.w, rows, l.in, l.out);
        return;
    }
    Work *work[CHUNKS_MAX];
    int n = rows_of_chunk(t, rows);
    start_gathers(t, work, x, rows, l.in);
    for (int c = 0; c < t->chunks; c++) { /* one chunk is multiplied while the next is gathered */
        comm_wait(work[c]);
        t->kernels.linear_forward(y + at(c * n, l.out), t->full + at(c * n, l.in), l.w, n, l.in, l.out);
    }
    forget(t, rows, l.in);
}

/* The gradient of the weight. It needs the input's rows again; start_gathers is gathering them. */
static void column_backward_weight(TensorParallel *t, Work *gather[CHUNKS_MAX], const real *dy, Linear l, int rows)
{
    wait_all(t, gather);
    t->kernels.linear_backward_weight(l.dw, dy, t->full, rows, l.in, l.out);
    forget(t, rows, l.in);
}

/* Without SP: every rank has all rows. */
static const real *column_backward_whole_rows(TensorParallel *t, real *dx, const real *dy, const real *x, Linear l,
                                              int rows, unsigned gradients)
{
    Work *sum = NULL;
    if (gradients & GRADIENT_OF_INPUT) {
        t->kernels.linear_backward_input(dx, dy, l.w, rows, l.in, l.out);
        sum = comm_start_all_reduce(t->tp, dx, at(rows, l.in), COMM_REAL, COMM_SUM);
    }
    if (gradients & GRADIENT_OF_WEIGHT) t->kernels.linear_backward_weight(l.dw, dy, x, rows, l.in, l.out);
    comm_wait(sum);
    return dx;
}

/* Each rank computes the part of dx that comes through its own outputs. The sum of these parts over the ranks is the
 * gradient of the input. The sum runs while this rank computes the gradient of the weight. */
static const real *column_backward(void *self, real *dx, const real *dy, const real *x, Linear l, int rows,
                                   unsigned gradients)
{
    TensorParallel *t = self;
    if (!t->sp) return column_backward_whole_rows(t, dx, dy, x, l, rows, gradients);
    Work *gather[CHUNKS_MAX], *reduce[CHUNKS_MAX];
    int n = rows_of_chunk(t, rows);
    bool inputs = gradients & GRADIENT_OF_INPUT, weights = gradients & GRADIENT_OF_WEIGHT;
    if (weights) start_gathers(t, gather, x, rows, l.in);
    for (int c = 0; c < t->chunks && inputs; c++) {
        t->kernels.linear_backward_input(dx + at(c * n, l.in), dy + at(c * n, l.out), l.w, n, l.in, l.out);
        reduce[c] = start_reduce(t, t->dsummed, dx, c, rows, l.in);
    }
    if (weights) column_backward_weight(t, gather, dy, l, rows);
    if (inputs) wait_all(t, reduce);
    return t->dsummed;
}

/* --- split by row: the output of the product is a partial sum, of all rows, on every rank --- */

static const real *row_forward(void *self, real *y, const real *x, Linear l, int rows)
{
    TensorParallel *t = self;
    if (!t->sp) {
        t->kernels.linear_forward(y, x, l.w, rows, l.in, l.out);
        comm_all_reduce(t->tp, y, at(rows, l.out), COMM_REAL, COMM_SUM);
        return y;
    }
    Work *work[CHUNKS_MAX];
    int n = rows_of_chunk(t, rows);
    for (int c = 0; c < t->chunks; c++) { /* one chunk is summed while the next is multiplied */
        t->kernels.linear_forward(y + at(c * n, l.out), x + at(c * n, l.in), l.w, n, l.in, l.out);
        work[c] = start_reduce(t, t->summed, y, c, rows, l.out);
    }
    wait_all(t, work);
    return t->summed;
}

static void row_backward(void *self, real *dx, const real *dy, const real *x, Linear l, int rows, unsigned gradients)
{
    TensorParallel *t = self;
    bool inputs = gradients & GRADIENT_OF_INPUT, weights = gradients & GRADIENT_OF_WEIGHT;
    if (!t->sp) {
        if (weights) t->kernels.linear_backward_weight(l.dw, dy, x, rows, l.in, l.out);
        if (inputs) t->kernels.linear_backward_input(dx, dy, l.w, rows, l.in, l.out);
        return;
    }
    Work *work[CHUNKS_MAX];
    int n = rows_of_chunk(t, rows);
    start_gathers(t, work, dy, rows, l.out);
    for (int c = 0; c < t->chunks; c++) {
        comm_wait(work[c]);
        if (inputs)
            t->kernels.linear_backward_input(dx + at(c * n, l.in), t->full + at(c * n, l.out), l.w, n, l.in, l.out);
    }
    if (weights) t->kernels.linear_backward_weight(l.dw, t->full, x, rows, l.in, l.out);
    forget(t, rows, l.out);
}

/* --- the split vocabulary --- */

/* One rank holds the token's row of the embedding; on the other ranks y is zero. So y is a partial sum, too. */
static const real *embedding_forward(void *self, real *y, int rows, int width)
{
    TensorParallel *t = self;
    if (!t->sp) {
        comm_all_reduce(t->tp, y, at(rows, width), COMM_REAL, COMM_SUM);
        return y;
    }
    Work *work[CHUNKS_MAX];
    for (int c = 0; c < t->chunks; c++) work[c] = start_reduce(t, t->summed, y, c, rows, width);
    wait_all(t, work);
    return t->summed;
}

static const real *embedding_backward(void *self, const real *dy, int rows, int width)
{
    TensorParallel *t = self;
    if (!t->sp) return dy;
    Work *work[CHUNKS_MAX];
    start_gathers(t, work, dy, rows, width);
    wait_all(t, work);
    return t->full;
}

/* Each rank has the logits of its own part of the vocabulary. The ranks exchange three numbers for each row: the
 * largest logit, the sum of exponentials, and the logit of the label. */
static void loss(void *self, acc *losses, real *logits, const int *label, double scale, int rows)
{
    TensorParallel *t = self;
    const View *table = &t->params->view[0];
    int first = table->row0, vocab = table->valid_rows, stride = table->rows;
    acc *total = t->sums, *target = t->sums + rows;
    t->kernels.logits_top(t->top, logits, rows, vocab, stride);
    comm_all_reduce(t->tp, t->top, (size_t)rows, COMM_ACC, COMM_MAX);
    t->kernels.logits_sum(total, target, logits, t->top, label, first, rows, vocab, stride);
    if (!BUG(local_softmax)) comm_all_reduce(t->tp, t->sums, 2 * (size_t)rows, COMM_ACC, COMM_SUM);
    t->kernels.logits_gradient(losses, logits, t->top, total, target, label, first, scale, rows, vocab, stride);
}

static int stream_row(void *self, int i, int rows)
{
    TensorParallel *t = self;
    if (!t->sp) return i;
    int n = rows_of_chunk(t, rows), own = my_rows_of_chunk(t, rows);
    return i / own * n + group_rank(t->tp) * own + i % own;
}

static void whole_logits(void *self, real *whole, const real *mine)
{
    TensorParallel *t = self;
    comm_all_gather(t->tp, whole, mine, (size_t)t->params->view[0].rows, COMM_REAL);
}

FeatureSeam tensor_seam(TensorParallel *t)
{
    return (FeatureSeam){.self = t,
                         .column_forward = column_forward,
                         .column_backward = column_backward,
                         .row_forward = row_forward,
                         .row_backward = row_backward,
                         .embedding_forward = embedding_forward,
                         .embedding_backward = embedding_backward,
                         .loss = loss,
                         .stream_row = stream_row,
                         .whole_logits = whole_logits};
}

/* --- gradients of weights that several ranks along tp hold --- */

/* The group over which the view's gradient is partial and must be summed. NULL: it is complete. */
static Group *partial_over(const TensorParallel *t, const View *view)
{
    if (group_size(t->tp) == 1) return NULL;
    switch (view->partial) {
    case PARTIAL_BY_ROWS: return t->sp && !BUG(skip_norm_sum) ? t->tp : NULL;
    case PARTIAL_BY_HEADS: return t->tp;
    case PARTIAL_BY_KV_HEADS: return t->kv;
    default: return NULL;
    }
}

/* Hook of the parameter seam: this rank has computed the unit's gradients. Neighbouring views that are partial over
 * the same group lie in one run of memory, so one call sums them. */
static void after_backward(void *self, int unit)
{
    TensorParallel *t = self;
    const Unit *u = &t->params->unit[unit];
    if (!backward_reduces(t->micro_step)) return;
    for (int n = 0; n < u->views;) {
        const View *first = &t->params->view[u->first_view + n++];
        Group *group = partial_over(t, first);
        size_t count = first->size;
        for (; n < u->views && partial_over(t, &t->params->view[u->first_view + n]) == group; n++)
            count += t->params->view[u->first_view + n].size;
        if (group) comm_all_reduce(group, u->grads + (first->offset - u->offset), count, COMM_ACC, COMM_SUM);
    }
}

ParameterSeam tensor_parameter_seam(TensorParallel *t)
{
    return (ParameterSeam){.self = t, .after_backward = after_backward};
}

void tensor_replicas(const TensorParallel *t, Replicas *replicas)
{
    replicas_add(replicas, t->params, t->tp, EQUAL_OVER_TP);
    replicas_add(replicas, t->params, t->kv, EQUAL_KV_HEADS);
}

/* --- groups and buffers --- */

Group *tensor_kv_group(Group *tp, const ModelConfig *whole)
{
    int n = group_size(tp), sharers = whole->kv_heads < n ? n / whole->kv_heads : 1;
    return group_split(tp, group_rank(tp) / sharers, "kv");
}

TensorParallel tensor_create(Model *model, Group *tp, Group *kv, TensorOptions options, int rows)
{
    int n = group_size(tp);
    size_t full = (size_t)rows * (size_t)model->config.width;
    TensorParallel t = {.kernels = model->kernels,
                        .params = &model->params,
                        .micro_step = &model->micro_step,
                        .tp = tp,
                        .kv = kv,
                        .sp = options.sp,
                        .chunks = options.sp ? (int)options.overlap_chunks : 1};
    if (t.sp) {
        t.full = memory_alloc(full * sizeof *t.full, MEMORY_BUFFERS);
        t.summed = memory_alloc(full / (size_t)n * sizeof *t.summed, MEMORY_BUFFERS);
        t.dsummed = memory_alloc(full / (size_t)n * sizeof *t.dsummed, MEMORY_BUFFERS);
    }
    if (n == 1) return t;
    t.top = memory_alloc((size_t)rows * sizeof *t.top, MEMORY_BUFFERS);
    t.sums = memory_alloc(2 * (size_t)rows * sizeof *t.sums, MEMORY_BUFFERS);
    group_open_device(tp, t.top);
    if (group_size(kv) > 1) group_open_device(t.kv, t.top);
    return t;
}

void tensor_free(TensorParallel *t)
{
    void *all[] = {t->full, t->summed, t->dsummed, t->top, t->sums};
    for (int i = 0; i < 5; i++) memory_free(all[i]);
    *t = (TensorParallel){0};
}
