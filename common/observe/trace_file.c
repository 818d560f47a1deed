#include "observe/trace_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"
#include "comm/trace.h"
#include "settings/outputs.h"

static const char *path; /* NULL: off */
static FILE *file;       /* on rank 0 */

const char *trace_file_open(const char *path_)
{
    if (comm_world_rank() == 0 && !(file = fopen(path_, "w")))
        return complain("--trace %s: %s", path_, strerror(errno));
    static const char begin[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    if (file) output_write(file, "trace", path_, begin, sizeof begin - 1);
    trace_record(true);
    path = path_;
    return NULL;
}

void trace_file_start(void)
{
    if (!path) return;
    comm_barrier(comm_control());
    trace_zero();
}

void trace_file_write(void)
{
    if (!path) return;
    Group *control = comm_control();
    FILE *f = file;
    for (int r = 0; r < group_size(control); r++) {
        size_t size = 0;
        char *text = group_rank(control) == r ? trace_text(&size) : NULL;
        int64_t length = (int64_t)size;
        comm_broadcast(control, &length, 1, COMM_INT64, r);
        if (!text && !(text = malloc((size_t)length))) fatal("out of memory for --trace %s", path);
        comm_broadcast(control, text, (size_t)length, COMM_BYTE, r);
        if (f) output_write(f, "trace", path, text, (size_t)length);
        free(text);
    }
    static const char end[] = "{\"ph\":\"M\",\"name\":\"trace_end\",\"pid\":0}\n]}\n";
    if (f) {
        output_write(f, "trace", path, end, sizeof end - 1);
        output_close(f, "trace", path);
    }
    if (trace_events_lost())
        fprintf(stderr, "--trace: the first %d events of rank %d are kept\n", trace_events_lost(), comm_world_rank());
    path = NULL;
    trace_record(false);
}
