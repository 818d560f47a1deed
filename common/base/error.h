/* What to do when something is wrong.
 *
 * Two kinds of fault, two ways out:
 *
 *   A rank cannot go on (a library call failed, an invariant broke): fatal() prints one line and aborts every rank.
 *
 *   The user asked for something impossible: each rank finds its own complaint (or none), then all call agree()
 *   (comm/agree.h), which ends the run on all ranks together.
 */
#pragma once

enum { COMPLAINT_MAX = 4400, VALUE_MAX = 350 }; /* bytes of a message, and of each string in it */

/* This process's rank: before comm_init what the launcher says, or 0. */
int process_rank(void);

/* From here on this process is rank `rank` of a job, which `end_job` ends on every rank. */
void error_join_job(int rank, void (*end_job)(int status));

/* Prints "rank R on HOST: ..." to stderr and ends the whole job with status 1. Does not return. */
void fatal(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Formats a complaint into a static buffer, overwritten by the next call. Use: return complain("--steps %d: ...", n);
 * It is one line. Of each string at most VALUE_MAX bytes are shown, and control characters, and bytes that are no UTF-8, as
 * \xNN: what the complaint says of a value is read after it, on any terminal. So too in fatal(). */
const char *complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails with the condition's text, file and line when `condition` does not hold. Stays in every build. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fatal("%s:%d: check failed: %s", __FILE__, __LINE__, #condition);                            \
    } while (0)
