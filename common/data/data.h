/* Training data: a stream of tokens, and the rows that a step takes from it.
 *
 * The data is one long row of tokens (corpus.h). Sequence b of step s is a window of it; Philox draws the place from
 * (seed, s, b). So the order of the data depends on the seed and the step alone, not on the number of ranks, and a rank
 * reads only the sequences that it trains on.
 */
#pragma once

#include <stdint.h>

#include "data/rows.h"

typedef struct Data Data;

/* Opens a text file, a file of tokens in one of llm.c's layouts, or a folder of one kind: see corpus.h. Returns NULL,
 * with *data set, or a complaint. Checks this rank's share (rank of ranks) of the tokens against `vocab`: together the
 * ranks check them all. Keeps `path`. */
const char *data_open(Data **data, const char *path, int vocab, int seq, int rank, int ranks);
void data_close(Data *data);

int64_t data_tokens(const Data *data);

/* Prints what the user should know about the data: what a folder leaves out, and bytes in a vocabulary that is not of
 * bytes. For rank 0. */
void data_print_notes(const Data *data);

/* A hash of the count and of up to a million tokens, evenly spaced. Ranks that read different tokens have different
 * hashes. */
uint64_t data_fingerprint(const Data *data);

typedef struct {
    uint64_t seed;
    int batch;     /* sequences in a step, over all ranks */
    int seq;       /* T */
    double ignore; /* drop about this fraction of the labels, unevenly over the sequences; 0: none, 1: all */

    /* What a row sees. All zero: the rows of its sequence up to itself. */
    int window;   /* 0, or the number of keys that a row sees at most: the nearest, itself included */
    int prefix;   /* the first rows of a document that all its rows see. They do not predict each other: no label */
    int pack;     /* 1: rows see their own document only, and positions count from its start */
    int document; /* with pack: the token that begins a document; -1: none does. A file begins one in any case */
} DataOrder;

/* How far may a row see? No row sees one that is more than `back` rows before it, or more than `ahead` after it. */
typedef struct {
    int back, ahead;
} Reach;
Reach data_reach(DataOrder order);

/* The token that begins a document in a corpus of this kind, by llm.c's convention; -1 in text. */
int data_document_token(const Data *data);

/* Fills rows [0, count * T) with sequences first ... first + count - 1 of `step`. Row ids count from 0. */
void data_read(const Data *data, DataOrder order, long step, int first, int count, Rows *rows);
