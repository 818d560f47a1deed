/* --sample: what the trained model writes. */
#pragma once

#include "model/model.h"

/* [all ranks] Continues `prompt` by `count` tokens, drawn at temperature 0.8 from the model's probabilities, and prints
 * them on the rank where `prints` is set: as bytes where the vocabulary is that of bytes, else as numbers. All ranks draw
 * the same tokens. The model must hold at least `seq` rows; each token costs a forward pass over the last `seq`. */
void sample_print(Model *model, const char *prompt, long count, int seq, uint64_t seed, int prints);
