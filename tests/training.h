/* What the cases of all schemes share: a random model, and the settings with which it is trained for two steps. */
#pragma once

#include "data/data.h"
#include "observe/ledger.h"
#include "model/model_config.h"
#include "model/optimizer.h"
#include "testing.h"

typedef struct {
    ModelConfig model;
    int seq, sequences, accumulate; /* `sequences`: those that one rank along dp or fsdp reads in one micro-step */
    double ignore, clip;            /* gradients are clipped in about half of the cases */
    int window, prefix, pack;       /* what rows see; documents begin at token 7 */
    OptimizerKind optimizer;
    long seed;
} Training;

/* Draws odd widths and numbers of heads, a vocabulary of 31 to 60 words, and a fraction of ignored labels from 0 to
 * 1. */
Training random_training(Random *random);

/* Writes one line that describes it into text[size], and returns text. */
char *describe_training(const Training *t, char *text, size_t size);

DataOrder training_order(const Training *t, int replicas);
OptimizerConfig training_recipe(const Training *t);

/* The counters of calls and payload of some groups at one moment, to be compared with the formulas. */
enum { COUNTERS_MAX = 13 };
typedef struct {
    Group *group[COUNTERS_MAX];
    int groups;
    CommCount count[COUNTERS_MAX][COMM_KINDS];
} Counters;
Counters training_counters(Group *const *groups, int count); /* a NULL among the groups is skipped */

/* Compares calls and payload since `before`, and bytes allocated since `held` was noted, with the formulas. Writes
 * the first difference into text[size], or an empty text. Groups are found by name. */
void training_ledger(char *text, size_t size, const Expected *expected, const Counters *before, const size_t *held);

/* [all ranks] The token file that all cases read, with 31 different words. The first call makes it. */
const char *training_tokens(void);

/* The bound for what comes after an optimizer step. AdamW amplifies rounding, so only fp64 builds have a finite
 * bound. */
extern const double TRAINING_LATER;
