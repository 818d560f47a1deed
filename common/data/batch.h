/* One step's batch: the sequences that this rank trains on.
 *
 * The global batch of B sequences is cut by micro-step first, then by rank. Under every mesh, micro-step m of A is
 * sequences [m B/A, (m+1) B/A); they are cut into n equal parts, and data rank r takes part r. All micro-steps are
 * read before the first begins, because the loss divides by the count of labels in the whole step, over all
 * micro-steps and ranks.
 *
 * Under context parallelism the ranks along cp read the same sequences, and each keeps the rows that its cut gives it.
 * A sequence is read whole and cut afterwards, so a row's label, position and interval do not depend on the cut.
 */
#pragma once

#include "comm/comm.h"
#include "comm/mesh.h"
#include "data/cut.h"
#include "data/data.h"

/* Which sequences a rank reads, which of their rows it keeps, and with which ranks it adds up counts. */
typedef struct {
    int reader, readers; /* this rank reads share `reader` of `readers` equal shares; all zero: everything */
    Cut cut;             /* the rows that it keeps of each sequence; all zero: the whole sequence */
    Group *rows_group;   /* the ranks that hold different rows; NULL: this rank holds all */
} BatchShare;

typedef struct {
    const Data *data;
    DataOrder order;
    BatchShare share;
    int accumulate; /* A */
    int sequences;  /* that this rank reads in a micro-step: B / A / readers */
    int step_rows;  /* rows that it keeps of them: rows of a micro-step */
    Kernels kernels;
    Rows whole;      /* the sequences of one micro-step, on the host */
    Rows host;       /* the rows that this rank keeps, of all micro-steps, on the host */
    Rows rows;       /* a copy in the backend's memory */
    long step;       /* that was read last */
    int64_t counted; /* labels that count, over all micro-steps and ranks; set by batch_read */
    int64_t area;    /* (query, key) pairs that the masks allow, likewise */
    double pairs;    /* those whose attention this rank computes, since the start */
} Batch;

/* A rank's share of the batch on this mesh. `cut` says how rows are dealt along cp; its rank is filled in. */
BatchShare batch_share(const Mesh *mesh, Cut cut);

Batch batch_create(const Data *data, DataOrder order, int accumulate, BatchShare share, const Kernels *kernels);
void batch_free(Batch *batch);

/* [all ranks of rows_group] Reads the sequences of `step`, and sums `counted` and `area` over the ranks: one all-reduce
 * of two int64. */
void batch_read(Batch *batch, long step);

/* A view of micro-step m's rows, valid until the next batch_read. */
Rows batch_micro_step(const Batch *batch, int m);

/* What the summed loss is multiplied by: 1 / counted, or 0 when no label counts (then loss and gradient are 0). */
double batch_scale(const Batch *batch);
