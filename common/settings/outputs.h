/* The files that a run is to write: may it? */
#pragma once

#include "settings/config.h"

/* Before anything is written, on one rank: can each output be written, and is it neither the data, nor another output, nor
 * in a folder of data, where the next run would read it? Returns NULL or a complaint. Touches no file: a run that is
 * refused must leave all as they were. */
const char *outputs_check(const Config *config);

/* On that rank, when nothing else can be refused: makes the files that are not there yet, empty; those that are there stay as
 * they are. Only then may any be overwritten. Returns NULL, or a complaint, with none made. */
const char *outputs_create(const Config *config);
