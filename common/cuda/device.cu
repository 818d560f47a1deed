/* The GPU's memory and its stream. */
#include <stdio.h>

#include "cuda.h"

static cudaStream_t stream;

void cuda_check(cudaError_t code, const char *call, const char *file, int line)
{
    if (code != cudaSuccess) fatal("%s:%d: %s: %s", file, line, call, cudaGetErrorString(code));
}

cudaStream_t cuda_stream(void)
{
    if (!stream) CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

void *cuda_scratch(int slot, size_t bytes)
{
    static struct {
        void *memory;
        size_t bytes;
    } slots[SCRATCH_SLOTS];
    if (slots[slot].bytes < bytes) {
        CUDA_CHECK(cudaStreamSynchronize(cuda_stream()));
        CUDA_CHECK(cudaFree(slots[slot].memory));
        CUDA_CHECK(cudaMalloc(&slots[slot].memory, bytes));
        slots[slot].bytes = bytes;
    }
    return slots[slot].memory;
}

void *cuda_alloc(size_t bytes)
{
    void *memory = NULL;
    cudaError_t code = cudaMalloc(&memory, bytes ? bytes : 1);
    if (code == cudaErrorMemoryAllocation) return NULL;
    CUDA_CHECK(code);
    return memory;
}

void cuda_free(void *memory)
{
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream()));
    CUDA_CHECK(cudaFree(memory));
}

/* A copy from pageable memory is staged by the driver before the call returns, so `from` may be reused. */
void cuda_upload(void *to, const void *from, size_t bytes)
{
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda_stream()));
}

void cuda_download(void *to, const void *from, size_t bytes)
{
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream()));
}

void cuda_fill(void *memory, int byte, size_t bytes)
{
    CUDA_CHECK(cudaMemsetAsync(memory, byte, bytes, cuda_stream()));
}
