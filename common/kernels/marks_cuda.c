/* Marks are CUDA events. mark_stream creates one for each mark; marks_stop destroys them all. */
#include <stdlib.h>

#include "base/error.h"
#include "kernels/cuda_check.h"
#include "kernels/marks.h"
#include "kernels/marks_cuda.h"

enum { RUN = 512, MARKS_MAX = 1 << 20 };

static cudaEvent_t *events; /* [count]; events[0] is recorded by marks_start */
static int count, room;
static double zero; /* the time of events[0] on the caller's clock */

int mark_stream(cudaStream_t stream)
{
    if (!marks_on() || count == MARKS_MAX) return -1;
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
    return marks_on() ? mark_stream(cuda_stream()) : -1; /* tested first: cuda_stream() would create the stream */
}

static double seconds_between(int first, int second)
{
    float milliseconds;
    CUDA_CHECK(cudaEventSynchronize(events[second]));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events[first], events[second]));
    return 1e-3 * (double)milliseconds;
}

/* CUDA gives the time between two events as a float of milliseconds, which is too coarse over a long trace. So marks
 * are taken in runs of RUN: a float counts from the run's first mark only, and a double adds up the runs before it. */
double mark_time(int mark)
{
    static int known;    /* the first mark of the run that was asked for last */
    static double since; /* seconds from events[0] to that mark */
    int first = mark / RUN * RUN;
    if (first < known) known = 0, since = 0;
    for (; known < first; known += RUN) since += seconds_between(known, known + RUN);
    return zero + since + seconds_between(first, mark);
}

void marks_stop(void)
{
    for (int m = 0; m < count; m++) CUDA_CHECK(cudaEventDestroy(events[m]));
    free(events);
    events = NULL;
    count = room = 0;
}
