/* Training data: a stream of tokens, and the rows that a step takes from it.
 *
 * The data is one long row of tokens. Sequence b of step s is a window at a place drawn by Philox from (seed, s, b): so
 * the order of the data depends on the seed and the step alone, never on how many ranks read it, and every rank reads
 * just the sequences that it trains on.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/rows.h"

typedef struct Data Data;

/* Is a file or folder of this name left out when a folder of data is read? So is what is hidden, and what `make` builds. */
bool data_leaves_out(const char *name);

/* Opens a text file, a folder of text files (read in order of their names, as bytes; vocabulary 256) or a .bin of tokens
 * in llm.c's layouts (uint16: magic 20240520; uint32: magic 20240801). Returns NULL, with *data set, or a complaint.
 * Checks this rank's share (rank of ranks) of the tokens against `vocab`: together the ranks check them all. */
const char *data_open(Data **data, const char *path, int vocab, int seq, int rank, int ranks);
void data_close(Data *data);

int64_t data_tokens(const Data *data);

/* Hash of the count and of up to a million tokens, evenly spaced: ranks on several hosts that read different files have
 * different ones. */
uint64_t data_fingerprint(const Data *data);

typedef struct {
    uint64_t seed;
    int batch;     /* sequences in a step, over all ranks */
    int seq;       /* T */
    double ignore; /* drop about this fraction of the labels, unevenly over the sequences; 0: none, 1: all */
} DataOrder;

/* Fills rows [0, count * T) with sequences first ... first + count - 1 of `step`. Row ids count from id_zero. */
void data_read(const Data *data, DataOrder order, long step, int first, int count, int id_zero, Rows *rows);
