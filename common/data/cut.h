/* The cut: which rows of a sequence each rank along cp holds.
 *
 *   contiguous   T = 8, 2 ranks:   0 0 0 0 1 1 1 1
 *   zigzag                         0 0 1 1 1 1 0 0
 *
 * Under a causal mask a late row sees more keys than an early one. A contiguous cut gives the last rank most of the
 * work. Zigzag on R ranks cuts a sequence into 2 R chunks and gives rank r the chunks r and 2 R - 1 - r. Then every rank
 * has the work of 2 chunk x chunk squares with the keys of each rank; docs/tiny-cp.md counts them. See "The Llama 3
 * Herd of Models", 2024; Brandon et al., "Striped Attention", 2023, balance a ring by stripes instead.
 *
 * With `sharers` = U > 1, U neighbouring ranks form a team. The sequence is dealt to the R = ranks / U teams; each member
 * holds an equal part of its team's rows, in order.
 */
#pragma once

typedef enum { LAYOUT_ZIGZAG, LAYOUT_CONTIGUOUS } Layout;

typedef struct {
    int ranks, rank; /* along cp; ranks 0 means 1: nothing is cut */
    int sharers;     /* U, ranks of a team; 0 means 1 */
    Layout layout;
} Cut;

/* The lengths of sequences that can be cut are the multiples of this number. */
int cut_multiple(Cut cut);

/* The team's rows are the places [begin[c], end[c]) of a sequence. Fills in one or two chunks and returns how many. */
int cut_chunks(Cut cut, int seq, int begin[2], int end[2]);

/* The place in its sequence, from 0, of this rank's row i. 0 <= i < seq / ranks; places ascend with i. */
int cut_place(Cut cut, int seq, int i);
