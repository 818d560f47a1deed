/* Collectives on GPU memory where ranks of the group share a GPU: the rank copies its input to pinned host memory, MPI
 * moves it, and the rank copies the result back. The host waits for both copies. Only comm_nccl.c calls this. */
#pragma once

#include "comm/comm_internal.h"

void host_path_start(Work *work);
bool host_path_test(Work *work); /* if it is done, its output is on the GPU */
void host_path_wait(Work *work);
