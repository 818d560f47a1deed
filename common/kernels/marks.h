/* Times on the GPU, for the trace. The host puts a mark into a stream: between two kernels of the compute stream, or
 * before and after a collective in its group's stream. The GPU notes the time when it reaches the mark. The host reads
 * the times when it writes the trace, so that it does not wait for the GPU during a step.
 *
 * Where no GPU computes (no_cuda.c, or --device cpu) marks are never on.
 */
#pragma once

#include <stdbool.h>

/* Turns marks on if a GPU computes. `now` is the time of this call on the caller's clock. Waits for the GPU. */
void marks_start(double now);

bool marks_on(void);

/* Puts a mark into the compute stream and returns its number, or -1 if marks are off or the table of marks is full. */
int mark_compute(void);

/* The time at which the GPU reached the mark, in seconds on the clock of marks_start. Waits until the GPU has reached
 * it. */
double mark_time(int mark);

/* Turns marks off and frees them. */
void marks_stop(void);
