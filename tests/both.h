/* Arrays that lie on both sides of a comparison: on the host as doubles, for the reference kernels; in the GPU's memory as
 * this build has them. Inputs are drawn so that both sides hold the same numbers.
 *
 * The reference kernels are the CPU's, built in fp64 in every build (the Makefile links them in under another name). Their
 * table has this build's types in its prototypes, but takes doubles where those say real or acc: hand it HOST() pointers,
 * which are void. */
#pragma once

#include "kernels/kernels.h"
#include "testing.h"

Kernels reference_kernels(void);

typedef enum { IN_REAL, IN_ACC, IN_BYTES } BothType;
typedef struct {
    void *host, *device;
    size_t count; /* bytes for IN_BYTES */
    BothType type;
} Both;

#define HOST(b)   ((b)->host)
#define DEVICE(b) ((b)->device)

/* Opens the GPU, or returns false and says why there is none. */
bool both_open(void);
extern Kernels gpu;

/* All of these belong to both.c until both_forget, which frees them. */
Both *both_random(Random *random, size_t count, BothType type);
Both *both_output(size_t count, BothType type); /* NaN, so that what is not written shows */
Both *both_zero(size_t count, BothType type);
Both *both_bytes(const void *from, size_t bytes);
void both_forget(void);

/* Replaces the device's numbers by the host's; and the host's by the device's, so that what comes next starts equal. */
void both_to_device(Both *b);
void both_to_host(Both *b);

/* Fails unless the GPU's numbers are the host's: max|a - b| / max(max|b|, among) <= the bound of its type, or of `type`
 * where a sum in acc is made of numbers that were rounded to real. Keeps the worst of each `what`. */
void both_check(const char *what, Both *b, double among);
void both_check_as(BothType type, const char *what, Both *b, double among);
double both_largest(const Both *b); /* finite number, on the host */

/* Prints the worst errors so far. */
void both_report(void);
