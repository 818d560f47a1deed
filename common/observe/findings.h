/* What --verify finds: the worst error of each kind, whether it is beyond its bound, and the lines that say so. The bounds
 * are explained in verify.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The worst error of a kind, and where it was. If one is beyond its bound, it is the largest of those. */
typedef struct {
    double error;
    bool failed;
    char where[96];
} Finding;

typedef enum { LOSS, NORM, GRADIENT, WEIGHT, KINDS } Kind;

typedef struct {
    double bound_first;                  /* for step 1, before any update */
    Finding judged[KINDS], drift[KINDS]; /* a drift has no bound, but must be finite */
    char unequal[96];                    /* the first parameter whose replicas differ */
    int64_t miscounted;                  /* choices of experts that the run has counted for others than they are for */
    int64_t flips, choices;              /* those that the twin would have made differently; all */
} Findings;

/* `rows` of a step, in `micro_steps` micro-steps. */
Findings findings_create(double rows, int micro_steps);

/* Notes an error of step `step`, from 0. It is the same on all ranks. */
void findings_note(Findings *findings, Kind kind, double error, const char *what, long step);

/* Notes how many of a step's choices of experts were miscounted, and how many the twin would have made differently. Of the
 * latter a few may be, in fp32 and bf16: where two experts are almost equally good, rounding decides. */
void findings_note_choices(Findings *findings, int64_t miscounted, int64_t flips, int64_t all);

/* Returns whether the run failed. `done` of `steps` steps were compared. If `prints`, prints a line for each error beyond
 * its bound, and the last line. */
bool findings_print(const Findings *findings, long done, long steps, bool prints);
