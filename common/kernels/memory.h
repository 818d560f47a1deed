/* Allocation in the backend's memory, counted by category.
 *
 * Invariant: memory is taken at start and given back at the end, never inside a training step; so what is counted here
 * is what a rank holds, and the ledger can compare it, to the byte, with what the formulas say.
 */
#pragma once

#include <stddef.h>

#include "kernels/kernels.h"

typedef enum {
    MEMORY_PARAMETERS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_ACTIVATIONS,
    MEMORY_BUFFERS, /* what communication needs beside the above */
    MEMORY_TWIN,    /* the single-device twin of --verify; not part of the total */
    MEMORY_CATEGORIES
} MemoryCategory;

/* From here on, memory_alloc takes from this backend. Call first. What was taken before keeps its own. */
void memory_use(const Kernels *kernels);

/* Returns `bytes` bytes, 64-byte aligned, charged to `category`. The contents are undefined: debug builds fill them
 * with NaN, so that a buffer that was never written shows itself. Cannot fail: the job ends if there is no memory. */
void *memory_alloc(size_t bytes, MemoryCategory category);

/* From here on, more than this in all (the twin left out) ends the job; 0: no cap. */
void memory_cap(double bytes);

/* Gives back what memory_alloc returned; NULL is allowed. */
void memory_free(void *memory);

/* Fills with NaN what is no longer to be used, in debug builds and in those with bugs, so that using it shows. Else nothing. */
void memory_poison(void *memory, size_t bytes);

/* While on, every allocation is charged to MEMORY_TWIN, whatever category it names. */
void memory_charge_twin(int on);

size_t memory_held(MemoryCategory category); /* bytes now */
size_t memory_total(void);                   /* bytes now, the twin left out */
const char *memory_category_name(MemoryCategory category);
