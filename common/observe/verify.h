/* --verify: the single-device twin.
 *
 * Rank 0 trains a second model beside the first K steps: the same weights, the whole batch, every seam empty. Its
 * gradients and weights are broadcast, tensor by tensor, and every rank compares what it holds with them. The twin shares
 * no parallel code with the run: it is the program that the trainer is on one device.
 *
 * The error of a tensor a against the twin's b is max|a - b| / max(max|b|, floor M), with M the largest entry of all the
 * twin's gradients (or weights): where a gradient is zero in theory (a query that sees one key), its rounding is not an
 * error. The floor is 1e-3 in fp64 and 5e-2 in fp32, so that floor times bound is a few units in the last place of M; at
 * 1e-3 fp32 would be asked for a sixth of one.
 *
 * Judged: in fp64 loss and gradients of step 1 to 1e-12, what comes after the first optimizer step to 1e-9; in fp32 loss
 * and gradients of step 1 to 1e-5, while what comes later is printed as drift, because AdamW amplifies rounding. In bf16
 * likewise, to 1e-2: its activations have 8 bits, and a product of other rows may add up in another order, which turns
 * some of them by one in the last place (where the kernels are the same, the error is fp32's). The bounds of step 1 are
 * for up to 8192 rows and 64 micro-steps, and grow with the roots of these numbers. (In fp32 a text of one repeated byte,
 * whose gradients all but cancel, can miss them: ask fp64. And a training that blows up, as with a learning rate of 1,
 * magnifies rounding beyond any bound when enough of its steps are verified.) In every precision the replicas' weights
 * must be equal to each other bit for bit.
 */
#pragma once

#include "data/batch.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "model/optimizer.h"

typedef struct Verify Verify;

/* [all ranks] NULL if steps is 0. Creates the twin on rank 0, with a copy of the model's weights; its memory is charged to
 * the twin. */
Verify *verify_create(long steps, const Model *model, const Batch *batch, OptimizerConfig optimizer, Replicas replicas);

/* [all ranks] Call with the reduced gradients, before clipping. */
void verify_gradients(Verify *verify, const Model *model, long step);

/* Call after verify_gradients, with the loss and the norm of the gradients over all ranks. */
void verify_numbers(Verify *verify, long step, double loss, double norm);

/* [all ranks] Call after the optimizer. Ends the twin after the last verified step. */
void verify_weights(Verify *verify, const Model *model, long step);

/* [all ranks] Prints the last line, PASS or FAIL; returns 0 or 1, the exit status. 0 for NULL. */
int verify_report(Verify *verify);

/* --- the metric, for tests --- */

/* max|a - b| and max|b| over n elements; a NaN anywhere makes the difference infinite. */
void verify_compare(const acc *a, const acc *b, size_t n, double *difference, double *largest);

/* The error of a tensor, from its difference and largest entry, and the largest of all tensors. */
double verify_error(double difference, double largest, double largest_of_all);
