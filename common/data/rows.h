/* The rows of a micro-step. A row is a token with its label, its position, and the rows that it may attend to. */
#pragma once

#include <stdint.h>

#include "kernels/kernels.h"

/* A batch is a row of tokens; there is no batch dimension. Row i attends to the rows whose id is in [lo, hi). Causal
 * attention, packed documents, sliding windows are only different intervals. */
typedef struct {
    int count;     /* N */
    int *token;    /* [N] */
    int *label;    /* [N]  the next token, or -1: not counted in the loss */
    int *position; /* [N]  for RoPE: the place in its sequence */
    int *id;       /* [N]  ascending; unique over the micro-step's rows of all ranks */
    int *lo, *hi;  /* [N]  the ids that this row may attend to */
} Rows;

/* Six arrays of `count` ints in the backend's memory, contents undefined. Charged to activations. */
Rows rows_create(int count);
void rows_free(Rows *rows);

/* Six such arrays on the host, where data_read writes. The ledger does not count them. */
Rows rows_create_host(int count);
void rows_free_host(Rows *rows);

/* Copies all rows of `host` to `rows`. Both come from the functions above, with the same count, and are no views. */
void rows_upload(const Kernels *kernels, Rows *rows, const Rows *host);

/* A view of rows [first, first + count); owns nothing. */
Rows rows_slice(const Rows *rows, int first, int count);

int64_t rows_counted(const Rows *rows); /* labels that are not -1; rows on the host */
int64_t rows_area(const Rows *rows);    /* (query, key) pairs that the intervals allow; rows on the host */
