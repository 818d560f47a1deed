#include "rng.h"

Philox philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    return (Philox){{c0, c1, c2, c3}};
}

uint64_t rng_stream(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
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
    Philox r = philox(seed, index, stream);
    int32_t sum = 0; /* of eight uniforms in {0, ..., 65535} */
    for (int w = 0; w < 4; w++) sum += (int32_t)(r.word[w] >> 16) + (int32_t)(r.word[w] & 0xffff);
    /* Mean 8 * 32767.5 = 262140; variance 8 * (65536^2 - 1) / 12, whose root is 53509.92 */
    const double root = 53509.91992145008;
    return (float)((double)(sum - 262140) * (std / root));
}
