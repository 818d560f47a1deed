/* ranks: 4  builds: fp64 fp64-debug fp32-san
 *
 * Sharding does not assume that layers are alike: a table whose units all differ in size and in their number of
 * parameters is gathered, reduced and published by every strategy, element by element. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "case.h"
#include "testing.h"

enum { LAYERS = 5 };

/* The first units of a model's table, with parameters left out of some layers and rows added to others. */
static Params uneven_table(void)
{
    Random r = {.seed = 77};
    ModelConfig c = random_model(&r, 8);
    c.layers = LAYERS;
    Params from = params_table(&c), p = params_table(&c);
    p.views = 0;
    p.count = 0;
    for (int u = 0; u < from.units; u++) {
        Unit *unit = &p.unit[u];
        *unit = (Unit){.offset = p.count, .first_view = p.views};
        int views = from.unit[u].views - (u > 0 ? (u * 2) % 5 : 0);
        for (int n = 0; n < views; n++) {
            View v = from.view[from.unit[u].first_view + n];
            if (!v.vector) v.rows = v.whole_rows = v.valid_rows = v.rows + (u * 7) % 4;
            v.size = (size_t)v.rows * (size_t)v.cols;
            v.offset = p.count;
            p.count += v.size;
            p.view[p.views++] = v;
        }
        unit->views = views;
        unit->count = p.count - unit->offset;
    }
    params_free(&from);
    return p;
}

static double weight_at(size_t i)
{
    return (double)(i % 1009) + 1;
}

/* The gradient of element i on a rank in a micro-step: small whole numbers, whose sums are exact. */
static double gradient_at(size_t i, int rank, int micro_step)
{
    return (double)(i % 101) + rank + 10 * micro_step;
}

static bool weights_are_there(const Unit *u)
{
    for (size_t e = 0; e < u->count; e++)
        if ((double)u->weights[e] != weight_at(u->offset + e)) return false;
    return true;
}

/* One micro-step without a model: calls the hooks in the order of computation. Returns whether the weights were
 * there. */
static bool micro_step(Params *p, ParameterSeam seam, int rank, int m)
{
    bool good = true;
    void (*none)(void *, int) = NULL;
    void (*hook[4])(void *, int) = {seam.before_forward, seam.after_forward, seam.before_backward, seam.after_backward};
#define CALL(h, unit)                                                                                                  \
    if (hook[h] != none) hook[h](seam.self, unit)
    CALL(0, 0);
    for (int u = 1; u < p->units; u++) {
        CALL(0, u);
        good = good && weights_are_there(&p->unit[u]) && weights_are_there(&p->unit[0]);
        CALL(1, u);
    }
    CALL(1, 0);
    CALL(2, 0);
    for (int k = 0; k < p->units; k++) {
        int u = (p->units - 1 - k) % p->units; /* the layers from the last, then the root */
        if (u > 0) CALL(2, u);
        good = good && weights_are_there(&p->unit[u]);
        for (size_t e = 0; e < p->unit[u].count; e++)
            p->unit[u].grads[e] += (acc)gradient_at(p->unit[u].offset + e, rank, m);
        CALL(3, u);
    }
#undef CALL
    return good;
}

static bool shards_are(const Params *p, bool grads, int ranks, int accumulate)
{
    for (int i = 0; i < p->shards; i++)
        for (size_t e = 0; e < p->shard[i].count; e++) {
            size_t at = p->shard[i].begin + e;
            double want = 0;
            for (int r = 0; r < ranks; r++)
                for (int m = 0; m < accumulate; m++) want += grads ? gradient_at(at, r, m) : 0;
            if (!grads) want = weight_at(at);
            if ((double)(grads ? p->shard[i].grads : p->shard[i].master)[e] != want) return false;
        }
    return true;
}

static void run(const char *strategy, int fsdp, int accumulate, bool reshard, bool accumulate_sharded)
{
    Kernels kernels = kernels_cpu();
    Case c = {.tp = 1,
              .cp = 1,
              .context = {.ulysses_size = 1},
              .fsdp = fsdp,
              .dp = 4 / fsdp,
              .t = {.model = {.kv_heads = 1}}};
    const CaseGroups *g = case_groups(&c);
    Params p = uneven_table();
    Placement placement = strategy_find(strategy)->placement;
    placement.ranks = placement.by == SHARD_NOTHING ? 1 : fsdp;
    placement.rank = g->mesh.coordinate[AXIS_FSDP];
    params_place(&p, placement);
    params_allocate(&p, &kernels);
    for (int i = 0; i < p.shards; i++)
        for (size_t e = 0; e < p.shard[i].count; e++) {
            p.shard[i].master[e] = (acc)weight_at(p.shard[i].begin + e);
            kernels.cast(p.shard[i].weights + e, p.shard[i].master + e, 1);
        }
    memset(p.grads, 0, p.grad_count * sizeof *p.grads);

    MicroStep step = {0};
    ShardingOptions options = sharding_defaults(strategy);
    options.reshard = reshard;
    options.accumulate_sharded = accumulate_sharded;
    Sharding s = sharding_create(&p, &step, &kernels, g->of.dense, options, accumulate);
    bool there = true;
    for (int m = 0; m < accumulate; m++) {
        step.index = m;
        step.count = accumulate;
        there = micro_step(&p, sharding_seam(&s), group_rank(g->mesh.world), m) && there;
    }
    sharding_finish(&s);
    sharding_publish(&s);
    const char *text = "%s over %d ranks, accumulate %d, reshard %d, sharded %d: %s";
    assert_together(there, text, strategy, fsdp, accumulate, reshard, accumulate_sharded, "other weights");
    assert_together(shards_are(&p, true, 4, accumulate), text, strategy, fsdp, accumulate, reshard, accumulate_sharded,
                    "other gradients");
    assert_together(shards_are(&p, false, 4, accumulate), text, strategy, fsdp, accumulate, reshard, accumulate_sharded,
                    "other master weights");
    sharding_free(&s);
    params_free(&p);
}

static void units_of_any_size(void **state)
{
    (void)state;
    for (int accumulate = 1; accumulate <= 2; accumulate++)
        for (int variant = 0; variant < 4; variant++) {
            bool reshard = variant & 1, sharded = variant & 2;
            run("fsdp", 4, accumulate, reshard, sharded);
            run("hsdp", 2, accumulate, reshard, sharded);
            if (variant) continue;
            run("ddp", 1, accumulate, true, true);
            for (int fsdp = 2; fsdp <= 4; fsdp += 2) {
                run("zero1", fsdp, accumulate, true, true);
                run("zero2", fsdp, accumulate, true, true);
                run("zero3", fsdp, accumulate, true, true);
            }
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(units_of_any_size),
};

TESTING_MAIN(tests)
