/* The mesh's flags, the rules of how the schemes fit together, the sum of their formulas, and pictures. Nothing here
 * reads a running Hybrid: --ledger compares these formulas with the counters, and the two must be independent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hybrid.h"

#define AT(member) offsetof(HybridOptions, member)

/* clang-format off */
static const Option rows_of_table[] = {
    {"dp", OPTION_INT, AT(dp), NULL, 1, 1000000, .help = "replicas of the model (1)"},
    {"fsdp", OPTION_INT, AT(fsdp), NULL, 1, 1000000, .help = "ranks of a replica that read different sequences (all that tp, cp and dp leave). What a flag of a scheme below calls all ranks is 1 here"},
};
/* clang-format on */

void hybrid_options(HybridOptions *o, OptionTable *table)
{
    table[0] = (OptionTable){"the mesh", rows_of_table, sizeof rows_of_table / sizeof rows_of_table[0], o};
    table[1] = sharding_options(&o->sharding);
    table[2] = tensor_options(&o->tensor);
    table[3] = context_options(&o->context);
    table[4] = experts_options(&o->experts);
}

/* --- rules --- */

static ShardBy shards_by(const HybridOptions *o)
{
    return strategy_find(o->sharding.strategy)->placement.by;
}

Shape hybrid_shape(const HybridOptions *o)
{
    return (Shape){{[AXIS_TP] = (int)o->tensor.tp,
                    [AXIS_CP] = (int)o->context.cp,
                    [AXIS_FSDP] = (int)o->fsdp,
                    [AXIS_DP] = (int)o->dp}};
}

const char *hybrid_check(HybridOptions *o, int ranks)
{
    const char *strategy = o->sharding.strategy;
    if (strcmp(strategy, "hsdp") == 0)
        return complain(
            "--strategy hsdp: here it is fsdp; --fsdp says how many ranks share a copy, --dp how many copies");
    const char *complaint = sharding_check(&o->sharding, ranks);
    if (complaint) return complaint;
    if (!o->tensor.tp) o->tensor.tp = 1;
    if (!o->context.cp) o->context.cp = 1;
    if (!o->dp) o->dp = 1;
    double others = (double)o->tensor.tp * (double)o->context.cp * (double)o->dp;
    if (!o->fsdp) o->fsdp = others <= ranks && ranks % (int)others == 0 ? ranks / (int)others : 1;
    complaint = shape_check(hybrid_shape(o), ranks);
    if (!complaint) complaint = tensor_check(&o->tensor, ranks);
    if (!complaint) complaint = context_check(&o->context, ranks);
    if (!complaint && shards_by(o) == SHARD_NOTHING && o->fsdp > 1)
        return complain("--fsdp %ld: --strategy %s shards nothing; give these ranks to --dp", o->fsdp, strategy);
    return complaint;
}

/* May experts be dealt over `ep` ranks? A replica's ranks and ep ranks must be blocks of each other. */
static bool fits(const HybridOptions *o, int ep)
{
    int copy = shape_copy(hybrid_shape(o), shards_by(o) != SHARD_NOTHING);
    return copy % ep == 0 || ep % copy == 0;
}

/* A complaint that names a flag of experts that was given, though the model has none; or NULL. */
static const char *complain_of_flags(ExpertOptions *o, const char *model)
{
    OptionTable table = experts_options(o);
    const char *complaint = NULL;
    for (int r = 0; r < table.count && !complaint; r++) {
        const Option *option = &table.rows[r];
        char *value = options_value(&table, r);
        if (strcmp(value, option->initial ? option->initial : "0") != 0)
            complaint =
                complain("--%s %s: --model %s has no experts; --experts N gives it some", option->name, value, model);
        free(value);
    }
    return complaint;
}

static const char *check_experts(HybridOptions *o, ModelConfig *model, const char *folder)
{
    ExpertOptions *e = &o->experts;
    int ranks = shape_ranks(hybrid_shape(o));
    if (!model->moe.experts && !e->experts) return complain_of_flags(e, model->name);
    const char *complaint = experts_apply(e, model, folder);
    if (complaint) return complaint;
    if (!e->ep) { /* as many as possible */
        e->ep = model->moe.experts;
        while (ranks % e->ep || model->moe.experts % e->ep || !fits(o, (int)e->ep)) e->ep--;
    }
    complaint = experts_check(e, model, ranks);
    if (complaint) return complaint;
    if (!fits(o, (int)e->ep))
        return complain("--ep %ld: must divide the ranks that hold one copy of the other weights, %d, or be a multiple",
                        e->ep, shape_copy(hybrid_shape(o), shards_by(o) != SHARD_NOTHING));
    if (model->moe.balance == BALANCE_SEQ_AUX && (o->tensor.tp > 1 || o->context.cp > 1))
        return complain("--balance seq-aux: counts whole sequences on one rank; it goes with --tp 1 and --cp 1");
    return NULL;
}

