/* How long an entry of the kernel table takes at a model's shapes; for autotune.c. */
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"

typedef struct {
    Kernels k;
    const ModelConfig *model;
    int rows, seq; /* enough rows to tell kernels apart; whole sequences */
    void *memory[16];
    int taken;
} Bench;

/* The matrices of a model, and how often a micro-step multiplies by them. */
enum { MATRICES = 5 };
typedef struct {
    int in, out, times;
} Matrix;
void bench_matrices(Matrix matrix[MATRICES], const ModelConfig *model);

/* Milliseconds of all calls of an entry that a micro-step makes, at so many rows; prints each shape. Stops once there are more
 * than `limit`. */
double bench_entry(Bench *b, const char *entry, const char *variant, double limit);

/* ms[plans]: milliseconds of a product of n rows by each of its plans. Leaves the last of them chosen. */
void bench_plans(Bench *b, Product product, int n, Matrix matrix, int plans, double *ms);
