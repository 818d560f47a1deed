/* The groups of a case. Cases that use the same groups share them. */
#include "base/error.h"
#include "case.h"
#include "train/place.h"

Group *first_ranks(int ranks)
{
    static Group *made[64];
    static bool known[64];
    if (!known[ranks]) made[ranks] = group_split(comm_world(), comm_world_rank() < ranks ? 0 : -1, "dp");
    known[ranks] = true;
    return made[ranks];
}

static bool same_groups(const Case *a, const Case *b)
{
    bool kv = a->tp == b->tp && (a->t.model.kv_heads < a->tp ? a->t.model.kv_heads : 0) ==
                                    (b->t.model.kv_heads < b->tp ? b->t.model.kv_heads : 0);
    bool experts = (a->t.model.moe.experts > 0) == (b->t.model.moe.experts > 0);
    bool shards = (case_part(a).placement.by == SHARD_NOTHING) == (case_part(b).placement.by == SHARD_NOTHING);
    return kv && experts && shards && a->cp == b->cp && a->fsdp == b->fsdp && a->dp == b->dp &&
           a->context.ulysses_size == b->context.ulysses_size && a->experts.ep == b->experts.ep;
}

const CaseGroups *case_groups(const Case *c)
{
    enum { KINDS = 512 };
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
            HybridOptions options = case_options(c);
            g->mesh = mesh_create(world, hybrid_shape(&options));
            g->of = hybrid_groups(&g->mesh, &options, &c->t.model);
            g->model = place_model_group(&g->mesh, case_part(c));
            g->stream = mesh_group(&g->mesh, ALONG_ROWS | ALONG_TP, "stream");
        }
    }
    return world ? &made[i].groups : NULL;
}