const char *hybrid_check_model(HybridOptions *o, ModelConfig *model, const char *folder, long batch, long seq, int rows)
{
    const char *complaint = check_experts(o, model, folder);
    if (!complaint) complaint = model_config_check_slice(model, (int)o->tensor.tp); /* before it is cut */
    if (complaint) return complaint;
    ModelConfig slice = model_config_slice(model, (int)o->tensor.tp);
    complaint = context_check_model(&o->context, &slice, seq, rows);
    long kept = seq / o->context.cp, multiple = o->tensor.tp * o->tensor.overlap_chunks;
    if (!complaint && o->tensor.sp && kept % multiple)
        return complain(
            "--seq %ld: a rank along cp has %ld rows of a sequence; with --sp 1 these must be a multiple of "
            "--tp x --overlap-chunks = %ld x %ld",
            seq, kept, o->tensor.tp, o->tensor.overlap_chunks);
    return complaint ? complaint : tensor_check_model(&o->tensor, model, batch, kept, rows);
}

/* --- what a rank holds and sends --- */

/* Rows of the residual stream on a rank. */
static int stream_rows(const HybridOptions *o, int rows)
{
    return o->tensor.sp ? rows / (int)o->tensor.tp : rows;
}

const char *hybrid_part(const HybridOptions *o, const ModelConfig *model, bool on_gpu, int rows, ModelPart *part)
{
    Placement placement = strategy_find(o->sharding.strategy)->placement;
    part->placement = placement;
    part->stream_parts = o->tensor.sp ? (int)o->tensor.tp : 1;
    part->row_chunks = o->tensor.sp ? (int)o->tensor.overlap_chunks : 1;
    if (!model->moe.experts) return NULL;
    const char *complaint = experts_place(&o->experts, model, on_gpu, stream_rows(o, rows), part);
    int ep = part->experts.ep;
    part->experts = placement; /* sharded in the same way */
    part->experts.ep = ep;
    return complaint;
}

void hybrid_expect(Expected *e, const ModelConfig *model, const HybridOptions *o, const ModelPart *part,
                   DataOrder order, int rows, int A, long steps)
{
    Shape shape = hybrid_shape(o);
    ShardBy by = part->placement.by;
    int reduces = sharding_reduces_each(&o->sharding) ? A : 1;
    ModelConfig slice = model_config_slice(model, (int)o->tensor.tp);
    Params table = params_table_split(model, (int)o->tensor.tp, 0);
    sharding_expect(e, &table, &o->sharding, sharding_layout(shape, by), A, steps);
    params_free(&table);
    tensor_expect(e, model, &o->tensor, rows, part->recompute, A, reduces, steps);
    context_expect(e, &slice, &o->context, order, rows, part->recompute, A, steps);
    if (!model->moe.experts) return;
    Params experts = experts_table(model, part->experts.ep, 0);
    sharding_expect(e, &experts, &o->sharding, sharding_expert_layout(shape, part->experts.ep, by), A, steps);
    params_free(&experts);
    experts_expect(e, model, part, stream_rows(o, rows), A, steps);
}

/* --- pictures --- */

/* What each group is for. `along`: its ranks' axes. Ranks of a group with experts are neighbours, or have the same rank
 * mod ep. */
static const struct {
    const char *name, *along, *scheme, *carries;
} groups[] = {
    {"data", "cp fsdp dp", "trainer", "counts of labels, the loss"},
    {"stream", "tp cp fsdp dp", "trainer", "choices of experts, the auxiliary loss"},
    {"model", "one copy", "trainer", "the norm of the gradients"},
    {"tp", "tp", "tiny-megatron", "rows into and out of split matrices; gradients of norms"},
    {"kv", "tp", "tiny-megatron", "gradients of K and V, on the ranks that share a kv head"},
    {"ulysses", "cp", "tiny-cp", "rows for heads, inside a team"},
    {"cp", "cp", "tiny-cp", "keys, values and their gradients, between teams"},
    {"gather", "cp fsdp", "tiny-fsdp", "weights, from their shards"},
    {"reduce", "cp fsdp", "tiny-fsdp", "gradients, to the shards"},
    {"dp", "dp", "tiny-fsdp", "gradients, over the replicas"},
    {"ep", "ep", "tiny-moe", "rows to their experts and back"},
    {"egather", "same experts", "tiny-fsdp", "weights of experts, from the shards in a replica"},
    {"ereduce", "same experts", "tiny-fsdp", "their gradients, to the shards"},
    {"edp", "same experts", "tiny-fsdp", "their gradients, over the replicas"},
};
enum { GROUPS = sizeof groups / sizeof groups[0] };

