#include "kernels/memory.h"

#include <stdlib.h>

#include "base/error.h"

#if defined(DEBUG)
enum { POISON = 1, POISON_USED = 1 };
#elif defined(BUGS)
enum { POISON = 0, POISON_USED = 1 };
#else
enum { POISON = 0, POISON_USED = 0 };
#endif

/* One allocation. The table of allocations lies in host memory; the allocations lie in the backend's memory. */
typedef struct {
    void *memory;
    size_t bytes;
    MemoryCategory category;
    void (*free)(void *);
} Block;

static Block *blocks;
static size_t block_count, block_room;
static size_t held[MEMORY_CATEGORIES];
static int charge_twin;
static double cap; /* bytes; 0: none */
static Kernels backend;

void memory_use(const Kernels *kernels)
{
    backend = *kernels;
}

void *memory_alloc(size_t bytes, MemoryCategory category)
{
    CHECK(backend.alloc);
    if (charge_twin) category = MEMORY_TWIN;
    if (cap > 0 && category != MEMORY_TWIN && (double)(memory_total() + bytes) > cap)
        fatal("--memory-cap %g: %zu bytes more for %s would make %zu", cap / 1073741824, bytes,
              memory_category_name(category), memory_total() + bytes);
    void *memory = backend.alloc(bytes);
    if (!memory)
        fatal("out of memory on the %s: %zu bytes for %s, beside %zu that this rank holds; --show memory lists them",
              backend.backend, bytes, memory_category_name(category), memory_total() + held[MEMORY_TWIN]);
    if (POISON) backend.fill(memory, 0xff, bytes); /* all bits one is a NaN in every precision */

    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 64;
        blocks = realloc(blocks, block_room * sizeof *blocks);
        if (!blocks) fatal("out of memory for the table of allocations");
    }
    blocks[block_count++] = (Block){memory, bytes, category, backend.free};
    held[category] += bytes;
    return memory;
}

void memory_free(void *memory)
{
    if (!memory) return;
    size_t b = block_count;
    while (b > 0 && blocks[b - 1].memory != memory) b--;
    CHECK(b > 0);
    held[blocks[b - 1].category] -= blocks[b - 1].bytes;
    blocks[b - 1].free(memory);
    blocks[b - 1] = blocks[--block_count];
}

void memory_cap(double bytes)
{
    cap = bytes;
}

void memory_poison(void *memory, size_t bytes)
{
    if (POISON_USED) backend.fill(memory, 0xff, bytes);
}

void memory_charge_twin(int on)
{
    charge_twin = on;
}

size_t memory_held(MemoryCategory category)
{
    return held[category];
}

size_t memory_total(void)
{
    size_t total = 0;
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        if (c != MEMORY_TWIN) total += held[c];
    return total;
}

const char *memory_category_name(MemoryCategory category)
{
    static const char *const name[MEMORY_CATEGORIES] = {
        [MEMORY_PARAMETERS] = "parameters",   [MEMORY_GRADIENTS] = "gradients", [MEMORY_OPTIMIZER] = "optimizer",
        [MEMORY_ACTIVATIONS] = "activations", [MEMORY_BUFFERS] = "buffers",     [MEMORY_TWIN] = "twin",
    };
    return name[category];
}
