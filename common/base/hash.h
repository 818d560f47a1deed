/* FNV-1a hashes of 64 bits. rng.c makes a random stream from a name's hash. Ranks compare the bits of arrays by their
 * hashes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

extern const uint64_t HASH_START;

/* `hash`, extended by one word. Start with HASH_START. */
uint64_t hash_step(uint64_t hash, uint64_t word);

/* `hash`, extended by `bytes` bytes, one at a time. */
uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes);

/* `hash`, extended by `bytes` bytes, four at a time: faster, for large arrays. Each step also mixes the high bits into
 * the low bits, so that every bit of the array can change every bit of the hash. The result differs from that of
 * hash_bytes. */
uint64_t hash_array(uint64_t hash, const void *data, size_t bytes);
