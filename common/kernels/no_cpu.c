/* In bf16 builds only the GPU computes. */
#include "kernels/kernels.h"

Kernels kernels_cpu(void)
{
    return (Kernels){0};
}

void kernels_set_threads(int threads)
{
    (void)threads;
}
