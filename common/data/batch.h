/* One step's batch: the sequences that this rank trains on.
 *
 * The global batch of B sequences is cut by micro-step first, then by rank. Under every mesh, micro-step m of A is
 * sequences [m B/A, (m+1) B/A); they are cut into n equal parts, and data rank r takes part r. All micro-steps are
 * read before the first begins, because the loss divides by the count of labels in the whole step, over all
 * micro-steps and ranks.
 */
#pragma once

#include "comm/comm.h"
#include "comm/mesh.h"
#include "data/data.h"

/* Which sequences a rank reads, and with which ranks it adds up counts. These are different groups of ranks if
 * several ranks share the rows of a sequence. */
typedef struct {
    int reader, readers; /* this rank reads share `reader` of `readers` equal shares; all zero: everything */
    Group *rows_group;   /* the ranks that hold different rows; NULL: this rank holds all */
} BatchShare;

typedef struct {
    const Data *data;
    DataOrder order;
    BatchShare share;
    int accumulate; /* A */
    int sequences;  /* of this rank in a micro-step: B / A / readers */
    Kernels kernels;
    Rows host;       /* all micro-steps, one after the other, on the host */
    Rows rows;       /* a copy in the backend's memory */
    int64_t counted; /* labels that count, over all micro-steps and ranks; set by batch_read */
} Batch;

/* A rank's share of the batch on this mesh. */
BatchShare batch_share(const Mesh *mesh);

Batch batch_create(const Data *data, DataOrder order, int accumulate, BatchShare share, const Kernels *kernels);
void batch_free(Batch *batch);

/* [all ranks of rows_group] Reads the sequences of `step` and agrees on `counted`: one all-reduce of an int64. */
void batch_read(Batch *batch, long step);

/* A view of micro-step m's rows, valid until the next batch_read. */
Rows batch_micro_step(const Batch *batch, int m);

/* What the summed loss is multiplied by: 1 / counted, or 0 when no label counts (then loss and gradient are 0). */
double batch_scale(const Batch *batch);
