/* Placing a model on a mesh: which part of it each rank has. */
#pragma once

#include "comm/mesh.h"
#include "model/model.h"

/* Fills in the sizes that the mesh gives: ranks of the shard groups of both placements, and ranks along tp. part.experts.ep
 * is 0 without experts. The coordinates stay those of rank 0. */
ModelPart place_sizes(Shape shape, ModelPart part);

/* The ranks that together hold one copy of the model. They are neighbours. */
int place_model_ranks(Shape shape, ModelPart part);

/* [all ranks of the mesh] Creates their group, "model". NULL if a rank holds everything. */
Group *place_model_group(const Mesh *mesh, ModelPart part);

/* Fills in sizes and this rank's coordinates. */
ModelPart place_rank(const Mesh *mesh, ModelPart part, Group *model_group);
