/* The GPU's memory and the compute stream. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static cudaStream_t stream;
static void *workspace;
static size_t workspace_bytes;

void cuda_check(cudaError_t code, const char *call, const char *file, int line)
{
    if (code != cudaSuccess) fatal("%s:%d: %s: %s", file, line, call, cudaGetErrorString(code));
}

cudaStream_t cuda_stream(void)
{
    if (!stream) CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

bool cuda_in_use(void)
{
    return stream != NULL;
}

void cuda_use_workspace(void *memory, size_t bytes)
{
    workspace = memory;
    workspace_bytes = bytes;
}

void *cuda_workspace(size_t bytes)
{
    if (bytes > workspace_bytes)
        fatal("a kernel needs a workspace of %zu bytes; it has %zu", bytes, workspace_bytes);
    return workspace;
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

/* Copies through a ring of pinned buffers. A copy from pageable memory would make the host wait for the kernels
 * launched before it. Here the host waits only if every buffer of the ring is still being sent. */
void cuda_upload(void *to, const void *from, size_t bytes)
{
    const int STAGES = 8;
    const size_t STAGE_BYTES = 512 << 10;
    static char *ring;
    static cudaEvent_t sent[STAGES];
    static int next;
    if (!ring) {
        CUDA_CHECK(cudaMallocHost((void **)&ring, STAGES * STAGE_BYTES));
        for (int s = 0; s < STAGES; s++) CUDA_CHECK(cudaEventCreateWithFlags(&sent[s], cudaEventDisableTiming));
    }
    for (size_t at = 0; at < bytes; at += STAGE_BYTES) {
        size_t part = bytes - at < STAGE_BYTES ? bytes - at : STAGE_BYTES;
        char *stage = ring + (size_t)next * STAGE_BYTES;
        CUDA_CHECK(cudaEventSynchronize(sent[next]));
        memcpy(stage, (const char *)from + at, part);
        CUDA_CHECK(cudaMemcpyAsync((char *)to + at, stage, part, cudaMemcpyHostToDevice, cuda_stream()));
        CUDA_CHECK(cudaEventRecord(sent[next], cuda_stream()));
        next = (next + 1) % STAGES;
    }
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

void cuda_copy(void *to, const void *from, size_t bytes)
{
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()));
}

void cuda_copy_block(real *to, size_t to_stride, const real *from, size_t from_stride, int n, int width)
{
    if (n == 0) return;
    CUDA_CHECK(cudaMemcpy2DAsync(to, to_stride * sizeof *to, from, from_stride * sizeof *from, width * sizeof *to, n,
                                 cudaMemcpyDeviceToDevice, cuda_stream()));
}
