/* Stands in for the CPU backend in bf16 builds, where only the GPU computes. */
#include "kernels/kernels.h"

Kernels kernels_cpu(void)
{
    return (Kernels){0};
}

void kernels_set_threads(int threads)
{
    (void)threads;
}
