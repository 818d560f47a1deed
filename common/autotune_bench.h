/* How long an entry of the kernel table takes at a model's shapes; for autotune.c. */
#pragma once

#include "kernels.h"

typedef struct {
    Kernels k;
    const ModelConfig *model;
    int rows, seq; /* enough rows to tell kernels apart; whole sequences */
    void *memory[16];
    int taken;
} Bench;

/* Milliseconds of all calls of an entry that a micro-step makes, at so many rows; prints each shape. Stops once there are more
 * than `limit`. */
double bench_entry(Bench *b, const char *entry, const char *variant, double limit);
