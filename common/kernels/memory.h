/* Allocation in the backend's memory, counted by category.
 *
 * Invariant: a trainer allocates at start and frees at the end, never inside a training step. So the counts are what
 * the rank holds, and the ledger compares them to the byte with the formulas.
 */
#pragma once

#include <stddef.h>

#include "kernels/kernels.h"

typedef enum {
    MEMORY_PARAMETERS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_ACTIVATIONS,
    MEMORY_BUFFERS, /* for communication */
    MEMORY_TWIN,    /* the single-device twin of --verify; not part of the total */
    MEMORY_CATEGORIES
} MemoryCategory;

/* Makes memory_alloc use this backend from now on. Call it before the first memory_alloc. Older allocations are freed
 * by the backend that made them. */
void memory_use(const Kernels *kernels);

/* Returns `bytes` bytes, 64-byte aligned, counted in `category`. The contents are undefined. Debug builds fill them
 * with NaN, so that a result computed from an unwritten buffer is NaN. Never returns NULL: ends the job if memory is
 * exhausted or the cap is exceeded. */
void *memory_alloc(size_t bytes, MemoryCategory category);

/* Sets the cap: memory_alloc ends the job if memory_total() would exceed it. 0: no cap. */
void memory_cap(double bytes);

/* Frees an allocation of memory_alloc. NULL is allowed. */
void memory_free(void *memory);

/* Fills memory that must not be read any more with NaN, so that a later read makes the result NaN. Only builds with
 * DEBUG=1 or BUGS=1 do this. */
void memory_poison(void *memory, size_t bytes);

/* While on, every allocation counts in MEMORY_TWIN instead of the category that it names. */
void memory_charge_twin(int on);

size_t memory_held(MemoryCategory category); /* bytes allocated now */
size_t memory_total(void);                   /* bytes allocated now, without the twin's */
const char *memory_category_name(MemoryCategory category);
