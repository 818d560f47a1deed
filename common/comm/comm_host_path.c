#include "comm/comm_host_path.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda_check.h"
#include "base/precision.h"

/* Pinned memory, by Work.index. It only grows. */
static struct {
    char *in, *out;
    size_t in_bytes, out_bytes; /* their lengths */
} slots[WORKS_MAX];

static void grow(char **pinned, size_t *room, size_t bytes)
{
    if (*room >= bytes) return;
    if (*pinned) CUDA_CHECK(cudaFreeHost(*pinned));
    CUDA_CHECK(cudaMallocHost((void **)pinned, bytes));
    *room = bytes;
}

/* Sums of bf16 travel in float. */
static void widen(float *to, const real *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = (float)real_double(from[i]);
}

static void narrow(real *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = real_of((double)from[i]);
}

static bool reduces(CommKind kind)
{
    return kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER;
}

static bool travels_wide(const Collective *c)
{
    return sizeof(real) == 2 && c->type == COMM_REAL && reduces(c->kind);
}

static size_t in_count(const Work *work)
{
    return collective_in(&work->what, work->group->size);
}

static size_t out_count(const Work *work)
{
    return collective_out(&work->what, work->group->size);
}

void host_path_start(Work *work)
{
    Collective *c = &work->what;
    size_t size = comm_type_size(c->type), wide = travels_wide(c) ? sizeof(float) : size;
    size_t ins = in_count(work), outs = out_count(work);
    const void *from = c->in ? c->in : c->out;
    bool in_place = !c->in;
    grow(&slots[work->index].out, &slots[work->index].out_bytes, outs * wide);
    if (!in_place) grow(&slots[work->index].in, &slots[work->index].in_bytes, ins * wide);
    char *in = in_place ? slots[work->index].out : slots[work->index].in;
    CUDA_CHECK(cudaMemcpyAsync(in, from, ins * size, cudaMemcpyDeviceToHost, cuda_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream()));

    Work staged = *work;
    staged.what.out = slots[work->index].out;
    staged.what.in = in_place ? NULL : in;
    if (travels_wide(c)) {
        float *widened = malloc(ins * sizeof *widened);
        if (!widened) fatal("out of memory");
        widen(widened, (const real *)(const void *)in, ins);
        memcpy(in, widened, ins * sizeof *widened);
        free(widened);
        staged.what.type = COMM_ACC;
    }
    backend_start(&staged);
}

/* Copies the result to the GPU. */
static void finish(const Work *work)
{
    const Collective *c = &work->what;
    char *out = slots[work->index].out;
    size_t outs = out_count(work);
    if (travels_wide(c)) narrow((real *)(void *)out, (const float *)(const void *)out, outs);
    CUDA_CHECK(cudaMemcpyAsync(c->out, out, outs * comm_type_size(c->type), cudaMemcpyHostToDevice, cuda_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream())); /* the pinned buffer will be used again */
}

bool host_path_test(Work *work)
{
    if (!backend_test(work)) return false;
    finish(work);
    return true;
}

void host_path_wait(Work *work)
{
    backend_wait(work);
    finish(work);
}
