/* What the kernels of grouped products share. */
#pragma once

#include "cuda.h"

/* Some neighbouring rows of one group: from `row` on, those before `end`. group -1: no tile. */
typedef struct {
    int group, row, end;
} RowTile;

/* Lists the tiles of `rows_of_tile` rows on the compute stream, in scratch memory. Returns how many there may be; `rows`
 * is at least the number of rows. */
int grouped_tiles(const RowTile **tiles, const int *first, int groups, int rows, int rows_of_tile);

/* The products on Hopper's tensor cores. They return false, and do nothing, if this build or these shapes and addresses
 * do not allow them. */
#ifdef HAVE_FLASH
bool grouped_tensor_forward(real *y, const real *x, const real *w, const int *first, int groups, int rows, int in,
                            int out);
bool grouped_tensor_backward_input(real *dx, const real *dy, const real *w, const int *first, int groups, int rows,
                                   int in, int out);
bool grouped_tensor_backward_weight(acc *dw, const real *dy, const real *x, const int *first, int groups, int rows,
                                    int in, int out);
#else
#define grouped_tensor_forward(...)         false
#define grouped_tensor_backward_input(...)  false
#define grouped_tensor_backward_weight(...) false
#endif
