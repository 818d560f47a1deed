/* Marks for comm_nccl.c, whose groups have streams of their own. */
#pragma once

#include <cuda_runtime.h>

/* As mark_compute (marks.h), in this stream. */
int mark_stream(cudaStream_t stream);
