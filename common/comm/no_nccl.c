/* In builds without CUDA no buffer lies in a GPU's memory. */
#include "comm/comm_internal.h"
#include "comm/device_watch.h"

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

bool device_can_fail(void)
{
    return false;
}

bool device_is_in(int record)
{
    (void)record;
    return false;
}

const char *device_failure(void)
{
    return NULL;
}
