/* Errors. There are two kinds, and a way to end the run for each:
 *
 *   A rank cannot go on (a library call failed, an invariant broke): fatal() prints one line and aborts every rank.
 *
 *   The user asked for something impossible: each rank finds its own complaint (or none), then all call agree()
 *   (comm/agree.h), which ends the run on all ranks together.
 */
#pragma once

enum { COMPLAINT_MAX = 4400, VALUE_MAX = 350 }; /* bytes of a message, and of each string in it */

/* This process's rank. Before comm_init it is the one that the launcher's environment gives, or 0. */
int process_rank(void);

/* Tells this module that the process is rank `rank` of a job, and that end_job(status) ends the job on every rank. */
void error_join_job(int rank, void (*end_job)(int status));

/* Prints "rank R on HOST: ..." to stderr and ends the whole job with status 1. Does not return. */
void fatal(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Formats a complaint into a static buffer, which the next call overwrites. Use: return complain("--steps %d: ...", n);
 * The complaint is one line that any terminal can print, like that of fatal(). At most VALUE_MAX bytes of each string
 * are shown, so the rule after a long value is still read. Control bytes, and bytes that are not UTF-8, are shown as
 * \xNN. */
const char *complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Calls fatal() with file, line and the condition's text if `condition` is false. It is active in every build. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fatal("%s:%d: check failed: %s", __FILE__, __LINE__, #condition);                            \
    } while (0)
