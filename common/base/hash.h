/* FNV-1a, 64 bits: names become random streams, and bits are compared over ranks by their hash. */
#pragma once

#include <stddef.h>
#include <stdint.h>

extern const uint64_t HASH_START;

/* The hash after one more word. */
uint64_t hash_step(uint64_t hash, uint64_t word);

/* The hash after `bytes` more bytes, byte by byte. */
uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes);

/* Four bytes at a time, for large arrays; mixes the high half back in, so that every bit reaches every other. */
uint64_t hash_array(uint64_t hash, const void *data, size_t bytes);
