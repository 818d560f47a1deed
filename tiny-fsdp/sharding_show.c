/* --show plan: the schedule of one step, as three columns that run side by side: compute, gather, reduce. */
#include <stdio.h>
#include <string.h>

#include "ddp.h"
#include "sharding.h"

static bool is(const ShardingOptions *o, const char *name)
{
    return strcmp(o->strategy, name) == 0;
}

enum { NOTHING = -1 };

/* Writes "WHAT layer 3", "WHAT root" or nothing into text[24]. */
static void cell(char *text, const char *what, int unit)
{
    const char *space = *what ? " " : "";
    if (unit == NOTHING)
        *text = '\0';
    else if (unit == 0)
        snprintf(text, 24, "%s%sroot", what, space);
    else
        snprintf(text, 24, "%s%slayer %d", what, space, unit - 1);
}

static void row(const char *compute, const char *gather, const char *reduce)
{
    char text[80];
    int length = snprintf(text, sizeof text, "  %-18s  %-12s  %s", compute, gather, reduce);
    while (length > 0 && text[length - 1] == ' ') text[--length] = '\0';
    puts(text);
}

/* One line of the picture. If `computes` is NOTHING, compute waits for the communication. */
static void at_once(const char *phase, int computes, int gathers, int reduces)
{
    char compute[24] = "(waits)", gather[24], reduce[24];
    if (computes != NOTHING) cell(compute, phase, computes);
    cell(gather, "", gathers);
    cell(reduce, "", reduces);
    row(compute, gather, reduce);
}

/* The head belongs to the root, so its weights are gathered already. */
static void show_head(int gathers)
{
    char gather[24];
    cell(gather, "", gathers);
    row("forward head, loss", "", "");
    row("backward head", gather, "");
}

static void show_whole_weights(bool reduces_units, int layers)
{
    for (int u = 0; u <= layers; u++) at_once("forward", u, NOTHING, NOTHING);
    show_head(NOTHING);
    for (int u = layers; u >= 0; u--) {
        at_once("backward", u, NOTHING, NOTHING);
        if (reduces_units) at_once("", NOTHING, NOTHING, u);
    }
    if (reduces_units) return;
    row("(waits)", "", "everything");
}

/* zero3, and fsdp without prefetch: compute, gather and reduce run one after the other. */
static void show_in_turn(int layers, bool again)
{
    for (int u = 0; u <= layers; u++) {
        at_once("", NOTHING, u, NOTHING);
        at_once("forward", u, NOTHING, NOTHING);
    }
    show_head(NOTHING);
    for (int u = layers; u >= 0; u--) {
        if (again && u > 0) at_once("", NOTHING, u, NOTHING);
        at_once("backward", u, NOTHING, NOTHING);
        at_once("", NOTHING, NOTHING, u);
    }
}

static void show_ahead(int layers, bool again)
{
    at_once("", NOTHING, 0, NOTHING);
    for (int u = 0; u <= layers; u++) at_once("forward", u, u < layers ? u + 1 : NOTHING, NOTHING);
    show_head(again ? layers : NOTHING);
    for (int u = layers; u >= 0; u--)
        at_once("backward", u, again && u > 1 ? u - 1 : NOTHING, u < layers ? u + 1 : NOTHING);
    at_once("", NOTHING, NOTHING, 0);
}

void sharding_show_plan(const ModelConfig *model, const ShardingOptions *o, Shape shape, int A)
{
    int n = shape_size(shape, ALONG_SHARDS), dp = shape.size[AXIS_DP], layers = model->layers;
    if (is(o, "ddp")) {
        ddp_show_plan(model, (DdpOptions){.overlap = o->prefetch, .bucket_mb = 1}, A);
        return;
    }
    printf("one %sstep of %s on each of %d ranks that share one copy of the model (%d cop%s)\n", A > 1 ? "micro-" : "",
           o->strategy, n, dp, dp > 1 ? "ies" : "y");
    row("compute", "gather", "reduce");
    if (is(o, "zero1") || is(o, "zero2"))
        show_whole_weights(is(o, "zero2"), layers);
    else if (is(o, "zero3") || !o->prefetch)
        show_in_turn(layers, o->reshard);
    else
        show_ahead(layers, o->reshard);
    if (A > 1 && (is(o, "zero1") || !o->accumulate_sharded))
        printf("only the last of %d micro-steps reduces: until then gradients add up whole\n", A);
    else if (A > 1)
        printf("each of %d micro-steps reduces, and adds to the shard\n", A);
    if (A > 1 && !o->reshard) printf("only the first gathers\n");
    if (dp > 1)
        printf("what %s reduced is all-reduced on dp, over the copies, as soon as it is there\n",
               A > 1 ? "the last micro-step has" : "was");
    printf("optimizer: each rank updates its part%s\n",
           is(o, "zero1") || is(o, "zero2") ? "; then all parts are gathered" : "");
}
