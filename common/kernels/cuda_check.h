/* The CUDA backend's stream, and the check around every CUDA call. For C files that call CUDA themselves. */
#pragma once

#include <cuda_runtime.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t cuda_stream(void); /* the compute stream; the first call creates it */
bool cuda_in_use(void);         /* has the stream been created? */

/* Ends the job unless `code` is cudaSuccess. The message names the call, its file and line, and the rank. */
void cuda_check(cudaError_t code, const char *call, const char *file, int line);
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

#ifdef __cplusplus
}
#endif
