#include "observe/ledger.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

void expect(Expected *e, const char *group, CommKind kind, double calls, double bytes, int ranks)
{
    CHECK(e->comm_rows < (int)(sizeof e->comm / sizeof e->comm[0]));
    e->comm[e->comm_rows++] = (ExpectedComm){group, kind, calls, bytes * comm_payload_factor(kind, ranks)};
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
    return (ExpectedComm){group, kind, 0, 0};
}

static const char *verdict(bool same)
{
    return same ? "equal" : "DIFFERS";
}

static bool print_comm(const Expected *e, bool rank0)
{
    bool all = true;
    if (rank0)
        printf("ledger: %-8s %-15s %10s %10s %16s %16s\n", "group", "collective", "calls", "formula", "payload (bytes)",
               "formula");
    for (int g = 0; comm_group(g); g++)
        for (int k = 0; k < COMM_KINDS; k++) {
            const Group *group = comm_group(g);
            CommCount count = group_count(group, (CommKind)k);
            ExpectedComm want = expected_of(e, group_name(group), (CommKind)k);
            if (!group_is_counted(group) || (count.calls == 0 && want.calls == 0)) continue;
            bool same = (double)count.calls == want.calls &&
                        fabs(count.payload - want.payload) <= 1e-9 * fmax(count.payload, want.payload);
            all = all && same;
            if (rank0)
                printf("ledger: %-8s %-15s %10ld %10.0f %16.0f %16.0f  %s\n", group_name(group),
                       comm_kind_name((CommKind)k), count.calls, want.calls, count.payload, want.payload,
                       verdict(same));
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
