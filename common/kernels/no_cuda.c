/* Stands in for the CUDA backend in builds without CUDA. */
#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/marks.h"

const char *kernels_cuda(Kernels *kernels, int local_rank)
{
    (void)kernels;
    (void)local_rank;
    return complain("--device cuda: this build has no CUDA; make CUDA=1 says why");
}

void marks_start(double now)
{
    (void)now;
}

bool marks_on(void)
{
    return false;
}

int mark_compute(void)
{
    return -1;
}

double mark_time(int mark)
{
    (void)mark;
    return 0;
}

void marks_stop(void)
{
}
