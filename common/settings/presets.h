/* Models that --model knows by name. */
#pragma once

#include "model/model_config.h"

/* A model, and the training settings that it uses if the command line does not give them. */
typedef struct {
    ModelConfig model;
    int seq, batch; /* T, B */
    double lr;
} Preset;

/* The preset called `name`; NULL if there is none. */
const Preset *preset_find(const char *name);

/* "nano, demo, ..." */
const char *preset_names(void);
