#include "observe/ledger.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

void expect(Expected *e, const char *group, CommKind kind, double calls, double bytes, int ranks)
{
    int r = 0;
    while (r < e->comm_rows && !(e->comm[r].kind == kind && strcmp(e->comm[r].group, group) == 0)) r++;
    CHECK(r < (int)(sizeof e->comm / sizeof e->comm[0]));
    if (r == e->comm_rows) e->comm[e->comm_rows++] = (ExpectedComm){.group = group, .kind = kind};
    e->comm[r].calls += calls;
    e->comm[r].payload += bytes * comm_payload_factor(kind, ranks);
}

void expect_at_most(Expected *e, const char *group, CommKind kind)
{
    for (int r = 0; r < e->comm_rows; r++)
        if (e->comm[r].kind == kind && strcmp(e->comm[r].group, group) == 0) e->comm[r].at_most = true;
}

double ledger_payload(Group *group, CommKind kind, double counted)
{
    if (kind != COMM_ALL_TO_ALL_V) return counted;
    comm_uncounted(1);
    comm_all_reduce(group, &counted, 1, COMM_DOUBLE, COMM_SUM);
    comm_uncounted(0);
    return counted / group_size(group);
}

/* Elements of n equal shards of `count` elements, all shards together. Each shard is padded to a multiple of
 * SHARD_ALIGN. */
static size_t padded(size_t count, size_t n)
{
    size_t step = n * SHARD_ALIGN;
    return (count + step - 1) / step * step;
}

/* Adds what a rank holds of the parameters in table `p`, and frees the table. */
static void expect_table(Expected *e, Params p, Placement placement)
{
    size_t n = placement.ranks ? (size_t)placement.ranks : 1, whole = 0;
    switch (placement.by) {
    case SHARD_NOTHING: whole = p.count; break;
    case SHARD_MODEL: whole = padded(p.count, n); break;
    case SHARD_UNITS:
        for (int u = 0; u < p.units; u++) whole += padded(p.unit[u].count, n);
        break;
    case SHARD_VIEWS:
        for (int v = 0; v < p.views; v++) whole += padded(p.view[v].size, n);
        break;
    }
    params_free(&p);
    size_t shard = whole / n;
    e->memory[MEMORY_PARAMETERS] += (placement.whole_weights ? whole : shard) * sizeof(real) + shard * MASTER_BYTES;
    e->memory[MEMORY_GRADIENTS] += (shard + (placement.whole_grads ? whole : 0)) * sizeof(acc);
    e->memory[MEMORY_OPTIMIZER] += shard * e->optimizer_bytes;
}

void expect_params(Expected *e, const ModelConfig *model, Placement placement)
{
    expect_table(e, params_table_split(model, placement.tp ? placement.tp : 1, 0), placement);
}

void expect_experts(Expected *e, const ModelConfig *model, Placement placement)
{
    expect_table(e, experts_table(model, placement.ep ? placement.ep : 1, 0), placement);
}

size_t expected_total(const Expected *e)
{
    size_t total = 0;
    for (int c = 0; c < MEMORY_TWIN; c++) total += e->memory[c];
    return total;
}

static ExpectedComm expected_of(const Expected *e, const char *group, CommKind kind)
{
    for (int r = 0; r < e->comm_rows; r++)
        if (e->comm[r].kind == kind && strcmp(e->comm[r].group, group) == 0) return e->comm[r];
    return (ExpectedComm){.group = group, .kind = kind};
}

/* Is the counted payload the formula's, to the byte? A payload is a whole number of bytes times comm_payload_factor.
 * Where the number of ranks is a power of two, doubles hold such sums exactly. Elsewhere each addition of the counter
 * rounds by at most half an epsilon of the sum, and the formula rounds a few times. */
static bool same_payload(CommCount count, double formula, int ranks)
{
    bool exact = (ranks & (ranks - 1)) == 0;
    double additions = (double)count.calls + 8, largest = fmax(count.payload, formula);
    return fabs(count.payload - formula) <= (exact ? 0 : additions * DBL_EPSILON / 2 * largest);
}

static const char *verdict(bool same)
{
    return same ? "equal" : "DIFFERS";
}

/* Compares one row, prints it if `print`, and returns whether it agrees. */
static bool print_comm_row(CommCount count, ExpectedComm want, int ranks, bool print)
{
    bool same = (double)count.calls == want.calls && same_payload(count, want.payload, ranks);
    bool less = (double)count.calls == want.calls && want.at_most && count.payload < want.payload;
    if (print)
        printf("ledger: %-8s %-15s %10ld %10.0f %16.0f %16.0f  %s\n", want.group, comm_kind_name(want.kind),
               count.calls, want.calls, count.payload, want.payload, less ? "less" : verdict(same));
    return same || less;
}

/* Is this rank in a counted group of that name? */
static bool is_counted(const char *name)
{
    for (int g = 0; comm_group(g); g++)
        if (group_is_counted(comm_group(g)) && strcmp(group_name(comm_group(g)), name) == 0) return true;
    return false;
}

/* First a row for each counter, expected or not; then a row for each expectation that has no counter. */
static bool print_comm(const Expected *e, bool rank0)
{
    bool all = true;
    if (rank0)
        printf("ledger: %-8s %-15s %10s %10s %16s %16s\n", "group", "collective", "calls", "formula", "payload (bytes)",
               "formula");
    for (int g = 0; comm_group(g); g++)
        for (int k = 0; k < COMM_KINDS; k++) {
            Group *group = comm_group(g);
            CommCount count = group_count(group, (CommKind)k);
            ExpectedComm want = expected_of(e, group_name(group), (CommKind)k);
            bool nothing = count.calls == 0 && want.calls == 0 && want.payload == 0;
            if (!group_is_counted(group) || nothing) continue;
            count.payload = ledger_payload(group, (CommKind)k, count.payload);
            all = print_comm_row(count, want, group_size(group), rank0) && all;
        }
    for (int r = 0; r < e->comm_rows; r++) {
        ExpectedComm want = e->comm[r];
        bool nothing = want.calls == 0 && want.payload == 0;
        if (nothing || is_counted(want.group)) continue;
        all = print_comm_row((CommCount){0}, want, 1, rank0) && all;
    }
    return all;
}

bool ledger_print(const Expected *e, bool rank0)
{
    bool all = print_comm(e, rank0);
    if (rank0) printf("ledger: %-24s %16s %16s\n", "memory of a rank", "held (bytes)", "formula");
    for (int c = 0; c < MEMORY_TWIN; c++) {
        size_t held = memory_held((MemoryCategory)c);
        bool same = held == e->memory[c];
        all = all && same;
        if (rank0)
            printf("ledger: %-24s %16zu %16zu  %s\n", memory_category_name((MemoryCategory)c), held, e->memory[c],
                   verdict(same));
    }
    return all;
}
