#include "base/precision.h"

#include <string.h>

#if defined(PRECISION_BF16)
/* A bfloat16 is the upper half of a float. */
double real_double(real x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

real real_of(double x)
{
    float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (real){(uint16_t)(bits >> 16 | 0x40)}; /* without 0x40 a NaN could become an infinity */
    return (real){(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
#else
double real_double(real x)
{
    return (double)x;
}

real real_of(double x)
{
    return (real)x;
}
#endif
