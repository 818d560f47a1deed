/* --verify: the run is compared with a single-device run of the same training, the twin.
 *
 * Why: a scheme is right if its numbers are those of one device. The twin shows it during the first K steps of any run.
 *
 * The twin is a second model on rank 0. It starts from the run's weights, trains on the whole batch, and all its seams
 * are empty. So it shares no parallel code with the run: it is the program that the trainer is on one device. Rank 0
 * broadcasts the twin's gradients and weights, one parameter at a time. Every rank compares the shards that it holds
 * with them.
 *
 * The error of a tensor a against the twin's b is max|a - b| / max(max|b|, floor M). M is the largest entry of all the
 * twin's gradients (or weights). The floor is for gradients that are zero in theory, such as those of a query that sees
 * one key: their rounding is no error. The floor is 1e-3 in fp64 and 5e-2 in fp32 and bf16. In fp32, floor times bound
 * is then a few units in the last place of M; with 1e-3 it would be a sixth of one. The error of a number (loss, norm)
 * is relative, with at least 1e-3 in the denominator.
 *
 * What is judged:
 *
 *           loss, norm and gradients of step 1   what follows the first optimizer step
 *   fp64    1e-12                                1e-9
 *   fp32    1e-5                                 printed as drift, not judged: AdamW amplifies rounding
 *   bf16    1e-2                                 likewise
 *
 * A NaN or an infinite error fails everywhere, also in a drift. In every precision the replicas' weights must be equal
 * to each other bit for bit. A run that ends before all K steps are compared fails.
 *
 * The bound of bf16: its activations have 8 bits. A matrix product over other rows may add up in another order, and
 * this turns some activations by one in the last place. Where the kernels add in the same order, the error is fp32's.
 *
 * The bounds of step 1 are for up to 8192 rows and 64 micro-steps. They grow with the roots of these numbers.
 *
 * Experts: which experts a row chooses is a step function of its logits. Two experts may be almost equally good, and then
 * rounding decides. So the twin sends each row to the experts that the run chose (twin_routes.h). The choices that its own
 * router would have made differently are counted: at most 1 in 1000 may be, in bf16 1 in 100, in fp64 none.
 *
 * Known limits. In fp32, a text of one repeated byte can miss the bounds, because its gradients almost cancel; use fp64
 * there. A training that diverges, for example with a learning rate of 1, magnifies rounding beyond any bound after
 * enough steps.
 */
#pragma once

#include "data/batch.h"
#include "comm/mesh.h"
#include "model/model.h"
#include "model/optimizer.h"

typedef struct Verify Verify;

/* [all ranks] Creates the twin on rank 0, with a copy of the model's weights. Its memory is counted in MEMORY_TWIN.
 * Returns NULL if steps is 0; then the functions below do nothing. `replicas`: what must be equal bit for bit.
 * verify_report frees it all. */
Verify *verify_create(long steps, Model *model, const Batch *batch, OptimizerConfig optimizer, Replicas replicas);

/* [all ranks] Trains the twin's step up to the gradients and compares them. Call when the run's gradients are reduced,
 * and before they are clipped. */
void verify_gradients(Verify *verify, const Model *model, long step);

/* [all ranks] Compares the loss and the norm of the gradients, both over all ranks. Call after verify_gradients. */
void verify_numbers(Verify *verify, long step, double loss, double aux, double norm);

/* [all ranks] Ends the twin's step, then compares the weights and the replicas. Call after the optimizer. After the
 * last verified step it frees the twin. */
void verify_weights(Verify *verify, const Model *model, long step);

/* [all ranks] Rank 0 prints a line for every kind of error beyond its bound, and at last PASS or FAIL. Frees `verify`.
 * Returns the exit status, the same on all ranks: 0 for PASS, 1 for FAIL; 0 for NULL. */
int verify_report(Verify *verify);

/* --- the metric, for tests --- */

/* Sets *difference to max|a - b| and *largest to max|b| over n elements. A NaN in either makes the difference
 * infinite. */
void verify_compare(const acc *a, const acc *b, size_t n, double *difference, double *largest);

/* The error of a tensor, from its difference and its largest entry, and the largest entry of all tensors. Never a
 * NaN. */
double verify_error(double difference, double largest, double largest_of_all);
