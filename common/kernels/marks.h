/* Times on the GPU, for the trace. A mark lies between two kernels of the compute stream, or around a collective in its
 * group's stream; the GPU notes when it passes it, and the time is asked for later, so that nobody waits.
 *
 * Where no GPU computes (no_cuda.c, or --device cpu) marks are never on.
 */
#pragma once

#include <stdbool.h>

/* From here on marks can be put; `now` is the time of this call on the caller's clock. Waits for the GPU. */
void marks_start(double now);

bool marks_on(void);

/* The number of a new mark on the compute stream; -1 if marks are not on. */
int mark_compute(void);

/* When the GPU passed it, on the clock of marks_start. Waits until it has. */
double mark_time(int mark);

void marks_stop(void);
