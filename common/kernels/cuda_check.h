/* What C files that talk to CUDA share with the CUDA backend: its stream, and the check around every call. */
#pragma once

#include <cuda_runtime.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t cuda_stream(void); /* the compute stream; the first call makes it */
bool cuda_in_use(void);         /* has anything been asked of the stream? */

/* Ends the job, naming the call, its place and the rank, unless it returned cudaSuccess. */
void cuda_check(cudaError_t code, const char *call, const char *file, int line);
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

#ifdef __cplusplus
}
#endif
