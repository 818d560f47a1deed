#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank = -1; /* not known yet */
static void (*end_job)(int status);

void error_join_job(int rank_, void (*end_job_)(int status))
{
    rank = rank_;
    end_job = end_job_;
}

int process_rank(void)
{
    if (rank >= 0) return rank;
    const char *launcher = getenv("OMPI_COMM_WORLD_RANK");
    return launcher ? atoi(launcher) : 0;
}

void fatal(const char *format, ...)
{
    char host[64] = "?", text[1024];
    gethostname(host, sizeof host - 1);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d on %s: %s\n", process_rank(), host, text);
    if (end_job) end_job(1);
    exit(1);
}

const char *complain(const char *format, ...)
{
    static char text[COMPLAINT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' '; /* a name may hold them; a complaint is one line */
    return text;
}
