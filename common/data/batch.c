#include "data/batch.h"

#include "base/bug.h"
#include "base/error.h"

Batch batch_create(const Data *data, DataOrder order, int accumulate, Group *group, const Kernels *kernels)
{
    int ranks = group ? group_size(group) : 1;
    Batch b = {.data = data, .order = order, .group = group, .accumulate = accumulate, .kernels = *kernels};
    CHECK(order.batch % (accumulate * ranks) == 0);
    b.sequences = order.batch / accumulate / ranks;
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
    int rank = b->group ? group_rank(b->group) : 0;
    for (int m = 0; m < b->accumulate; m++) {
        int first = m * (b->order.batch / b->accumulate) + rank * b->sequences; /* in the global batch */
        Rows rows = micro_step(b, &b->host, m);
        data_read(b->data, b->order, step, first, b->sequences, rank * b->sequences * b->order.seq, &rows);
    }
    rows_upload(&b->kernels, &b->rows, &b->host);
    b->counted = rows_counted(&b->host);
    if (b->group && BUG(mean_of_means)) {
        b->counted *= group_size(b->group); /* my own count, and 1/n for the average over ranks */
        return;
    }
    if (b->group) comm_all_reduce(b->group, &b->counted, 1, COMM_INT64, COMM_SUM);
}

Rows batch_micro_step(const Batch *b, int m)
{
    return micro_step(b, &b->rows, m);
}

double batch_scale(const Batch *b)
{
    return b->counted > 0 ? 1.0 / (double)b->counted : 0;
}
