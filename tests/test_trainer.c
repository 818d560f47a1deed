/* ranks: 1  builds: fp64
 *
 * What every trainer sends, by formula, and over which axes of the mesh. */
#include <string.h>

#include "settings/presets.h"
#include "testing.h"
#include "train/trainer.h"

enum { TP = 2, CP = 3, FSDP = 5, DP = 7, STEPS = 4 };

static Expected expect_sharded(Shape shape, ShardBy by)
{
    Trainer t = {.shape = shape};
    t.config = (Config){.batch = FSDP * DP,
                        .seq = 6,
                        .accumulate = 1,
                        .steps = STEPS,
                        .optimizer = "adamw",
                        .architecture = preset_find("nano")->model,
                        .kernels = kernels_cpu()};
    t.config.architecture.max_seq = 6;
    return trainer_expect(&t, (ModelPart){.placement = {.by = by}});
}

/* The group of that name makes `calls` all-reduces of so many bytes together, over so many ranks. */
static void expect_group(const Expected *e, const char *group, double calls, double bytes, int ranks)
{
    for (int r = 0; r < e->comm_rows; r++) {
        if (strcmp(e->comm[r].group, group) != 0) continue;
        assert_true(e->comm[r].calls == calls);
        assert_true(e->comm[r].payload == bytes * comm_payload_factor(COMM_ALL_REDUCE, ranks));
        return;
    }
    if (ranks > 1) fail_msg("nothing is expected of the group %s", group);
}

/* One copy of the model lies on the ranks along tp; if it is sharded, along fsdp and cp too. Ranks along dp hold
 * copies. */
static void the_model_lies_along(void **state)
{
    (void)state;
    const Shape all = {{[AXIS_TP] = TP, [AXIS_CP] = CP, [AXIS_FSDP] = FSDP, [AXIS_DP] = DP}};
    const Shape copies = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = DP}};
    const ShardBy by[] = {SHARD_NOTHING, SHARD_MODEL, SHARD_UNITS, SHARD_VIEWS};
    for (int k = 0; k < 4; k++) {
        Expected e = expect_sharded(all, by[k]);
        expect_group(&e, "model", STEPS, 8 * STEPS, by[k] == SHARD_NOTHING ? TP : TP * CP * FSDP);
        expect_group(&e, "data", 2 * STEPS, 24 * STEPS, CP * FSDP * DP);
        e = expect_sharded(copies, by[k]);
        for (int r = 0; r < e.comm_rows; r++) assert_string_not_equal(e.comm[r].group, "model");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_model_lies_along),
};

TESTING_MAIN(tests)
