#include "case.h"

#include <stdio.h>
#include <string.h>

#include "base/bug.h"
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
                  .cp = 1,
                  .fsdp = 1,
                  .dp = 1,
                  .t = random_training(r),
                  .ddp = {.overlap = 1, .bucket_mb = 1},
                  .tensor = {.tp = 1, .overlap_chunks = 1},
                  .experts = {.ep = 1},
                  .context = {.cp = 1, .method = "ring", .layout = "zigzag", .ulysses_size = 1},
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
    c->t.window = random_int(r, 0, 1) ? random_int(r, 1, 9) : 0;
    c->tensor = (TensorOptions){.tp = tp, .sp = tp > 1 && random_int(r, 0, 2) > 0};
    c->tensor.overlap_chunks = c->tensor.sp ? random_int(r, 1, 3) : 1;
    c->t.model.heads = heads;
    c->t.model.kv_heads = kv_heads;
    c->t.model.ff = tp * random_int(r, 1, 8);
    c->t.seq = c->tensor.sp ? tp * (int)c->tensor.overlap_chunks * random_int(r, 1, 3) : random_int(r, 1, 17);
    c->t.model.max_seq = c->t.seq;
}

static int random_divisor(Random *r, int n)
{
    int d = random_int(r, 1, n);
    while (n % d) d--;
    return d;
}

/* Cuts the sequences along cp. `multiple`: of the rows that a rank has of a sequence. Heads are drawn so that the
 * teams can exchange them: kv heads fewer than the team, equal to it, or more. */
static void cut_along_cp(Random *r, Case *c, int cp, int multiple)
{
    static const char *const methods[] = {"ring", "allgather", "ulysses", "ring"};
    static const char *const layouts[] = {"zigzag", "contiguous"};
    const char *method = methods[random_int(r, 0, 3)];
    int U = strcmp(method, "ulysses") == 0 ? cp : random_int(r, 0, 1) ? random_divisor(r, cp) : 1;
    c->cp = cp;
    c->context =
        (ContextOptions){.cp = cp, .method = method, .layout = layouts[random_int(r, 0, 1)], .ulysses_size = U};
    int least = cut_multiple(context_cut(&c->context));
    while (least % (cp * multiple)) least += cut_multiple(context_cut(&c->context));
    c->t.seq = c->t.model.max_seq = least * random_int(r, 1, least < 12 ? 3 : 1);
    c->t.window = random_int(r, 0, 2) ? 0 : random_int(r, 1, c->t.seq);
    c->t.prefix = random_int(r, 0, 2) ? 0 : random_int(r, 1, (c->t.seq + 1) / 2);
    c->t.pack = random_int(r, 0, 1);
    if (U == 1) return;
    int tp = c->tp, heads = U * random_int(r, 1, 2), kv_heads = 0; /* of a rank along tp */
    while (!kv_heads) {
        int k = random_int(r, 1, heads);
        if (heads % k == 0 && (k % U == 0 || U % k == 0)) kv_heads = k;
    }
    c->t.model.heads = tp * heads;
    c->t.model.kv_heads = tp * kv_heads;
}

Case random_context_case(Random *r, int index)
{
    const int cps[] = {2, 4, 3, 8, 1, 2, 4};
    Case c = one_device(r);
    int cp = cps[index % 7];
    cut_along_cp(r, &c, cp, 1);
    c.dp = cp <= 4 ? random_int(r, 1, 2) : 1;
    c.ddp = random_ddp(r);
    c.recompute = random_int(r, 0, 3) == 0;
    /* A row that sees one key has no gradient of q and k in theory. What is computed is rounding, and AdamW turns any
     * gradient into an update of size lr. So cases with many such rows use SGD. */
    if (c.t.seq < 8 || (c.t.window > 0 && c.t.window < 3)) c.t.optimizer = OPTIMIZER_SGD;
    return c;
}

Case random_expert_case(Random *r, int index)
{
    const int eps[] = {2, 4, 8, 1, 2, 4};
    Case c = one_device(r);
    int ep = eps[index % 6];
    random_experts(r, &c.t.model, ep);
    c.experts = (ExpertOptions){.ep = ep, .overlap = random_int(r, 0, 1)};
    c.dp = ep * random_int(r, 1, ep < 8 ? 8 / ep < 3 ? 8 / ep : 3 : 1);
    c.ddp = random_ddp(r);
    c.recompute = random_int(r, 0, 3) == 0;
    c.one_expert = c.t.model.moe.balance == BALANCE_BIAS && random_int(r, 0, 1);
    /* Without labels only the balance loss has a gradient. If every row goes to all experts, it is 0 in theory, and what is
     * computed is rounding. */
    if (c.t.ignore == 1 && c.t.model.moe.top_k == c.t.model.moe.experts) c.t.ignore = 0.7;
    return c;
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
    /* tp, cp, fsdp, dp */
    static const int shapes[][4] = {{2, 1, 2, 2}, {2, 2, 2, 1}, {4, 1, 2, 1}, {2, 1, 1, 4}, {1, 2, 2, 2},
                                    {2, 1, 4, 1}, {4, 2, 1, 1}, {1, 1, 4, 2}, {8, 1, 1, 1}, {2, 1, 3, 1},
                                    {2, 2, 1, 2}, {1, 4, 2, 1}, {1, 2, 1, 2}};
    const int *shape = shapes[index % 13];
    Case c = one_device(r);
    split_along_tp(r, &c, shape[0]);
    if (shape[1] > 1) cut_along_cp(r, &c, shape[1], c.tensor.sp ? c.tp * (int)c.tensor.overlap_chunks : 1);
    c.ddp = random_ddp(r);
    c.sharding = random_sharding(r, strategies[index / 13 % 7]);
    bool sharded = c.sharding.strategy && strcmp(c.sharding.strategy, "ddp") != 0;
    c.fsdp = sharded ? shape[2] : 1;
    c.dp = shape[2] * shape[3] / c.fsdp;
    c.recompute = random_int(r, 0, 1);
    return c;
}

