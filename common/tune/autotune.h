/* The auto-tuner measures a backend's variants, and its plans for matrix products, and chooses the fastest
 * (--autotune FILE).
 *
 * Why: the fastest kernel depends on the device and on the shapes, so it must be measured. Rank 0 times each variant of
 * each entry at the shapes of the run, and each plan of each product. All ranks use its choice. Rank 0 writes the
 * choice to FILE. A later run on the same device with the same shapes reads FILE and does not measure again. So it uses
 * the same kernels and can give the same bits.
 *
 * - The tuner does not measure an entry that --kernel names; the run uses the named variant.
 * - It times variants on at most 1024 rows, or on one sequence if that is longer. It stops timing a
 *   variant of linear that can no longer win.
 * - It times plans on the run's own rows. It chooses plan 0 unless another plan is more than 2 % faster.
 * - Caveat: a repeated call finds its operands in the cache more often than a call in a training step does.
 * - The tuner frees its memory before the model is allocated. --memory-cap does not count this memory.
 */
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"

/* [all ranks] Chooses variants and plans, and puts the variants into *kernels.
 *   model   the part of the model that a rank computes
 *   rows    rows of a micro-step; seq: rows of a sequence
 *   chunks  forward and backward-input products are computed in so many calls, each on rows / chunks rows
 *   chosen  the text of --kernel
 *   path    the file, which rank 0 reads
 * Rank 0 prints what it measures. Writes nothing: the run may still be refused. Returns NULL or a complaint: on rank 0
 * about the file, or on all ranks if their kernels differ. */
const char *autotune(Kernels *kernels, const ModelConfig *model, int rows, int seq, int chunks, const char *chosen,
                     const char *path);

/* On rank 0, when the run cannot be refused any more: adds to `path` what was measured. A failure ends the job. */
void autotune_save(const char *path);
