/* A mark on any stream, for comm_nccl.c. */
#pragma once

#include <cuda_runtime.h>

int mark_stream(cudaStream_t stream);
