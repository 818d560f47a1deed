/* Starting and ending a trainer: MPI, flags, threads, watchdog. */
#pragma once

#include "settings/config.h"
#include "comm/mesh.h"

/* Gives this rank's CPU kernels as many threads as its share of the cores. Returns 1 if the launcher bound it to
 * fewer, else 0. */
int run_use_threads(void);

/* [all ranks] Reads the flags of all tables; one table fills `config`. Starts the watchdog, then MPI. With --help or
 * --bug list it prints and exits with status 0. With a wrong flag it exits with status 2. */
void run_start(int argc, char **argv, const char *program, const OptionTable *tables, int count, Config *config);

/* [all ranks] Call just before the first step. Sets the threads, opens --trace, and prints on rank 0 in a few lines
 * what is going to run. */
void run_begin(Config *config, const Mesh *mesh, size_t parameters, int64_t tokens);

/* [all ranks] Writes --trace, ends MPI and returns `status`, for main to return. */
int run_finish(int status);

/* [all ranks] With --step: prints each rank's line in order of rank, then rank 0 waits for Enter. Without --step it
 * does nothing, but the caller has evaluated the arguments. So if an argument waits for the GPU (a loss, a norm),
 * test config->step first. */
void run_pause(const char *format, ...) __attribute__((format(printf, 1, 2)));