/* The number of ranks in each group, in the order of the table. 1: the run has no such group. */
static void sizes_of_groups(const ModelConfig *model, const HybridOptions *o, int size[GROUPS])
{
    Shape shape = hybrid_shape(o);
    bool experts = model->moe.experts > 0, sharded = shards_by(o) != SHARD_NOTHING;
    int tp = (int)o->tensor.tp, U = (int)o->context.ulysses_size, ep = experts ? (int)o->experts.ep : 1;
    int copy = shape_copy(shape, sharded), expert_copy = experts ? shape_expert_copy(shape, ep, sharded) : 1;
    ShardLayout dense = sharding_layout(shape, shards_by(o)), same = {.ranks = 1, .copies = 1};
    if (experts) same = sharding_expert_layout(shape, ep, shards_by(o));
    const int sizes[GROUPS] = {shape_size(shape, ALONG_ROWS),
                               experts && o->tensor.sp ? shape_size(shape, ALONG_ROWS | ALONG_TP) : 1,
                               copy > expert_copy ? copy : expert_copy,
                               tp,
                               model->kv_heads < tp ? tp / model->kv_heads : 1,
                               U,
                               (int)o->context.cp / U,
                               dense.ranks,
                               dense.ranks,
                               dense.copies,
                               ep,
                               same.ranks,
                               same.ranks,
                               same.copies};
    memcpy(size, sizes, sizeof sizes);
}

void hybrid_show_mesh(const ModelConfig *model, const HybridOptions *o)
{
    enum { DRAWN = 64 };
    Shape shape = hybrid_shape(o);
    int ranks = shape_ranks(shape), ep = model->moe.experts ? (int)o->experts.ep : 1, size[GROUPS];
    if (ranks == 1) return;
    printf("mesh: rank   tp   cp fsdp   dp   ep\n");
    for (int r = 0; r < ranks && r < DRAWN; r++) {
        printf("mesh: %4d", r);
        for (int a = 0; a < AXES; a++) printf(" %4d", shape_coordinate(shape, r, (Axis)a));
        printf(" %4d\n", r % ep);
    }
    if (ranks > DRAWN) printf("mesh: ... and %d more\n", ranks - DRAWN);
    printf("mesh: group   ranks  along          scheme         carries\n");
    sizes_of_groups(model, o, size);
    for (int g = 0; g < GROUPS; g++) {
        bool all = strcmp(groups[g].name, "dp") == 0 && shards_by(o) == SHARD_NOTHING; /* replicas along cp, too */
        if (size[g] > 1)
            printf("mesh: %-8s %4d  %-13s  %-13s  %s\n", groups[g].name, size[g], all ? "cp dp" : groups[g].along,
                   groups[g].scheme, groups[g].carries);
    }
}

/* The payload of all collectives on the groups of that name: counted, or by formula. */
static double counted(const char *name)
{
    double sum = 0;
    for (int g = 0; comm_group(g); g++)
        for (int k = 0; k < COMM_KINDS && group_is_counted(comm_group(g)); k++)
            if (strcmp(group_name(comm_group(g)), name) == 0)
                sum += ledger_payload(comm_group(g), (CommKind)k, group_count(comm_group(g), (CommKind)k).payload);
    return sum;
}

static double by_formula(const Expected *e, const char *name)
{
    double sum = 0;
    for (int r = 0; r < e->comm_rows; r++)
        if (strcmp(e->comm[r].group, name) == 0) sum += e->comm[r].payload;
    return sum;
}

void hybrid_print_schemes(const Expected *expected, bool rank0)
{
    if (rank0) printf("ledger: %-14s %-14s %16s %16s\n", "scheme", "along", "payload (bytes)", "formula");
    for (int g = 0, next; g < GROUPS; g = next) { /* neighbours in the table with equal axes and scheme are one line */
        double sent = 0, formula = 0;
        for (next = g; next < GROUPS && strcmp(groups[next].along, groups[g].along) == 0 &&
                       strcmp(groups[next].scheme, groups[g].scheme) == 0;
             next++) {
            sent += counted(groups[next].name);
            formula += by_formula(expected, groups[next].name);
        }
        if (rank0 && (sent > 0 || formula > 0))
            printf("ledger: %-14s %-14s %16.0f %16.0f\n", groups[g].scheme, groups[g].along, sent, formula);
    }
}

void hybrid_show_plan(const ModelConfig *model, const HybridOptions *o, DataOrder order, int accumulate)
{
    Shape shape = hybrid_shape(o);
    ModelConfig slice = model_config_slice(model, (int)o->tensor.tp);
    printf("--- weights and gradients: tiny-fsdp\n");
    sharding_show_plan(model, &o->sharding, shape, accumulate);
    if (o->tensor.tp > 1) printf("--- split matrices: tiny-megatron\n"), tensor_show_plan(model, &o->tensor, shape);
    if (o->context.cp > 1) printf("--- attention: tiny-cp\n"), context_show_plan(&slice, &o->context, order);
    if (model->moe.experts)
        printf("--- experts: tiny-moe\n"),
            experts_show_plan(model, &o->experts,
                              "gradients of experts, as tiny-fsdp says above, on egather, ereduce and edp");
}
