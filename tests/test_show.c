/* ranks: 1  builds: fp64
 *
 * --show shards where several schemes split the model at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "observe/show.h"
#include "settings/presets.h"
#include "testing.h"

/* What show prints, to be freed. */
static char *shown(Shape shape, Placement placement)
{
    static char text[1 << 16];
    Config config = {.show = "shards", .architecture = preset_find("nano")->model};
    Expected expected = {0};
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    FILE *file = tmpfile();
    CHECK(file && kept >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    CHECK(show(&config, shape, (ModelPart){.placement = placement}, &expected));
    fflush(stdout);
    CHECK(dup2(kept, STDOUT_FILENO) >= 0);
    close(kept);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Who holds the parameter, as the text says; valid until the next call. */
static const char *holders(const char *text, const char *parameter)
{
    static char line[4000];
    const char *at = strstr(text, parameter);
    CHECK(at);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    const char *end = line + strlen(line), *from = end;
    while (from > line && strncmp(from, "  ", 2) != 0) from--;
    return from + 2;
}

static void several_splits_at_once(void **state)
{
    (void)state;
    Shape shape = {{[AXIS_TP] = 2, [AXIS_CP] = 1, [AXIS_FSDP] = 2, [AXIS_DP] = 1}};
    const char *text = shown(shape, (Placement){.by = SHARD_VIEWS});
    assert_string_equal(holders(text, "model.embed_tokens.weight"),
                        "tp 0: rows 0 to 127 (fsdp 0: rows 0 to 63, 1: rows 64 to 127) | "
                        "tp 1: rows 128 to 255 (fsdp 0: rows 128 to 191, 1: rows 192 to 255)");
    assert_string_equal(holders(text, "layers.1.mlp.down_proj.weight"),
                        "tp 0: columns 0 to 11 (fsdp 0: elements 0 to 95, 1: elements 96 to 191) | "
                        "tp 1: columns 12 to 23 (fsdp 0: elements 0 to 95, 1: elements 96 to 191)");
    assert_string_equal(holders(text, "model.norm.weight"), "0: rows 0 to 7 | 1: rows 8 to 15");
    assert_non_null(strstr(text, "9552 parameters; each of 2 ranks along tp holds 4816, padding and copies included"));
    assert_non_null(strstr(text, "4816 parameters; each of 2 ranks along fsdp keeps optimizer state for"));
}

static void one_split(void **state)
{
    (void)state;
    Shape tp = {{[AXIS_TP] = 2, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = 2}};
    assert_string_equal(holders(shown(tp, (Placement){0}), "model.embed_tokens.weight"),
                        "0: rows 0 to 127 | 1: rows 128 to 255");
    assert_string_equal(holders(shown(tp, (Placement){0}), "model.norm.weight"), "whole on all");
    Shape dp = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = 2}};
    assert_string_equal(holders(shown(dp, (Placement){0}), "model.norm.weight"),
                        "whole on every rank; its gradient partial over dp");
    Shape fsdp = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 4, [AXIS_DP] = 1}};
    assert_string_equal(holders(shown(fsdp, (Placement){.by = SHARD_VIEWS}), "model.embed_tokens.weight"),
                        "0: rows 0 to 63 | 1: rows 64 to 127 | 2: rows 128 to 191 | 3: rows 192 to 255");
}

static bool ends_with(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

/* The first 64 ranks are printed. Every row names a holder, and says so exactly if ranks that are not printed hold
 * some of the parameter. */
static void more_ranks_than_are_printed(void **state)
{
    (void)state;
    Shape shape = {{[AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_FSDP] = 1000, [AXIS_DP] = 1}};
    const char *text = shown(shape, (Placement){.by = SHARD_UNITS});
    assert_string_equal(holders(text, "model.norm.weight"), "ranks from 64 on");
    assert_string_equal(holders(text, "layers.1.input_layernorm.weight"), "0: rows 0 to 7 | 1: rows 8 to 15");
    assert_true(ends_with(holders(text, "model.embed_tokens.weight"), "63: elements 504 to 511 | ranks from 64 on"));
    assert_null(strstr(text, "|  |"));
    shape.size[AXIS_TP] = 2;
    text = shown(shape, (Placement){.by = SHARD_UNITS});
    assert_true(ends_with(holders(text, "layers.1.mlp.down_proj.weight"), "columns 12 to 23 (fsdp ranks from 64 on)"));
    Shape tp = {{[AXIS_TP] = 128, [AXIS_CP] = 1, [AXIS_FSDP] = 1, [AXIS_DP] = 1}};
    text = shown(tp, (Placement){0});
    assert_true(ends_with(holders(text, "model.embed_tokens.weight"), "63: rows 126 to 127 | ranks from 64 on"));
    assert_string_equal(holders(text, "model.norm.weight"), "whole on all");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(several_splits_at_once),
    cmocka_unit_test(one_split),
    cmocka_unit_test(more_ranks_than_are_printed),
};

TESTING_MAIN(tests)
