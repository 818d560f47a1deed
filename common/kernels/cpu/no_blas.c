/* Stands in for linear_blas.c in builds without OpenBLAS, which have the naive kernels only. */
#include "cpu.h"

void blas_use_one_thread(void)
{
}

const char *blas_name(void)
{
    return "no BLAS in this build: matrix products are three plain loops";
}
