/* Runs that equal the single-device twin to the bit, but for planted errors, for the test of --verify.
 *
 * Nothing here is trained in parallel. Every rank trains the twin for itself. A second model, placed as a scheme places
 * it, is given the twin's gradients and weights after each step. So an error that --verify reports is one that was
 * planted. */
#pragma once

#include "data/batch.h"
#include "model/model.h"
#include "observe/verify.h"

enum { STEPS = 2 };

/* What the twin computes, whole, of one training; and a model under one placement, which is given the same. */
typedef struct {
    const char *name;
    Model *twin, *model;
    Kernels kernels;
    Data *data;
    Batch batch;
    OptimizerConfig recipe;
    Replicas replicas;
    acc *weights[STEPS + 1], *grads[STEPS]; /* [whole model]  experts last; weights[0]: before step 1 */
    double loss[STEPS], aux[STEPS], norm[STEPS];
    acc *bias[STEPS];      /* [L, E]  the router's, after the step */
    int64_t *total[STEPS]; /* [L, E + 1]  the router's counts of choices */
} Subject;

bool planted_has_experts(const Subject *subject);

/* View number `n` of the model; the experts' views follow all others. `at`: where the twin's values of it begin in
 * Subject.weights and Subject.grads. */
typedef struct {
    const Params *params;
    const View *view, *twin;
    size_t at;
} Parameter;
int planted_views(const Subject *subject);
Parameter planted_view(const Subject *subject, int n);

/* [all ranks] Every placement in turn: creates the subject, calls `check`, frees it. The test has four ranks. */
void planted_for_each(void (*check)(const Subject *));

typedef enum { NOTHING, LOSS, AUX, NORM, BIAS, GRADIENT, WEIGHT, WEIGHT_BIT, WHOLE_WEIGHT_BIT, CHOICES } Kind;
enum { EVERYWHERE = -1 };

/* An error of `size`, in verify's metric, on this rank if `here`. CHOICES: so many choices count for another expert. */
typedef struct {
    Kind kind;
    int step, view; /* view EVERYWHERE: all elements of all views */
    double size;
    bool here;
} Fault;

/* Does this rank own elements of the view? */
bool planted_owns(const Subject *subject, int view);

/* [all ranks] Verifies `steps` steps, whose numbers are the twin's with these faults. `replicas`: replicas are
 * compared, too. Asserts that --verify passes, if `line` is NULL. Else asserts that it fails on every rank, and that
 * its only complaint begins with `line`. */
void planted_expect(const Subject *subject, const Fault *fault, int faults, bool replicas, int steps, const char *line);
