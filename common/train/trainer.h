/* What every trainer sets up alike, so that its main.c shows the training loop and its scheme, and little else. */
#pragma once

#include "data/batch.h"
#include "settings/config.h"
#include "observe/dump.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "observe/metrics.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "model/safetensors.h"
#include "observe/verify.h"

typedef struct {
    Config config;
    OptionTable scheme; /* the trainer's own flags */
    Mesh mesh;
    Data *data;
    Batch batch;
    Model *model;
    Optimizer optimizer;
    Metrics metrics;
    Dump dump;
    Verify *verify; /* NULL without --verify */
    int chunks;     /* a scheme that multiplies rows in parts sets how many, before trainer_open; 0: whole */
} Trainer;

/* [all ranks] Starts MPI and reads the flags. Does not return on --help or a wrong flag. */
void trainer_start(Trainer *trainer, int argc, char **argv, const char *program, OptionTable scheme);

/* Ranks to plan for: those that were started, or --world under --show. */
int trainer_ranks(const Trainer *trainer);

/* [all ranks] Checks the flags against the mesh and fills in what follows from the preset. */
void trainer_check(Trainer *trainer, Shape shape);

/* What any trainer holds and sends, by formula, with the stream's rows in so many parts: activations, rows, the kernels'
 * workspace; two all-reduces of eight bytes a step over the ranks that see different rows, one for the count of labels and
 * one for the loss. The scheme adds the rest. */
Expected trainer_expect(const Trainer *trainer, Shape shape, int stream_parts);

/* [all ranks] Cuts the mesh, opens the data, creates what this rank holds of the model, with its first weights, and the
 * optimizer, and checks that the outputs can be written and that what is expected fits under --memory-cap. `holding` is cut
 * over the ranks along fsdp, and layers along tp: fills in which part is this rank's. `stream_parts`: model.h. */
void trainer_open(Trainer *trainer, Shape shape, Holding holding, int stream_parts, const Expected *expected);

/* [all ranks] Call when the scheme is plugged in and nothing can be refused any more: opens the outputs, says what is
 * going to run, starts the twin and the clock. */
void trainer_begin(Trainer *trainer, Replicas replicas);

/* [all ranks] After the last step: ledger, dump, verdict of --verify, sample; frees everything, ends MPI and returns the
 * exit status. */
int trainer_finish(Trainer *trainer, const Expected *expected);
