#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

#ifdef DEBUG
enum { POISON = 1 };
#else
enum { POISON = 0 };
#endif

/* In front of every block lies its own size and category, in a header as large as the alignment. */
enum { ALIGNMENT = 64 };
typedef struct {
    size_t bytes;
    MemoryCategory category;
} Header;

static size_t held[MEMORY_CATEGORIES];
static int charge_twin;

void *memory_alloc(size_t bytes, MemoryCategory category)
{
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *block = aligned_alloc(ALIGNMENT, ALIGNMENT + rounded);
    if (!block) fatal("out of memory: %zu bytes for %s", bytes, memory_category_name(category));
    if (charge_twin) category = MEMORY_TWIN;
    *(Header *)(void *)block = (Header){bytes, category};
    held[category] += bytes;
    if (POISON) memset(block + ALIGNMENT, 0xff, rounded); /* all bits one is a NaN in every precision */
    return block + ALIGNMENT;
}

void memory_free(void *memory)
{
    if (!memory) return;
    Header *header = (Header *)(void *)((char *)memory - ALIGNMENT);
    held[header->category] -= header->bytes;
    free(header);
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
