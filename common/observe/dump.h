/* --dump: a safetensors file with the first step's gradients, grad.NAME, and the final weights, final.NAME. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "model/params.h"

typedef struct {
    bool on;
    FILE *file; /* on the rank that writes */
    const char *path;
    Kernels kernels;
} Dump;

/* Opens the file and writes the header, on the rank that `writes`. Returns NULL, or a complaint if it cannot be
 * opened. A failing disk ends the job, here and below. */
const char *dump_open(Dump *dump, const char *path, const Params *params, const Kernels *kernels, bool writes);

/* [all ranks] */
void dump_gradients(Dump *dump, const Params *params);

/* [all ranks] Writes the weights and closes the file. */
void dump_weights(Dump *dump, const Params *params);
