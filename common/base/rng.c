#include "base/rng.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng_inline.h"

Philox philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    Philox p = {
        {(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high, (uint32_t)(counter_high >> 32)}};
    philox_rounds(p.word, (uint32_t)key, (uint32_t)(key >> 32));
    return p;
}

uint64_t rng_stream(const char *name)
{
    return hash_bytes(HASH_START, name, strlen(name));
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (philox(seed, index, stream).word[0] >> 8) * 0x1p-24;
}

uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    Philox r = philox(seed, index, stream);
    uint64_t bits = (uint64_t)r.word[1] << 32 | r.word[0];
    return (uint64_t)(((unsigned __int128)bits * n) >> 64); /* floor(n * bits / 2^64) */
}

float rng_normal(uint64_t seed, uint64_t stream, uint64_t index, double std)
{
    return (float)((double)philox_centred(philox(seed, index, stream).word) * (std / PHILOX_CENTRED_STD));
}
