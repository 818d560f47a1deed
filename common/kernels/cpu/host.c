/* The CPU backend's memory is the host's. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

void *host_alloc(size_t bytes)
{
    enum { ALIGNMENT = 64 }; /* a cache line, and the widest vector */
    return aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
}

void host_free(void *memory)
{
    free(memory);
}

void host_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Shared out over the threads: gradients are zeroed every step. */
void host_fill(void *memory, int byte, size_t bytes)
{
    enum { CHUNK = 1 << 18 };
#pragma omp parallel for
    for (size_t begin = 0; begin < bytes; begin += CHUNK)
        memset((char *)memory + begin, byte, bytes - begin < CHUNK ? bytes - begin : CHUNK);
}
