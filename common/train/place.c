#include "train/place.h"

/* The ranks that hold one copy of all weights but the experts; of all experts, or 1 if there are none. */
static int dense_copy(Shape shape, ModelPart part)
{
    return shape_copy(shape, part.placement.by != SHARD_NOTHING);
}

static int expert_copy(Shape shape, ModelPart part)
{
    return part.experts.ep ? shape_expert_copy(shape, part.experts.ep, part.experts.by != SHARD_NOTHING) : 1;
}

ModelPart place_sizes(Shape shape, ModelPart part)
{
    Placement *dense = &part.placement, *experts = &part.experts;
    dense->tp = shape.size[AXIS_TP];
    if (dense->by != SHARD_NOTHING) dense->ranks = shape_size(shape, ALONG_SHARDS);
    if (experts->by != SHARD_NOTHING) experts->ranks = expert_copy(shape, part) / experts->ep;
    return part;
}

int place_model_ranks(Shape shape, ModelPart part)
{
    int dense = dense_copy(shape, part), experts = expert_copy(shape, part);
    return dense > experts ? dense : experts;
}

Group *place_model_group(const Mesh *mesh, ModelPart part)
{
    int ranks = place_model_ranks(mesh->shape, part);
    return ranks > 1 ? mesh_neighbours(mesh, ranks, "model") : NULL;
}

ModelPart place_rank(const Mesh *mesh, ModelPart part, Group *model_group)
{
    Shape shape = mesh->shape;
    int rank = group_rank(mesh->world), in_model = rank % place_model_ranks(shape, part);
    part = place_sizes(shape, part);
    Placement *dense = &part.placement, *experts = &part.experts;
    dense->tp_rank = mesh->coordinate[AXIS_TP];
    if (dense->by != SHARD_NOTHING) dense->rank = shape_index(shape, rank, ALONG_SHARDS);
    dense->model_group = experts->model_group = model_group;
    dense->replica = in_model / dense_copy(shape, part);
    if (!experts->ep) return part;
    experts->ep_rank = rank % experts->ep;
    if (experts->by != SHARD_NOTHING) experts->rank = rank % expert_copy(shape, part) / experts->ep;
    experts->replica = in_model / expert_copy(shape, part);
    return part;
}
