/* Choosing among a backend's variants, and among its plans for matrix products, by measuring them (--autotune FILE).
 *
 * Why: which kernel is fastest depends on the device and on the shapes, and nobody knows it beforehand. Rank 0 times each
 * variant of each entry at the shapes that the run will use, and each plan of each product; all ranks take its choice, and
 * FILE keeps it: the next run on the same device with the same shapes does not measure again, and takes the same kernels,
 * so that it can give the same bits.
 *
 * What --kernel names is not measured: it is taken. Variants are timed on at most 1024 rows (or one sequence), each only as long
 * as it can still win; plans on the run's own rows, and another than the first is taken if it is 2 % faster. Operands are
 * likely to be in the cache when a call is repeated, as they are not in a step. What is allocated for it is given back before
 * the model is, and is not held against --memory-cap.
 */
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"

/* [all ranks] For layers of this (slice of a) model, on `rows` rows that are sequences of `seq`; products with a weight come
 * in `chunks` parts of these rows. Replaces entries of *kernels. `chosen`: the text of --kernel. Rank 0 prints what it
 * measured and reads and writes `path`. Returns NULL or a complaint about the file. */
const char *autotune(Kernels *kernels, const ModelConfig *model, int rows, int seq, int chunks, const char *chosen,
                     const char *path);
