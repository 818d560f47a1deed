/* In builds without CUDA no buffer lies in a GPU's memory. */
#include "comm/comm_internal.h"

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
