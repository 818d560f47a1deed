/* What the code under test prints to stdout, as text. */
#pragma once

#include <stddef.h>

/* From here to capture_end stdout goes into a file. */
void capture_begin(void);

/* Writes the first size - 1 characters into text[size], and gives stdout back. */
void capture_end(char *text, size_t size);
