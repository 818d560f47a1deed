/* Starting and ending a trainer: MPI, flags, threads, watchdog. */
#pragma once

#include "settings/config.h"
#include "comm/mesh.h"

/* Sets the threads of this rank's CPU kernels: its share of the cores. Returns whether the launcher bound it to fewer. */
int run_use_threads(void);

/* [all ranks] Reads the flags of all tables, one of which fills `config`, starts the watchdog, then MPI. --help and --bug
 * list print and exit with status 0, a wrong flag with 2. */
void run_start(int argc, char **argv, const char *program, const OptionTable *tables, int count, Config *config);

/* [all ranks] After the mesh is known: checks the rest of the configuration, sets the threads, says in a few lines on
 * rank 0 what is going to run, and opens --trace. */
void run_begin(Config *config, const Mesh *mesh, size_t parameters, int64_t tokens);

/* [all ranks] Writes --trace, ends MPI and returns `status`, for main to return. */
int run_finish(int status);

/* [all ranks] With --step: prints each rank's line in order of rank, then waits for Enter at rank 0. Else nothing; but its
 * arguments are evaluated, so where one of them waits for the GPU (a loss, a norm), ask config->step first. */
void run_pause(const char *format, ...) __attribute__((format(printf, 1, 2)));
