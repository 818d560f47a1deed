/* Marks are CUDA events, made as they are needed and kept until the trace is written. */
#include <cuda_runtime.h>
#include <stdlib.h>

#include "error.h"
#include "marks.h"
#include "marks_cuda.h"

#define CUDA_CHECK(call)                                                                                               \
    do {                                                                                                               \
        cudaError_t code_ = (call);                                                                                    \
        if (code_ != cudaSuccess) fatal("%s:%d: %s: %s", __FILE__, __LINE__, #call, cudaGetErrorString(code_));        \
    } while (0)

cudaStream_t cuda_stream(void); /* the compute stream, common/cuda/device.cu */
bool cuda_in_use(void);         /* do kernels run on a GPU? likewise */

static cudaEvent_t *events; /* events[0]: the start */
static int count, room;
static double zero; /* its time on the caller's clock */

int mark_stream(cudaStream_t stream)
{
    if (!marks_on()) return -1;
    if (count == room) {
        room = room ? 2 * room : 1024;
        events = realloc(events, (size_t)room * sizeof *events);
        if (!events) fatal("out of memory for the trace");
    }
    CUDA_CHECK(cudaEventCreate(&events[count]));
    CUDA_CHECK(cudaEventRecord(events[count], stream));
    return count++;
}

void marks_start(double now)
{
    if (!cuda_in_use()) return;
    CUDA_CHECK(cudaDeviceSynchronize());
    room = 1024;
    events = malloc((size_t)room * sizeof *events);
    if (!events) fatal("out of memory for the trace");
    mark_stream(cuda_stream());
    zero = now;
}

bool marks_on(void)
{
    return events != NULL;
}

int mark_compute(void)
{
    return marks_on() ? mark_stream(cuda_stream()) : -1; /* asking for the stream makes it */
}

double mark_time(int mark)
{
    float milliseconds;
    CUDA_CHECK(cudaEventSynchronize(events[mark]));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events[0], events[mark]));
    return zero + 1e-3 * (double)milliseconds;
}

void marks_stop(void)
{
    for (int m = 0; m < count; m++) CUDA_CHECK(cudaEventDestroy(events[m]));
    free(events);
    events = NULL;
    count = room = 0;
}
