/* The memory functions of the CPU backend. Its memory is the host's memory. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

void *host_alloc(size_t bytes)
{
    enum { ALIGNMENT = 64 }; /* bytes of a cache line, and of the widest vector register */
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

void host_copy_block(real *to, size_t to_stride, const real *from, size_t from_stride, int n, int width)
{
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride, (size_t)width * sizeof *to);
}

/* All threads write, because the trainer zeroes all gradients in every step. */
void host_fill(void *memory, int byte, size_t bytes)
{
    enum { CHUNK = 1 << 18 };
#pragma omp parallel for
    for (size_t begin = 0; begin < bytes; begin += CHUNK)
        memset((char *)memory + begin, byte, bytes - begin < CHUNK ? bytes - begin : CHUNK);
}
