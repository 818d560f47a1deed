/* A timeline of what every rank computes and communicates, in Chrome's trace-event format: open it in Perfetto or
 * chrome://tracing. One process per rank (pid = rank); thread 0 is compute, the others are lanes of communication, one
 * per group, and a further one where collectives of a group overlap in time. Off until trace_record: then every call
 * below costs one comparison.
 *
 * On a GPU these lanes have the GPU's own times, of its compute stream and of each group's stream, and a further lane
 * shows when the host issued the work: it runs ahead. There every span is an NVTX range too, whether or not a trace is
 * written, so that Nsight Systems shows the same names. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Switches recording on or off; off frees what was recorded. */
void trace_record(bool on);

/* Time starts again from 0, and what was recorded so far is dropped. */
void trace_zero(void);

/* Seconds on this rank's clock; since trace_zero, if it was called. */
double trace_clock(void);

/* Opens and closes a span of compute. Spans nest. */
void trace_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace_end(void);

/* A collective that was started at `started` (trace_clock) and is seen to be done now. */
void trace_collective(const char *group, const char *kind, size_t bytes, double started);

/* One that a GPU begins and ends at these marks. */
void trace_collective_on_gpu(const char *group, const char *kind, size_t bytes, int begin, int end);

/* An NVTX range and nothing else. */
void trace_range_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace_range_end(void);

/* This rank's events as JSON objects, one a line, each followed by a comma; `length` bytes. The caller frees it. */
char *trace_text(size_t *length);

/* 0, or how many events were kept where there were more. */
int trace_events_lost(void);
