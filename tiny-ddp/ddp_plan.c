/* tiny-ddp's flags, the formula of what it sends, and the schedule of a step. Nothing here reads a running Ddp:
 * --ledger compares this formula with the counters, and the two must be independent. */
#include <stdio.h>
#include <string.h>

#include "ddp.h"

#define AT(member) offsetof(DdpOptions, member)

/* clang-format off */
static const Option rows[] = {
    {"dp", OPTION_INT, AT(dp), NULL, 1, 1000000, .help = "data-parallel ranks (all)"},
    {"overlap", OPTION_INT, AT(overlap), "1", 0, 1, .help = "1: buckets travel during the backward pass; 0: each is waited for"},
    {"bucket-mb", OPTION_NUMBER, AT(bucket_mb), "1", 0, 1e6, .help = "MiB of gradients in a bucket; 0: one all-reduce at the end"},
};
/* clang-format on */

OptionTable ddp_options(DdpOptions *options)
{
    return (OptionTable){"flags of tiny-ddp", rows, sizeof rows / sizeof rows[0], options};
}

/* Is a bucket of `bytes` bytes closed after `unit`? The last bucket ends with the first unit that has parameters. */
static bool bucket_ends(const Params *p, DdpOptions options, int unit, double bytes)
{
    bool last = unit == 0 || (unit == 1 && p->unit[0].count == 0);
    return last || (options.bucket_mb > 0 && bytes >= options.bucket_mb * 1048576);
}

void ddp_expect(Expected *expected, const char *group, const Params *p, DdpOptions options, int ranks, long steps)
{
    double calls = 0, bytes = 0;
    for (int u = p->units - 1; u >= 0; u--) {
        bytes += (double)(p->unit[u].count * sizeof(acc));
        if (p->unit[u].count == 0 || !bucket_ends(p, options, u, bytes)) continue;
        calls++;
        bytes = 0;
    }
    double gradients = (double)(p->count * sizeof(acc));
    expect(expected, group, COMM_ALL_REDUCE, calls * (double)steps, gradients * (double)steps, ranks);
}

static void show_backward(const Params *p, DdpOptions options)
{
    double bytes = 0;
    int bucket = 0, last = p->units - 1;
    for (int u = p->units - 1; u >= 0; u--) {
        char name[32];
        snprintf(name, sizeof name, u ? "layer %d" : "embedding", u - 1);
        printf("  backward   %s", name);
        bytes += (double)(p->unit[u].count * sizeof(acc));
        if (options.bucket_mb > 0 && bucket_ends(p, options, u, bytes)) {
            printf("%*sall_reduce of bucket %d %s on dp: units %d to %d, %.2f MiB", 14 - (int)strlen(name), "",
                   bucket++, options.overlap ? "starts" : "runs", u, last, bytes / 1048576);
            bytes = 0;
            last = u - 1;
        }
        printf("\n");
    }
    if (options.bucket_mb == 0)
        printf("  finish                   all_reduce on dp: everything, %.2f MiB\n", bytes / 1048576);
    else if (options.overlap)
        printf("  finish                   waits for what is still under way\n");
}

void ddp_show_plan(const ModelConfig *model, DdpOptions options, long accumulate)
{
    Params p = params_table(model);
    printf("one step on each rank (unit 0 is the root, unit 1 + l layer l)\n");
    if (accumulate > 1)
        printf("the first %ld of %ld micro-steps: forward and backward; gradients add up, nothing is sent\n",
               accumulate - 1, accumulate);
    if (accumulate > 1) printf("the last micro-step:\n");
    printf("  forward    embedding, layers 0 to %d, head, loss\n", model->layers - 1);
    printf("  backward   head\n");
    show_backward(&p, options);
    printf("optimizer: each rank updates its whole copy\n");
    params_free(&p);
}
