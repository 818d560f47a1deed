/* The file in which --autotune keeps what it chose: a line for each choice, KEY = VALUE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns NULL for a file that is not there or empty, or that this program has written: text of at most 1 MiB under its
 * header. A complaint for any other file: it is the user's. */
const char *cache_check(const char *path);

/* The value of the last line with this key for which `good` is true; false if there is none. */
bool cache_find(char *value, size_t room, const char *path, const char *key,
                bool (*good)(const char *value, const void *context), const void *context);

/* Adds a choice, which cache_save will write. */
void cache_add(const char *key, const char *value);

/* Appends what was added to the file, or begins it. A failure ends the job. */
void cache_save(const char *path);