int case_ranks(const Case *c)
{
    return c->tp * c->cp * c->fsdp * c->dp;
}

const char *describe_case(const Case *c)
{
    static char text[1000];
    const ShardingOptions *s = &c->sharding;
    int n = snprintf(text, sizeof text, "tp %d cp %d fsdp %d dp %d ", c->tp, c->cp, c->fsdp, c->dp);
    if (s->strategy)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s prefetch %ld reshard %ld accumulate_sharded %ld ",
                      s->strategy, s->prefetch, s->reshard, s->accumulate_sharded);
    else
        n += snprintf(text + n, sizeof text - (size_t)n, "overlap %ld bucket %g ", c->ddp.overlap, c->ddp.bucket_mb);
    if (c->tp > 1)
        n += snprintf(text + n, sizeof text - (size_t)n, "sp %ld chunks %ld ", c->tensor.sp, c->tensor.overlap_chunks);
    if (c->cp > 1)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s %s ulysses %ld ", c->context.method, c->context.layout,
                      c->context.ulysses_size);
    const MoeConfig *m = &c->t.model.moe;
    if (m->experts)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "ep %ld overlap %ld experts %d top-k %d x %d router %d renormalize %d balance %d z %g "
                      "one_expert %d ",
                      c->experts.ep, c->experts.overlap, m->experts, m->top_k, m->ff, (int)m->router, m->renormalize,
                      (int)m->balance, m->z_coef, c->one_expert);
    n += snprintf(text + n, sizeof text - (size_t)n, "recompute %d ", c->recompute);
    describe_training(&c->t, text + n, sizeof text - (size_t)n);
    return text;
}

/* --- formulas --- */

static void expect_case_experts(Expected *e, const Case *c, int rows)
{
    const ModelConfig *model = &c->t.model;
    size_t ep = (size_t)c->experts.ep;
    ModelPart part = {.recompute = c->recompute};
    CHECK(!experts_place(&c->experts, model, false, rows, &part));
    Params table = experts_table(model, (int)ep, 0);
    expect_experts(e, model, part.experts);
    ddp_expect(e, "edp", &table, c->ddp, c->dp / (int)ep, 1);
    params_free(&table);
    experts_expect(e, model, &part, rows, c->t.accumulate, 1);
    e->memory[MEMORY_ACTIVATIONS] += moe_activation_bytes(model, (size_t)rows, ep, (size_t)part.expert_rows,
                                                          (size_t)part.expert_chunks, c->recompute);
}

Expected case_expected(const Case *c)
{
    const Training *t = &c->t;
    Shape shape = {{c->tp, c->cp, c->fsdp, c->dp}};
    int rows = t->sequences * t->seq / c->cp, stream_parts = c->tensor.sp ? c->tp : 1, reduces = 1;
    Placement placement = {.tp = c->tp};
    if (c->sharding.strategy) placement = strategy_find(c->sharding.strategy)->placement;
    placement.tp = c->tp;
    placement.ranks = placement.by == SHARD_NOTHING ? 1 : shape_size(shape, ALONG_SHARDS);
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
        ddp_expect(&e, "dp", &table, c->ddp, c->cp * c->dp, 1);
    }
    if (t->model.moe.experts) expect_case_experts(&e, c, rows);
    params_free(&table);
    tensor_expect(&e, &t->model, &c->tensor, rows, c->recompute, t->accumulate, reduces, 1);
    context_expect(&e, &slice, &c->context, training_order(t, 1), rows, c->recompute, t->accumulate, 1);
    int model_ranks = shape_size(shape, case_model_axes(c));
    if (c->experts.ep > model_ranks) model_ranks = (int)c->experts.ep;
    if (model_ranks > 1) expect(&e, "model", COMM_ALL_REDUCE, 1, 8, model_ranks);
    return e;
}

/* --- verdicts --- */

Outcome outcome_with(const char *bug, Case c)
{
    const char *complaint = bug_set(bug);
    if (complaint) fail_msg("%s", complaint);
    Outcome out = run_case(&c, training_tokens());
    bug_set(NULL);
    return out;
}

bool case_is_wrong(const Outcome *o)
{
    bool right = o->loss <= ROUNDING && o->gradient <= ROUNDING && o->norm <= ROUNDING &&
                 o->later_gradient <= TRAINING_LATER && o->weight <= TRAINING_LATER && o->whole <= TRAINING_LATER &&
                 o->replicas_equal && o->same_numbers && o->same_counts && o->padding_is_zero;
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
    assert_together(out.same_counts, "case %d: rows of experts, or the router's bias: %s", i, describe_case(c));
    assert_together(out.padding_is_zero, "case %d: padding was trained: %s", i, describe_case(c));
    assert_together(!*out.ledger, "case %d: %s: %s", i, out.ledger, describe_case(c));
    return out;
}
