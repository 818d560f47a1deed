/* A kernel's backward against finite differences of its forward, shared by the tests of kernels. */
#pragma once

#include <stddef.h>

#include "base/precision.h"

/* A scalar function of one array: the sum of a kernel's outputs, weighted at random. */
typedef double (*Scalar)(void *problem);

/* Compares gradient[n], as the backward kernel gave it, with central differences of f along x[n]; fails the test where they
 * part. Fourth order, so that a step of 1e-3 leaves an error of about 1e-12. Does nothing but in fp64. */
void check_gradient(const char *name, Scalar f, void *problem, real *x, const acc *gradient, int n);

/* The sum of y[i] weight[i]. */
double weighted(const real *y, const real *weight, size_t n);

/* n zeros, to be freed with free(). */
acc *zeros(size_t n);
