/* The groups of a case. Cases that use the same groups share them. */
#include "base/error.h"
#include "case.h"

Group *first_ranks(int ranks)
{
    static Group *made[64];
    static bool known[64];
    if (!known[ranks]) made[ranks] = group_split(comm_world(), comm_world_rank() < ranks ? 0 : -1, "dp");
    known[ranks] = true;
    return made[ranks];
}

static CaseGroups make_groups(Shape shape, ShardBy by, Group *world)
{
    CaseGroups g = {0};
    g.mesh = mesh_create(world, shape);
    g.shard = sharding_groups(&g.mesh, by);
    g.tp = mesh_group(&g.mesh, ALONG_TP, "tp");
    return g;
}

unsigned case_model_axes(const Case *c)
{
    bool shards = c->sharding.strategy && strategy_find(c->sharding.strategy)->placement.by != SHARD_NOTHING;
    return shards || c->fsdp > 1 ? ALONG_TP | ALONG_SHARDS : ALONG_TP;
}

static bool same_groups(const Case *a, const Case *b)
{
    bool kv = a->tp == b->tp && (a->t.model.kv_heads < a->tp ? a->t.model.kv_heads : 0) ==
                                    (b->t.model.kv_heads < b->tp ? b->t.model.kv_heads : 0);
    return kv && a->cp == b->cp && a->fsdp == b->fsdp && a->dp == b->dp && case_model_axes(a) == case_model_axes(b) &&
           a->context.ulysses_size == b->context.ulysses_size && a->experts.ep == b->experts.ep;
}

const CaseGroups *case_groups(const Case *c)
{
    enum { KINDS = 96 };
    static struct {
        Case of;
        CaseGroups groups;
    } made[KINDS];
    static int count;
    Group *world = first_ranks(case_ranks(c));
    int i = 0;
    while (i < count && !same_groups(&made[i].of, c)) i++;
    if (i == count) {
        CHECK(count < KINDS);
        made[count++].of = *c;
        CaseGroups *g = &made[i].groups;
        if (world) {
            ShardBy by = case_model_axes(c) == ALONG_TP ? SHARD_NOTHING : SHARD_MODEL;
            *g = make_groups((Shape){{c->tp, c->cp, c->fsdp, c->dp}}, by, world);
            if (shape_size(g->mesh.shape, case_model_axes(c)) > 1)
                g->model = mesh_group(&g->mesh, case_model_axes(c), "model");
            int ep = c->experts.ep ? (int)c->experts.ep : 1;
            if (ep > 1) g->model = mesh_experts(&g->mesh, ep, "model");
            g->ep = mesh_experts(&g->mesh, ep, "ep");
            g->same_experts = mesh_same_experts(&g->mesh, ep, "edp");
            g->kv = tensor_kv_group(g->tp, &c->t.model);
            g->context = context_groups(&g->mesh, &c->context);
        }
    }
    return world ? &made[i].groups : NULL;
}
