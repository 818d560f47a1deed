#include "data/rows.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/memory.h"

static Rows rows_at(int *block, int count)
{
    size_t n = (size_t)count;
    return (Rows){count, block, block + n, block + 2 * n, block + 3 * n, block + 4 * n, block + 5 * n};
}

static size_t rows_bytes(int count)
{
    return 6 * (size_t)count * sizeof(int);
}

Rows rows_create(int count)
{
    return rows_at(memory_alloc(rows_bytes(count), MEMORY_ACTIVATIONS), count);
}

void rows_free(Rows *rows)
{
    memory_free(rows->token);
    *rows = (Rows){0};
}

Rows rows_create_host(int count)
{
    int *block = malloc(rows_bytes(count));
    if (!block) fatal("out of memory for %d rows", count);
    return rows_at(block, count);
}

void rows_free_host(Rows *rows)
{
    free(rows->token);
    *rows = (Rows){0};
}

void rows_upload(const Kernels *kernels, Rows *rows, const Rows *host)
{
    CHECK(rows->count == host->count);
    kernels->upload(rows->token, host->token, rows_bytes(rows->count));
}

Rows rows_slice(const Rows *rows, int first, int count)
{
    CHECK(first >= 0 && count >= 0 && first + count <= rows->count);
    return (Rows){count,
                  rows->token + first,
                  rows->label + first,
                  rows->position + first,
                  rows->id + first,
                  rows->lo + first,
                  rows->hi + first};
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
