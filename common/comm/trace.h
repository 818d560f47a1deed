/* A timeline of what every rank computes and communicates, in Chrome's trace-event format. The user opens it in
 * Perfetto or chrome://tracing. Each rank is a process (pid = rank), and each of its lanes is a thread. Lane 0 shows
 * the computation. Each group has a lane for its collectives, and more lanes if its collectives overlap in time.
 * Recording is off until trace_record(true). While it is off, a call costs one comparison in builds without CUDA.
 *
 * On a GPU these lanes show the GPU's own times, of the compute stream and of each group's stream. Lane 1 then shows
 * when the host issued the work, which is earlier. Builds with CUDA also make every span an NVTX range, even if no
 * trace is recorded, so that Nsight Systems shows the same names. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Switches recording on or off. Off frees the recorded events. */
void trace_record(bool on);

/* Sets the clock to 0 and drops all recorded events. Does nothing if recording is off. */
void trace_zero(void);

/* Seconds on this rank's clock since trace_zero. Before trace_zero, since some fixed moment. */
double trace_clock(void);

/* Begins and ends a span of computation, named by the format. Spans nest. */
void trace_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace_end(void);

/* Records a collective that started at `started` (a time of trace_clock) and ends now. */
void trace_collective(const char *group, const char *kind, size_t bytes, double started);

/* Records a collective that the GPU computes between two marks (kernels/marks.h). */
void trace_collective_on_gpu(const char *group, const char *kind, size_t bytes, int begin, int end);

/* Begins and ends an NVTX range, without recording a span. Does nothing in builds without CUDA. */
void trace_range_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace_range_end(void);

/* Returns this rank's events as JSON objects, one a line, each followed by a comma. Sets *length to the bytes of the
 * text. The caller frees the text. */
char *trace_text(size_t *length);

/* Returns 0 while there is room for more events. Returns the number of kept events once the table is full, when later
 * events are lost. */
int trace_events_lost(void);
