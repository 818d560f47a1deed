#include "base/hash.h"

#include <string.h>

const uint64_t HASH_START = 0xcbf29ce484222325u;

uint64_t hash_step(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 0x100000001b3u;
}

uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) hash = hash_step(hash, byte[i]);
    return hash;
}

uint64_t hash_array(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word = 0;
        memcpy(&word, byte + i, bytes - i < 4 ? bytes - i : 4);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}
