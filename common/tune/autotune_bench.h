/* Measures how long an entry of the kernel table takes at a model's shapes. For autotune.c. */
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"

typedef struct {
    Kernels k; /* with the variant to measure */
    const ModelConfig *model;
    int rows, seq; /* bench_entry's rows, and the rows of a sequence */
    void *memory[16];
    int taken; /* how many of memory[] are allocated */
} Bench;

/* One of the kinds of weight matrices [out, in] of a model. */
enum { MATRICES = 5 };
typedef struct {
    int in, out, times; /* times: products with matrices of this kind in a micro-step */
} Matrix;
void bench_matrices(Matrix matrix[MATRICES], const ModelConfig *model);

/* Returns the milliseconds of all calls of an entry in one micro-step of b->rows rows, forward and backward. Prints the
 * time of each shape. For linear it stops as soon as the sum exceeds `limit`; then the result is too small, but above
 * `limit`. */
double bench_entry(Bench *b, const char *entry, const char *variant, double limit);

/* ms[plans]: the milliseconds of one product on n rows with each of its plans. On return the last plan is chosen. */
void bench_plans(Bench *b, Product product, int n, Matrix matrix, int plans, double *ms);
