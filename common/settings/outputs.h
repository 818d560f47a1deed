/* The files that a run writes: --log, --trace, --dump, --save-routes, --autotune.
 *
 * A run that is refused leaves all files as they were. So the trainer calls outputs_check first, which touches no
 * file. Then it makes all other checks, and only then outputs_create. No file is written before that.
 */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "settings/config.h"

/* On rank 0. Checks that each output can be written. It must not be the data, another output or a file of the model,
 * and not lie in a folder of data, where the next run would read it. Returns NULL or a complaint. */
const char *outputs_check(const Config *config);

/* On rank 0. Creates empty files for outputs that do not exist yet, and leaves the others as they are. Returns NULL,
 * or a complaint; then it has removed the files that it created. */
const char *outputs_create(const Config *config);

/* Writes `size` bytes and flushes them, so that a full disk shows at once. A failure ends the job, with one line that
 * names the flag, the file and the reason. */
void output_write(FILE *file, const char *flag, const char *path, const void *bytes, size_t size);

/* Closes the file. A failure ends the job in the same way. */
void output_close(FILE *file, const char *flag, const char *path);
