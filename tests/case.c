#include "case.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "testing.h"

/* --- drawing cases --- */

ShardingOptions sharding_defaults(const char *strategy)
{
    return (ShardingOptions){
        .strategy = strategy, .prefetch = 1, .reshard = 1, .accumulate_sharded = 1, .reduce = "acc"};
}

static ShardingOptions random_sharding(Random *r, const char *strategy)
{
    ShardingOptions o = sharding_defaults(strategy);
    o.prefetch = random_int(r, 0, 1);
    o.reshard = random_int(r, 0, 2) > 0;
    o.accumulate_sharded = random_int(r, 0, 2) > 0;
    return o;
}

static DdpOptions random_ddp(Random *r)
{
    const double buckets[] = {0, 0.0001, 0.004, 1};
    return (DdpOptions){.overlap = random_int(r, 0, 1), .bucket_mb = buckets[random_int(r, 0, 3)]};
}

static Case one_device(Random *r)
{
    return (Case){.tp = 1,
                  .fsdp = 1,
                  .dp = 1,
                  .t = random_training(r),
                  .ddp = {.overlap = 1, .bucket_mb = 1},
                  .tensor = {.tp = 1, .overlap_chunks = 1},
                  .slow_rank = -1};
}

/* Draws a model and a sequence that tp ranks can split. The kv heads are fewer than tp, equal to it, or more. */
static void split_along_tp(Random *r, Case *c, int tp)
{
    int heads = tp * random_int(r, 1, 3), kv_heads = 0;
    while (!kv_heads) {
        int k = random_int(r, 1, heads);
        if (heads % k == 0 && (k % tp == 0 || tp % k == 0)) kv_heads = k;
    }
    c->tp = tp;
    c->window = random_int(r, 0, 1) ? random_int(r, 1, 9) : 0;
    c->tensor = (TensorOptions){.tp = tp, .sp = tp > 1 && random_int(r, 0, 2) > 0};
    c->tensor.overlap_chunks = c->tensor.sp ? random_int(r, 1, 3) : 1;
    c->t.model.heads = heads;
    c->t.model.kv_heads = kv_heads;
    c->t.model.ff = tp * random_int(r, 1, 8);
    c->t.seq = c->tensor.sp ? tp * (int)c->tensor.overlap_chunks * random_int(r, 1, 3) : random_int(r, 1, 17);
    c->t.model.max_seq = c->t.seq;
}

Case random_ddp_case(Random *r, int index)
{
    const int ranks[] = {1, 2, 3, 4, 6, 8};
    Case c = one_device(r);
    c.dp = ranks[index % 6];
    c.ddp = random_ddp(r);
    return c;
}

Case random_shard_case(Random *r, int index)
{
    static const char *const strategies[] = {"zero1", "zero2", "zero3", "fsdp", "hsdp", "fsdp", "ddp"};
    const int ranks[] = {1, 2, 3, 4, 8};
    const char *strategy = strategies[index / 5 % 7];
    int n = ranks[index % 5], shard = n;
    Case c = one_device(r);
    c.sharding = random_sharding(r, strategy);
    c.recompute = random_int(r, 0, 1);
    if (strcmp(strategy, "hsdp") == 0) {
        const int divisors[] = {1, 2, n / 2, n};
        shard = divisors[random_int(r, 0, 3)];
        if (shard == 0 || n % shard) shard = n;
    }
    c.fsdp = strcmp(strategy, "ddp") == 0 ? 1 : shard;
    c.dp = n / c.fsdp;
    return c;
}

Case random_tensor_case(Random *r, int index)
{
    const int tps[] = {1, 2, 4, 8, 2, 4, 2};
    Case c = one_device(r);
    split_along_tp(r, &c, tps[index % 7]);
    c.dp = random_int(r, 1, 2);
    c.ddp = (DdpOptions){.overlap = random_int(r, 0, 1), .bucket_mb = 0.004};
    c.recompute = random_int(r, 0, 3) == 0;
    return c;
}

Case random_composed_case(Random *r, int index)
{
    static const char *const strategies[] = {NULL, "zero1", "zero2", "zero3", "fsdp", "hsdp", "ddp"};
    static const int shapes[][3] = {{2, 2, 2}, {2, 2, 1}, {4, 2, 1}, {2, 1, 4}, {1, 2, 2},
                                    {2, 4, 1}, {4, 1, 2}, {1, 4, 2}, {8, 1, 1}, {2, 3, 1}};
    const int *shape = shapes[index % 10];
    Case c = one_device(r);
    split_along_tp(r, &c, shape[0]);
    c.ddp = random_ddp(r);
    c.sharding = random_sharding(r, strategies[index / 10 % 7]);
    bool sharded = c.sharding.strategy && strcmp(c.sharding.strategy, "ddp") != 0;
    c.fsdp = sharded ? shape[1] : 1;
    c.dp = shape[1] * shape[2] / c.fsdp;
    c.recompute = random_int(r, 0, 1);
    return c;
}

int case_ranks(const Case *c)
{
    return c->tp * c->fsdp * c->dp;
}

const char *describe_case(const Case *c)
{
    static char text[700];
    const ShardingOptions *s = &c->sharding;
    int n = snprintf(text, sizeof text, "tp %d fsdp %d dp %d ", c->tp, c->fsdp, c->dp);
    if (s->strategy)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s prefetch %ld reshard %ld accumulate_sharded %ld ",
                      s->strategy, s->prefetch, s->reshard, s->accumulate_sharded);
    else
        n += snprintf(text + n, sizeof text - (size_t)n, "overlap %ld bucket %g ", c->ddp.overlap, c->ddp.bucket_mb);
    if (c->tp > 1)
        n += snprintf(text + n, sizeof text - (size_t)n, "sp %ld chunks %ld window %d ", c->tensor.sp,
                      c->tensor.overlap_chunks, c->window);
    n += snprintf(text + n, sizeof text - (size_t)n, "recompute %d ", c->recompute);
    describe_training(&c->t, text + n, sizeof text - (size_t)n);
    return text;
}

