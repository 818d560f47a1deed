/* In builds without a BLAS the plain loops are all there is. */
#include "cpu.h"

void blas_use_one_thread(void)
{
}

const char *blas_name(void)
{
    return "no BLAS in this build: matrix products are three plain loops";
}
