#include "hybrid.h"

#include "base/bug.h"

HybridGroups hybrid_groups(const Mesh *mesh, const HybridOptions *o, const ModelConfig *model)
{
    ShardBy by = strategy_find(o->sharding.strategy)->placement.by;
    HybridGroups g = {.dense = sharding_groups(mesh, by), .tp = mesh_group(mesh, ALONG_TP, "tp")};
    g.kv = tensor_kv_group(g.tp, model);
    g.context = context_groups(mesh, &o->context);
    if (!model->moe.experts) return g;
    g.ep = mesh_neighbours(mesh, (int)o->experts.ep, "ep");
    g.same_experts = sharding_expert_groups(mesh, (int)o->experts.ep, by);
    return g;
}

void hybrid_plug(Hybrid *h, Model *model, HybridGroups g, const HybridOptions *o, DataOrder order, int rows,
                 int accumulate)
{
    Seams *seams = &model->seams;
    MicroStep *micro_step = &model->micro_step;
    *h = (Hybrid){.has_experts = model->config.moe.experts > 0};

    h->tensor = tensor_create(model, g.tp, g.kv, o->tensor, rows);
    if (group_size(g.tp) > 1) seams->features = tensor_seam(&h->tensor);

    h->context = context_create(model, g.context, &o->context, order, rows);
    if (o->context.cp > 1) seams->sequence = context_seam(&h->context);

    h->dense = sharding_create(&model->params, micro_step, &model->kernels, g.dense, o->sharding, accumulate);
    seams->parameters = seam_chain(&h->chain[0], tensor_parameter_seam(&h->tensor), sharding_seam(&h->dense));
    if (!h->has_experts) return;

    h->experts = experts_parallel(model, g.ep, rows / model->stream_parts); /* with SP a rank sends its own rows only */
    seams->experts = experts_seam(&h->experts);
    if (BUG(expert_sum_over_all)) g.same_experts.replicate = g.dense.replicate;
    h->expert_shards =
        sharding_create(&model->experts, micro_step, &model->kernels, g.same_experts, o->sharding, accumulate);
    seams->parameters = seam_chain(&h->chain[1], sharding_seam(&h->expert_shards), seams->parameters);
}

void hybrid_free(Hybrid *h)
{
    if (h->has_experts) {
        sharding_free(&h->expert_shards);
        experts_free(&h->experts);
    }
    sharding_free(&h->dense);
    context_free(&h->context);
    tensor_free(&h->tensor);
}

void hybrid_finish(Hybrid *h)
{
    if (h->has_experts) sharding_finish(&h->expert_shards);
    sharding_finish(&h->dense);
}

void hybrid_publish(Hybrid *h)
{
    if (h->has_experts) sharding_publish(&h->expert_shards);
    sharding_publish(&h->dense);
}

void hybrid_replicas(const Hybrid *h, Replicas *replicas)
{
    sharding_replicas(&h->dense, replicas);
    tensor_replicas(&h->tensor, replicas);
    if (h->has_experts) sharding_replicas(&h->expert_shards, replicas);
}