/* --- groups --- */

Group *first_ranks(int ranks)
{
    static Group *made[64];
    static bool known[64];
    if (!known[ranks]) made[ranks] = group_split(comm_world(), comm_world_rank() < ranks ? 0 : -1, "dp");
    known[ranks] = true;
    return made[ranks];
}

static CaseGroups make_groups(Shape shape, Group *world)
{
    CaseGroups g = {0};
    g.mesh = mesh_create(world, shape);
    g.shard = sharding_groups(&g.mesh);
    g.tp = mesh_group(&g.mesh, ALONG_TP, "tp");
    if (shape_size(shape, ALONG_TP | ALONG_FSDP) > 1) g.model = mesh_group(&g.mesh, ALONG_TP | ALONG_FSDP, "model");
    return g;
}

const CaseGroups *case_groups(const Case *c)
{
    enum { SHAPES = 48, HEADS = 9 };
    static struct {
        int tp, fsdp, dp;
        CaseGroups groups;
        Group *kv[HEADS]; /* the index is the model's number of kv heads if that is less than tp; else 0 */
        bool has_kv[HEADS];
    } made[SHAPES];
    static int count;
    Group *world = first_ranks(case_ranks(c));
    int i = 0, heads = c->t.model.kv_heads < c->tp ? c->t.model.kv_heads : 0;
    while (i < count && !(made[i].tp == c->tp && made[i].fsdp == c->fsdp && made[i].dp == c->dp)) i++;
    if (i == count) {
        CHECK(count < SHAPES);
        made[count].tp = c->tp;
        made[count].fsdp = c->fsdp;
        made[count].dp = c->dp;
        if (world) made[count].groups = make_groups((Shape){{c->tp, 1, c->fsdp, c->dp}}, world);
        count++;
    }
    if (!made[i].has_kv[heads]) {
        made[i].has_kv[heads] = true;
        if (world) made[i].kv[heads] = tensor_kv_group(made[i].groups.tp, &c->t.model);
    }
    made[i].groups.kv = made[i].kv[heads];
    return world ? &made[i].groups : NULL;
}

/* --- formulas --- */

Expected case_expected(const Case *c)
{
    const Training *t = &c->t;
    Shape shape = {{c->tp, 1, c->fsdp, c->dp}};
    int rows = t->sequences * t->seq, stream_parts = c->tensor.sp ? c->tp : 1, reduces = 1;
    Placement placement = {.tp = c->tp};
    if (c->sharding.strategy) placement = strategy_find(c->sharding.strategy)->placement;
    placement.tp = c->tp;
    placement.ranks = c->fsdp;
    Expected e = {.optimizer_bytes = t->optimizer == OPTIMIZER_ADAMW ? 2 * sizeof(acc) : 0};
    expect_params(&e, &t->model, placement);
    e.memory[MEMORY_OPTIMIZER] += sizeof(StepScalars);
    ModelConfig slice = model_config_slice(&t->model, c->tp);
    e.memory[MEMORY_ACTIVATIONS] = model_activation_bytes(&slice, (size_t)rows, c->recompute, (size_t)stream_parts);
    Params table = params_table_split(&t->model, c->tp, 0);
    if (c->sharding.strategy) {
        sharding_expect(&e, &table, &c->sharding, shape, t->accumulate, 1);
        if (sharding_reduces_each(&c->sharding)) reduces = t->accumulate;
    } else {
        ddp_expect(&e, &table, c->ddp, c->dp, 1);
    }
    params_free(&table);
    tensor_expect(&e, &t->model, &c->tensor, rows, c->recompute, t->accumulate, reduces, 1);
    if (c->tp * c->fsdp > 1) expect(&e, "model", COMM_ALL_REDUCE, 1, 8, c->tp * c->fsdp);
    return e;
}

/* --- verdicts --- */

bool case_is_wrong(const Outcome *o)
{
    bool right = o->loss <= ROUNDING && o->gradient <= ROUNDING && o->norm <= ROUNDING &&
                 o->later_gradient <= TRAINING_LATER && o->weight <= TRAINING_LATER && o->whole <= TRAINING_LATER &&
                 o->replicas_equal && o->same_numbers && o->padding_is_zero;
    return !right;
}

Outcome check_case(const Case *c, int i, double first)
{
    Outcome out = run_case(c, training_tokens());
    assert_together(out.loss <= first && out.gradient <= first && out.norm <= first,
                    "case %d: loss %.1e norm %.1e gradient %.1e of %s: %s", i, out.loss, out.norm, out.gradient,
                    out.where, describe_case(c));
    assert_together(out.later_gradient <= TRAINING_LATER && out.weight <= TRAINING_LATER && out.whole <= TRAINING_LATER,
                    "case %d: step 2: gradient %.1e weights %.1e whole %.1e, %s: %s", i, out.later_gradient, out.weight,
                    out.whole, out.where, describe_case(c));
    assert_together(out.replicas_equal, "case %d: replicas differ: %s", i, describe_case(c));
    assert_together(out.same_numbers, "case %d: loss or norm differ along tp: %s", i, describe_case(c));
    assert_together(out.padding_is_zero, "case %d: padding was trained: %s", i, describe_case(c));
    assert_together(!*out.ledger, "case %d: %s: %s", i, out.ledger, describe_case(c));
    return out;
}
