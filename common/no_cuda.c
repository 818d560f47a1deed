/* In builds without CUDA. */
#include "comm_internal.h"
#include "error.h"
#include "kernels.h"
#include "marks.h"

const char *kernels_cuda(Kernels *kernels, int local_rank)
{
    (void)kernels;
    (void)local_rank;
    return complain("--device cuda: this build has no CUDA; make CUDA=1 says why");
}

bool device_owns(const void *buffer)
{
    (void)buffer;
    return false;
}

void device_start(Work *work)
{
    (void)work;
}

bool device_test(Work *work)
{
    (void)work;
    return true;
}

void device_wait(Work *work)
{
    (void)work;
}

void device_finalize(void)
{
}

void device_open(Group *group)
{
    (void)group;
}

bool device_passed(int record)
{
    (void)record;
    return true;
}

const char *device_failure(void)
{
    return NULL;
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
