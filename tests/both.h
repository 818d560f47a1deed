/* Arrays for comparing the GPU's kernels with reference kernels. Each array exists twice: on the host as doubles, for
 * the reference kernels; in the GPU's memory in this build's type. Random inputs are drawn so that both hold equal
 * numbers.
 *
 * The reference kernels are the CPU's kernels in fp64. Every build has them (the Makefile links them under another
 * name). The prototypes in their table say real or acc, but the kernels take doubles. So the caller passes HOST()
 * pointers, which are void. */
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

/* Opens the GPU and prints its name. If there is none, prints why and returns false. */
bool both_open(void);
extern Kernels gpu;

/* Each returns a new array, which both_forget frees. */
Both *both_random(Random *random, size_t count, BothType type);
Both *both_output(size_t count, BothType type); /* NaN: elements that no kernel writes fail the check */
Both *both_zero(size_t count, BothType type);
Both *both_bytes(const void *from, size_t bytes);
void both_forget(void);

/* Copies the host's numbers to the device. */
void both_to_device(Both *b);

/* Copies the device's numbers to the host, so that the next kernels start from equal inputs. */
void both_to_host(Both *b);

/* Fails the test unless max|a - b| / max(max|b|, among) is within the bound of b's type; a are the GPU's numbers, b the
 * host's. both_check_as takes the bound of `type` instead, for sums in acc of numbers that were rounded to real. Both
 * functions keep the largest error of each `what` for both_report. */
void both_check(const char *what, Both *b, double among);
void both_check_as(BothType type, const char *what, Both *b, double among);
double both_largest(const Both *b); /* the largest finite |number| on the host */

/* Prints the largest errors so far. */
void both_report(void);
