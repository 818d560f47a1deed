/* The flags that all trainers share, and the values that are derived from them. */
#pragma once

#include "data/data.h"
#include "kernels/kernels.h"
#include "model/model_config.h"
#include "model/optimizer.h"
#include "base/options.h"

typedef struct {
    /* what to train, on what */
    const char *model, *data;
    long batch, accumulate, seq, steps, seed;
    double ignore;
    long window, prefix, pack, document; /* what a row sees; see DataOrder */
    /* the optimizer */
    const char *optimizer;
    double lr, weight_decay, clip;
    long warmup;
    /* how to run */
    const char *device, *kernel, *autotune;
    double timeout, peak, memory_cap;
    long recompute;
    /* what to look at */
    long verify, ledger, sample, step, world;
    const char *log, *trace, *dump, *save_routes, *routes, *show, *bug, *prompt;

    /* derived by config_finish */
    ModelConfig architecture;
    bool pretrained; /* --model names a folder: its weights are loaded */
    Kernels kernels;
    const char *note; /* a remark about the choice of kernels, to be printed; or NULL */
} Config;

OptionTable config_options(Config *config);

/* Call after the flags are parsed. Chooses the model (it reads config.json if --model is a folder) and the kernels,
 * fills in the preset's values, and checks the flags against each other. `data_ranks`: ranks that read different
 * sequences. `local_rank`: this rank's number on its host, which chooses its GPU. Returns NULL or a complaint. */
const char *config_finish(Config *config, int data_ranks, int local_rank);

/* The folder whose weights are loaded, or NULL if --model names a preset. */
const char *config_folder(const Config *config);

DataOrder config_data_order(const Config *config);
OptimizerConfig config_optimizer(const Config *config);
