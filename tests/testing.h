/* What the tests share: asserting together over ranks, random numbers with fixed seeds, comparisons.
 *
 * A test file's first line says on how many ranks it runs and in which builds: ranks: 8, builds: fp64 fp32. Ranks above
 * 0 make no report; what the library says on stderr is seen from every rank. A bare assertion on one rank would leave
 * the others waiting in the next collective, so tests with ranks use assert_together.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/data.h"
#include "model/model.h"
#include "base/precision.h"

/* Starts MPI, runs the tests and returns main's status: the number of tests that failed on any rank. The environment
 * may hold TEST, a name or pattern: the tests to run, all by default; and TEST_SECONDS, the watchdog's patience. */
int testing_run(const char *name, const struct CMUnitTest *tests, size_t count, int argc, char **argv);
#define TESTING_MAIN(tests)                                                                                            \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        return testing_run(__FILE__, tests, sizeof(tests) / sizeof(tests)[0], argc, argv);                             \
    }

/* [all ranks] Fails on every rank if `good` is false on any; rank 0 prints the message of the lowest such rank. */
void assert_together(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How many times more random configurations than usual (make grid); 1 by default. */
int testing_grid(void);

/* A stream of random numbers. */
typedef struct {
    uint64_t seed, next;
} Random;
int random_int(Random *random, int low, int high); /* inclusive */
double random_real(Random *random);                /* mean 0, standard deviation 1 */
real *random_array(Random *random, size_t n);      /* n of them, to be freed with free() */

/* A small model whose sizes nothing divides. */
ModelConfig random_model(Random *random, int max_seq);

/* Gives the model experts: random numbers of them, router, balance, shared expert. `multiple`: what divides them. */
void random_experts(Random *random, ModelConfig *model, int multiple);

/* Sequences of random tokens, on the host: lengths, intervals and labels vary. See the flags. End with
 * rows_free_host. */
enum {
    ROWS_DOCUMENTS = 1, /* sequences are packed documents of random lengths, blind to each other */
    ROWS_WINDOW = 2,    /* sliding window instead of all that came before */
    ROWS_MASKED = 4,    /* labels dropped, unevenly; some sequences lose all */
};
Rows random_rows(Random *random, int sequences, int seq, int vocab, unsigned flags);

/* A forward pass; the loss, with a scale of 0.1. */
double loss_of(Model *model, const Rows *rows);

/* Verify's metric over one tensor: max|a - b| / max|b|. */
double error_of(const acc *a, const acc *b, size_t n);

/* [all ranks] A .bin file of `count` random tokens below `vocab`, made by rank 0; the path stays valid. Removed when
 * testing_run ends. */
const char *testing_token_file(int vocab, int count);

/* The tightest bound that a comparison of sums in another order can be held to in this build. */
extern const double ROUNDING;
