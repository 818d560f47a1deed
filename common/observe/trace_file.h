/* --trace: the timelines of all ranks (comm/trace.h) in one file. */
#pragma once

/* Switches recording on, for trace_file_write() to save in `path`. Returns NULL, or a complaint on rank 0 if the file
 * cannot be written. */
const char *trace_file_open(const char *path);

/* [all ranks] Sets the clocks of all ranks to zero at the same time, after a barrier. */
void trace_file_start(void);

/* [all ranks] Rank 0 collects the events of all ranks and writes the file. Does nothing without trace_file_open. */
void trace_file_write(void);
