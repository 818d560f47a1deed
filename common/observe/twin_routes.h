/* The twin of --verify follows the run's routes: it sends each row to the experts that the run chose.
 *
 * Why: where two experts are almost equally good for a row, rounding decides between them. With equal routes all that is left
 * to compare is rounding, and the comparison stays strict. How many rows the twin would have sent elsewhere is counted.
 */
#pragma once

#include "data/batch.h"
#include "model/model.h"

typedef struct TwinRoutes TwinRoutes;

/* [all ranks] From now on notes the choices of the model's routers. NULL if the model has no experts. */
TwinRoutes *twin_routes_create(Model *model, const Batch *batch);

/* [all ranks] Call after the run's backward pass: shares what the ranks have noted. Then `twin`, which is NULL on ranks that
 * have none, follows it; a row that no rank has noted goes where the twin's router sends it. */
void twin_routes_share(TwinRoutes *routes, Model *twin);

/* Call after the twin's step: forgets the step's routes, and returns how many choices the twin would have made differently;
 * 0 on ranks without the twin. */
int64_t twin_routes_end_step(TwinRoutes *routes);

void twin_routes_free(TwinRoutes *routes);
