#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"

enum { COMPLAINT_MAX = 4400 }; /* a path, and more */

void fatal(const char *format, ...)
{
    char host[64] = "?", text[1024];
    gethostname(host, sizeof host - 1);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d on %s: %s\n", comm_world_rank(), host, text);
    comm_abort(1);
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

void agree(const char *complaint)
{
    Group *control = comm_control();
    int64_t first = complaint ? group_rank(control) : group_size(control); /* the lowest rank that complains */
    comm_all_reduce(control, &first, 1, COMM_INT64, COMM_MIN);
    if (first == group_size(control)) return;

    char text[COMPLAINT_MAX] = "";
    if (complaint) snprintf(text, sizeof text, "%s", complaint);
    comm_broadcast(control, text, sizeof text, COMM_BYTE, (int)first);
    if (group_rank(control) == 0) fprintf(stderr, "%s\n", text);
    comm_finalize();
    exit(2);
}
