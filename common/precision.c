#include "precision.h"

#include <string.h>

#if defined(PRECISION_BF16)
/* A bfloat16 is the upper half of a float. */
float real_value(real x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
#else
float real_value(real x)
{
    return (float)x;
}
#endif
