/* Routes: which experts each row went to. A run on one rank writes them to a file; another run, on any mesh and in any
 * precision, sends its rows to the same experts.
 *
 * Why: where two experts are almost equally good, rounding decides between them, and from then on two runs differ by much
 * more than rounding. With fixed routes one can see what rounding alone does (make drift).
 */
#pragma once

#include "data/batch.h"
#include "model/model.h"

typedef struct Routes Routes;

/* Row i of this rank's part of the stream, in the running micro-step: its number among the rows of all ranks, in the order of
 * the sequences. */
size_t routes_row(const Model *model, const Batch *batch, int i);

/* `save`: the file to be written; `follow`: the one to follow; "" if not given. Returns NULL, or a complaint if both are
 * given, if the model has no experts, or if more than one rank would write. */
const char *routes_check(const char *save, const char *follow, const ModelConfig *model);

/* [all ranks] Call after routes_check. Opens the file; from then on the model's routers write their choices, or follow it.
 * *routes is NULL if no file is given. Returns NULL, or a complaint: the file is of another model or batch, or too short for
 * `steps` steps. */
const char *routes_open(Routes **routes, const char *save, const char *follow, Model *model, const Batch *batch,
                        long steps);

/* [all ranks of the model's router.group] Closes the file, and prints on the rank that `prints` how many choices would have
 * been others. */
void routes_close(Routes *routes, bool prints);
