/* The strategies' flags, and the formulas of what they send and hold. Nothing here reads a running Sharding: --ledger
 * compares these formulas with the counters, and the two must be independent. */
#include <stdio.h>
#include <string.h>

#include "ddp.h"
#include "base/error.h"
#include "sharding.h"

#define AT(member) offsetof(ShardingOptions, member)

/* clang-format off */
static const Option rows[] = {
    {"strategy", OPTION_CHOICE, AT(strategy), "fsdp", .choices = "ddp|zero1|zero2|zero3|fsdp|hsdp", .help = "what is sharded, and when it is gathered"},
    {"shard-size", OPTION_INT, AT(shard_size), NULL, 1, 1000000, .help = "hsdp: ranks that share one copy of the model (half of them)"},
    {"prefetch", OPTION_INT, AT(prefetch), "1", 0, 1, .help = "ddp, fsdp, hsdp: 1: communicate while computing; 0: wait for each call at once"},
    {"reshard", OPTION_INT, AT(reshard), "1", 0, 1, .help = "fsdp, hsdp: 1: give layers back after each use; 0: keep them to the end of the step"},
    {"accumulate-sharded", OPTION_INT, AT(accumulate_sharded), "1", 0, 1, .help = "fsdp, hsdp: 1: reduce in every micro-step; 0: in the last, of whole gradients"},
    {"reduce", OPTION_CHOICE, AT(reduce), "acc", .choices = "acc|real", .help = "fsdp, hsdp: the type in which gradients travel"},
};
/* clang-format on */

OptionTable sharding_options(ShardingOptions *options)
{
    return (OptionTable){"flags of tiny-fsdp", rows, sizeof rows / sizeof rows[0], options};
}

/* --- checks of the flags --- */

static bool is(const ShardingOptions *o, const char *name)
{
    return strcmp(o->strategy, name) == 0;
}

static bool is_fsdp(const ShardingOptions *o)
{
    return is(o, "fsdp") || is(o, "hsdp");
}

const char *sharding_check(const ShardingOptions *o, int ranks)
{
    if (o->shard_size && !is(o, "hsdp")) return complain("--shard-size %ld: goes with --strategy hsdp", o->shard_size);
    if (o->shard_size && ranks % o->shard_size)
        return complain("--shard-size %ld: must divide the number of ranks, %d", o->shard_size, ranks);
    if (is(o, "hsdp") && !o->shard_size && ranks % 2)
        return complain("--strategy hsdp: half of %d ranks is no whole number; --shard-size says how many share",
                        ranks);
    if (!o->prefetch && !is_fsdp(o) && !is(o, "ddp"))
        return complain("--prefetch 0: goes with --strategy ddp, fsdp or hsdp; %s never does anything else",
                        o->strategy);
    const char *only_fsdp = !o->reshard ? "--reshard 0" : !o->accumulate_sharded ? "--accumulate-sharded 0" : NULL;
    if (strcmp(o->reduce, "real") == 0) only_fsdp = "--reduce real";
    if (only_fsdp && !is_fsdp(o)) return complain("%s: goes with --strategy fsdp or hsdp", only_fsdp);
    return NULL;
}

static int shard_ranks(const ShardingOptions *o, int ranks)
{
    if (is(o, "ddp")) return 1;
    if (!is(o, "hsdp")) return ranks;
    return o->shard_size ? (int)o->shard_size : ranks / 2;
}

Shape sharding_shape(const ShardingOptions *o, int ranks)
{
    int n = shard_ranks(o, ranks);
    return (Shape){{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = n, [AXIS_DP] = ranks / n}};
}

bool sharding_reduces_each(const ShardingOptions *o)
{
    return is(o, "zero2") || is(o, "zero3") || (is_fsdp(o) && o->accumulate_sharded);
}

/* --- what is sent and held --- */

/* Sizes of a model that is sharded over n ranks, in elements with padding: n times what one rank holds. */
typedef struct {
    int units, views, views_of_root, n; /* units: those that have parameters */
    double model;                       /* sharded as a whole */
    double root, layers, layer;         /* sharded by unit: the root, all layers, the largest layer */
    double by_view, largest_view;       /* sharded by view: all views, the largest view */
} Sizes;

