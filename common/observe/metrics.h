/* The line that each step prints, and the same numbers as JSON (--log). */
#pragma once

#include <stdio.h>

#include "settings/config.h"
#include "comm/mesh.h"

typedef struct {
    const Config *config;
    FILE *log;  /* on rank 0, with --log */
    int prints; /* rank 0 */
    int ranks;
    double tokens; /* of one step, over all ranks */
    double last_time, last_sent;
} Metrics;

/* [all ranks] Opens --log and writes its first line, the whole configuration: every flag of all tables, the model's
 * constants, the mesh. Returns NULL or a complaint. */
const char *metrics_open(Metrics *metrics, const Config *config, const OptionTable *tables, int count,
                         const Mesh *mesh);

/* Starts the clock of the first step. */
void metrics_start(Metrics *metrics);

/* Prints the line of step `step` (from 0), and writes it to the log. loss, norm and, with experts, aux are those of all ranks;
 * `area`: (query, key) pairs of the whole step. */
void metrics_step(Metrics *metrics, long step, double loss, double aux, double norm, double lr, int64_t area);

void metrics_close(Metrics *metrics);
