/* What all trainers set up in the same way. So each main.c shows its training loop and its scheme, and little else. */
#pragma once

#include "comm/mesh.h"
#include "data/batch.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "observe/dump.h"
#include "observe/ledger.h"
#include "observe/metrics.h"
#include "observe/routes.h"
#include "observe/verify.h"
#include "settings/config.h"

enum { TABLES_MAX = 8 };

typedef struct {
    Config config;
    OptionTable table[TABLES_MAX]; /* the schemes' flags, then the common ones */
    int tables;
    Shape shape;
    bool takes_experts; /* the trainer's scheme knows models with experts; it says so before trainer_check */
    Cut cut;            /* how rows are dealt along cp; a trainer with cp sets it before trainer_expect */
    Mesh mesh;
    Data *data;
    Batch batch;
    Model *model;
    Optimizer optimizer;
    Metrics metrics;
    Dump dump;
    Routes *routes; /* NULL without --routes and --save-routes */
    Verify *verify; /* NULL without --verify */
} Trainer;

/* [all ranks] Starts MPI and reads the flags: those of `count` schemes and the common ones. Does not return if --help
 * is given or a flag is wrong. */
void trainer_start(Trainer *trainer, int argc, char **argv, const char *program, const OptionTable *schemes, int count);

/* The number of ranks of the run. With --show it is --world, if that is given. */
int trainer_ranks(const Trainer *trainer);

/* [all ranks] Checks the mesh and the flags against each other, and fills in the preset's values (config_finish). */
void trainer_check(Trainer *trainer, Shape shape);

/* What every trainer holds and sends, by formula. It holds parameters, gradients and moments under part.placement,
 * activations, rows, and the kernels' workspace. Each step sends two all-reduces over the ranks that have
 * different rows: 16 bytes for the counts of labels and of attention's pairs, 8 for the loss; and one of 8 over the ranks
 * that hold one copy of the model, for the norm. With experts each micro-step sums their counts, and each step the auxiliary
 * loss, over the ranks with different rows of the residual stream. The schemes
 * add their own formulas. */
Expected trainer_expect(const Trainer *trainer, ModelPart part);

/* [all ranks] Checks that the run fits under --memory-cap and that its outputs can be written. Creates the mesh, the
 * data, this rank's part of the model with its first weights, and the optimizer. part.placement says what is sharded;
 * this function fills in which shard along fsdp and which slice along tp are this rank's. */
void trainer_open(Trainer *trainer, ModelPart part, const Expected *expected);

/* [all ranks] Call when the scheme is plugged in, just before the first step. Checks that replicas start equal, opens
 * the outputs, prints what is going to run, and starts the twin of --verify and the clock. */
void trainer_begin(Trainer *trainer, Replicas replicas);

/* [all ranks] Call after the last step. Writes the dump, prints the ledger, the verdict of --verify and the sample,
 * frees everything but the scheme, ends MPI, and returns the exit status. */
int trainer_finish(Trainer *trainer, const Expected *expected);

/* --- observing a step; none of these changes what is computed --- */

/* [all ranks] For --step: call after a micro-step's loss, and after its backward pass. */
void observe_forward(Trainer *trainer, int micro_step);
void observe_backward(Trainer *trainer, int micro_step);

/* [all ranks] For --step, --dump and --verify: call after optimizer_measure. */
void observe_gradients(Trainer *trainer, long step);

/* [all ranks] Call at the end of the step. Sums the loss over all ranks, compares for --verify, and prints the step's
 * line. If the loss or the norm is not finite, all ranks end with status 1; the optimizer has then not changed the
 * weights. */
void observe_step(Trainer *trainer, long step);
