/* The files that a run writes: --log, --trace, --dump, --autotune.
 *
 * A run that is refused leaves all files as they were. So outputs_check comes first and touches nothing, then every other
 * reason to refuse, then outputs_create; no file is written before that.
 */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "settings/config.h"

/* On rank 0: can each output be written, and is it neither the data, nor another output, nor in a folder of data, where the next
 * run would read it? Returns NULL or a complaint. */
const char *outputs_check(const Config *config);

/* On rank 0: makes the files that do not exist yet, empty; leaves the others as they are. Returns NULL, or a complaint, with none
 * made. */
const char *outputs_create(const Config *config);

/* Writes `size` bytes and flushes them, so that a full disk shows at once. A failure ends the job, with one line that names the
 * flag, the file and the reason. */
void output_write(FILE *file, const char *flag, const char *path, const void *bytes, size_t size);

/* Closes the file. A failure ends the job likewise. */
void output_close(FILE *file, const char *flag, const char *path);
