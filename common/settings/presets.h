/* Models known by name. */
#pragma once

#include "model/model_config.h"

/* A model with the training settings that go with it where the command line gives none. */
typedef struct {
    ModelConfig model;
    int seq, batch; /* T, B */
    double lr;
} Preset;

/* NULL if there is no such preset. */
const Preset *preset_find(const char *name);

/* "nano, demo, ..." */
const char *preset_names(void);
