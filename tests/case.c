#include "case.h"

#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "testing.h"
#include "train/place.h"

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
                  .steps = 2,
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

/* The mesh: every axis has a chance, and at most 16 ranks. */
static void random_mesh(Random *r, int size[AXES])
{
    static const int sizes[] = {1, 2, 4, 2, 3, 8, 1, 2};
    for (;;) {
        int ranks = 1;
        for (int a = 0; a < AXES; a++) ranks *= size[a] = sizes[random_int(r, 0, 7)];
        if (ranks <= 16 && size[AXIS_TP] != 3) return;
    }
}

/* Gives the case experts, dealt in a way that fits its mesh. */
static void deal_experts(Random *r, Case *c)
{
    int ranks = case_ranks(c), ep;
    HybridOptions o = case_options(c);
    int copy = shape_copy(hybrid_shape(&o), case_part(c).placement.by != SHARD_NOTHING);
    do ep = random_divisor(r, ranks);
    while (copy % ep && ep % copy);
    random_experts(r, &c->t.model, ep);
    MoeConfig *m = &c->t.model.moe;
    if (m->balance == BALANCE_SEQ_AUX && (c->tp > 1 || c->cp > 1)) m->balance = BALANCE_AUX;
    c->experts = (ExpertOptions){.ep = ep, .overlap = random_int(r, 0, 1)};
    if (c->tp > 1) c->tensor.sp = 1;
    if (c->t.ignore == 1 && m->top_k == m->experts) c->t.ignore = 0.7; /* as in random_expert_case */
}

Case random_hybrid_case(Random *r)
{
    static const char *const strategies[] = {"fsdp", "zero1", "fsdp", "zero2", "zero3", "fsdp", "ddp"};
    int size[AXES];
    Case c = one_device(r);
    random_mesh(r, size);
    c.sharding = random_sharding(r, strategies[random_int(r, 0, 6)]);
    bool experts = random_int(r, 0, 1);
    split_along_tp(r, &c, size[AXIS_TP]);
    if (experts && c.tp > 1 && !c.tensor.sp) c.tensor.sp = 1, c.t.seq = c.t.model.max_seq = c.tp * random_int(r, 1, 3);
    if (size[AXIS_CP] > 1) cut_along_cp(r, &c, size[AXIS_CP], c.tensor.sp ? c.tp * (int)c.tensor.overlap_chunks : 1);
    c.fsdp = size[AXIS_FSDP];
    c.dp = size[AXIS_DP];
    if (strcmp(c.sharding.strategy, "ddp") == 0) c.dp *= c.fsdp, c.fsdp = 1;
    if (experts) deal_experts(r, &c);
    c.recompute = random_int(r, 0, 2) == 0;
    c.steps = 3;
    if (c.t.seq < 8 || (c.t.window > 0 && c.t.window < 3))
        c.t.optimizer = OPTIMIZER_SGD; /* as in random_context_case */
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

HybridOptions case_options(const Case *c)
{
    HybridOptions o = {.dp = c->dp,
                       .fsdp = c->fsdp,
                       .sharding = c->sharding,
                       .tensor = c->tensor,
                       .context = c->context,
                       .experts = c->experts};
    if (!o.sharding.strategy) o.sharding = sharding_defaults(c->fsdp > 1 ? "fsdp" : "ddp");
    o.tensor.tp = c->tp; /* cases of one scheme leave out the others' options */
    o.context.cp = c->cp;
    if (!o.context.ulysses_size) o.context.ulysses_size = 1;
    return o;
}

/* Rows of a micro-step on a rank. */
static int case_rows(const Case *c)
{
    return c->t.sequences * c->t.seq / c->cp;
}

ModelPart case_part(const Case *c)
{
    HybridOptions o = case_options(c);
    ModelPart part = {.recompute = c->recompute};
    CHECK(!hybrid_part(&o, &c->t.model, false, case_rows(c), &part));
    return part;
}

/* tiny-ddp along dp; the other schemes as in tiny-hybrid. */
static void expect_ddp(Expected *e, const Case *c, const ModelPart *part, int rows)
{
    const ModelConfig *model = &c->t.model;
    ModelConfig slice = model_config_slice(model, c->tp);
    int A = c->t.accumulate, ep = part->experts.ep;
    Params table = params_table_split(model, c->tp, 0);
    ddp_expect(e, "dp", &table, c->ddp, c->cp * c->fsdp * c->dp, 1);
    params_free(&table);
    tensor_expect(e, model, &c->tensor, rows, c->recompute, A, 1, 1);
    context_expect(e, &slice, &c->context, training_order(&c->t, 1), rows, c->recompute, A, 1);
    if (!ep) return;
    Params experts = experts_table(model, ep, 0);
    ddp_expect(e, "edp", &experts, c->ddp, case_ranks(c) / ep, 1);
    params_free(&experts);
    experts_expect(e, model, part, rows / part->stream_parts, A, 1);
}

Expected case_expected(const Case *c)
{
    const Training *t = &c->t;
    HybridOptions o = case_options(c);
    Shape shape = hybrid_shape(&o);
    ModelPart part = place_sizes(shape, case_part(c));
    int rows = case_rows(c), stream = rows / part.stream_parts, model_ranks = place_model_ranks(shape, part);
    ModelConfig slice = model_config_slice(&t->model, c->tp);
    Expected e = {.optimizer_bytes = t->optimizer == OPTIMIZER_ADAMW ? 2 * sizeof(acc) : 0};
    expect_params(&e, &t->model, part.placement);
    e.memory[MEMORY_OPTIMIZER] += sizeof(StepScalars);
    e.memory[MEMORY_ACTIVATIONS] =
        model_activation_bytes(&slice, (size_t)rows, c->recompute, (size_t)part.stream_parts);
    if (t->model.moe.experts) {
        expect_experts(&e, &t->model, part.experts);
        e.memory[MEMORY_ACTIVATIONS] +=
            moe_activation_bytes(&t->model, (size_t)stream, (size_t)part.experts.ep, (size_t)part.expert_rows,
                                 (size_t)part.expert_chunks, c->recompute);
        int stream_ranks =
            shape_size(shape, ALONG_ROWS | ALONG_TP); /* counts of each micro-step, and the auxiliary loss */
        double counts = 8.0 * t->model.layers * (t->model.moe.experts + 1);
        expect(&e, "stream", COMM_ALL_REDUCE, t->accumulate + 1, t->accumulate * counts + 8, stream_ranks);
    }
    if (model_ranks > 1) expect(&e, "model", COMM_ALL_REDUCE, 1, 8, model_ranks);
    if (c->sharding.strategy)
        hybrid_expect(&e, &t->model, &o, &part, training_order(t, 1), rows, t->accumulate, 1);
    else
        expect_ddp(&e, c, &part, rows);
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
                    "case %d: later steps: gradient %.1e weights %.1e whole %.1e, %s: %s", i, out.later_gradient,
                    out.weight, out.whole, out.where, describe_case(c));
    assert_together(out.replicas_equal, "case %d: replicas differ: %s", i, describe_case(c));
    assert_together(out.same_numbers, "case %d: loss or norm differ along tp: %s", i, describe_case(c));
    assert_together(out.same_counts, "case %d: rows of experts, or the router's bias: %s", i, describe_case(c));
    assert_together(out.padding_is_zero, "case %d: padding was trained: %s", i, describe_case(c));
    assert_together(!*out.ledger, "case %d: %s: %s", i, out.ledger, describe_case(c));
    return out;
}
