#include "data/rows.h"

#include <stdlib.h>

#include "base/bug.h"
#include "base/error.h"
#include "kernels/memory.h"

static Rows rows_at(int *block, int count, int sharers)
{
    size_t n = (size_t)count;
    Rows r = {count, block, block + n, block + 2 * n, block + 3 * n, block + 4 * n, block + 5 * n, .sharers = sharers};
    if (sharers > 1) {
        r.team_lo = block + 6 * n;
        r.team_hi = r.team_lo + (size_t)sharers * n;
    }
    return r;
}

size_t rows_bytes(int count, int sharers)
{
    size_t arrays = 6 + (sharers > 1 ? 2 * (size_t)sharers : 0);
    return arrays * (size_t)count * sizeof(int);
}

Rows rows_create(int count)
{
    return rows_create_team(count, 1);
}

Rows rows_create_team(int count, int sharers)
{
    return rows_at(memory_alloc(rows_bytes(count, sharers), MEMORY_ACTIVATIONS), count, sharers);
}

void rows_free(Rows *rows)
{
    memory_free(rows->token);
    *rows = (Rows){0};
}

Rows rows_create_host(int count)
{
    return rows_create_host_team(count, 1);
}

Rows rows_create_host_team(int count, int sharers)
{
    int *block = malloc(rows_bytes(count, sharers));
    if (!block) fatal("out of memory for %d rows", count);
    return rows_at(block, count, sharers);
}

void rows_free_host(Rows *rows)
{
    free(rows->token);
    *rows = (Rows){0};
}

void rows_upload(const Kernels *kernels, Rows *rows, const Rows *host)
{
    CHECK(rows->count == host->count && rows->sharers == host->sharers);
    kernels->upload(rows->token, host->token, rows_bytes(rows->count, rows->sharers));
}

Rows rows_slice(const Rows *rows, int first, int count)
{
    CHECK(first >= 0 && count >= 0 && first + count <= rows->count);
    Rows slice = *rows;
    int **array[] = {&slice.token, &slice.label, &slice.position, &slice.id, &slice.lo, &slice.hi};
    slice.count = count;
    for (int a = 0; a < 6; a++) *array[a] += first;
    if (rows->sharers > 1) {
        slice.team_lo += rows->sharers * first;
        slice.team_hi += rows->sharers * first;
    }
    return slice;
}

/* lo and hi of all ranks of this rank's team. */
static void deal_team(Rows *mine, const Rows *whole, int seq, Cut cut)
{
    int kept = seq / cut.ranks, first = cut.rank / cut.sharers * cut.sharers;
    for (int r = 0; r < cut.sharers; r++) {
        Cut theirs = cut;
        theirs.rank = first + r;
        for (int i = 0; i < mine->count; i++) {
            int from = i / kept * seq + cut_place(theirs, seq, i % kept);
            mine->team_lo[r * mine->count + i] = whole->lo[from];
            mine->team_hi[r * mine->count + i] = whole->hi[from];
        }
    }
}

void rows_deal(Rows *mine, const Rows *whole, int seq, Cut cut)
{
    int kept = seq / (cut.ranks ? cut.ranks : 1); /* rows of a sequence */
    CHECK(mine->count == whole->count / seq * kept);
    for (int i = 0; i < mine->count; i++) {
        int from = i / kept * seq + cut_place(cut, seq, i % kept);
        mine->token[i] = whole->token[from];
        mine->label[i] = whole->label[from];
        mine->position[i] = whole->position[from];
        mine->id[i] = whole->id[from];
        mine->lo[i] = whole->lo[from];
        mine->hi[i] = whole->hi[from];
    }
    if (BUG(shift_after_cut)) /* the mistake: the label is the next token on this rank */
        for (int i = 0; i + 1 < mine->count; i++) mine->label[i] = mine->label[i] < 0 ? -1 : mine->token[i + 1];
    if (BUG(local_positions)) /* the mistake: positions count this rank's rows */
        for (int i = 0; i < mine->count; i++) mine->position[i] = i % kept;
    if (mine->sharers > 1) deal_team(mine, whole, seq, cut);
}

int64_t rows_counted(const Rows *rows)
{
    int64_t counted = 0;
    for (int i = 0; i < rows->count; i++) counted += rows->label[i] >= 0;
    return counted;
}

int64_t rows_area(const Rows *rows)
{
    int64_t area = 0;
    for (int i = 0; i < rows->count; i++) area += rows->hi[i] - rows->lo[i];
    return area;
}

double rows_pairs(const Rows *rows)
{
    int sharers = rows->sharers > 1 ? rows->sharers : 1;
    const int *lo = sharers > 1 ? rows->team_lo : rows->lo, *hi = sharers > 1 ? rows->team_hi : rows->hi;
    int64_t area = 0;
    for (int i = 0; i < sharers * rows->count; i++) area += hi[i] - lo[i];
    return (double)area / sharers;
}
