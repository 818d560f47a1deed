#include "comm/agree.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/comm.h"

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
