#include "sharding.h"

#include <stdlib.h>
#include <string.h>

#include "ddp.h"
#include "base/error.h"

/* --- the strategy ddp, for comparison: it calls the module of tiny-ddp --- */

static void *ddp_start(Sharding *s)
{
    Ddp *ddp = malloc(sizeof *ddp);
    if (!ddp) fatal("out of memory");
    *ddp = ddp_create(s->params, s->micro_step, s->groups.replicate,
                      (DdpOptions){.overlap = s->options.prefetch, .bucket_mb = 1});
    return ddp;
}

static void ddp_end(void *state)
{
    ddp_free(state);
    free(state);
}

static void ddp_after_backward(void *self, int unit)
{
    Sharding *s = self;
    ParameterSeam seam = ddp_seam(s->state);
    seam.after_backward(seam.self, unit);
}

static void ddp_reduce(Sharding *s)
{
    ddp_finish(s->state);
}

const Strategy strategy_ddp = {
    .name = "ddp",
    .placement = {.by = SHARD_NOTHING},
    .create = ddp_start,
    .free = ddp_end,
    .seam = {.after_backward = ddp_after_backward},
    .finish = ddp_reduce,
    .replicates = true,
};

/* --- all strategies --- */

const Strategy *strategy_find(const char *name)
{
    static const Strategy *const all[] = {&strategy_ddp,   &strategy_zero1, &strategy_zero2,
                                          &strategy_zero3, &strategy_fsdp,  &strategy_hsdp};
    for (int i = 0; i < 6; i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}

ShardGroups sharding_groups(const Mesh *mesh, ShardBy by)
{
    ShardGroups groups = {0};
    groups.gather = mesh_group(mesh, ALONG_SHARDS, "gather");
    groups.reduce = mesh_group(mesh, ALONG_SHARDS, "reduce");
    groups.replicate = mesh_group(mesh, by == SHARD_NOTHING ? ALONG_SHARDS | ALONG_DP : ALONG_DP, "dp");
    return groups;
}

ShardGroups sharding_expert_groups(const Mesh *mesh, int ep, ShardBy by)
{
    ShardGroups groups = {0};
    int copy = shape_expert_copy(mesh->shape, ep, by != SHARD_NOTHING);
    groups.gather = mesh_expert_shards(mesh, ep, copy, "egather");
    groups.reduce = mesh_expert_shards(mesh, ep, copy, "ereduce");
    groups.replicate = mesh_expert_replicas(mesh, copy, "edp");
    return groups;
}

Sharding sharding_create(Params *params, MicroStep *micro_step, const Kernels *kernels, ShardGroups groups,
                         ShardingOptions options, int accumulate)
{
    Sharding s = {.strategy = strategy_find(options.strategy),
                  .params = params,
                  .micro_step = micro_step,
                  .kernels = *kernels,
                  .groups = groups,
                  .options = options,
                  .accumulate = accumulate};
    CHECK(s.strategy);
    micro_step->reduces_each = sharding_reduces_each(&options);
    bool sharded = s.strategy->placement.by != SHARD_NOTHING;
    if (sharded) {
        group_open_device(groups.gather, params->weights);
        group_open_device(groups.reduce, params->grads);
        if (group_size(groups.replicate) > 1) group_open_device(groups.replicate, params->grads);
    }
    if (s.strategy->create) s.state = s.strategy->create(&s);
    comm_uncounted(1);
    sharding_publish(&s);
    comm_uncounted(0);
    return s;
}

void sharding_free(Sharding *s)
{
    if (s->strategy->free) s->strategy->free(s->state);
    *s = (Sharding){0};
}

ParameterSeam sharding_seam(Sharding *s)
{
    ParameterSeam seam = s->strategy->seam;
    seam.self = s;
    return seam;
}

void sharding_finish(Sharding *s)
{
    Params *p = s->params;
    if (s->strategy->finish) s->strategy->finish(s);
    if (s->strategy->replicates || group_size(s->groups.replicate) == 1) return;
    acc *shards = p->reduced_grads ? p->reduced_grads : p->grads; /* [held]  all this rank's shards */
    comm_all_reduce(s->groups.replicate, shards, p->held, COMM_ACC, COMM_SUM);
}

void sharding_publish(Sharding *s)
{
    if (s->strategy->publish) s->strategy->publish(s);
}

void sharding_replicas(const Sharding *s, Replicas *replicas)
{
    replicas_add(replicas, s->params, s->groups.replicate, EQUAL_SHARDS);
    if (s->strategy->placement.whole_weights) replicas_add(replicas, s->params, s->groups.gather, EQUAL_WHOLE_WEIGHTS);
}
