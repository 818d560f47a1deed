#include "data/batch.h"

#include "base/bug.h"
#include "base/error.h"

BatchShare batch_share(const Mesh *mesh)
{
    int rank = group_rank(mesh->world);
    return (BatchShare){.reader = shape_index(mesh->shape, rank, ALONG_SEQUENCES),
                        .readers = shape_size(mesh->shape, ALONG_SEQUENCES),
                        .rows_group = mesh->rows_group};
}

Batch batch_create(const Data *data, DataOrder order, int accumulate, BatchShare share, const Kernels *kernels)
{
    if (share.readers == 0) share.readers = 1;
    Batch b = {.data = data, .order = order, .share = share, .accumulate = accumulate, .kernels = *kernels};
    CHECK(order.batch % (accumulate * share.readers) == 0);
    b.sequences = order.batch / accumulate / share.readers;
    b.host = rows_create_host(accumulate * b.sequences * order.seq);
    b.rows = rows_create(b.host.count);
    return b;
}

void batch_free(Batch *b)
{
    rows_free_host(&b->host);
    rows_free(&b->rows);
}

static Rows micro_step(const Batch *b, const Rows *rows, int m)
{
    int count = b->sequences * b->order.seq;
    return rows_slice(rows, m * count, count);
}

void batch_read(Batch *b, long step)
{
    Group *group = b->share.rows_group;
    int reader = b->share.reader;
    for (int m = 0; m < b->accumulate; m++) {
        int first = m * (b->order.batch / b->accumulate) + reader * b->sequences; /* in the global batch */
        Rows rows = micro_step(b, &b->host, m);
        data_read(b->data, b->order, step, first, b->sequences, reader * b->sequences * b->order.seq, &rows);
    }
    rows_upload(&b->kernels, &b->rows, &b->host);
    b->counted = rows_counted(&b->host);
    if (group && BUG(mean_of_means)) {
        b->counted *= group_size(group); /* the mistake: this rank's count, and an average over the ranks */
        return;
    }
    if (group) comm_all_reduce(group, &b->counted, 1, COMM_INT64, COMM_SUM);
}

Rows batch_micro_step(const Batch *b, int m)
{
    return micro_step(b, &b->rows, m);
}

double batch_scale(const Batch *b)
{
    return b->counted > 0 ? 1.0 / (double)b->counted : 0;
}
