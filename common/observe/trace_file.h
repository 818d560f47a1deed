/* --trace: the timelines of all ranks (comm/trace.h) in one file. */
#pragma once

/* Switches recording on, for trace_file_write() to save in `path`. Returns NULL, or a complaint on rank 0 if the file
 * cannot be written. */
const char *trace_file_open(const char *path);

/* [all ranks] All ranks start their clocks together. */
void trace_file_start(void);

/* [all ranks] Rank 0 collects all events and writes the file. Nothing without trace_file_open. */
void trace_file_write(void);
