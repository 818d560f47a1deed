/* What the watchdog's thread may ask about collectives on GPUs: comm_nccl.c answers, or no_nccl.c where nothing is. */
#pragma once

#include <stdbool.h>

/* Can a collective fail while the host is elsewhere? */
bool device_can_fail(void);

/* NULL, or what NCCL says has gone wrong behind the host's back. */
const char *device_failure(void);

/* Is the GPU in the collective with this slot in the flight recorder: has it come to it, and not done it? */
bool device_is_in(int record);
