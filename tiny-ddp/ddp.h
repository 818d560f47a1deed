/* Distributed data parallel: every rank holds the whole model and trains it on its own rows; before the optimizer, the
 * gradients are summed over the ranks, so that all replicas take the same step.
 *
 * Why: more rows in the same time, with one change to the single-device program.
 *
 * Invariant: between steps all replicas hold the same weights, bit for bit.
 *
 * Communication per step: P gradients, all-reduced once for any number of micro-steps. Each of R ranks sends
 * 2 (R-1)/R P sizeof(acc) bytes, in as many calls as there are buckets.
 *
 * Memory per rank: that of a single device, P (w + m) for weights, P g for gradients, 2 P g for AdamW, and the activations
 * of B / (A R) sequences; w = sizeof(real), g = sizeof(acc), and m = g in bf16, where master weights are apart, else 0.
 * Nothing more: the gradients are reduced where they lie.
 *
 * Method: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
 */
#pragma once

#include "base/options.h"
#include "comm/comm.h"
#include "model/params.h"
#include "model/seams.h"
#include "observe/ledger.h"

typedef struct {
    long dp;          /* ranks; 0: all of them */
    long overlap;     /* 1: a bucket travels while the backward pass goes on; 0: it is waited for at once */
    double bucket_mb; /* MiB of gradients at which a bucket is full; 0: everything in one, after the backward pass */
} DdpOptions;

/* Whole units whose gradients travel together. The backward pass finishes units from the last layer to the root, the reverse
 * of their order in memory. So a bucket is one run of the gradient buffer: units [first, last]. */
typedef struct {
    int first, last;
    size_t offset, count; /* elements */
    Work *work;           /* in flight, or NULL */
} Bucket;

typedef struct {
    Params *params;
    const MicroStep *micro_step; /* the one under way */
    Group *group;
    DdpOptions options;
    Bucket *bucket; /* [buckets]  in the order in which they fill */
    int buckets;
} Ddp;

/* Groups the units into buckets. `params`, `micro_step` and `group` must outlive the Ddp. */
Ddp ddp_create(Params *params, const MicroStep *micro_step, Group *group, DdpOptions options);
void ddp_free(Ddp *ddp);

/* For model->seams.parameters. Only the backward pass of the last micro-step reduces. */
ParameterSeam ddp_seam(Ddp *ddp);

/* [all ranks] Call after the last backward pass: when it returns, params->grads is the sum over the ranks. */
void ddp_finish(Ddp *ddp);

/* Adds what must be equal on all ranks of the group. */
void ddp_replicas(const Ddp *ddp, Replicas *replicas);

/* --- ddp_plan.c: the flags, and what the scheme promises, from the configuration alone --- */

OptionTable ddp_options(DdpOptions *options);

/* What --ledger expects of `steps` steps over `ranks` ranks, beside what every trainer has. `params`: the table of what a
 * rank holds of the model, under this scheme all of it or its slice along tp. */
void ddp_expect(Expected *expected, const Params *params, DdpOptions options, int ranks, long steps);

/* Draws one step's compute and collectives (--show plan). */
void ddp_show_plan(const ModelConfig *model, DdpOptions options, long accumulate);
