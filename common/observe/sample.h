/* --sample: text that the trained model writes. */
#pragma once

#include "data/batch.h"
#include "model/model.h"

/* [all ranks] Continues `prompt` by `count` tokens, drawn at temperature 0.8 from the model's probabilities. The rank
 * with `prints` set prints them: as characters if the vocabulary has 256 tokens, else as numbers. All ranks draw the
 * same tokens. Each token costs a forward pass over the last tokens, one sequence of them. `batch` says
 * how long a sequence is, what a row of it sees, how it is cut, and the seed. */
void sample_print(Model *model, const char *prompt, long count, const Batch *batch, int prints);
