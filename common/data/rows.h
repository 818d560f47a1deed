/* The rows of a micro-step. A row is a token with its label, its position, and the rows that it may attend to. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/cut.h"
#include "kernels/kernels.h"

/* A batch is a row of tokens; there is no batch dimension. Row i attends to the rows whose id is in [lo, hi). Causal
 * attention, packed documents, sliding windows are only different intervals. */
typedef struct {
    int count;     /* N */
    int *token;    /* [N] */
    int *label;    /* [N]  the next token, or -1: not counted in the loss */
    int *position; /* [N]  for RoPE: the place in its sequence */
    int *id;       /* [N]  ascending; unique over all rows of the micro-step's sequences, on any rank */
    int *lo, *hi;  /* [N]  the ids that this row may attend to */

    /* For context parallelism, where a rank has some rows of each sequence. Its team (cut.h) attends together. */
    int sharers;            /* ranks of the team; 0 means 1 */
    int *team_lo, *team_hi; /* [sharers N]  lo and hi of the team's rows, rank by rank; NULL if sharers is 0 or 1 */
} Rows;

/* The arrays for `count` rows in the backend's memory, contents undefined. Charged to activations. */
Rows rows_create(int count);
Rows rows_create_team(int count, int sharers);
void rows_free(Rows *rows);

/* The same arrays on the host, where data_read writes. The ledger does not count them. */
Rows rows_create_host(int count);
Rows rows_create_host_team(int count, int sharers);
void rows_free_host(Rows *rows);

/* Bytes of the arrays. */
size_t rows_bytes(int count, int sharers);

/* Fills `mine`, on the host, with the rows of cut.rank: those of each sequence of `whole`, which has sequences of seq
 * rows. */
void rows_deal(Rows *mine, const Rows *whole, int seq, Cut cut);

/* Copies all rows of `host` to `rows`. Both come from the functions above, with the same count, and are no views. */
void rows_upload(const Kernels *kernels, Rows *rows, const Rows *host);

/* A view of rows [first, first + count); owns nothing. */
Rows rows_slice(const Rows *rows, int first, int count);

int64_t rows_counted(const Rows *rows); /* labels that are not -1; rows on the host */
int64_t rows_area(const Rows *rows);    /* (query, key) pairs that the intervals allow; rows on the host */
double rows_pairs(const Rows *rows);    /* of these, the work of one rank: the team's pairs divided by its ranks */
