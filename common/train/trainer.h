/* What every trainer sets up alike, so that its main.c shows the training loop and its scheme, and little else. */
#pragma once

#include "comm/mesh.h"
#include "data/batch.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "observe/dump.h"
#include "observe/ledger.h"
#include "observe/metrics.h"
#include "observe/verify.h"
#include "settings/config.h"

enum { TABLES_MAX = 8 };

typedef struct {
    Config config;
    OptionTable table[TABLES_MAX]; /* the schemes' flags, then everyone's */
    int tables;
    Shape shape;
    Mesh mesh;
    Data *data;
    Batch batch;
    Model *model;
    Optimizer optimizer;
    Metrics metrics;
    Dump dump;
    Verify *verify; /* NULL without --verify */
} Trainer;

/* [all ranks] Starts MPI and reads the flags, those of `count` schemes among them. Does not return on --help or a wrong
 * flag. */
void trainer_start(Trainer *trainer, int argc, char **argv, const char *program, const OptionTable *schemes, int count);

/* Ranks to plan for: those that were started, or --world under --show. */
int trainer_ranks(const Trainer *trainer);

/* [all ranks] Checks the flags against the mesh and fills in what follows from the preset. */
void trainer_check(Trainer *trainer, Shape shape);

/* What any trainer holds and sends, by formula: parameters, gradients and moments under part.placement; activations, rows,
 * the kernels' workspace; each step two all-reduces of eight bytes over the ranks that have different rows, for the count of
 * labels and for the loss, and one over the ranks that hold one copy of the model, for the norm. The schemes add what is
 * their own. */
Expected trainer_expect(const Trainer *trainer, ModelPart part);

/* [all ranks] Cuts the mesh, opens the data, creates what this rank holds of the model, with its first weights, and the
 * optimizer, and checks that the outputs can be written and that what is expected fits under --memory-cap. Shards are dealt
 * over the ranks along fsdp, and layers are split along tp: fills in which of them are this rank's. */
void trainer_open(Trainer *trainer, ModelPart part, const Expected *expected);

/* [all ranks] Call when the scheme is plugged in and nothing can be refused any more: checks that replicas start equal, opens
 * the outputs, says what is going to run, starts the twin and the clock. */
void trainer_begin(Trainer *trainer, Replicas replicas);

/* [all ranks] After the last step: ledger, dump, verdict of --verify, sample; frees everything, ends MPI and returns the
 * exit status. */
int trainer_finish(Trainer *trainer, const Expected *expected);

/* --- observing a step; none of these changes what is computed --- */

/* After a micro-step's loss, and after its backward pass: --step. */
void observe_forward(Trainer *trainer, int micro_step);
void observe_backward(Trainer *trainer, int micro_step);

/* [all ranks] After optimizer_measure: --step, --dump, --verify. */
void observe_gradients(Trainer *trainer, long step);

/* [all ranks] At the end of the step: --verify; the loss over all ranks; the step's line. A loss or a norm that is not finite
 * ends the run on all ranks with status 1; the optimizer has then left the weights as they were. */
void observe_step(Trainer *trainer, long step);
