#include "data/batch.h"

#include "base/bug.h"
#include "base/error.h"

BatchShare batch_share(const Mesh *mesh, Cut cut)
{
    int rank = group_rank(mesh->world);
    cut.ranks = mesh->shape.size[AXIS_CP];
    cut.rank = mesh->coordinate[AXIS_CP];
    return (BatchShare){.reader = shape_index(mesh->shape, rank, ALONG_SEQUENCES),
                        .readers = shape_size(mesh->shape, ALONG_SEQUENCES),
                        .cut = cut,
                        .rows_group = mesh->rows_group};
}

Batch batch_create(const Data *data, DataOrder order, int accumulate, BatchShare share, const Kernels *kernels)
{
    if (share.readers == 0) share.readers = 1;
    if (share.cut.ranks == 0) share.cut.ranks = 1;
    if (share.cut.sharers == 0) share.cut.sharers = 1;
    Batch b = {.data = data, .order = order, .share = share, .accumulate = accumulate, .kernels = *kernels};
    CHECK(order.batch % (accumulate * share.readers) == 0);
    CHECK(order.seq % cut_multiple(share.cut) == 0);
    b.sequences = order.batch / accumulate / share.readers;
    b.step_rows = b.sequences * order.seq / share.cut.ranks;
    b.whole = rows_create_host(b.sequences * order.seq);
    b.host = rows_create_host_team(accumulate * b.step_rows, share.cut.sharers);
    b.rows = rows_create_team(accumulate * b.step_rows, share.cut.sharers);
    return b;
}

void batch_free(Batch *b)
{
    rows_free_host(&b->whole);
    rows_free_host(&b->host);
    rows_free(&b->rows);
}

static Rows micro_step(const Batch *b, const Rows *rows, int m)
{
    return rows_slice(rows, m * b->step_rows, b->step_rows);
}

void batch_read(Batch *b, long step)
{
    Group *group = b->share.rows_group;
    int reader = b->share.reader;
    b->step = step;
    for (int m = 0; m < b->accumulate; m++) {
        int first = m * (b->order.batch / b->accumulate) + reader * b->sequences; /* in the global batch */
        Rows rows = micro_step(b, &b->host, m);
        data_read(b->data, b->order, step, first, b->sequences, &b->whole);
        rows_deal(&rows, &b->whole, b->order.seq, b->share.cut);
    }
    rows_upload(&b->kernels, &b->rows, &b->host);
    int64_t sums[] = {rows_counted(&b->host), rows_area(&b->host)};
    b->pairs += rows_pairs(&b->host);
    b->counted = sums[0];
    b->area = sums[1];
    if (group && BUG(mean_of_means)) {
        b->counted *= group_size(group); /* the mistake: this rank's count, and an average over the ranks */
        return;
    }
    if (!group) return;
    comm_all_reduce(group, sums, 2, COMM_INT64, COMM_SUM);
    b->counted = sums[0];
    b->area = sums[1];
}

Rows batch_micro_step(const Batch *b, int m)
{
    return micro_step(b, &b->rows, m);
}

double batch_scale(const Batch *b)
{
    return b->counted > 0 ? 1.0 / (double)b->counted : 0;
}
