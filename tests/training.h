/* What the cases of all schemes share: a random model, and how it is trained for two steps. */
#pragma once

#include "data/data.h"
#include "observe/ledger.h"
#include "model/model_config.h"
#include "model/optimizer.h"
#include "testing.h"

typedef struct {
    ModelConfig model;
    int seq, sequences, accumulate; /* sequences: of one replica in one micro-step */
    double ignore, clip;            /* clipping is active in about half of the cases */
    OptimizerKind optimizer;
    long seed;
} Training;

/* Everything odd: widths, heads, a vocabulary of 31 to 60 words, up to all labels missing. */
Training random_training(Random *random);

/* One line that says what it is, into text[size]; returns text. */
char *describe_training(const Training *t, char *text, size_t size);

DataOrder training_order(const Training *t, int replicas);
OptimizerConfig training_recipe(const Training *t);

/* One step's counters and bytes, to be compared with the formulas. */
enum { COUNTERS_MAX = 8 };
typedef struct {
    Group *group[COUNTERS_MAX];
    int groups;
    CommCount count[COUNTERS_MAX][COMM_KINDS];
} Counters;
Counters training_counters(Group *const *groups, int count); /* NULL among them: left out */

/* Writes into text[size] the first count or payload since `before`, or number of bytes held since `held`, that is not what is
 * expected; nothing if all are. Groups are told apart by name. */
void training_ledger(char *text, size_t size, const Expected *expected, const Counters *before, const size_t *held);

/* [all ranks] The data of every case, 31 words, made by the first that needs it. */
const char *training_tokens(void);

/* The bound of what follows an optimizer step: AdamW amplifies rounding, so it is judged in fp64 alone. */
extern const double TRAINING_LATER;
