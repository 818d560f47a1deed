/* Distributed data parallel: every rank holds a replica of the whole model and trains it on its own rows. Before the
 * optimizer runs, the ranks sum their gradients, so all replicas take the same step.
 *
 * Why: R ranks process R times the rows in the same time, and the single-device program changes in one place only.
 *
 * Invariant: between steps all replicas hold the same weights, bit for bit.
 *
 * Communication per step: one all-reduce of all P gradients, for any number of micro-steps. It is split into one call
 * for each bucket. Each of R ranks sends 2 (R-1)/R P sizeof(acc) bytes.
 *
 * Memory per rank: that of a single device. P (w + m) for weights, P g for gradients, 2 P g for AdamW, and the
 * activations of B / (A R) sequences: a batch of B sequences in A micro-steps. w = sizeof(real), g = sizeof(acc). In
 * bf16 the rank also keeps master weights, so m = g; else m = 0. The scheme adds no buffers: gradients are reduced in
 * place.
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
    long dp;          /* data-parallel ranks; 0: all ranks */
    long overlap;     /* 1: buckets are reduced while the backward pass goes on; 0: it waits for each bucket */
    double bucket_mb; /* a bucket is full at so many MiB of gradients; 0: one bucket, reduced after the backward pass */
} DdpOptions;

/* A bucket: neighbouring units [first, last] whose gradients are reduced in one call. The backward pass finishes
 * units from the last layer to the root, which is the order from the end of the gradient buffer to its start. So a
 * bucket is one contiguous run of that buffer. */
typedef struct {
    int first, last;
    size_t offset, count; /* elements */
    Work *work;           /* its all-reduce in flight, or NULL */
} Bucket;

typedef struct {
    Params *params;
    const MicroStep *micro_step; /* the one that is running */
    Group *group;                /* the replicas: the ranks along dp */
    DdpOptions options;
    Bucket *bucket; /* [buckets]  in the order in which the backward pass fills them */
    int buckets;
} Ddp;

/* Groups the units into buckets. `params`, `micro_step` and `group` must outlive the Ddp. */
Ddp ddp_create(Params *params, const MicroStep *micro_step, Group *group, DdpOptions options);
void ddp_free(Ddp *ddp);

/* For model->seams.parameters. Starts the all-reduce of each bucket in the backward pass of the last micro-step. The
 * earlier passes only add up gradients on this rank. `ddp` must not move while the seam is used. */
ParameterSeam ddp_seam(Ddp *ddp);

/* [all ranks] Call after the last backward pass. When it returns, params->grads is the sum over the ranks. */
void ddp_finish(Ddp *ddp);

/* Adds the rule that all ranks of the group hold the same weights between steps. */
void ddp_replicas(const Ddp *ddp, Replicas *replicas);

/* --- ddp_plan.c: the flags, the formulas of communication, and the schedule, all from the configuration alone --- */

OptionTable ddp_options(DdpOptions *options);

/* Adds this scheme's communication in `steps` steps over `ranks` ranks to what --ledger expects. `params` is the
 * table of the whole model, or of one rank's slice along tp. */
void ddp_expect(Expected *expected, const char *group, const Params *params, DdpOptions options, int ranks, long steps);

/* Prints one step's compute and collectives (--show plan). */
void ddp_show_plan(const ModelConfig *model, DdpOptions options, long accumulate);
