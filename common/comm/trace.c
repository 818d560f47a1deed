#include "comm/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/marks.h"

#ifdef HAVE_CUDA
#include <nvtx3/nvToolsExt.h>
#define RANGE_PUSH(name) nvtxRangePushA(name)
#define RANGE_POP()      nvtxRangePop()
enum { RANGES = 1 };
#else
#define RANGE_PUSH(name) (void)(name)
#define RANGE_POP()      (void)0
enum { RANGES = 0 };
#endif

enum { EVENTS_MAX = 200000, DEPTH_MAX = 16, LANES_MAX = 64 };

typedef struct {
    char name[40];
    double begin, end;
    int lane;
    size_t bytes;       /* payload of a collective */
    int mark, mark_end; /* the GPU's begin and end, as marks; -1: the host's begin and end above are the times */
} Event;

static bool recording;
static Event *events;
static int event_count;
static double zero;

static struct {
    char name[40];
    double begin;
    int mark;
} open_span[DEPTH_MAX];
static int depth;

/* A lane for communication holds collectives of one group that do not overlap in time. On a GPU a group has one lane,
 * because its collectives run in one stream. */
enum { LANE_COMPUTE, LANE_HOST, LANES_FIXED }; /* LANE_HOST: when the host issued work; used only if a GPU computes */
static struct {
    char name[32];     /* of the group */
    double busy_until; /* the end of its last collective */
} lanes[LANES_MAX];
static int lane_count;

double trace_clock(void)
{
    return clock_seconds() - zero;
}

void trace_record(bool on)
{
    if (recording && !on) {
        marks_stop();
        free(events);
        events = NULL;
    }
    recording = on;
    event_count = 0;
    if (!on) return;
    events = malloc(EVENTS_MAX * sizeof *events);
    if (!events) fatal("--trace: no memory for %d events", EVENTS_MAX);
    lane_count = LANES_FIXED;
}

void trace_zero(void)
{
    if (!recording) return;
    zero = clock_seconds();
    marks_start(0);
    event_count = 0;
}

static void record(const char *name, Event event)
{
    if (event_count == EVENTS_MAX) return; /* trace_events_lost tells the caller */
    Event *e = &events[event_count++];
    *e = event;
    snprintf(e->name, sizeof e->name, "%s", name);
}

void trace_begin(const char *format, ...)
{
    if (!recording && !RANGES) return;
    CHECK(depth < DEPTH_MAX);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(open_span[depth].name, sizeof open_span[depth].name, format, arguments);
    va_end(arguments);
    RANGE_PUSH(open_span[depth].name);
    open_span[depth].mark = event_count < EVENTS_MAX ? mark_compute() : -1;
    open_span[depth++].begin = trace_clock();
}

void trace_end(void)
{
    if (!recording && !RANGES) return;
    CHECK(depth > 0);
    depth--;
    RANGE_POP();
    if (!recording) return;
    const char *name = open_span[depth].name;
    int mark = open_span[depth].mark, lane = mark >= 0 ? LANE_HOST : LANE_COMPUTE;
    record(name, (Event){.begin = open_span[depth].begin, .end = trace_clock(), .lane = lane, .mark = -1});
    if (mark >= 0) record(name, (Event){.lane = LANE_COMPUTE, .mark = mark, .mark_end = mark_compute()});
}

void trace_range_begin(const char *format, ...)
{
    if (!RANGES) return;
    char name[40];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    RANGE_PUSH(name);
}

void trace_range_end(void)
{
    RANGE_POP();
}

/* The group's first lane that is free at `begin`; adds a lane if none is. If the table is full, the last lane. */
static int lane_of(const char *group, double begin)
{
    for (int l = LANES_FIXED; l < lane_count; l++)
        if (strcmp(lanes[l].name, group) == 0 && lanes[l].busy_until <= begin) return l;
    if (lane_count == LANES_MAX) return LANES_MAX - 1;
    snprintf(lanes[lane_count].name, sizeof lanes[lane_count].name, "%s", group);
    return lane_count++;
}

void trace_collective(const char *group, const char *kind, size_t bytes, double started)
{
    if (!recording) return;
    double end = trace_clock();
    int lane = lane_of(group, started);
    lanes[lane].busy_until = end;
    record(kind, (Event){.begin = started, .end = end, .lane = lane, .bytes = bytes, .mark = -1});
}

void trace_collective_on_gpu(const char *group, const char *kind, size_t bytes, int begin, int end)
{
    if (!recording) return;
    record(kind, (Event){.lane = lane_of(group, 0), .bytes = bytes, .mark = begin, .mark_end = end});
}

/* --- the events as text --- */

int trace_events_lost(void)
{
    return event_count == EVENTS_MAX ? EVENTS_MAX : 0;
}

static const char *category(int lane)
{
    return lane == LANE_COMPUTE ? "compute" : lane == LANE_HOST ? "host" : "comm";
}

char *trace_text(size_t *length)
{
    char *text, host[64] = "?";
    int rank = process_rank();
    FILE *f = open_memstream(&text, length);
    if (!f) fatal("--trace: no memory");
    gethostname(host, sizeof host - 1);
    fprintf(f, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d on %s\"}},\n", rank,
            rank, host);
    for (int l = 0; l < lane_count; l++)
        if (l != LANE_HOST || marks_on())
            fprintf(f,
                    "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s%s%s\"}},\n",
                    rank, l, category(l), l < LANES_FIXED ? "" : " ", l < LANES_FIXED ? "" : lanes[l].name);
    for (int i = 0; i < event_count; i++) {
        const Event *e = &events[i];
        double begin = e->mark < 0 ? e->begin : mark_time(e->mark), end = e->mark < 0 ? e->end : mark_time(e->mark_end);
        fprintf(f, "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
                e->name, category(e->lane), rank, e->lane, begin * 1e6, (end - begin) * 1e6);
        if (e->lane >= LANES_FIXED) fprintf(f, ",\"args\":{\"bytes\":%zu}", e->bytes);
        fprintf(f, "},\n");
    }
    fclose(f);
    return text;
}
