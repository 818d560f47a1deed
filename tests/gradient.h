/* Compares a kernel's backward pass with finite differences of its forward pass. For the tests of kernels. */
#pragma once

#include <stddef.h>

#include "base/precision.h"

/* A scalar function of `problem`: runs the forward kernel and returns the sum of its outputs with random weights. */
typedef double (*Scalar)(void *problem);

/* Compares gradient[n], the backward kernel's result, with central differences of f along x[n], at about 60 elements.
 * Fails the test if they differ. The differences are of fourth order, so a step of 1e-3 leaves an error of about 1e-12.
 * Does nothing in builds other than fp64. */
void check_gradient(const char *name, Scalar f, void *problem, real *x, const acc *gradient, int n);

/* The sum of y[i] weight[i]. */
double weighted(const real *y, const real *weight, size_t n);

/* Returns n zeros. The caller frees them with free(). */
acc *zeros(size_t n);
