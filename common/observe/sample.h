/* --sample: text that the trained model writes. */
#pragma once

#include "model/model.h"

/* [all ranks] Continues `prompt` by `count` tokens, drawn at temperature 0.8 from the model's probabilities. The rank
 * with `prints` set prints them: as characters if the vocabulary has 256 tokens, else as numbers. All ranks draw the
 * same tokens. The model's rows_max must be at least `seq`. Each token costs a forward pass over the last `seq`
 * tokens. */
void sample_print(Model *model, const char *prompt, long count, int seq, uint64_t seed, int prints);