static double padded(size_t count, int n)
{
    size_t step = (size_t)n * SHARD_ALIGN;
    return (double)((count + step - 1) / step * step);
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static Sizes sizes_of(const Params *p, int n)
{
    Sizes s = {.units = p->units - (p->unit[0].count == 0), .views = p->views, .n = n, .model = padded(p->count, n)};
    s.root = padded(p->unit[0].count, n);
    for (int u = 1; u < p->units; u++) {
        s.layers += padded(p->unit[u].count, n);
        s.layer = most(s.layer, padded(p->unit[u].count, n));
    }
    for (int v = 0; v < p->views; v++) {
        s.views_of_root += p->view[v].unit == 0;
        s.by_view += padded(p->view[v].size, n);
        s.largest_view = most(s.largest_view, padded(p->view[v].size, n));
    }
    return s;
}

static void hold_buffers(Expected *e, double bytes)
{
    e->memory[MEMORY_BUFFERS] += (size_t)bytes;
}

static void expect_zero1(Expected *e, const Sizes *s, const ShardLayout *l, long steps)
{
    double k = (double)steps;
    expect(e, l->gather, COMM_ALL_GATHER, k, k * s->model * sizeof(real), s->n);
    expect(e, l->reduce, COMM_REDUCE_SCATTER, k, k * s->model * sizeof(acc), s->n);
}

static void expect_zero2(Expected *e, const Sizes *s, const ShardLayout *l, int A, long steps)
{
    double k = (double)steps, all = s->root + s->layers;
    double reduced = A > 1 ? most(s->root, s->layer) / s->n : 0;
    expect(e, l->gather, COMM_ALL_GATHER, k * s->units, k * all * sizeof(real), s->n);
    expect(e, l->reduce, COMM_REDUCE_SCATTER, k * A * s->units, k * A * all * sizeof(acc), s->n);
    hold_buffers(e, (s->root + s->layer + reduced) * sizeof(acc));
}

static void expect_zero3(Expected *e, const Params *p, const Sizes *s, const ShardLayout *l, int A, long steps)
{
    double k = (double)steps * A, root = 0, unpadded_layer = 0;
    for (int v = 0; v < p->views; v++)
        if (p->view[v].unit == 0) root += padded(p->view[v].size, s->n);
    for (int u = 1; u < p->units; u++) unpadded_layer = most(unpadded_layer, (double)p->unit[u].count);
    double units = (double)p->unit[0].count + unpadded_layer, reduced = A > 1 ? s->largest_view / s->n : 0;
    expect(e, l->gather, COMM_ALL_GATHER, k * (2 * s->views - s->views_of_root),
           k * (2 * s->by_view - root) * sizeof(real), s->n);
    expect(e, l->reduce, COMM_REDUCE_SCATTER, k * s->views, k * s->by_view * sizeof(acc), s->n);
    hold_buffers(e, (units + s->largest_view) * (sizeof(real) + sizeof(acc)) + reduced * sizeof(acc));
}

/* Elements of `slots` buffers that the layers use in turn. Each buffer has room for the largest layer that uses it. */
static double in_turn(const Params *p, int n, int slots)
{
    double all = 0;
    for (int s = 1; s <= slots; s++) {
        double largest = 0;
        for (int u = s; u < p->units; u += slots) largest = most(largest, padded(p->unit[u].count, n));
        all += largest;
    }
    return all;
}

static void expect_fsdp(Expected *e, const Params *p, const Sizes *s, const ShardingOptions *o, const ShardLayout *l,
                        int A, long steps)
{
    int layers = p->units - 1, root = p->unit[0].count > 0;
    double k = (double)steps, all = s->root + s->layers, two = in_turn(p, s->n, layers < 2 ? layers : 2);
    bool whole = A > 1 && !o->accumulate_sharded, narrow = strcmp(o->reduce, "real") == 0 && MASTER_BYTES;
    double gathers = o->reshard ? A * (root + 2.0 * layers) : s->units;
    double gathered = o->reshard ? A * (s->root + 2 * s->layers) : all;
    double reduces = whole ? 1 : A;
    expect(e, l->gather, COMM_ALL_GATHER, k * gathers, k * gathered * sizeof(real), s->n);
    expect(e, l->reduce, COMM_REDUCE_SCATTER, k * reduces * s->units,
           k * reduces * all * (narrow ? sizeof(real) : sizeof(acc)), s->n);
    if (l->copies > 1) expect(e, l->replicate, COMM_ALL_REDUCE, k * s->units, k * all / s->n * sizeof(acc), l->copies);

    double weights = s->root + (o->reshard ? two : s->layers);
    double grads = s->root + (whole ? s->layers : two);
    double buffers = weights * sizeof(real) + grads * sizeof(acc);
    if (narrow)
        buffers += (grads + grads / s->n) * sizeof(real);
    else if (A > 1 && !whole)
        buffers += grads / s->n * sizeof(acc);
    hold_buffers(e, buffers);
}

ShardLayout sharding_layout(Shape shape, ShardBy by)
{
    int n = shape_size(shape, ALONG_SHARDS), dp = shape.size[AXIS_DP];
    ShardLayout layout = {.ranks = n, .copies = dp, .gather = "gather", .reduce = "reduce", .replicate = "dp"};
    if (by == SHARD_NOTHING) layout.ranks = 1, layout.copies = n * dp;
    return layout;
}

ShardLayout sharding_expert_layout(Shape shape, int ep, ShardBy by)
{
    int copy = shape_expert_copy(shape, ep, by != SHARD_NOTHING);
    return (ShardLayout){.ranks = copy / ep,
                         .copies = shape_ranks(shape) / copy,
                         .gather = "egather",
                         .reduce = "ereduce",
                         .replicate = "edp"};
}

void sharding_expect(Expected *e, const Params *params, const ShardingOptions *o, ShardLayout l, int A, long steps)
{
    Sizes s = sizes_of(params, l.ranks);
    if (is(o, "ddp")) ddp_expect(e, l.replicate, params, (DdpOptions){.bucket_mb = 1}, l.copies, steps);
    if (is(o, "zero1")) expect_zero1(e, &s, &l, steps);
    if (is(o, "zero2")) expect_zero2(e, &s, &l, A, steps);
    if (is(o, "zero3")) expect_zero3(e, params, &s, &l, A, steps);
    if (is_fsdp(o)) expect_fsdp(e, params, &s, o, &l, A, steps);
    if (is_fsdp(o) || is(o, "ddp") || l.copies == 1) return;
    /* the others sum over the copies in one call for all shards, after the last backward pass */
    double held = is(o, "zero1") ? s.model : is(o, "zero2") ? s.root + s.layers : s.by_view;
    expect(e, l.replicate, COMM_ALL_REDUCE, (double)steps, (double)steps * held / l.ranks * sizeof(acc), l.copies);
}
